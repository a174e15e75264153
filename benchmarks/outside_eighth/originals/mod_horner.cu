// Fingerprints of records: polynomials evaluated at many points, each polynomial modulo a number of its own.
//
//   out[r][j] = sum over k of coef[r][k] * x[j]^k   (mod modulus[r]),   0 <= out < modulus[r]
//
// Any sizes from 1 up. Coefficients and points are any 32-bit values, a modulus is anything in 1 .. 2^32 - 1 and need not be prime.
// Two instances: unsigned coefficients (the ingest path) and signed ones (differences of records). The buffers do not overlap.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace fp {

__device__ __forceinline__ uint32_t residue(uint32_t c, uint32_t m) {
  return c % m;
}

__device__ __forceinline__ uint32_t residue(int32_t c, uint32_t m) {
  const int64_t r = (int64_t)c % (int64_t)m;
  return (uint32_t)(r < 0 ? r + (int64_t)m : r);
}

}  // namespace fp

// optiml: kernel = "mod_horner<uint32_t>"
// optiml: args.coef = { role = "in", size = "rows*len", fill = { kind = "integers", low = 0, high = 2147483647 } }
// optiml: args.x = { role = "in", size = "points", fill = { kind = "integers", low = 0, high = 2147483647 } }
// optiml: args.modulus = { role = "in", size = "rows", fill = { kind = "integers", low = 1073741824, high = 2147483647 } }
// optiml: args.out = { role = "out", size = "rows*points" }
// optiml: check = [{ rows = 1, len = 1, points = 1 }, { rows = 3, len = 17, points = 130 }, { rows = 2, len = 200, points = 257 }, { rows = 65, len = 5, points = 31 }]
// optiml: time = [{ rows = 64, len = 512, points = 8192 }, { rows = 4096, len = 64, points = 1024 }]
template <typename Coef>
__global__ void mod_horner(const Coef* coef, const uint32_t* x, const uint32_t* modulus, uint32_t* out, int rows, int len,
                           int points) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= points) return;
  for (int r = blockIdx.y; r < rows; r += gridDim.y) {
    const uint32_t m = modulus[r];
    const uint32_t xv = x[j] % m;
    const Coef* c = coef + (size_t)r * len;
    uint64_t acc = 0;
    for (int k = len - 1; k >= 0; --k) {
      acc = (acc * xv + fp::residue(c[k], m)) % m;
    }
    out[(size_t)r * points + j] = (uint32_t)acc;
  }
}

void fingerprint_unsigned(const uint32_t* coef, const uint32_t* x, const uint32_t* modulus, uint32_t* out, int rows, int len,
                          int points, cudaStream_t stream) {
  dim3 block(128);
  dim3 grid((points + 127) / 128, rows < 65535 ? rows : 65535);
  mod_horner<uint32_t><<<grid, block, 0, stream>>>(coef, x, modulus, out, rows, len, points);
}

void fingerprint_signed(const int32_t* coef, const uint32_t* x, const uint32_t* modulus, uint32_t* out, int rows, int len,
                        int points, cudaStream_t stream) {
  dim3 block(128);
  dim3 grid((points + 127) / 128, rows < 65535 ? rows : 65535);
  mod_horner<int32_t><<<grid, block, 0, stream>>>(coef, x, modulus, out, rows, len, points);
}
