// The worker's own kernels: fill, draw, hash, guard check, widen, perturb, compare. Compiled by the same compiler as candidates.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

typedef unsigned long long u64;
typedef unsigned int u32;

#define GOLDEN 0x9e3779b97f4a7c15ull  // splitmix64's increment

// Where results go starts as zeros: what is looked for is the largest of each.
struct Comparison {
  u64 bad;        // elements outside the tolerance
  u64 first;      // complement of the index of the first of them
  u64 max_error;  // bits of a non-negative double, ordered as an integer
  double sum_squares;  // of the finite reference
  u64 finite;     // finite elements of the reference
};

__device__ __forceinline__ double as_double(float v) { return v; }
__device__ __forceinline__ double as_double(double v) { return v; }
__device__ __forceinline__ double as_double(__half v) { return __half2float(v); }
__device__ __forceinline__ double as_double(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ double as_double(__nv_fp8_e4m3 v) { return (double)(float)v; }
__device__ __forceinline__ double as_double(__nv_fp8_e5m2 v) { return (double)(float)v; }
template <typename T>
__device__ __forceinline__ double as_double(T v) { return (double)v; }

__device__ u64 mix(u64 x) {  // splitmix64's finaliser
  x ^= x >> 30; x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27; x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The byte of a pattern that belongs at an address, as if aligned words held the pattern.
__device__ __forceinline__ unsigned char pattern_at(const unsigned char* p, u32 pattern) {
  return (unsigned char)(pattern >> 8 * ((u64)p & 3));
}

// Bytes before the first aligned word of a range.
__device__ __forceinline__ u64 before_words(const unsigned char* p, u64 bytes) {
  u64 head = (4 - ((u64)p & 3)) & 3;
  return head < bytes ? head : bytes;
}

// Fills exactly `bytes`: neither end needs to be a multiple of 4. At least 4 threads.
extern "C" __global__ void fill_words(unsigned char* out, u64 bytes, u32 pattern) {
  u64 head = before_words(out, bytes), words = (bytes - head) / 4, tail = head + 4 * words;
  u64 start = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
  u32* aligned = (u32*)(out + head);
  for (u64 i = start; i < words; i += stride) aligned[i] = pattern;
  if (start < head) out[start] = pattern_at(out + start, pattern);
  if (start < bytes - tail) out[tail + start] = pattern_at(out + tail + start, pattern);
}

// Reads what lies there, by 16 bytes, and writes nothing unless a word differs from 0. Pushes everything else out of L2 and
// leaves no dirty line behind, which a launch that is timed afterwards would have to write back.
extern "C" __global__ void read_words(const uint4* data, u64 vectors, u32* sink) {
  u32 seen = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < vectors; i += (u64)gridDim.x * blockDim.x) {
    uint4 v = data[i];
    seen |= v.x | v.y | v.z | v.w;
  }
  if (seen) *sink = seen;
}

// Reads and writes so many 16-byte vectors: the least that a kernel with these compulsory bytes does. A thread reads one of each of FROM
// parts of `in` and writes one of each of TO parts of `out`, as kernels of several arrays do. `out` holds one vector at least.
template <u32 FROM, u32 TO>
__device__ __forceinline__ void move_parts(const uint4* in, u64 reads, uint4* out, u64 writes, u64 part) {
  const u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (i >= part) return;
  uint4 v[FROM];
#pragma unroll
  for (u32 k = 0; k < FROM; ++k) v[k] = k * part + i < reads ? in[k * part + i] : make_uint4(1, 2, 3, 4);
  u32 seen = 0;
#pragma unroll
  for (u32 k = 0; k < FROM; ++k) {
    if (k < TO && k * part + i < writes) out[k * part + i] = v[k];
    else seen |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (seen == 0xdeadbeef) out[0] = make_uint4(seen, 0, 0, 0);  // or the compiler drops the loads
}

// One for each of `PARTS` in copy_parts.py: numbers that only the launch knew would cost 2 to 10 %.
#define MOVE(FROM, TO)                                                                                                     \
  extern "C" __global__ void move_##FROM##_##TO(const uint4* in, u64 reads, uint4* out, u64 writes, u64 part) {           \
    move_parts<FROM, TO>(in, reads, out, writes, part);                                                                    \
  }
MOVE(1, 1)
MOVE(2, 1)
MOVE(3, 1)
MOVE(4, 1)
MOVE(8, 1)
MOVE(3, 2)
MOVE(4, 3)

extern "C" __global__ void hash_bytes(const unsigned char* data, u64 bytes, u64* out) {
  u64 sum = 0, words = bytes / 4;
  const u32* w = (const u32*)data;
  u64 start = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = start; i < words; i += stride) sum += mix(i * GOLDEN + w[i]);
  for (u64 i = words * 4 + start; i < bytes; i += stride) sum += mix(i * GOLDEN + 0x1000000000ull + data[i]);
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
  if ((threadIdx.x & 31) == 0) atomicAdd(out, sum);
}

// zones: pairs of (address, bytes), each ending at a multiple of 4; out: how many zones follow the first that was touched, itself included; or 0.
extern "C" __global__ void check_guards(const u64* zones, u32 count, u32 pattern, u64* out) {
  u32 zone = blockIdx.x;
  const unsigned char* p = (const unsigned char*)zones[2 * zone];
  u64 bytes = zones[2 * zone + 1], head = before_words(p, bytes), words = (bytes - head) / 4;
  const u32* aligned = (const u32*)(p + head);
  bool touched = threadIdx.x < head && p[threadIdx.x] != pattern_at(p + threadIdx.x, pattern);
  for (u64 i = threadIdx.x; i < words; i += blockDim.x) touched |= aligned[i] != pattern;
  if (touched) atomicMax(out, (u64)(count - zone));
}

template <typename T>
__device__ void compare(const T* got, const T* original, const double* wide, u64 n, double tolerance, double relative,
                        Comparison* out) {
  u64 bad = 0, first = 0, finite = 0;
  double worst = 0, squares = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
    double g = as_double(got[i]), o = as_double(original[i]);
    double r = wide ? wide[i] : o;
    bool ok;
    if (isfinite(r)) { squares += r * r; finite++; }
    if (!isfinite(o)) {
      ok = (isnan(g) && isnan(o)) || g == o;
      if (!ok && isfinite(r)) ok = fabs(g - r) <= tolerance + relative * fabs(r);
    } else if (!isfinite(g) || !isfinite(r)) {
      ok = g == o;
    } else {
      double e = fabs(g - r);
      worst = fmax(worst, e);
      ok = e <= tolerance + relative * fabs(r);
    }
    if (!ok) { bad++; if (~i > first) first = ~i; }
  }
  for (int o = 16; o; o >>= 1) {
    bad += __shfl_down_sync(~0u, bad, o);
    finite += __shfl_down_sync(~0u, finite, o);
    squares += __shfl_down_sync(~0u, squares, o);
    worst = fmax(worst, __shfl_down_sync(~0u, worst, o));
    u64 f = __shfl_down_sync(~0u, first, o);
    if (f > first) first = f;
  }
  if ((threadIdx.x & 31) == 0) {
    if (bad) { atomicAdd(&out->bad, bad); atomicMax(&out->first, first); }
    atomicAdd(&out->finite, finite);
    atomicAdd(&out->sum_squares, squares);
    atomicMax(&out->max_error, (u64)__double_as_longlong(worst));
  }
}

template <typename T>
__device__ void widen(const T* in, double* out, u64 n) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) out[i] = as_double(in[i]);
}

// In which type an element is drawn: arithmetic in doubles would take longer than storing what is narrower.
template <typename T> struct Drawn { typedef double type; };
template <> struct Drawn<float> { typedef float type; };
template <> struct Drawn<__half> { typedef float type; };
template <> struct Drawn<__nv_bfloat16> { typedef float type; };
template <> struct Drawn<__nv_fp8_e4m3> { typedef float type; };
template <> struct Drawn<__nv_fp8_e5m2> { typedef float type; };

template <typename T>
struct alignas(2 * sizeof(T)) Pair { T first, second; };

__device__ __forceinline__ void put(float* p, double v) { *p = (float)v; }
__device__ __forceinline__ void put(double* p, double v) { *p = v; }
__device__ __forceinline__ void put(__half* p, double v) { *p = __double2half(v); }
__device__ __forceinline__ void put(__nv_bfloat16* p, double v) { *p = __double2bfloat16(v); }
__device__ __forceinline__ void put(float* p, float v) { *p = v; }
__device__ __forceinline__ void put(__half* p, float v) { *p = __float2half(v); }
__device__ __forceinline__ void put(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
__device__ __forceinline__ void put(__nv_fp8_e4m3* p, float v) { *p = __nv_fp8_e4m3(v); }
__device__ __forceinline__ void put(__nv_fp8_e5m2* p, float v) { *p = __nv_fp8_e5m2(v); }
template <typename T>
__device__ __forceinline__ void put(T* p, double v) { *p = (T)(long long)v; }

enum { NORMAL = 0, UNIFORM = 1, INTEGERS = 2 };

__device__ __forceinline__ float unit(u64 h, float) { return ((u32)(h >> 40) + 0.5f) * 0x1p-24f; }
__device__ __forceinline__ double unit(u64 h, double) { return (double)(h >> 11) * 0x1.0p-53; }

// salt: changes the seed of a launch that was recorded once. Two elements from a counter of their own, so any number of threads
// draws the same. low and high: mean and deviation, or bounds.
template <typename T>
__device__ void draw(T* out, u64 n, u64 seed, const u64* salt, u32 kind, double low, double high, double scale, double most, u32 special,
                     double tiny, double large) {
  typedef typename Drawn<T>::type V;
  if (salt) seed = mix(seed ^ *salt);
  const V from = (V)low, width = (V)(kind == NORMAL ? high : high - low), times = (V)scale, top = (V)most;
  const u64 pairs = n / 2 + n % 2, stride = (u64)gridDim.x * blockDim.x;
  for (u64 p = blockIdx.x * (u64)blockDim.x + threadIdx.x; p < pairs; p += stride) {
    u64 h[2];
    V v[2];
    h[0] = mix(seed + p * GOLDEN);
    if (kind == NORMAL) {  // Box and Muller: two numbers from one radius and one angle
      float square = fmaxf(-2.0f * __logf(unit(h[0], 0.0f)), 1e-30f), sine, cosine;  // near 1 the fast logarithm can be above 0
      float radius = square * rsqrtf(square);
      __sincosf((float)(int)(u32)h[0] * 0x1.921fb6p-30f, &sine, &cosine);
      v[0] = from + width * (V)(radius * cosine);
      v[1] = from + width * (V)(radius * sine);
      h[1] = h[0] ^ GOLDEN;
    } else {
      h[1] = mix(h[0] ^ GOLDEN);
      for (int i = 0; i < 2; ++i)
        v[i] = kind == UNIFORM ? from + width * unit(h[i], V()) : from + (V)__umul64hi(h[i], (u64)(high - low));
    }
    Pair<T> pair;
    T* both = &pair.first;
    for (int i = 0; i < 2; ++i) {
      V one = v[i] * times;
      one = one < top ? one : top;
      u64 g = special ? mix(h[i] ^ seed) : 1;
      if ((g & 15) == 0) {
        u32 which = (g >> 4) & 7;
        if (kind == NORMAL) {
          one = (V)(which == 0 ? 0.0 : which == 1 ? -0.0 : which == 2 ? tiny : which == 3 ? -tiny : which == 4 ? low + large
                : which == 5 ? low - large : low + high);
        } else {
          one = (V)(which & 1 ? low : most);
        }
      }
      put(both + i, one);
    }
    if (2 * p + 1 < n) *(Pair<T>*)(out + 2 * p) = pair;
    else out[2 * p] = pair.first;
  }
}

// Relative noise of at most half an epsilon of the narrow type on each element.
extern "C" __global__ void perturb(double* data, u64 n, double epsilon, u64 seed) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
    double u = (double)(mix(seed + i * GOLDEN) >> 11) * 0x1.0p-53 - 0.5;
    data[i] *= 1.0 + epsilon * u;
  }
}

#define FOR_TYPE(NAME, T)                                                                                                  \
  extern "C" __global__ void compare_##NAME(const T* g, const T* o, const double* w, u64 n, double t, double r,           \
                                            Comparison* out) { compare<T>(g, o, w, n, t, r, out); }                       \
  extern "C" __global__ void widen_##NAME(const T* in, double* out, u64 n) { widen<T>(in, out, n); }                      \
  extern "C" __global__ void draw_##NAME(T* out, u64 n, u64 seed, const u64* salt, u32 kind, double low, double high,     \
                                         double scale, double most, u32 special, double tiny, double large) {             \
    draw<T>(out, n, seed, salt, kind, low, high, scale, most, special, tiny, large);                                      \
  }
FOR_TYPE(float32, float)
FOR_TYPE(float64, double)
FOR_TYPE(float16, __half)
FOR_TYPE(bfloat16, __nv_bfloat16)
FOR_TYPE(e4m3, __nv_fp8_e4m3)
FOR_TYPE(e5m2, __nv_fp8_e5m2)
FOR_TYPE(int8, signed char)
FOR_TYPE(uint8, unsigned char)
FOR_TYPE(int16, short)
FOR_TYPE(uint16, unsigned short)
FOR_TYPE(int32, int)
FOR_TYPE(uint32, unsigned int)
FOR_TYPE(int64, long long)
FOR_TYPE(uint64, unsigned long long)
