// Brute-force matching of binary descriptors: for every query the nearest descriptor of the training set (the first one of several
// equally near), its distance and the distance of the second nearest, for the ratio test.
#include <cuda_runtime.h>

#include <climits>
#include <stdexcept>

struct Match {
    int index;
    int distance;
    int second;
};

// optiml: args.query = { role = "in", size = "queries*words", fill = { kind = "integers", low = 0, high = 4000000000 } }
// optiml: args.train = { role = "in", size = "trains*words", fill = { kind = "integers", low = 0, high = 4000000000 } }
// optiml: args.out = { role = "out", size = "queries", type = "int[3]" }
// optiml: check = [{ queries = 1, trains = 1, words = 8 }, { queries = 37, trains = 50, words = 8 }, { queries = 200, trains = 33, words = 8 }]
// optiml: time = [{ queries = 16384, trains = 16384, words = 8 }]
__global__ void hamming_match_kernel(const unsigned int* query, const unsigned int* train, Match* out, int queries, int trains,
                                     int words) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    if (q >= queries) return;
    int best = INT_MAX;
    int second = INT_MAX;
    int index = -1;
    for (int t = 0; t < trains; t++) {
        int distance = 0;
        for (int w = 0; w < words; w++) {
            distance += __popc(query[(size_t)q * words + w] ^ train[(size_t)t * words + w]);
        }
        if (distance < best) {
            second = best;
            best = distance;
            index = t;
        } else if (distance < second) {
            second = distance;
        }
    }
    out[q].index = index;
    out[q].distance = best;
    out[q].second = second;
}

void hamming_match(const unsigned int* query, const unsigned int* train, Match* out, int queries, int trains, int words) {
    if (queries == 0) return;
    constexpr int kThreads = 128;
    hamming_match_kernel<<<(queries + kThreads - 1) / kThreads, kThreads>>>(query, train, out, queries, trains, words);
    if (cudaGetLastError() != cudaSuccess) throw std::runtime_error("hamming_match");
}
