// $What part[0] to part[31] into part[0], for the whole block.
$header
__device__ __forceinline__ void $name($T* part) {
    if (threadIdx.x < 32) {
        $T value = part[threadIdx.x];
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

