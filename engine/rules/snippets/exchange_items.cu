//: before
// Each thread holds $items consecutive elements: stages within a thread need no shuffles, those within a warp no barriers.
const int $base = threadIdx.x * $items;
$declared
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    $taken
}
//: step
$turned
$received
if ($stride < $items) {
    #pragma unroll
    for (int $apart = 1; $apart < $items; $apart *= 2) {
        #pragma unroll
        for (int $k = 0; $k < $items; ++$k) {
            if ($stride == $apart) {
                $neighbours
            }
        }
    }
} else if ($stride < $warp) {
    #pragma unroll
    for (int $k = 0; $k < $items; ++$k) {
        $shuffles
    }
} else {
    __syncthreads();
    #pragma unroll
    for (int $k = 0; $k < $items; ++$k) {
        $stores
    }
    __syncthreads();
    #pragma unroll
    for (int $k = 0; $k < $items; ++$k) {
        $loads
    }
}
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    const int $element = $base + $k;
    const bool $lower = (($stride < $items ? $k : $base) & $stride) == 0;
    $work
}
$back
//: turn
// Complements are in reverse order: where the larger element comes first, they are compared instead.
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    const int $element = $base + $k;
    $own[$k] ^= $up ? static_cast<$T>(0) : ~static_cast<$T>(0);
}
//: after
__syncthreads();
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    $given
}
__syncthreads();
