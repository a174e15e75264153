// A driver and a CUPTI of ours that do what the capture library calls, without a GPU: "device" memory is the host's, kernels are
// C++ functions, launches call back and leave activity records. cuInit loads CUDA_INJECTION64_PATH as the driver does.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

struct Function {
    std::string name;
    std::vector<std::pair<size_t, size_t>> layout;  // offset, size
    void (*run)(char* packed, unsigned blocks, unsigned threads);
    bool is_kernel;  // the handle is a CUkernel: cuFunc* fail
};

template <typename T>
T at(char* packed, size_t offset) {
    T value;
    std::memcpy(&value, packed + offset, sizeof value);
    return value;
}

void scale(char* p, unsigned, unsigned) {  // scale(const float* x, float* y, int n, float f)
    auto *x = at<float*>(p, 0), *y = at<float*>(p, 8);
    for (int i = 0; i < at<int>(p, 16); i++) y[i] = at<float>(p, 20) * x[i];
}

struct Pair {
    float* data;
    int n;
};

void clear(char* p, unsigned, unsigned) {  // clear(Pair p)
    Pair pair = at<Pair>(p, 0);
    std::memset(pair.data, 0, 4 * pair.n);
}

void gather(char*, unsigned, unsigned) {}  // gather(float** rows, int n)

Function functions[] = {
    {"_Z5scalePKfPfif", {{0, 8}, {8, 8}, {16, 4}, {20, 4}}, scale, false},
    {"_Z5clear4Pair", {{0, 16}}, clear, true},
    {"gather", {{0, 8}, {8, 4}}, gather, true},
};

std::map<CUdeviceptr, size_t> memory;
std::set<CUpti_CallbackId> enabled;
CUpti_CallbackFunc callback = nullptr;
CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
bool activity = false, capturing = false;
std::vector<CUpti_ActivityKernel10> records;
uint32_t correlation = 0;

void call_back(CUpti_CallbackId id, CUpti_ApiCallbackSite site, const char* name, const void* params, CUresult* result, uint32_t number) {
    if (!callback || !enabled.count(id)) return;
    CUpti_CallbackData data{};
    data.callbackSite = site, data.functionName = name, data.functionParams = params;
    data.functionReturnValue = result, data.correlationId = number;
    callback(nullptr, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}

CUresult launch(CUpti_CallbackId id, const char* name, const void* params, CUfunction f, const unsigned (&g)[3], const unsigned (&b)[3],
                unsigned shared, void** arguments, void** extra) {
    uint32_t number = ++correlation;
    CUresult result = CUDA_SUCCESS;
    call_back(id, CUPTI_API_ENTER, name, params, nullptr, number);
    auto* function = reinterpret_cast<Function*>(f);
    char packed[256] = {};
    for (size_t i = 0; i < function->layout.size(); i++) {
        auto [offset, size] = function->layout[i];
        std::memcpy(packed + offset, arguments ? arguments[i] : static_cast<char*>(extra[1]) + offset, size);
    }
    if (!capturing) function->run(packed, g[0], b[0]);
    if (activity) {
        CUpti_ActivityKernel10 k{};
        k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        k.name = function->name.c_str();
        k.gridX = g[0], k.gridY = g[1], k.gridZ = g[2], k.blockX = b[0], k.blockY = b[1], k.blockZ = b[2];
        k.dynamicSharedMemory = shared, k.start = 1000 * number, k.end = k.start + 10 * g[0], k.registersPerThread = 24;
        k.graphId = capturing;
        records.push_back(k);
    }
    call_back(id, CUPTI_API_EXIT, name, params, &result, number);
    return result;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
    const char* path = std::getenv("CUDA_INJECTION64_PATH");
    void* library = path ? dlopen(path, RTLD_NOW) : nullptr;
    auto* start = library ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection")) : nullptr;
    if (start) start();
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t bytes) {
    *p = reinterpret_cast<CUdeviceptr>(std::calloc(1, bytes));
    memory[*p] = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
}

// As in a driver that launches a kernel of its own here: the launch calls back into the library that is copying.
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    cuLaunchKernel_params again{};
    again.f = reinterpret_cast<CUfunction>(&functions[0]);
    call_back(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_API_ENTER, "cuLaunchKernel", &again, nullptr, 0);
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr p) {
    auto after = memory.upper_bound(p);
    if (after == memory.begin() || p >= (--after)->first + after->second) return CUDA_ERROR_NOT_FOUND;
    *base = after->first, *size = after->second;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* wanted, void** values, CUdeviceptr p) {
    CUdeviceptr base = 0;
    size_t size = 0;
    bool known = cuMemGetAddressRange_v2(&base, &size, p) == CUDA_SUCCESS;
    for (unsigned i = 0; known && i < count; i++)
        if (wanted[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *static_cast<unsigned*>(values[i]) = CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return std::getenv("STUB_BROKEN") ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

void stub_capture(int on) { capturing = on; }

CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) {
    for (Function& each : functions)
        if (each.name == name) *f = reinterpret_cast<CUfunction>(&each);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction f) {
    auto* function = reinterpret_cast<Function*>(f);
    if (function->is_kernel) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel f) {
    *name = reinterpret_cast<Function*>(f)->name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel f, size_t index, size_t* offset, size_t* size) {
    auto& layout = reinterpret_cast<Function*>(f)->layout;
    if (index >= layout.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = layout[index].first, *size = layout[index].second;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t* offset, size_t* size) {
    if (reinterpret_cast<Function*>(f)->is_kernel) return CUDA_ERROR_INVALID_HANDLE;
    return cuKernelGetParamInfo(reinterpret_cast<CUkernel>(f), index, offset, size);
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
    cuLaunchKernel_params p{f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra};
    return launch(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", &p, f, {gx, gy, gz}, {bx, by, bz}, shared, arguments, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** arguments, void** extra) {
    cuLaunchKernelEx_params p{c, f, arguments, extra};
    return launch(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, "cuLaunchKernelEx", &p, f, {c->gridDimX, c->gridDimY, c->gridDimZ},
                  {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                   unsigned shared, CUstream stream, void** arguments) {
    cuLaunchCooperativeKernel_params p{f, gx, gy, gz, bx, by, bz, shared, stream, arguments};
    return launch(CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", &p, f, {gx, gy, gz}, {bx, by, bz},
                  shared, arguments, nullptr);
}

CUptiResult cuptiGetVersion(uint32_t* version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc function, void*) {
    if (std::getenv("STUB_SUBSCRIBED")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    callback = function;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId id) {
    enabled.insert(id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc a, CUpti_BuffersCallbackCompleteFunc b) {
    request = a, complete = b;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind) {
    activity = true;
    return std::getenv("STUB_FORBIDDEN") ? CUPTI_ERROR_INSUFFICIENT_PRIVILEGES : CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0;
    request(&buffer, &size, &most);
    std::vector<CUpti_ActivityKernel10> ready;
    ready.swap(records);
    size_t bytes = ready.size() * sizeof ready[0];
    std::memcpy(buffer, ready.data(), bytes);
    complete(nullptr, 0, buffer, size, bytes);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
    uint8_t* next = *record ? reinterpret_cast<uint8_t*>(*record) + sizeof(CUpti_ActivityKernel10) : buffer;
    if (next + sizeof(CUpti_ActivityKernel10) > buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* count) {
    *count = 0;
    return CUPTI_SUCCESS;
}

}
