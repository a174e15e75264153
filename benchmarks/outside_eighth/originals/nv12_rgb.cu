// NV12 (what the video decoder hands out) to packed 8-bit RGB, for the thumbnail and preview services.
//
// What callers rely upon:
//  - any width and height from 1 up, odd ones too; film strips have up to 500 000 rows, atlases more than 2 GiB;
//  - each plane may be a window into a larger surface: any pitch that holds a row, any alignment of its first byte. What lies in
//    rgb between the end of a row and the next pitch belongs to somebody else and keeps its value. The three do not overlap;
//  - codes outside of the nominal range (16..235 for luma, 16..240 for chroma) occur, as overshoot, and take the same formula;
//  - the matrix is the caller's (BT.601, BT.709, BT.2020), in units of 1/256.
// Built with nvcc for x86 and Arm hosts, on Linux and on Windows.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

struct FrameView {
  const uint8_t* luma;    // height rows
  const uint8_t* chroma;  // (height + 1) / 2 rows of U V U V ...
  uint8_t* rgb;           // height rows of R G B R G B ...
  int width;
  int height;
  int luma_pitch;
  int chroma_pitch;
  int rgb_pitch;
  int cy;   // luma gain
  int crv;  // V into red
  int cgu;  // U out of green
  int cgv;  // V out of green
  int cbu;  // U into blue
};

__device__ __forceinline__ uint8_t clamp_u8(int v) {
  return (uint8_t)(v < 0 ? 0 : (v > 255 ? 255 : v));
}

// optiml: args.f.luma = { role = "in", size = "height*(width+lpad)", fill = { kind = "integers", low = 16, high = 236 } }
// optiml: args.f.chroma = { role = "in", size = "((height+1)/2)*(2*((width+1)/2)+cpad)", fill = { kind = "integers", low = 16, high = 241 } }
// optiml: args.f.rgb = { role = "inout", size = "height*(3*width+rpad)", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.f.width = { value = "width" }
// optiml: args.f.height = { value = "height" }
// optiml: args.f.luma_pitch = { value = "width+lpad" }
// optiml: args.f.chroma_pitch = { value = "2*((width+1)/2)+cpad" }
// optiml: args.f.rgb_pitch = { value = "3*width+rpad" }
// optiml: args.f.cy = { value = "298" }
// optiml: args.f.crv = { value = "409" }
// optiml: args.f.cgu = { value = "100" }
// optiml: args.f.cgv = { value = "208" }
// optiml: args.f.cbu = { value = "516" }
// optiml: check = [{ width = 1, height = 1, lpad = 0, cpad = 0, rpad = 1 }, { width = 37, height = 19, lpad = 3, cpad = 2, rpad = 5 }, { width = 130, height = 9, lpad = 0, cpad = 0, rpad = 2 }, { width = 64, height = 16, lpad = 64, cpad = 64, rpad = 0 }]
// optiml: time = [{ width = 7680, height = 4320, lpad = 0, cpad = 0, rpad = 0 }, { width = 3840, height = 6480, lpad = 256, cpad = 256, rpad = 128 }]
__global__ void nv12_to_rgb(FrameView f) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= f.width || y >= f.height) return;
  const uint8_t* uv = f.chroma + (size_t)(y >> 1) * f.chroma_pitch + (x & ~1);
  const int c = (int)f.luma[(size_t)y * f.luma_pitch + x] - 16;
  const int d = (int)uv[0] - 128;
  const int e = (int)uv[1] - 128;
  const int base = f.cy * c + 128;
  uint8_t* out = f.rgb + (size_t)y * f.rgb_pitch + 3 * (size_t)x;
  out[0] = clamp_u8((base + f.crv * e) >> 8);
  out[1] = clamp_u8((base - f.cgu * d - f.cgv * e) >> 8);
  out[2] = clamp_u8((base + f.cbu * d) >> 8);
}

// Enqueued on the stream of the decoder session: the decoder recycles the surface when that stream gets past this call.
void launch_nv12_to_rgb(const uint8_t* luma, const uint8_t* chroma, uint8_t* rgb, int width, int height, int luma_pitch,
                        int chroma_pitch, int rgb_pitch, const int* matrix, cudaStream_t stream) {
  FrameView f;
  f.luma = luma;
  f.chroma = chroma;
  f.rgb = rgb;
  f.width = width;
  f.height = height;
  f.luma_pitch = luma_pitch;
  f.chroma_pitch = chroma_pitch;
  f.rgb_pitch = rgb_pitch;
  f.cy = matrix[0];
  f.crv = matrix[1];
  f.cgu = matrix[2];
  f.cgv = matrix[3];
  f.cbu = matrix[4];
  dim3 block(32, 8);
  dim3 grid((width + 31) / 32, (height + 7) / 8);
  nv12_to_rgb<<<grid, block, 0, stream>>>(f);
}
