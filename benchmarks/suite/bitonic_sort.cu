// Sorts every row of 1024 keys in ascending order, in place.
#include <cuda_runtime.h>

#define KEYS 1024

// optiml: args.keys = { role = "inout", size = "rows*1024", fill = { kind = "integers", low = 0, high = 1000000000 } }
// optiml: check = [{ rows = 1 }, { rows = 5 }, { rows = 16 }]
// optiml: time = [{ rows = 16384 }]

// One block sorts one row, one thread stands at each key.
__global__ void bitonic_sort_kernel(unsigned int* keys, int rows) {
    __shared__ unsigned int row[KEYS];
    int t = threadIdx.x;
    row[t] = keys[blockIdx.x * KEYS + t];
    __syncthreads();
    for (int size = 2; size <= KEYS; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            int partner = t ^ stride;
            if (partner > t) {
                bool ascending = (t & size) == 0;
                unsigned int a = row[t];
                unsigned int b = row[partner];
                if ((a > b) == ascending) {
                    row[t] = b;
                    row[partner] = a;
                }
            }
            __syncthreads();
        }
    }
    keys[blockIdx.x * KEYS + t] = row[t];
}

void bitonic_sort(unsigned int* keys, int rows) { bitonic_sort_kernel<<<rows, KEYS>>>(keys, rows); }
