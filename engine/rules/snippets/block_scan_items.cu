//: scan
// Adds to each of the first $elements elements of `part` all those before it. Blocks of $threads threads, $items elements each.
__device__ __forceinline__ void $name($T* part) {
    __shared__ $T totals[$warps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    $T* own = part + threadIdx.x * $items;
    $T sums[$items];
    $T sum = static_cast<$T>(0);
    #pragma unroll
    for (int k = 0; k < $items; ++k) {
        sum += own[k];
        sums[k] = sum;
    }
    #pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const $T left = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) {
            sum += left;
        }
    }
    if (lane == 31) {
        totals[warp] = sum;
    }
    $T before = __shfl_up_sync(0xffffffffu, sum, 1);
    if (lane == 0) {
        before = static_cast<$T>(0);
    }
    __syncthreads();
    $others
    #pragma unroll
    for (int k = 0; k < $items; ++k) {
        own[k] = before + sums[k];
    }
    __syncthreads();
}

//: few
#pragma unroll
for (int k = 0; k < $warps - 1; ++k) {
    if (k < warp) {
        before += totals[k];
    }
}
//: many
if (warp == 0) {
    $T total = lane < $warps ? totals[lane] : static_cast<$T>(0);
    #pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const $T left = __shfl_up_sync(0xffffffffu, total, offset);
        if (lane >= offset) {
            total += left;
        }
    }
    if (lane < $warps) {
        totals[lane] = total;
    }
}
__syncthreads();
if (warp > 0) {
    before += totals[warp - 1];
}
