// $What the block's elements of `part` into part[0]. Blocks hold whole warps.
$header
__device__ __forceinline__ void $name($T* part) {
    $T value = part[threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) {
        const $T other = __shfl_down_sync(0xffffffffu, value, offset);
        value = $combined;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        value = $first;
        for (int offset = 16; offset > 0; offset /= 2) {
            const $T other = __shfl_down_sync(0xffffffffu, value, offset);
            value = $combined;
        }
        if (threadIdx.x == 0) {
            part[0] = value;
        }
    }
    __syncthreads();
}

