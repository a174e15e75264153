//: load
#pragma unroll
for (int $j = 0; $j < $rows; ++$j) {
    const $R $row = $first$at + $j;
    #pragma unroll
    for (int $e = 0; $e < $each; ++$e) {
        const $C $column = $start + $e * 32 + $lane;
        $loaded[$j][$e] = $worst;
        if ($holds && $column < $end) {
            $source
            $loaded[$j][$e] = $value;
        }
    }
}
//: ahead
#pragma unroll
for (int $j = 0; $j < $rows; ++$j) {
    #pragma unroll
    for (int $e = 0; $e < $each; ++$e) {
        $values[$j][$e] = $next[$j][$e];
    }
}
if ($turn + $rows < 32) {  // on their way while the present rows are filtered
    $load
}
//: keep
// What this thread has of the row, for the thread that inserts: $kept threads have an element that may enter, if none are equal.
const bool $has = $among;
const unsigned int $all = __ballot_sync(0xffffffffu, $has);
const int $slot = __popc($all & ((1u << $lane) - 1));
if ($has && $slot < $kept) {
    #pragma unroll
    for (int $e = 0; $e < $each; ++$e) {
        $stored[threadIdx.x - $lane + $turn + $j][$slot * $each + $e] = $values[$j][$e];
    }
}
//: filter
// A warp reads its threads' rows one after another, each thread every 32nd element, and marks the elements that may
// enter the list: those not worse than $kept of the threads' best ones. All others have $kept better ones.
alignas(16) __shared__ unsigned int $marks[$threads][$each + $pad];
$room
const int $lane = threadIdx.x % 32;
const $R $first = $row - $lane;
for ($C $start = $begin; $start < $end; $start += 32 * $each) {
    $before
    #pragma unroll 1
    for (int $turn = 0; $turn < 32; $turn += $rows) {
        $V $values[$rows][$each];
        $load
        $V $best[$rows];
        #pragma unroll
        for (int $j = 0; $j < $rows; ++$j) {
            $best[$j] = $worst;
            #pragma unroll
            for (int $e = 0; $e < $each; ++$e) {
                $best[$j] = $better($best[$j], $values[$j][$e]);
            }
        }
        $most_lines
        // Sort the threads' best ones in groups of $kept, by turns from the best and from the worst.
        #pragma unroll
        for (int $size = 2; $size <= $kept; $size *= 2) {
            #pragma unroll
            for (int $stride = $size / 2; $stride > 0; $stride /= 2) {
                const bool $keep = (($lane & $size) == 0) == (($lane & $stride) == 0);
                #pragma unroll
                for (int $j = 0; $j < $rows; ++$j) {
                    const $V $other = __shfl_xor_sync(0xffffffffu, $best[$j], $stride);
                    $best[$j] = $keep ? $better($best[$j], $other) : $lesser($best[$j], $other);
                }
            }
        }
        // Keep the $kept best of two groups, and in the end the worst of these.
        #pragma unroll
        for (int $size = $kept; $size < 32; $size *= 2) {
            #pragma unroll
            for (int $j = 0; $j < $rows; ++$j) {
                $best[$j] = $better($best[$j], __shfl_xor_sync(0xffffffffu, $best[$j], $size));
            }
            #pragma unroll
            for (int $stride = $kept / 2; $stride > 0; $stride /= 2) {
                const bool $keep = $size < 16 && (($lane & (2 * $size)) == 0) == (($lane & $stride) == 0);
                #pragma unroll
                for (int $j = 0; $j < $rows; ++$j) {
                    const $V $other = __shfl_xor_sync(0xffffffffu, $best[$j], $stride);
                    $best[$j] = $keep ? $better($best[$j], $other) : $lesser($best[$j], $other);
                }
            }
        }
        #pragma unroll
        for (int $j = 0; $j < $rows; ++$j) {
            const $V $floor = __shfl_sync(0xffffffffu, $list[$last], $turn + $j);
            $stores
            unsigned int $own[$each];
            #pragma unroll
            for (int $e = 0; $e < $each; ++$e) {
                const bool $may = $above;
                $own[$e] = __ballot_sync(0xffffffffu, $may);
            }
            if ($lane == $turn + $j) {
                #pragma unroll
                for (int $e = 0; $e < $each; ++$e) {
                    $marks[threadIdx.x][$e] = $own[$e];
                }
                $masked
            }
        }
    }
    $meet
    int $word = 0;
    unsigned int $left = $marks[threadIdx.x][0];
    while (true) {
        while ($left == 0 && ++$word < $each) {
            $left = $marks[threadIdx.x][$word];
        }
        if ($left == 0) {
            break;
        }
        const int $bit = __ffs($left) - 1;
        const $C $column = $start + $word * 32 + $bit;
        $left &= $left - 1;
        $found
        $body
    }
    __syncwarp();
}
