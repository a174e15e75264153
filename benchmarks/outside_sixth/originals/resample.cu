// Fixed-point resampler for 16-bit audio, linear interpolation. `step` and `phase` are positions in Q16 input samples, `gain` is Q15
// and may exceed one (the result saturates) or be negative. Past the end the last sample is held. The result is rounded half up and
// bit-exact with the DSP firmware, at full scale as well. Clips may be hours long. Pointers are aligned to one sample only, callers
// pass windows into longer recordings. in_len >= 1, channels <= 65535.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// optiml: args.in = { role = "in", size = "channels*in_len", fill = { kind = "integers", low = -8000, high = 8000 } }
// optiml: args.out = { role = "out", size = "channels*out_len" }
// optiml: check = [{ channels = 1, in_len = 5, out_len = 5, step = 65536, phase = 1, gain = 32768 }, { channels = 3, in_len = 97, out_len = 129, step = 49152, phase = 1234, gain = 30000 }, { channels = 2, in_len = 300, out_len = 150, step = 131072, phase = 7, gain = 16384 }, { channels = 5, in_len = 200, out_len = 260, step = 71332, phase = 1, gain = 40000 }]
// optiml: time = [{ channels = 512, in_len = 44100, out_len = 48000, step = 60211, phase = 1, gain = 32000 }]
__global__ void resample_kernel(const short* in, short* out, int in_len, int out_len, unsigned step, unsigned phase, int gain) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= out_len) return;
    const short* src = in + (size_t)blockIdx.y * in_len;
    short* dst = out + (size_t)blockIdx.y * out_len;
    const unsigned long long last = in_len - 1;
    const unsigned long long pos = (unsigned long long)i * step + phase;
    const unsigned long long j = pos >> 16;
    const int frac = (int)(pos & 0xffff);
    const int a = src[j < last ? j : last];
    const int b = src[j + 1 < last ? j + 1 : last];
    const long long v = (long long)a * 65536 + (long long)(b - a) * frac;
    long long r = (v * gain + (1LL << 30)) >> 31;
    if (r > 32767) r = 32767;
    if (r < -32768) r = -32768;
    dst[i] = (short)r;
}

void resample(const short* in, short* out, int channels, int in_len, int out_len, unsigned step, unsigned phase, int gain) {
    constexpr int threads = 256;
    const dim3 grid((out_len + threads - 1) / threads, channels);
    resample_kernel<<<grid, threads>>>(in, out, in_len, out_len, step, phase, gain);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "resample_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
