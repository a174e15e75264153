//: split
// Rounds the elements of `high` to what TF32 keeps of them, and leaves the rest in `low`.
template <typename Factor>
__device__ __forceinline__ void $split(Factor& high, Factor& low) {
    #pragma unroll
    for (int e = 0; e < high.num_elements; ++e) {
        const float whole = high.x[e];
        high.x[e] = __uint_as_float((__float_as_uint(whole) + 0x1000u) & 0xffffe000u);
        low.x[e] = whole - high.x[e];
    }
}

//: sums
namespace $wmma = nvcuda::wmma;
$wmma::fragment<$wmma::accumulator, 16, 16, 8, float> $sums[$warp_m / 16][$warp_n / 16];
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; ++$i) {
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 16; ++$j) {
        $wmma::fill_fragment($sums[$i][$j], 0.0f);
    }
}
//: multiply
$wmma::fragment<$wmma::accumulator, 16, 16, 8, float> $parts[$warp_m / 16][$warp_n / 16];
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; ++$i) {
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 16; ++$j) {
        $wmma::fill_fragment($parts[$i][$j], 0.0f);
    }
}
#pragma unroll
for (int $k_in = 0; $k_in < $tile_k; $k_in += 8) {
    $wmma::fragment<$wmma::matrix_b, 16, 16, 8, $wmma::precision::tf32, $wmma::row_major> $b_part[$warp_n / 16];
    $wmma::fragment<$wmma::matrix_b, 16, 16, 8, $wmma::precision::tf32, $wmma::row_major> $b_rest[$warp_n / 16];
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 16; ++$j) {
        $wmma::load_matrix_sync($b_part[$j], &$b_tile$buffer[$k_in][$warp_col + $j * 16], $tile_n + 8);
        $split($b_part[$j], $b_rest[$j]);
    }
    #pragma unroll
    for (int $i = 0; $i < $warp_m / 16; ++$i) {
        $wmma::fragment<$wmma::matrix_a, 16, 16, 8, $wmma::precision::tf32, $wmma::col_major> $a_part, $a_rest;
        $wmma::load_matrix_sync($a_part, &$a_tile$buffer[$k_in][$warp_row + $i * 16], $tile_m + 8);
        $split($a_part, $a_rest);
        #pragma unroll
        for (int $j = 0; $j < $warp_n / 16; ++$j) {  // all but the product of the two rests
            $wmma::mma_sync($parts[$i][$j], $a_rest, $b_part[$j], $parts[$i][$j]);
            $wmma::mma_sync($parts[$i][$j], $a_part, $b_rest[$j], $parts[$i][$j]);
            $wmma::mma_sync($parts[$i][$j], $a_part, $b_part[$j], $parts[$i][$j]);
        }
    }
}
// Tensor cores cut sums off, these additions round.
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; ++$i) {
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 16; ++$j) {
        #pragma unroll
        for (int $e = 0; $e < $sums[$i][$j].num_elements; ++$e) {
            $sums[$i][$j].x[$e] += $parts[$i][$j].x[$e];
        }
    }
}
//: results
__syncthreads();  // the tiles' place serves to hand on results
float* $patch = &$a_tile[0][0]$first + $tid / 32 * 256;
#pragma unroll
for (int $i = 0; $i < $warp_m / 16; ++$i) {
    #pragma unroll
    for (int $j = 0; $j < $warp_n / 16; ++$j) {
        $wmma::store_matrix_sync($patch, $sums[$i][$j], 16, $wmma::mem_row_major);
        __syncwarp();
        #pragma unroll
        for (int $e = 0; $e < 8; ++$e) {
            $each
        }
        __syncwarp();
    }
}
