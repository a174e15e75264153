//: own
// A warp multiplies filters of $warp_k channels by $per_h rows of $tile_w pixels on tensor cores.
const int $group = $tid % 32 / 4;
const int $member = $tid % 4;
const int $own_x = $member * 2;
const int $own_y = $tid / 32 % $down * $per_h;
const int $own_k = $tid / 32 / $down * $warp_k + $group;
//: multiply
#pragma unroll
for (int $part = 0; $part < $wide; $part += $together) {
    float $parts[$deep][$together][4] = {};
    #pragma unroll 1
    for (int $tap_row = 0; $tap_row < $tap_rows; ++$tap_row) {  // of eight channels each
        #pragma unroll
        for (int $tap = 0; $tap < $taps_x; ++$tap) {
            unsigned $a_high[$deep][4], $a_low[$deep][4], $b_high[$together][2], $b_low[$together][2];
            #pragma unroll
            for (int $k = 0; $k < $deep; ++$k) {
                #pragma unroll
                for (int $e = 0; $e < 4; ++$e) {
                    const int $c = $first_channel$member + $e / 2 * 4;
                    $split($filter_tile$at_buffer[$c * $taps + $row_taps + $tap][$own_k + $k * 16 + $e % 2 * 8], $a_high[$k][$e], $a_low[$k][$e]);
                }
            }
            #pragma unroll
            for (int $j = 0; $j < $together; ++$j) {
                #pragma unroll
                for (int $e = 0; $e < 2; ++$e) {
                    const int $c = $first_channel$member + $e * 4;
                    const int $y_of = $own_y + ($part + $j) / $sums_x;
                    const int $x_of = ($part + $j) % $sums_x * 8 + $group;
                    const int $row = $y_of$times_y + $row_of_taps$by_y;
                    const int $column = $x_of$times_x + $tap$by_x;
                    $split($in_tile$at_buffer[$c * $rows + $row][$column], $b_high[$j][$e], $b_low[$j][$e]);
                }
            }
            #pragma unroll
            for (int $e = 0; $e < 3; ++$e) {  // all but the product of two low parts
                #pragma unroll
                for (int $k = 0; $k < $deep; ++$k) {
                    #pragma unroll
                    for (int $j = 0; $j < $together; ++$j) {
                        $product($parts[$k][$j], $e == 0 ? $a_low[$k] : $a_high[$k], $e == 1 ? $b_low[$j] : $b_high[$j]);
                    }
                }
            }
        }
    }
    #pragma unroll
    for (int $k = 0; $k < $deep; ++$k) {
        #pragma unroll
        for (int $j = 0; $j < $together; ++$j) {
            #pragma unroll
            for (int $e = 0; $e < 4; ++$e) {  // tensor cores cut sums off, this addition rounds
                $sums[$k][$part + $j][$e] += $parts[$k][$j][$e];
            }
        }
    }
}
//: result_place
const int $k = $at / ($wide * 4) * 16 + $at % 4 / 2 * 8;
const int $row = $at / 4 % $wide / $sums_x;
const int $column = $at / 4 % $wide % $sums_x * 8 + $at % 2;
//: outputs
#pragma unroll
for (int $at = 0; $at < $results; ++$at) {
    $at_place
    $work
}
