// Batched tridiagonal solver (Thomas algorithm, no pivoting), single precision, interleaved storage: row i of system s lies at
// [i * pitch + s], pitch >= batch. Row 0 of `sub` and everything in columns batch..pitch-1 is never read, callers leave them
// uninitialised. On return `rhs` holds the solutions and `work` the eliminated super-diagonal, which the adjoint solve reuses.
// n >= 1, batch >= 1. A singular leading block shows as Inf/NaN in the solution, as the callers expect.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// optiml: args.sub = { role = "in", size = "n*pitch", fill = { kind = "uniform", low = -1, high = 1 } }
// optiml: args.diag = { role = "in", size = "n*pitch", fill = { kind = "uniform", low = 3, high = 5 } }
// optiml: args.sup = { role = "in", size = "n*pitch", fill = { kind = "uniform", low = -1, high = 1 } }
// optiml: args.rhs = { role = "inout", size = "n*pitch", fill = "normal" }
// optiml: args.work = { role = "inout", size = "n*pitch", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ n = 1, batch = 1, pitch = 1 }, { n = 2, batch = 5, pitch = 8 }, { n = 17, batch = 131, pitch = 131 }, { n = 33, batch = 64, pitch = 96 }, { n = 7, batch = 259, pitch = 264 }]
// optiml: time = [{ n = 256, batch = 65536, pitch = 65536 }]
__global__ void thomas_kernel(const float* sub, const float* diag, const float* sup, float* rhs, float* work, int n, int batch,
                              int pitch) {
    const int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= batch) return;
    float m = diag[s];
    float c = sup[s] / m;
    float d = rhs[s] / m;
    work[s] = c;
    rhs[s] = d;
    for (int i = 1; i < n; ++i) {
        const size_t k = (size_t)i * pitch + s;
        const float a = sub[k];
        m = diag[k] - a * c;
        d = (rhs[k] - a * d) / m;
        c = sup[k] / m;
        work[k] = c;
        rhs[k] = d;
    }
    for (int i = n - 2; i >= 0; --i) {
        const size_t back = (size_t)i * pitch + s;
        d = rhs[back] - work[back] * d;
        rhs[back] = d;
    }
}

void thomas_solve(const float* sub, const float* diag, const float* sup, float* rhs, float* work, int n, int batch, int pitch,
                  cudaStream_t stream) {
    constexpr int threads = 128;
    thomas_kernel<<<(batch + threads - 1) / threads, threads, 0, stream>>>(sub, diag, sup, rhs, work, n, batch, pitch);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "thomas_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
