//: body
// A block computes $tile_w x $tile_h outputs of $tile_k channels, a thread $per_w x $per_h of $per_k.
// Images and filters pass through shared memory, $stage of their channels at a time.
alignas(16) __shared__ $T $in_tile$buffers[$stage * $rows][$pitch];
alignas(16) __shared__ $T $filter_tile$buffers[$stage * $taps][$filter_pitch];
const int $tid = threadIdx.x;
const int $groups = ($outputs + $last_k) / $tile_k;
const int $first_x = blockIdx.x * $tile_w;
const int $first_y = blockIdx.y * $tile_h;
const int $first_k = blockIdx.z % $groups * $tile_k;
const int $image_at = blockIdx.z / $groups;
$own
$image
const $T* $source = $in + static_cast<size_t>($in_base);
const $T* $weights = $filters + static_cast<size_t>($filter_base);
const int $channels = $depth;
$S $sums$extents = {};
//: result_place
const int $k = $at / $per_hw;
const int $row = $at % $per_hw / $per_w;
const int $column = $at % $per_w;
//: own
const int $own_x = $tid % $across * $per_w;
const int $own_y = $tid / $across % $down * $per_h;
const int $own_k = $tid / $pixels * $per_k;
//: stages
for (int $first_c = 0; $first_c < $channels; $first_c += $stage) {
    $load
    __syncthreads();
    $multiply
    __syncthreads();
}
//: copied
const int $stages = ($channels + $last_stage) / $stage;
for (int $turn = 0; $turn <= $stages; ++$turn) {
    if ($turn < $stages) {
        const int $first_c = $turn * $stage;
        const int $buffer = $turn % 2;
        $load
    }
    __pipeline_commit();
    if ($turn > 0) {
        const int $buffer = ($turn - 1) % 2;
        __pipeline_wait_prior(1);
        __syncthreads();
        $multiply
        __syncthreads();
    }
}
//: places
// The places of the thread's pixels in a channel's plane, the same in all channels; -1 where a zero stands for one outside.
$place_type $from[$turns];
#pragma unroll
for (int $v = 0; $v < $turns; ++$v) {
    const int $at = $tid + $v * $threads;
    const int $y = $first_y$times_y + $at / $columns$shift_y;
    const int $x = $first_x$times_x + $at % $columns$shift_x;
    const bool $inside = $at < $plane$tests;
    $from[$v] = $inside ? $y * $in_row + $x : -1;
}
const int $load_k = $tid / $tap_step;
const int $load_tap = $tid % $tap_step;
//: load
$held
#pragma unroll
for (int $c = 0; $c < $stage; ++$c) {
    const $T* const $channel = $source + static_cast<size_t>($first_c + $c) * $in_channel;
    #pragma unroll
    for (int $v = 0; $v < $turns; ++$v) {
        const bool $inside = $from[$v] >= 0 && $first_c + $c < $channels;
        $take_pixel
    }
}
#pragma unroll
for (int $v = 0; $v < $filter_turns; ++$v) {
    const int $tap = $load_tap + $v * $tap_step;
    $take_weight
}
$store
//: weights_in_order
const bool $inside = $all_taps$first_c * $taps + $tap < $channels * $taps && $first_k + $load_k < $outputs;
const $T* const $weight = $weights + static_cast<size_t>($first_k + $load_k) * $filter_output + $first_c * $taps + $tap;
$take_filter
//: weights_anywhere
const int $c = $first_c + $tap / $taps;
const int $row = $tap % $taps / $taps_x;
const int $column = $tap % $taps_x;
const bool $inside = $all_taps$c < $channels && $first_k + $load_k < $outputs;
const $T* const $weight =
    $weights + static_cast<size_t>($first_k + $load_k) * $filter_output + $c * $filter_channel + $row * $filter_row + $column * $filter_column;
$take_filter
//: held
// All loads are on their way before the first is waited for.
$T $own_pixels[$stage][$turns];
$T $own_weights[$filter_turns];
//: take_pixel
$own_pixels[$c][$v] = $inside ? $channel[$from[$v]] : $zero;
//: take_filter
$own_weights[$v] = $inside ? *$weight : $zero;
//: store
#pragma unroll
for (int $v = 0; $v < $turns; ++$v) {
    const int $at = $tid + $v * $threads;
    if ($at < $plane) {
        #pragma unroll
        for (int $c = 0; $c < $stage; ++$c) {
            $in_tile[$c * $rows + $at / $columns][$at % $columns] = $own_pixels[$c][$v];
        }
    }
}
#pragma unroll
for (int $v = 0; $v < $filter_turns; ++$v) {
    $put_filter
}
//: put
$filter_tile[$load_tap + $v * $tap_step][$load_k] = $own_weights[$v];
//: put_some
if ($load_tap + $v * $tap_step < $run) {
    $filter_tile[$load_tap + $v * $tap_step][$load_k] = $own_weights[$v];
}
//: copy_pixel
const int $at = $tid + $v * $threads;
if ($at < $plane) {
    __pipeline_memcpy_async(
        &$in_tile[$buffer][$c * $rows + $at / $columns][$at % $columns], $inside ? $channel + $from[$v] : $in, sizeof($T),
        $inside ? 0 : sizeof($T));
}
//: copy_filter
__pipeline_memcpy_async(
    &$filter_tile[$buffer][$tap][$load_k], $inside ? $weight : $filters, sizeof($T), $inside ? 0 : sizeof($T));
//: copy_some
if ($tap < $run) {
    __pipeline_memcpy_async(
        &$filter_tile[$buffer][$tap][$load_k], $inside ? $weight : $filters, sizeof($T), $inside ? 0 : sizeof($T));
}
//: multiply
#pragma unroll $channel_unroll
for (int $c = 0; $c < $stage; ++$c) {
    $T $window[$span_y][$span_x];
    #pragma unroll
    for (int $row = 0; $row < $span_y; ++$row) {
        #pragma unroll
        for (int $column = 0; $column < $span_x; ++$column) {
            $window[$row][$column] = $in_tile$at_buffer[$c * $rows + $own_y$times_y + $row][$own_x$times_x + $column];
        }
    }
    #pragma unroll
    for (int $tap = 0; $tap < $taps; ++$tap) {
        $T $part[$per_k];
        #pragma unroll
        for (int $k = 0; $k < $per_k; ++$k) {
            $part[$k] = $filter_tile$at_buffer[$c * $taps + $tap][$own_k + $k];
        }
        #pragma unroll
        for (int $k = 0; $k < $per_k; ++$k) {
            #pragma unroll
            for (int $row = 0; $row < $per_h; ++$row) {
                #pragma unroll
                for (int $column = 0; $column < $per_w; ++$column) {
                    const $T $pixel = $window[$row$times_y + $tap / $taps_x$by_y][$column$times_x + $tap % $taps_x$by_x];
                    $sums[$k][$row][$column] += $pixel * $part[$k];
                }
            }
        }
    }
}
//: assumed
// With arguments unlike those of the cases each result is computed by itself.
bool $alone = $others;
//: border_alone
bool $alone = false;
//: border
$reason
#pragma unroll
for (int $at = 0; $at < $results; ++$at) {
    const $S $sum = $sums$at_sum;
    $alone = $alone || $unusable;
}
//: outputs
#pragma unroll
for (int $k = 0; $k < $per_k; ++$k) {
    #pragma unroll
    for (int $row = 0; $row < $per_h; ++$row) {
        #pragma unroll
        for (int $column = 0; $column < $per_w; ++$column) {
            $work
        }
    }
}
//: plainly
#pragma unroll 1
for (int $at = 0; $at < $results; ++$at) {
    $at_place
    $work
}
