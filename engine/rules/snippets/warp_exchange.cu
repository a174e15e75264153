//: before
// Each thread's element stays in a register; within a warp elements are exchanged by shuffles.
$declared
//: step
const bool $lower = ($thread & $stride) == 0;
$received
if ($stride < 32) {
    $shuffles
} else {
    const int $from = $thread ^ $stride;
    $stores
    __syncthreads();
    $loads
    $swaps
}
$chosen
$work
$kept
