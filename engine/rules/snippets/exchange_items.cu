//: helper
// Hands a block's elements over from one order to the other: to each thread every $threads-th where `spread`, $items consecutive ones else.
// Runs of `turned` elements, every second one of the block, are then in reverse (0: none). `part` has a gap after each 32 elements,
// of 16 bytes: vectors of consecutive elements stay aligned, and threads that store them use different banks.
template <typename T> __device__ __forceinline__ void $regroup(T (&own)[$items], T* part, bool spread, int turned) {
    const int gap = 16 / sizeof(T), pitch = $threads + $threads / 32 * gap;
    const int next = threadIdx.x * $items + threadIdx.x * $items / 32 * gap;
    const int lane = threadIdx.x % $threads, every = lane + lane / 32 * gap;
    const int last = $threads - 1 - lane, back = last + last / 32 * gap;
    $sync
    #pragma unroll
    for (int k = 0; k < $items; ++k) {
        part[spread ? next + k : k * pitch + every] = own[k];
    }
    $sync
    #pragma unroll
    for (int k = 0; k < $items; ++k) {
        if ((k * $threads & turned) != 0) {
            own[k] = part[(k ^ (turned / $threads - 1)) * pitch + back];
        } else {
            own[k] = part[spread ? k * pitch + every : next + k];
        }
    }
}

//: sum
// What `$low` leaves of two numbers: their sum less the one that it takes. Multiply-adds have a pipeline beside that of `$low` and `$high`.
template <typename T> __device__ __forceinline__ T $rest(T a, T b, unsigned int minus) {
    const unsigned int taken = static_cast<unsigned int>($low(a, b));
    return static_cast<T>(taken * minus + static_cast<unsigned int>(a) + static_cast<unsigned int>(b));
}

//: minus
const unsigned int $minus = 0u - blockDim.y;  // -1: a compiler that knew the number would add on the pipeline of `$low`
//: before
// Each thread holds $items elements: consecutive ones for strides below $threads, every $threads-th for larger ones.
bool $spread = $begin;
//: step
if ($spread != ($far)) {
    $spread = !$spread;
    $regrouped
}
const int $apart = $spread ? $stride / $threads : $stride;
$first
$turned
$received
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    $partners
}
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    const int $element = $number;
    const bool $lower = ($element & $stride) == 0;
    $work
}
$back
//: turn
// Complements are in reverse order: where the larger element comes first, they are compared instead.
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    const int $element = $number;
    $own[$k] ^= $up ? static_cast<$T>(0) : ~static_cast<$T>(0);
}
//: after
if (!$spread) {
    $last
}
//: load
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    $taken
}
//: store
__syncthreads();
#pragma unroll
for (int $k = 0; $k < $items; ++$k) {
    $given
}
__syncthreads();
