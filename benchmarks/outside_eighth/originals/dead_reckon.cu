// Dead reckoning of a fleet: moves each vehicle's pose along the odometer samples that came in since the last call.
//
// Samples of all vehicles lie one after the other, those of vehicle t at offsets[t] .. offsets[t + 1] - 1. What callers rely upon:
//  - tracks from 1 up; a vehicle may have no sample at all; the sample buffers end with the last sample;
//  - poses are metres on a national grid (some 5 000 000), steps are millimetres: the additions are compensated;
//  - a sample whose speed is not within +-vmax, or is no number, is dropped and counted;
//  - the three low bits of gear are the gear, the five others are flags that mean nothing here;
//  - rate_hz is 1 .. 10000. The buffers do not overlap.
// Launched from here and, through its plain name, from the replay tool (tools/replay.py: cuModuleGetFunction "dead_reckon", blocks
// of 64 to 256 threads). upload_gains is called whenever a vehicle model's calibration changes.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>

constexpr float kTurn = 9.58737992e-5f;  // 2 pi / 65536

__constant__ float c_gain[8];  // of the odometer, by gear

// optiml: args.c_gain = { fill = { kind = "uniform", low = 0.9, high = 1.1 } }
// optiml: args.speed = { role = "in", size = "tracks*max_len", fill = { kind = "normal", low = 0, high = 10 } }
// optiml: args.heading = { role = "in", size = "tracks*max_len", fill = { kind = "integers", low = 0, high = 65536 } }
// optiml: args.gear = { role = "in", size = "tracks*max_len", fill = { kind = "integers", low = 0, high = 8 } }
// optiml: args.offsets = { role = "in", size = "tracks+1", fill = { kind = "offsets", low = 1, high = "max_len" } }
// optiml: args.pose = { role = "inout", size = "2*tracks", fill = { kind = "normal", low = 0, high = 100 } }
// optiml: args.dropped = { role = "out", size = "tracks" }
// optiml: args.vmax = { value = "25" }
// optiml: args.rate_hz = { value = "100" }
// optiml: check = [{ tracks = 1, max_len = 2 }, { tracks = 129, max_len = 40 }, { tracks = 300, max_len = 9 }, { tracks = 3, max_len = 700 }]
// optiml: time = [{ tracks = 131072, max_len = 100 }, { tracks = 16384, max_len = 1200 }]
extern "C" __global__ void dead_reckon(const float* speed, const unsigned short* heading, const unsigned char* gear,
                                       const int* offsets, float* pose, int* dropped, int tracks, float vmax, float rate_hz) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= tracks) return;
  const int end = offsets[t + 1];
  float x = pose[2 * t], y = pose[2 * t + 1];
  float ex = 0.0f, ey = 0.0f;
  int lost = 0;
  for (int k = offsets[t]; k < end; ++k) {
    const float v = speed[k] * c_gain[gear[k] & 7];
    if (!(fabsf(v) <= vmax)) {
      ++lost;
      continue;
    }
    const float a = (float)heading[k] * kTurn;
    const float step = v / rate_hz;
    const float dx = step * cosf(a) - ex;
    const float dy = step * sinf(a) - ey;
    const float nx = x + dx;
    const float ny = y + dy;
    ex = (nx - x) - dx;
    ey = (ny - y) - dy;
    x = nx;
    y = ny;
  }
  pose[2 * t] = x;
  pose[2 * t + 1] = y;
  dropped[t] = lost;
}

void upload_gains(const float* gains) {
  cudaMemcpyToSymbol(c_gain, gains, 8 * sizeof(float));
}

void dead_reckon_launch(const float* speed, const unsigned short* heading, const unsigned char* gear, const int* offsets,
                        float* pose, int* dropped, int tracks, float vmax, float rate_hz, cudaStream_t stream) {
  dead_reckon<<<(tracks + 127) / 128, 128, 0, stream>>>(speed, heading, gear, offsets, pose, dropped, tracks, vmax, rate_hz);
}
