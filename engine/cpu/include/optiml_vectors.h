// CUDA's vector types: plain aggregates with the alignment of the GPU, and their make_ functions.
#pragma once

#define OPTIML_VECTORS(NAME, T_, A2, A4)                                                             \
    struct NAME##1 { T_ x; };                                                                          \
    struct __attribute__((aligned(A2))) NAME##2 { T_ x, y; };                                          \
    struct NAME##3 { T_ x, y, z; };                                                                    \
    struct __attribute__((aligned(A4))) NAME##4 { T_ x, y, z, w; };                                    \
    OPTIML_INLINE NAME##1 make_##NAME##1(T_ x) { return {x}; }                                         \
    OPTIML_INLINE NAME##2 make_##NAME##2(T_ x, T_ y) { return {x, y}; }                                 \
    OPTIML_INLINE NAME##3 make_##NAME##3(T_ x, T_ y, T_ z) { return {x, y, z}; }                         \
    OPTIML_INLINE NAME##4 make_##NAME##4(T_ x, T_ y, T_ z, T_ w) { return {x, y, z, w}; }

OPTIML_VECTORS(char, signed char, 2, 4)
OPTIML_VECTORS(uchar, unsigned char, 2, 4)
OPTIML_VECTORS(short, short, 4, 8)
OPTIML_VECTORS(ushort, unsigned short, 4, 8)
OPTIML_VECTORS(int, int, 8, 16)
OPTIML_VECTORS(uint, unsigned int, 8, 16)
OPTIML_VECTORS(long, long, 16, 16)
OPTIML_VECTORS(ulong, unsigned long, 16, 16)
OPTIML_VECTORS(longlong, long long, 16, 16)
OPTIML_VECTORS(ulonglong, unsigned long long, 16, 16)
OPTIML_VECTORS(float, float, 8, 16)
OPTIML_VECTORS(double, double, 16, 16)
#undef OPTIML_VECTORS

// CUDA 13 names four elements of eight bytes by their alignment, too.
#define OPTIML_ALIGNED(NAME, T_)                                                                      \
    struct __attribute__((aligned(16))) NAME##_16a { T_ x, y, z, w; };                                   \
    struct __attribute__((aligned(32))) NAME##_32a { T_ x, y, z, w; };                                   \
    OPTIML_INLINE NAME##_16a make_##NAME##_16a(T_ x, T_ y, T_ z, T_ w) { return {x, y, z, w}; }            \
    OPTIML_INLINE NAME##_32a make_##NAME##_32a(T_ x, T_ y, T_ z, T_ w) { return {x, y, z, w}; }

OPTIML_ALIGNED(long4, long)
OPTIML_ALIGNED(ulong4, unsigned long)
OPTIML_ALIGNED(longlong4, long long)
OPTIML_ALIGNED(ulonglong4, unsigned long long)
OPTIML_ALIGNED(double4, double)
#undef OPTIML_ALIGNED

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
