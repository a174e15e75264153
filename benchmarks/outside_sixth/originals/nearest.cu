// Nearest valid reference of each query by squared Euclidean distance, one block a query. Distances are summed in double, because
// embeddings have up to a million dimensions and features differ much in scale (time stamps beside ratios). Any non-zero byte marks a
// valid reference.
// Of equally near ones the lowest index wins. References at a NaN or infinite distance are never chosen; without any candidate the
// index is -1 and the distance -1. nr <= 2^30.
#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128;

// optiml: args.query = { role = "in", size = "nq*dim", fill = "normal" }
// optiml: args.refs = { role = "in", size = "nr*dim", fill = "normal" }
// optiml: args.valid = { role = "in", size = "nr", fill = { kind = "integers", low = 0, high = 2 } }
// optiml: args.index = { role = "out", size = "nq" }
// optiml: args.dist = { role = "out", size = "nq" }
// optiml: check = [{ nq = 1, nr = 3, dim = 1 }, { nq = 5, nr = 129, dim = 7 }, { nq = 3, nr = 300, dim = 33 }, { nq = 9, nr = 40, dim = 16 }]
// optiml: time = [{ nq = 2048, nr = 4096, dim = 128 }]
__global__ void nearest_kernel(const float* query, const float* refs, const unsigned char* valid, int* index, float* dist, int nr,
                               int dim) {
    __shared__ double best_of[THREADS];
    __shared__ int index_of[THREADS];
    const int t = threadIdx.x;
    const float* q = query + (size_t)blockIdx.x * dim;
    double best = 1e300;
    int best_i = INT_MAX;
    for (int r = t; r < nr; r += THREADS) {
        if (!valid[r]) continue;
        const float* p = refs + (size_t)r * dim;
        double s = 0.0;
        for (int k = 0; k < dim; ++k) {
            const double diff = (double)q[k] - (double)p[k];
            s += diff * diff;
        }
        if (s < best) {
            best = s;
            best_i = r;
        }
    }
    best_of[t] = best;
    index_of[t] = best_i;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half) {
            const double other = best_of[t + half];
            const int other_i = index_of[t + half];
            if (other < best_of[t] || (other == best_of[t] && other_i < index_of[t])) {
                best_of[t] = other;
                index_of[t] = other_i;
            }
        }
        __syncthreads();
    }
    if (t == 0) {
        const bool none = index_of[0] == INT_MAX;
        index[blockIdx.x] = none ? -1 : index_of[0];
        dist[blockIdx.x] = none ? -1.0f : (float)best_of[0];
    }
}

void nearest(const float* query, const float* refs, const unsigned char* valid, int* index, float* dist, int nq, int nr, int dim) {
    nearest_kernel<<<nq, THREADS>>>(query, refs, valid, index, dist, nr, dim);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "nearest_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
