// Run-length decoding of elevation tiles: every tile has the same number of runs and a fixed room of cap elements.
//
// tile_scan finds where each run of a tile begins, tile_expand writes the elements. A tile whose runs are longer than cap is cut
// off there; one whose runs are shorter is filled up with blank.
//
// What callers rely upon:
//  - tiles, runs and cap from 1 up (runs and cap to 2^20 each);
//  - a length is anything in 0 .. 255; the encoder pads with runs of length 0, anywhere;
//  - blank is any 16-bit value: the data set's own "no data" (0, -9999, -32768 ...);
//  - decode_tiles is asynchronous and everything that it starts is on the caller's stream; lens and vals may be overwritten with
//    the next batch, at the same address, as soon as that stream gets past it. The buffers do not overlap.
// Built with and without NDEBUG.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

// optiml: args.lens = { role = "in", size = "tiles*runs", fill = { kind = "integers", low = 1, high = 8 } }
// optiml: args.start = { role = "scratch", size = "tiles*(runs+1)" }
// optiml: args.vals = { role = "in", size = "tiles*runs", fill = { kind = "integers", low = -32768, high = 32768 } }
// optiml: args.out = { role = "out", size = "tiles*cap" }
// optiml: args.blank = { value = "9" }
// optiml: check = [{ tiles = 1, runs = 1, cap = 1 }, { tiles = 3, runs = 130, cap = 501 }, { tiles = 2, runs = 300, cap = 1500 }, { tiles = 5, runs = 31, cap = 64 }]
// optiml: time = [{ tiles = 16384, runs = 512, cap = 2048 }, { tiles = 1024, runs = 8192, cap = 32768 }]
// optiml: chain = [{ kernel = "tile_scan", args = ["lens", "start", "runs"], launch = { grid = "tiles", block = "128" } }, { kernel = "tile_expand", args = ["start", "vals", "out", "runs", "cap", "blank"], launch = { grid = ["tiles", "(cap + 255) / 256"], block = "256" } }]
__global__ void tile_scan(const uint8_t* lens, int* start, int runs) {
  __shared__ int warp_sum[4];
  __shared__ int carry;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const uint8_t* l = lens + (size_t)blockIdx.x * runs;
  int* s = start + (size_t)blockIdx.x * (runs + 1);
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (int base = 0; base < runs; base += 128) {
    const int k = base + threadIdx.x;
    const int v = k < runs ? l[k] : 0;
    int inc = v;
    for (int o = 1; o < 32; o <<= 1) {
      const int t = __shfl_up_sync(0xffffffffu, inc, o);
      if (lane >= o) inc += t;
    }
    if (lane == 31) warp_sum[warp] = inc;
    __syncthreads();
    int before = carry;
    for (int w = 0; w < warp; ++w) before += warp_sum[w];
    if (k < runs) s[k] = before + inc - v;
    __syncthreads();  // everyone has read carry
    if (threadIdx.x == 127) carry = before + inc;
    __syncthreads();  // carry is there for the next round
  }
  if (threadIdx.x == 0) s[runs] = carry;
}

__global__ void tile_expand(const int* start, const short* vals, short* out, int runs, int cap, short blank) {
  const int p = blockIdx.y * blockDim.x + threadIdx.x;
  if (p >= cap) return;
  const int* s = start + (size_t)blockIdx.x * (runs + 1);
  short v = blank;
  if (p < s[runs]) {
    int lo = 0, hi = runs;  // s[lo] <= p < s[hi]
    while (hi - lo > 1) {
      const int mid = (lo + hi) >> 1;
      if (s[mid] <= p) {
        lo = mid;
      } else {
        hi = mid;
      }
    }
    v = vals[(size_t)blockIdx.x * runs + lo];
  }
  out[(size_t)blockIdx.x * cap + p] = v;
}

void decode_tiles(const uint8_t* lens, int* start, const short* vals, short* out, int tiles, int runs, int cap, short blank,
                  cudaStream_t stream) {
  tile_scan<<<tiles, 128, 0, stream>>>(lens, start, runs);
  dim3 grid(tiles, (cap + 255) / 256);
  tile_expand<<<grid, 256, 0, stream>>>(start, vals, out, runs, cap, blank);
}
