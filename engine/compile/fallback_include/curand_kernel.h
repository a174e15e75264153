// The part of cuRAND's device API that kernels use most, in its published algorithms: Philox4x32-10 (Salmon et al., SC 2011) and
// xorwow (Marsaglia, Journal of Statistical Software 8(14), 2003, with subsequences 2^67 apart), uniform, normal and log-normal
// numbers. Integers and uniform numbers are bit for bit those of cuRAND 10; states have its layout.
// Used on the CPU, and by a device compiler where no toolkit has the header.
#pragma once
#define OPTIML_CURAND static __device__ __forceinline__

struct curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned int STATE;
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStateXORWOW {
    unsigned int d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef struct curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
typedef struct curandStateXORWOW curandStateXORWOW_t;
typedef struct curandStateXORWOW curandState_t;
typedef struct curandStateXORWOW curandState;

namespace optiml_curand {
typedef unsigned long long wide;

OPTIML_CURAND uint4 philox(uint4 c, uint2 key) {
    for (int round = 0; round < 10; round++) {
        wide first = 0xD2511F53ull * c.x, second = 0xCD9E8D57ull * c.z;
        uint4 next;
        next.x = static_cast<unsigned>(second >> 32) ^ c.y ^ key.x;
        next.y = static_cast<unsigned>(second);
        next.z = static_cast<unsigned>(first >> 32) ^ c.w ^ key.y;
        next.w = static_cast<unsigned>(first);
        c = next;
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

// The counter has 128 bits: its lower half counts blocks of four numbers, its upper half subsequences.
OPTIML_CURAND void advance(curandStatePhilox4_32_10 *s, wide blocks) {
    wide low = (static_cast<wide>(s->ctr.y) << 32 | s->ctr.x) + blocks;
    if (low < blocks && ++s->ctr.z == 0) s->ctr.w++;
    s->ctr.x = static_cast<unsigned>(low);
    s->ctr.y = static_cast<unsigned>(low >> 32);
}

OPTIML_CURAND unsigned step(unsigned *v) {
    unsigned t = v[0] ^ v[0] >> 2;
    v[0] = v[1];
    v[1] = v[2];
    v[2] = v[3];
    v[3] = v[4];
    return v[4] = v[4] ^ v[4] << 4 ^ t ^ t << 1;
}

// Polynomials over GF(2) of degree below 160, modulo the characteristic polynomial of `step`, whose power n is one over x^n.
struct Polynomial {
    unsigned w[5];
};

OPTIML_CURAND Polynomial product(const Polynomial &a, const Polynomial &b) {
    const unsigned modulus[5] = {0x00060001u, 0x08610030u, 0x00062121u, 0x0f3c0035u, 0x00000f0eu};
    Polynomial r = {{0, 0, 0, 0, 0}};
    for (int bit = 159; bit >= 0; bit--) {
        unsigned over = r.w[4] >> 31, take = b.w[bit / 32] >> (bit % 32) & 1u;
        for (int i = 4; i >= 0; i--) {
            r.w[i] = r.w[i] << 1 | (i ? r.w[i - 1] >> 31 : 0u);
            r.w[i] ^= (over ? modulus[i] : 0u) ^ (take ? a.w[i] : 0u);
        }
    }
    return r;
}

OPTIML_CURAND void jump(unsigned *v, Polynomial base, wide times) {
    Polynomial power = {{1, 0, 0, 0, 0}};
    for (; times; times >>= 1) {
        if (times & 1) power = product(power, base);
        if (times > 1) base = product(base, base);
    }
    unsigned sum[5] = {0, 0, 0, 0, 0};
    for (int bit = 0; bit < 160; bit++) {
        if (power.w[bit / 32] >> (bit % 32) & 1u)
            for (int i = 0; i < 5; i++) sum[i] ^= v[i];
        step(v);
    }
    for (int i = 0; i < 5; i++) v[i] = sum[i];
}

OPTIML_CURAND float uniform(unsigned x) { return x * 2.3283064e-10f + (2.3283064e-10f / 2.0f); }
OPTIML_CURAND double uniform_double(unsigned x) { return x * 2.3283064365386963e-10 + 2.3283064365386963e-10; }
OPTIML_CURAND double uniform_double(unsigned x, unsigned y) {
    wide z = static_cast<wide>(x) ^ static_cast<wide>(y) << 21;
    return z * 1.1102230246251565e-16 + (1.1102230246251565e-16 / 2.0);
}
// Box and Muller's transformation.
OPTIML_CURAND float2 normal(unsigned x, unsigned y) {
    float angle = y * (2.3283064e-10f * 6.2831855f) + (2.3283064e-10f * 6.2831855f / 2), scale = sqrtf(-2.0f * logf(uniform(x)));
    float2 r;
    __sincosf(angle, &r.x, &r.y);
    r.x *= scale;
    r.y *= scale;
    return r;
}
OPTIML_CURAND double2 normal_double(uint4 c) {
    double angle = (static_cast<wide>(c.z) ^ static_cast<wide>(c.w) << 21) * (1.1102230246251565e-16 * 2.0) + 1.1102230246251565e-16;
    double scale = sqrt(-2.0 * log(uniform_double(c.x, c.y)));
    double2 r;
    sincospi(angle, &r.x, &r.y);
    r.x *= scale;
    r.y *= scale;
    return r;
}
}  // namespace optiml_curand

OPTIML_CURAND void skipahead(unsigned long long n, curandStatePhilox4_32_10_t *s) {
    s->STATE += static_cast<unsigned>(n & 3);
    n >>= 2;
    if (s->STATE > 3) {
        n++;
        s->STATE -= 4;
    }
    optiml_curand::advance(s, n);
    s->output = optiml_curand::philox(s->ctr, s->key);
}
OPTIML_CURAND void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10_t *s) {
    unsigned long long high = (static_cast<unsigned long long>(s->ctr.w) << 32 | s->ctr.z) + n;
    s->ctr.z = static_cast<unsigned>(high);
    s->ctr.w = static_cast<unsigned>(high >> 32);
    s->output = optiml_curand::philox(s->ctr, s->key);
}
OPTIML_CURAND void skipahead(unsigned long long n, curandStateXORWOW_t *s) {
    optiml_curand::Polynomial one = {{2, 0, 0, 0, 0}};
    if (n) optiml_curand::jump(s->v, one, n);
    s->d += 362437u * static_cast<unsigned>(n);
}
OPTIML_CURAND void skipahead_sequence(unsigned long long n, curandStateXORWOW_t *s) {
    // x to the power of 2^67
    optiml_curand::Polynomial far = {{0x26294934u, 0x77bbc248u, 0x1a87dad0u, 0x930052d4u, 0x947e6dd2u}};
    if (n) optiml_curand::jump(s->v, far, n);
}

OPTIML_CURAND void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                               curandStatePhilox4_32_10_t *s) {
    s->ctr = make_uint4(0, 0, 0, 0);
    s->key.x = static_cast<unsigned>(seed);
    s->key.y = static_cast<unsigned>(seed >> 32);
    s->STATE = 0;
    s->boxmuller_flag = s->boxmuller_flag_double = 0;
    s->boxmuller_extra = 0.0f;
    s->boxmuller_extra_double = 0.0;
    skipahead_sequence(subsequence, s);
    skipahead(offset, s);
}
OPTIML_CURAND void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                               curandStateXORWOW_t *s) {
    unsigned low = 1099087573u * (static_cast<unsigned>(seed) ^ 0xaad26b49u);
    unsigned high = 2591861531u * (static_cast<unsigned>(seed >> 32) ^ 0xf7dcefddu);
    s->d = 6615241u + high + low;
    s->v[0] = 123456789u + low;
    s->v[1] = 362436069u ^ low;
    s->v[2] = 521288629u + high;
    s->v[3] = 88675123u ^ high;
    s->v[4] = 5783321u + low;
    skipahead_sequence(subsequence, s);
    skipahead(offset, s);
    s->boxmuller_flag = s->boxmuller_flag_double = 0;
    s->boxmuller_extra = 0.0f;
    s->boxmuller_extra_double = 0.0;
}

OPTIML_CURAND uint4 curand4(curandStatePhilox4_32_10_t *s) {
    unsigned both[8] = {s->output.x, s->output.y, s->output.z, s->output.w};
    optiml_curand::advance(s, 1);
    s->output = optiml_curand::philox(s->ctr, s->key);
    both[4] = s->output.x;
    both[5] = s->output.y;
    both[6] = s->output.z;
    both[7] = s->output.w;
    const unsigned *at = both + (s->STATE & 3);
    return make_uint4(at[0], at[1], at[2], at[3]);
}
OPTIML_CURAND unsigned int curand(curandStatePhilox4_32_10_t *s) {
    const uint4 &o = s->output;
    unsigned r = s->STATE == 0 ? o.x : s->STATE == 1 ? o.y : s->STATE == 2 ? o.z : o.w;
    if (++s->STATE == 4) {
        s->STATE = 0;
        optiml_curand::advance(s, 1);
        s->output = optiml_curand::philox(s->ctr, s->key);
    }
    return r;
}
OPTIML_CURAND unsigned int curand(curandStateXORWOW_t *s) {
    s->d += 362437u;
    return optiml_curand::step(s->v) + s->d;
}

OPTIML_CURAND float curand_uniform(curandStateXORWOW_t *s) { return optiml_curand::uniform(curand(s)); }
OPTIML_CURAND float curand_uniform(curandStatePhilox4_32_10_t *s) { return optiml_curand::uniform(curand(s)); }
OPTIML_CURAND float4 curand_uniform4(curandStatePhilox4_32_10_t *s) {
    uint4 c = curand4(s);
    using optiml_curand::uniform;
    return make_float4(uniform(c.x), uniform(c.y), uniform(c.z), uniform(c.w));
}
OPTIML_CURAND double curand_uniform_double(curandStateXORWOW_t *s) {
    unsigned x = curand(s), y = curand(s);
    return optiml_curand::uniform_double(x, y);
}
OPTIML_CURAND double curand_uniform_double(curandStatePhilox4_32_10_t *s) { return optiml_curand::uniform_double(curand(s)); }
OPTIML_CURAND double2 curand_uniform2_double(curandStatePhilox4_32_10_t *s) {
    uint4 c = curand4(s);
    return make_double2(optiml_curand::uniform_double(c.x, c.y), optiml_curand::uniform_double(c.z, c.w));
}

OPTIML_CURAND uint4 optiml_curand_four(curandStateXORWOW_t *s) {
    unsigned x = curand(s), y = curand(s), z = curand(s), w = curand(s);
    return make_uint4(x, y, z, w);
}
OPTIML_CURAND uint4 optiml_curand_four(curandStatePhilox4_32_10_t *s) { return curand4(s); }

template <class State> OPTIML_CURAND float2 optiml_curand_normal2(State *s) {
    unsigned x = curand(s), y = curand(s);
    return optiml_curand::normal(x, y);
}
// Of two numbers the state keeps the second one, for a call of the same kind.
template <class State> OPTIML_CURAND float optiml_curand_normal(State *s) {
    s->boxmuller_flag = s->boxmuller_flag != 1;
    if (!s->boxmuller_flag) return s->boxmuller_extra;
    float2 both = optiml_curand_normal2(s);
    s->boxmuller_extra = both.y;
    return both.x;
}
template <class State> OPTIML_CURAND float optiml_curand_log_normal(State *s, float mean, float stddev) {
    s->boxmuller_flag = s->boxmuller_flag != 2 ? 2 : 0;
    if (!s->boxmuller_flag) return s->boxmuller_extra;
    float2 both = optiml_curand_normal2(s);
    s->boxmuller_extra = expf(mean + stddev * both.y);
    return expf(mean + stddev * both.x);
}
template <class State> OPTIML_CURAND double optiml_curand_normal_double(State *s) {
    s->boxmuller_flag_double = s->boxmuller_flag_double != 1;
    if (!s->boxmuller_flag_double) return s->boxmuller_extra_double;
    double2 both = optiml_curand::normal_double(optiml_curand_four(s));
    s->boxmuller_extra_double = both.y;
    return both.x;
}
template <class State> OPTIML_CURAND double optiml_curand_log_normal_double(State *s, double mean, double stddev) {
    s->boxmuller_flag_double = s->boxmuller_flag_double != 2 ? 2 : 0;
    if (!s->boxmuller_flag_double) return s->boxmuller_extra_double;
    double2 both = optiml_curand::normal_double(optiml_curand_four(s));
    s->boxmuller_extra_double = exp(mean + stddev * both.y);
    return exp(mean + stddev * both.x);
}

OPTIML_CURAND float4 curand_normal4(curandStatePhilox4_32_10_t *s) {
    uint4 c = curand4(s);
    float2 a = optiml_curand::normal(c.x, c.y), b = optiml_curand::normal(c.z, c.w);
    return make_float4(a.x, a.y, b.x, b.y);
}
OPTIML_CURAND float4 curand_log_normal4(curandStatePhilox4_32_10_t *s, float mean, float stddev) {
    float4 n = curand_normal4(s);
    return make_float4(expf(mean + stddev * n.x), expf(mean + stddev * n.y), expf(mean + stddev * n.z), expf(mean + stddev * n.w));
}
#define OPTIML_CURAND_NORMAL(STATE)                                                                                     \
    OPTIML_CURAND float curand_normal(STATE *s) { return optiml_curand_normal(s); }                                     \
    OPTIML_CURAND float2 curand_normal2(STATE *s) { return optiml_curand_normal2(s); }                                  \
    OPTIML_CURAND double curand_normal_double(STATE *s) { return optiml_curand_normal_double(s); }                      \
    OPTIML_CURAND double2 curand_normal2_double(STATE *s) { return optiml_curand::normal_double(optiml_curand_four(s)); } \
    OPTIML_CURAND float curand_log_normal(STATE *s, float mean, float stddev) {                                         \
        return optiml_curand_log_normal(s, mean, stddev);                                                               \
    }                                                                                                                   \
    OPTIML_CURAND float2 curand_log_normal2(STATE *s, float mean, float stddev) {                                       \
        float2 n = curand_normal2(s);                                                                                   \
        return make_float2(expf(mean + stddev * n.x), expf(mean + stddev * n.y));                                       \
    }                                                                                                                   \
    OPTIML_CURAND double curand_log_normal_double(STATE *s, double mean, double stddev) {                               \
        return optiml_curand_log_normal_double(s, mean, stddev);                                                        \
    }
OPTIML_CURAND_NORMAL(curandStatePhilox4_32_10_t)
OPTIML_CURAND_NORMAL(curandStateXORWOW_t)
#undef OPTIML_CURAND_NORMAL
#undef OPTIML_CURAND
