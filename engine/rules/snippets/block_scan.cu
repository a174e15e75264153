// Adds to each of the block's elements of `part` all those before it. Blocks hold whole warps.
__device__ __forceinline__ void $name($T* part) {
    __shared__ $T totals[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    $T value = part[threadIdx.x];
    for (int offset = 1; offset < 32; offset *= 2) {
        const $T left = __shfl_up_sync(0xffffffffu, value, offset);
        if (lane >= offset) {
            value += left;
        }
    }
    if (lane == 31) {
        totals[warp] = value;
    }
    __syncthreads();
    if (warp == 0) {
        $T total = lane < blockDim.x / 32 ? totals[lane] : static_cast<$T>(0);
        for (int offset = 1; offset < 32; offset *= 2) {
            const $T left = __shfl_up_sync(0xffffffffu, total, offset);
            if (lane >= offset) {
                total += left;
            }
        }
        totals[lane] = total;
    }
    __syncthreads();
    part[threadIdx.x] = warp > 0 ? value + totals[warp - 1] : value;
    __syncthreads();
}

