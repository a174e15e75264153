// Loaded by the CUDA driver of the user's program (CUDA_INJECTION64_PATH): records how its kernels are launched.
//
// Without OPTIML_CAPTURE_PLAN: activity records of every kernel, summed by kernel and launch (times-PID.jsonl). With it: the
// launches that the plan names, with their arguments and what their buffers contain before and after (launches-PID.jsonl and
// PID-N.bin). Both go to OPTIML_CAPTURE_DIR, with notes-PID.jsonl for what could not be recorded. Strings are written in
// hexadecimal, so that no name needs escaping.
//
// CUPTI is opened at run time from OPTIML_CAPTURE_CUPTI and the driver is the one already loaded: nothing is linked, so the
// program's own copy of CUPTI, where it has one, is the one that is used.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "record_lines.h"

namespace {

constexpr size_t kActivityBytes = 4 << 20;
constexpr size_t kChunkBytes = 16 << 20;
constexpr size_t kMaxConfigs = 20000;      // distinct launches in one table; the rest are counted together
constexpr size_t kMaxParameters = 4096;    // CUDA's own limit is below
constexpr size_t kMaxArgumentBytes = 32764;
constexpr size_t kScannedWords = 4096;     // of a buffer, for pointers
constexpr int kMaxInner = 64;              // words that are looked up at most
constexpr uint64_t kLowestAddress = 0x10000;

// ---- what is opened at run time

struct Cupti {
    decltype(&cuptiSubscribe) subscribe;
    decltype(&cuptiEnableCallback) enable_callback;
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
    decltype(&cuptiActivityEnable) activity_enable;
    decltype(&cuptiActivityFlushAll) flush_all;
    decltype(&cuptiActivityGetNextRecord) next_record;
    decltype(&cuptiActivityGetNumDroppedRecords) dropped;
    decltype(&cuptiGetVersion) version;
} cupti;

struct Driver {
    CUresult (*func_name)(const char**, CUfunction);
    CUresult (*kernel_name)(const char**, CUkernel);
    CUresult (*func_param)(CUfunction, size_t, size_t*, size_t*);
    CUresult (*kernel_param)(CUkernel, size_t, size_t*, size_t*);
    CUresult (*pointer_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
    CUresult (*address_range)(CUdeviceptr*, size_t*, CUdeviceptr);
    CUresult (*copy_to_host)(void*, CUdeviceptr, size_t);
    CUresult (*synchronize)();
    CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*);
    CUresult (*exchange_mode)(CUstreamCaptureMode*);
} driver;

template <typename F>
bool find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
}

// ---- the recording as a whole

// Never destroyed: CUPTI's threads and ours may still run while the program's exit does.
std::string& folder = *new std::string;
pid_t owner;
std::mutex state;                // of everything below but `recording`
thread_local bool inside = false;  // our own driver calls come back as callbacks

bool ours() { return getpid() == owner; }  // a forked child has our memory and not our files

std::string path(const std::string& kind) { return folder + "/" + kind + "-" + std::to_string(owner) + ".jsonl"; }

// A line that explains what is not in the recording: a code, and text or a number with it.
void note(const std::string& what, const std::string& detail) {
    std::ofstream out(path("notes"), std::ios::app);
    out << "{\"note\":" << hex(what) << ",\"detail\":" << hex(detail) << "}\n";
}

// Names of mapped libraries of other tools that subscribe to CUPTI.
std::string other_tools() {
    std::ifstream maps("/proc/self/maps");
    std::string line, found;
    while (std::getline(maps, line)) {
        size_t slash = line.find('/');
        if (slash == std::string::npos) continue;
        std::string file = line.substr(slash), name = file.substr(file.rfind('/') + 1);
        for (const char* sign : {"nsight", "nsys", "ToolsInjection", "InterceptorInjection", "sanitizer", "pcsampling"})
            if (file.find(sign) != std::string::npos && found.find(name) == std::string::npos && found.size() < 400)
                found += (found.empty() ? "" : ", ") + name;
    }
    return found;
}

// ---- pass 1: times

std::map<Config_, Total>& totals = *new std::map<Config_, Total>;
uint64_t not_kept = 0, dropped_records = 0;

void add(const CUpti_ActivityKernel10& k) {
    Config_ config{k.name ? k.name : "", {uint32_t(k.gridX), uint32_t(k.gridY), uint32_t(k.gridZ)},
                  {uint32_t(k.blockX), uint32_t(k.blockY), uint32_t(k.blockZ)}, uint32_t(k.dynamicSharedMemory)};
    auto at = totals.find(config);
    if (at == totals.end()) {
        if (totals.size() >= kMaxConfigs) {
            not_kept++;
            return;
        }
        at = totals.emplace(std::move(config), Total{}).first;
    }
    Total& total = at->second;
    total.add(k.end > k.start ? k.end - k.start : 0);
    total.in_graphs += k.graphId != 0;
    total.registers = k.registersPerThread;
    total.static_shared = uint32_t(k.staticSharedMemory);
}

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kActivityBytes));
    *size = *buffer ? kActivityBytes : 0;
    *most_records = 0;
}

void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
    CUpti_Activity* record = nullptr;
    std::lock_guard<std::mutex> lock(state);
    while (valid && cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS)
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL)
            add(*reinterpret_cast<CUpti_ActivityKernel10*>(record));
    size_t lost = 0;
    if (cupti.dropped(context, stream, &lost) == CUPTI_SUCCESS) dropped_records += lost;
    std::free(buffer);
}

void write_times(bool ended) {
    std::string target = path("times"), temporary = target + ".new";
    {
        std::lock_guard<std::mutex> lock(state);
        std::ofstream out(temporary, std::ios::trunc);
        for (const auto& [config, total] : totals) write_total(out, config, total);
        write_end(out, ended, dropped_records, not_kept);
    }
    std::rename(temporary.c_str(), target.c_str());
}

void flush_at_exit() {
    if (!ours()) return;
    cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    write_times(true);
}

// What is complete is written every two seconds, so that a program that is killed leaves its times.
void flush_now_and_then() {
    for (;;) {
        sleep(2);
        if (!ours()) return;
        cupti.flush_all(0);
        write_times(false);
    }
}

// ---- pass 2: launches

struct Launch {
    const char* call;
    CUfunction function;
    Triple grid, block, cluster{};
    uint32_t shared;
    CUstream stream;
    bool per_thread_stream;
    void** parameters;
    void** extra;
    uint32_t correlation;
    bool building_graph = false;
};

std::map<Config_, uint64_t>& plan = *new std::map<Config_, uint64_t>;  // which occurrence of the launch is recorded
std::map<Config_, uint64_t>& seen = *new std::map<Config_, uint64_t>;
uint64_t left_bytes, buffer_bytes, files = 0;
bool failed = false;                      // the context is broken: nothing more can be read
std::mutex recording;                     // held from the entry to the exit of a recorded launch

struct Pending {
    Launch launch;
    Record record;
};
thread_local Pending* current = nullptr;

std::string name_of(CUfunction function) {
    const char* name = nullptr;
    if (driver.func_name && driver.func_name(&name, function) == CUDA_SUCCESS && name) return name;
    if (driver.kernel_name && driver.kernel_name(&name, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS && name)
        return name;
    return "";
}

// Offset and size of a parameter; false after the last. A handle may be a CUkernel.
bool parameter(CUfunction function, size_t index, size_t& offset, size_t& size) {
    if (driver.func_param && driver.func_param(function, index, &offset, &size) == CUDA_SUCCESS) return true;
    return driver.kernel_param &&
           driver.kernel_param(reinterpret_cast<CUkernel>(function), index, &offset, &size) == CUDA_SUCCESS;
}

bool find_memory(uint64_t address, Pointer& found) {
    if (address < kLowestAddress) return false;
    uint64_t type = 0, managed = 0, start = 0, size = 0;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* values[] = {&type, &managed, &start, &size};
    if (driver.pointer_attributes(4, wanted, values, address) != CUDA_SUCCESS || uint32_t(type) == 0) return false;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    if (driver.address_range(&base, &bytes, address) == CUDA_SUCCESS && bytes) start = base, size = bytes;
    if (address < start || address - start > size) return false;
    found.memory = (managed & 0xff) ? "managed" : uint32_t(type) == CU_MEMORYTYPE_HOST ? "host" : "device";
    found.address = address, found.allocation = size, found.offset = address - start;
    return true;
}

int count_addresses(const std::vector<char>& data) {
    int found = 0, asked = 0;
    for (size_t i = 0; i + 8 <= data.size() && i < 8 * kScannedWords && asked < kMaxInner; i += 8) {
        uint64_t word;
        std::memcpy(&word, data.data() + i, 8);
        if (word < (1ull << 32) || word >> 48 || word % 2) continue;
        Pointer unused{};
        asked++;
        found += find_memory(word, unused);
    }
    return found;
}

// Copies up to `bytes` of GPU memory to a new file; returns its name and sets `bytes` to what was copied.
std::string save(uint64_t address, uint64_t& bytes, int* inner) {
    std::string name = std::to_string(owner) + "-" + std::to_string(files++) + ".bin";
    std::ofstream out(folder + "/" + name, std::ios::binary | std::ios::trunc);
    std::vector<char> chunk;
    uint64_t done = 0;
    size_t step = kChunkBytes;
    while (done < bytes && out) {
        size_t count = std::min<uint64_t>(step, bytes - done);
        chunk.resize(count);
        if (driver.copy_to_host(chunk.data(), address + done, count) != CUDA_SUCCESS) {
            if (step < 4096) break;  // the end of an address range may have no memory behind it
            step /= 4;
            continue;
        }
        if (inner && done == 0) *inner = count_addresses(chunk);
        out.write(chunk.data(), std::streamsize(count));
        done += count;
    }
    bytes = out ? done : 0;
    return name;
}

void read_arguments(const Launch& launch, Record& record) {
    const char* packed = nullptr;
    size_t packed_bytes = 0;
    for (void** e = launch.extra; e && *e != CU_LAUNCH_PARAM_END; e += 2) {
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const char*>(e[1]);
        if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) packed_bytes = *static_cast<size_t*>(e[1]);
    }
    size_t offset = 0, size = 0;
    for (size_t i = 0; i < kMaxParameters && parameter(launch.function, i, offset, size); i++) {
        if (size > kMaxArgumentBytes) break;
        const char* from = packed ? (offset + size <= packed_bytes ? packed + offset : nullptr)
                                  : launch.parameters ? static_cast<const char*>(launch.parameters[i]) : nullptr;
        if (!from) {
            record.contents = "arguments";
            return;
        }
        Argument argument{offset, size, std::string(from, size), {}};
        for (size_t at = 0; at + 8 <= size; at += 8) {
            uint64_t word;
            std::memcpy(&word, from + at, 8);
            Pointer pointer{};
            pointer.at = at;
            if (find_memory(word, pointer)) argument.pointers.push_back(pointer);
        }
        record.arguments.push_back(std::move(argument));
    }
}

template <typename Work>
void for_each_pointer(Record& record, Work work) {
    for (Argument& argument : record.arguments)
        for (Pointer& pointer : argument.pointers) work(pointer);
}

// Whether the device is idle and can be read; relaxed, so that a graph that another thread builds is left alone.
bool quiet() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (driver.exchange_mode) driver.exchange_mode(&mode);
    bool idle = driver.synchronize() == CUDA_SUCCESS;
    if (driver.exchange_mode) driver.exchange_mode(&mode);
    failed = failed || !idle;
    return idle;
}

bool wanted(const std::string& name, const Launch& launch) {
    Config_ config{name, launch.grid, launch.block, launch.shared};
    std::lock_guard<std::mutex> lock(state);
    auto at = plan.find(config);
    return at != plan.end() && seen[config]++ == at->second;
}

void before_launch(const Launch& launch) {
    if (current) return;
    std::string name = name_of(launch.function);
    if (failed || !wanted(name, launch)) {
        if (launch.building_graph) return;
        std::lock_guard<std::mutex> wait(recording);  // another thread's launch is being recorded: its buffers must not change
        return;
    }
    recording.lock();
    current = new Pending{launch, {name, launch.call, "", launch.grid, launch.block, launch.cluster, launch.shared, {}}};
    Record* record = &current->record;
    read_arguments(launch, *record);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstream stream = launch.per_thread_stream && !launch.stream ? CU_STREAM_PER_THREAD : launch.stream;
    if (launch.building_graph ||
        (driver.is_capturing && driver.is_capturing(stream, &capturing) == CUDA_SUCCESS && capturing != 0))
        record->contents = "graph";
    else if (record->contents.empty() && !quiet())
        record->contents = "failed";
    if (record->contents.empty())
        for_each_pointer(*record, [](Pointer& p) {
            p.recorded = std::min({p.allocation - p.offset, buffer_bytes, left_bytes / 2});
            if (!p.recorded) return;
            p.before = save(p.address, p.recorded, &p.inner);
            left_bytes -= 2 * p.recorded;
        });
}

void after_launch(CUresult result, uint32_t correlation) {
    Pending* pending = current;
    if (!pending || pending->launch.correlation != correlation) return;
    current = nullptr;
    Record* record = &pending->record;
    if (result == CUDA_SUCCESS) {
        if (record->contents.empty() && !quiet()) record->contents = "failed";
        if (record->contents.empty())
            for_each_pointer(*record, [](Pointer& p) {
                uint64_t bytes = p.recorded;
                if (bytes) p.after = save(p.address, bytes, nullptr);
                p.recorded = std::min(p.recorded, bytes);
            });
        std::ofstream out(path("launches"), std::ios::app);
        write_launch(out, *record);
    }
    delete pending;
    recording.unlock();
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId id, const void* given) {
    if (inside || !ours()) return;
    const auto* call = static_cast<const CUpti_CallbackData*>(given);
    inside = true;
    if (call->callbackSite == CUPTI_API_EXIT) {
        after_launch(*static_cast<CUresult*>(call->functionReturnValue), call->correlationId);
    } else if (id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx || id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz) {
        const auto* p = static_cast<const cuLaunchKernelEx_params*>(call->functionParams);
        const CUlaunchConfig& c = *p->config;
        Launch launch{call->functionName, p->f, {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ},
                      {}, c.sharedMemBytes, c.hStream, id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz, p->kernelParams, p->extra,
                      call->correlationId};
        for (unsigned i = 0; c.attrs && i < c.numAttrs; i++)
            if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
                launch.cluster = {c.attrs[i].value.clusterDim.x, c.attrs[i].value.clusterDim.y, c.attrs[i].value.clusterDim.z};
        before_launch(launch);
    } else if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphAddKernelNode_v2) {
        const auto* p = static_cast<const cuGraphAddKernelNode_v2_params*>(call->functionParams);
        const CUDA_KERNEL_NODE_PARAMS& n = *p->nodeParams;
        CUfunction function = n.func ? n.func : reinterpret_cast<CUfunction>(n.kern);
        before_launch({call->functionName, function, {n.gridDimX, n.gridDimY, n.gridDimZ}, {n.blockDimX, n.blockDimY, n.blockDimZ},
                       {}, n.sharedMemBytes, nullptr, false, n.kernelParams, n.extra, call->correlationId, true});
    } else if (id == CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel ||
               id == CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz) {
        const auto* p = static_cast<const cuLaunchCooperativeKernel_params*>(call->functionParams);
        before_launch({call->functionName, p->f, {p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ},
                       {}, p->sharedMemBytes, p->hStream, id == CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
                       p->kernelParams, nullptr, call->correlationId});
    } else {
        const auto* p = static_cast<const cuLaunchKernel_params*>(call->functionParams);
        before_launch({call->functionName, p->f, {p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ},
                       {}, p->sharedMemBytes, p->hStream, id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, p->kernelParams, p->extra,
                       call->correlationId});
    }
    inside = false;
}

// One launch a line: the name in hexadecimal, grid, block, dynamic shared memory, and which occurrence is recorded.
void read_plan(const char* file) {
    std::ifstream in(file);
    std::string digits;
    Triple g, b;
    uint32_t shared;
    uint64_t occurrence;
    while (in >> digits >> g[0] >> g[1] >> g[2] >> b[0] >> b[1] >> b[2] >> shared >> occurrence) {
        std::string name;
        for (size_t i = 0; i + 1 < digits.size(); i += 2) name += char(std::stoi(digits.substr(i, 2), nullptr, 16));
        plan[Config_{name, g, b, shared}] = occurrence;
    }
}

uint64_t number(const char* variable, uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

bool open_cupti() {
    const char* file = std::getenv("OPTIML_CAPTURE_CUPTI");
    if (!file) return false;
    const char* slash = std::strrchr(file, '/');
    void* library = dlopen(slash ? slash + 1 : file, RTLD_NOW | RTLD_NOLOAD);  // the program's own, where it has one
    if (!library) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        note("cupti", dlerror());
        return false;
    }
    bool found = find(library, "cuptiSubscribe", cupti.subscribe) && find(library, "cuptiEnableCallback", cupti.enable_callback) &&
                 find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks) &&
                 find(library, "cuptiActivityEnable", cupti.activity_enable) &&
                 find(library, "cuptiActivityFlushAll", cupti.flush_all) &&
                 find(library, "cuptiActivityGetNextRecord", cupti.next_record) &&
                 find(library, "cuptiActivityGetNumDroppedRecords", cupti.dropped) && find(library, "cuptiGetVersion", cupti.version);
    uint32_t version = 0;
    if (found) cupti.version(&version);
    bool fits = version / 10000 == CUPTI_API_VERSION / 10000;
    if (!fits) note("cupti", std::string(file) + ": version " + std::to_string(version));
    return fits;
}

bool open_driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    bool found = library && find(library, "cuPointerGetAttributes", driver.pointer_attributes) &&
                 find(library, "cuMemGetAddressRange_v2", driver.address_range) &&
                 find(library, "cuMemcpyDtoH_v2", driver.copy_to_host) && find(library, "cuCtxSynchronize", driver.synchronize);
    if (!found) {
        note("driver", "libcuda.so.1");
        return false;
    }
    find(library, "cuFuncGetName", driver.func_name), find(library, "cuKernelGetName", driver.kernel_name);
    find(library, "cuFuncGetParamInfo", driver.func_param), find(library, "cuKernelGetParamInfo", driver.kernel_param);
    find(library, "cuStreamIsCapturing", driver.is_capturing);
    find(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_mode);
    if (!driver.func_param && !driver.kernel_param) note("layout", "");
    return driver.func_param || driver.kernel_param;
}

void start_times() {
    CUptiResult result = cupti.register_callbacks(buffer_requested, buffer_completed);
    if (result == CUPTI_SUCCESS) result = cupti.activity_enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (result != CUPTI_SUCCESS) {
        note(std::to_string(int(result)), other_tools());
        return;
    }
    write_times(false);
    std::atexit(flush_at_exit);
    std::thread(flush_now_and_then).detach();
}

void start_launches(const char* file) {
    read_plan(file);
    CUpti_SubscriberHandle subscriber;
    CUptiResult result = cupti.subscribe(&subscriber, on_call, nullptr);
    if (result != CUPTI_SUCCESS) {
        note(std::to_string(int(result)), other_tools());
        return;
    }
    for (CUpti_CallbackId id : {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
                                CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
                                CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
                                CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
                                CUPTI_DRIVER_TRACE_CBID_cuGraphAddKernelNode_v2})
        cupti.enable_callback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    std::ofstream(path("launches"), std::ios::app);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    const char* where = std::getenv("OPTIML_CAPTURE_DIR");
    if (!where || owner) return 1;
    folder = where, owner = getpid();
    left_bytes = number("OPTIML_CAPTURE_BYTES", 1ull << 30);
    buffer_bytes = number("OPTIML_CAPTURE_BUFFER_BYTES", 16ull << 20);
    const char* file = std::getenv("OPTIML_CAPTURE_PLAN");
    if (!open_cupti()) return 1;
    if (!file) start_times();
    else if (open_driver()) start_launches(file);
    return 1;
}
