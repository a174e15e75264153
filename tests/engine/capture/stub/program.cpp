// A program of a user: launches kernels through the stub driver. argv[1] says what it does beside that.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

extern "C" void stub_capture(int on);

static CUfunction function(const char* name) {
    CUfunction found = nullptr;
    cuModuleGetFunction(&found, nullptr, name);
    return found;
}

static CUdeviceptr filled(int n) {
    std::vector<float> values(n);
    for (int i = 0; i < n; i++) values[i] = 0.5f * float(i % 7) - 1;
    CUdeviceptr p;
    cuMemAlloc(&p, 4 * n);
    cuMemcpyHtoD(p, values.data(), 4 * n);
    return p;
}

static void scale(int n, int times, bool packed) {
    CUdeviceptr x = filled(n), y;
    cuMemAlloc(&y, 4 * n);
    float f = 3.0f;
    void* arguments[] = {&x, &y, &n, &f};
    struct {
        CUdeviceptr x, y;
        int n;
        float f;
    } buffer{x, y, n, f};
    size_t size = sizeof buffer;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    for (int i = 0; i < times; i++)
        cuLaunchKernel(function("_Z5scalePKfPfif"), (n + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, packed ? nullptr : arguments,
                       packed ? extra : nullptr);
}

int main(int argc, char** argv) {
    std::string mode = argc > 1 ? argv[1] : "plain";
    cuInit(0);
    if (mode == "graph") stub_capture(1);
    scale(1000, 20, false);
    scale(5000, 4, mode == "packed");
    stub_capture(0);
    CUdeviceptr x = filled(100), rows;
    struct {
        CUdeviceptr data;
        int n;
    } pair{x, 100};
    void* arguments[] = {&pair};
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1, config.blockDimX = 128;
    cuLaunchKernelEx(&config, function("_Z5clear4Pair"), arguments, nullptr);
    CUdeviceptr pointers[] = {x, x};
    cuMemAlloc(&rows, sizeof pointers);
    cuMemcpyHtoD(rows, pointers, sizeof pointers);
    int n = 2;
    void* gathered[] = {&rows, &n};
    cuLaunchCooperativeKernel(function("gather"), 1, 1, 1, 32, 1, 1, 0, nullptr, gathered);
    if (mode == "fork") {
        if (fork() == 0) {
            scale(9000, 1, false);
            exit(0);
        }
        int status;
        wait(&status);
    }
    if (mode == "overwrite") {
        std::string folder = getenv("OPTIML_CAPTURE_DIR"), me = std::to_string(getpid());
        std::ofstream(folder + "/launches-" + me + ".jsonl", std::ios::app) << "{\"kernel\": [[[[\n";
        std::ofstream(folder + "/times-7.jsonl") << std::string(100, '[');
    }
    if (mode == "hang") sleep(600);
    if (mode == "segfault") abort();
    return mode == "fail" ? 3 : 0;
}
