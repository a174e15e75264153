//: place
const int $group = $tid % 32 / 4;
const int $member = $tid % 4;
const int $warp_row = $tid / 32 / $across * $warp_m;
const int $warp_col = $tid / 32 % $across * $warp_n;
//: sums
float $sums[$warp_m / 16][$warp_n / 8][4] = {};
//: multiply
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; $i += $down) {
    float $part[$down][$warp_n / 8][4] = {};
    #pragma unroll
    for (int $k_in = 0; $k_in < $tile_k; $k_in += 8) {
        unsigned $a_high[$down][4], $a_low[$down][4], $b_high[$warp_n / 8][2], $b_low[$warp_n / 8][2];
        #pragma unroll
        for (int $p = 0; $p < $down; ++$p) {
            #pragma unroll
            for (int $e = 0; $e < 4; ++$e) {
                $split($a_element, $a_high[$p][$e], $a_low[$p][$e]);
            }
        }
        #pragma unroll
        for (int $j = 0; $j < $warp_n / 8; ++$j) {
            #pragma unroll
            for (int $e = 0; $e < 2; ++$e) {
                $split($b_element, $b_high[$j][$e], $b_low[$j][$e]);
            }
        }
        #pragma unroll
        for (int $e = 0; $e < 3; ++$e) {  // all but the product of two low parts
            #pragma unroll
            for (int $p = 0; $p < $down; ++$p) {
                #pragma unroll
                for (int $j = 0; $j < $warp_n / 8; ++$j) {
                    $product($part[$p][$j], $e == 0 ? $a_low[$p] : $a_high[$p], $e == 1 ? $b_low[$j] : $b_high[$j]);
                }
            }
        }
    }
    #pragma unroll
    for (int $p = 0; $p < $down; ++$p) {
        #pragma unroll
        for (int $j = 0; $j < $warp_n / 8; ++$j) {
            #pragma unroll
            for (int $e = 0; $e < 4; ++$e) {  // tensor cores cut sums off, this addition rounds
                $sums[$i + $p][$j][$e] += $part[$p][$j][$e];
            }
        }
    }
}
//: multiply_pairs
#pragma unroll
for (int $k_in = 0; $k_in < $tile_k; $k_in += 16) {
    unsigned $b_pairs[$warp_n / 8][2];
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 8; ++$j) {
        #pragma unroll
        for (int $e = 0; $e < 2; ++$e) {
            $b_pairs[$j][$e] = $b_pair;
        }
    }
    #pragma unroll
    for (int $i = 0; $i < $warp_m / 16; ++$i) {
        unsigned $a_pairs[4];
        #pragma unroll
        for (int $e = 0; $e < 4; ++$e) {
            $a_pairs[$e] = $a_pair;
        }
        #pragma unroll
        for (int $j = 0; $j < $warp_n / 8; ++$j) {
            $product($sums[$i][$j], $a_pairs, $b_pairs[$j]);
        }
    }
}
//: handing_on
__syncthreads();  // the place of the tiles serves to hand on results
float (*const $out_tile)[8][$warp_n + 8] = reinterpret_cast<float (*)[8][$warp_n + 8]>(&$tile$first[0][0]);
//: finite
bool $finite = true;
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; ++$i) {
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 8; ++$j) {
        #pragma unroll
        for (int $e = 0; $e < 4; ++$e) {
            $finite = $finite && isfinite($sums[$i][$j][$e]);
        }
    }
}
//: results
#pragma unroll
for (int $i = 0; $i < $warp_m / 8; ++$i) {  // eight rows of the warp's results
    __syncwarp();  // neighbouring threads take on neighbouring results
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 8; ++$j) {
        #pragma unroll
        for (int $e = 0; $e < 2; ++$e) {
            $out_tile[$tid / 32][$group][$j * 8 + $member * 2 + $e] = $sums[$i / 2][$j][$i % 2 * 2 + $e];
        }
    }
    __syncwarp();
    #pragma unroll
    for (int $e = 0; $e < $warp_n / 4; ++$e) {
        const int $at = $tid % 32 + $e * 32;
