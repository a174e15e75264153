// CUDA's instructions on the two halves or four bytes of a word (CUDA Math API, SIMD Intrinsics).
#pragma once

namespace optiml {
// What `each` gives for every part of two words, as a word; `each` gets numbers as wide as an int.
template <int Bits, bool Signed, class Each>
OPTIML_INLINE unsigned by_parts(unsigned a, unsigned b, Each each) {
    unsigned made = 0;
    const unsigned mask = (1u << Bits) - 1;
    for (int at = 0; at < 32; at += Bits) {
        int x = static_cast<int>(a >> at & mask), y = static_cast<int>(b >> at & mask);
        if constexpr (Signed) {
            x = x >> (Bits - 1) ? x - (1 << Bits) : x;
            y = y >> (Bits - 1) ? y - (1 << Bits) : y;
        }
        made |= (static_cast<unsigned>(each(x, y)) & mask) << at;
    }
    return made;
}
template <int Bits, bool Signed>
OPTIML_INLINE int clamped(int v) {
    const int low = Signed ? -(1 << (Bits - 1)) : 0, high = Signed ? (1 << (Bits - 1)) - 1 : (1 << Bits) - 1;
    return v < low ? low : v > high ? high : v;
}
template <int Bits, bool Signed>
OPTIML_INLINE unsigned distance(unsigned a, unsigned b) {  // of all parts, added up
    unsigned sum = 0, each = by_parts<Bits, Signed>(a, b, [](int x, int y) { return x < y ? y - x : x - y; });
    for (int at = 0; at < 32; at += Bits) sum += each >> at & ((1u << Bits) - 1);
    return sum;
}
}  // namespace optiml

#define OPTIML_PARTS(name, bits, is_signed, value)                                                             \
    OPTIML_INLINE unsigned name(unsigned a, unsigned b) {                                                      \
        constexpr int all = (1 << bits) - 1;                                                                   \
        return optiml::by_parts<bits, is_signed>(a, b, [](int x, int y) { (void)x, (void)y, (void)all; return value; }); \
    }
#define OPTIML_PARTS_ONE(name, bits, value) \
    OPTIML_INLINE unsigned name(unsigned a) { return optiml::by_parts<bits, true>(a, a, [](int x, int) { return value; }); }
#define OPTIML_COMPARED(of, bits, is_signed, how)                  \
    OPTIML_PARTS(__vcmp##of, bits, is_signed, x how y ? all : 0)   \
    OPTIML_PARTS(__vset##of, bits, is_signed, x how y ? 1 : 0)
#define OPTIML_OF_PARTS(parts, bits)                                                            \
    OPTIML_PARTS(__vadd##parts, bits, false, x + y)                                             \
    OPTIML_PARTS(__vaddss##parts, bits, true, (optiml::clamped<bits, true>(x + y)))             \
    OPTIML_PARTS(__vaddus##parts, bits, false, (optiml::clamped<bits, false>(x + y)))           \
    OPTIML_PARTS(__vsub##parts, bits, false, x - y)                                             \
    OPTIML_PARTS(__vsubss##parts, bits, true, (optiml::clamped<bits, true>(x - y)))             \
    OPTIML_PARTS(__vsubus##parts, bits, false, (optiml::clamped<bits, false>(x - y)))           \
    OPTIML_PARTS(__vavgs##parts, bits, true, x + y + (x + y >= 0) >> 1)                         \
    OPTIML_PARTS(__vavgu##parts, bits, false, x + y + 1 >> 1)                                   \
    OPTIML_PARTS(__vhaddu##parts, bits, false, x + y >> 1)                                      \
    OPTIML_PARTS(__vmaxs##parts, bits, true, x > y ? x : y)                                     \
    OPTIML_PARTS(__vmaxu##parts, bits, false, x > y ? x : y)                                    \
    OPTIML_PARTS(__vmins##parts, bits, true, x < y ? x : y)                                     \
    OPTIML_PARTS(__vminu##parts, bits, false, x < y ? x : y)                                    \
    OPTIML_PARTS(__vabsdiffs##parts, bits, true, x < y ? y - x : x - y)                         \
    OPTIML_PARTS(__vabsdiffu##parts, bits, false, x < y ? y - x : x - y)                        \
    OPTIML_PARTS_ONE(__vabs##parts, bits, x < 0 ? -x : x)                                       \
    OPTIML_PARTS_ONE(__vabsss##parts, bits, (optiml::clamped<bits, true>(x < 0 ? -x : x)))      \
    OPTIML_PARTS_ONE(__vneg##parts, bits, -x)                                                   \
    OPTIML_PARTS_ONE(__vnegss##parts, bits, (optiml::clamped<bits, true>(-x)))                  \
    OPTIML_COMPARED(eq##parts, bits, false, ==)                                                 \
    OPTIML_COMPARED(ne##parts, bits, false, !=)                                                 \
    OPTIML_COMPARED(ges##parts, bits, true, >=)                                                 \
    OPTIML_COMPARED(geu##parts, bits, false, >=)                                                \
    OPTIML_COMPARED(gts##parts, bits, true, >)                                                  \
    OPTIML_COMPARED(gtu##parts, bits, false, >)                                                 \
    OPTIML_COMPARED(les##parts, bits, true, <=)                                                 \
    OPTIML_COMPARED(leu##parts, bits, false, <=)                                                \
    OPTIML_COMPARED(lts##parts, bits, true, <)                                                  \
    OPTIML_COMPARED(ltu##parts, bits, false, <)                                                 \
    OPTIML_INLINE unsigned __vsads##parts(unsigned a, unsigned b) { return optiml::distance<bits, true>(a, b); } \
    OPTIML_INLINE unsigned __vsadu##parts(unsigned a, unsigned b) { return optiml::distance<bits, false>(a, b); }
OPTIML_OF_PARTS(2, 16)
OPTIML_OF_PARTS(4, 8)
#undef OPTIML_PARTS
#undef OPTIML_PARTS_ONE
#undef OPTIML_COMPARED
#undef OPTIML_OF_PARTS

// The larger or smaller of three numbers, and of a sum and a number; `_relu`: never below zero (DPX).
#define OPTIML_DPX(side, how)                                                                                       \
    OPTIML_INLINE int __v##side##_s32_(int a, int b) { return a how b ? a : b; }                                    \
    OPTIML_INLINE unsigned __v##side##_u32_(unsigned a, unsigned b) { return a how b ? a : b; }                     \
    OPTIML_INLINE unsigned __v##side##_s16x2_(unsigned a, unsigned b) {                                             \
        return optiml::by_parts<16, true>(a, b, [](int x, int y) { return x how y ? x : y; });                      \
    }                                                                                                               \
    OPTIML_INLINE unsigned __v##side##_u16x2_(unsigned a, unsigned b) {                                             \
        return optiml::by_parts<16, false>(a, b, [](int x, int y) { return x how y ? x : y; });                     \
    }                                                                                                               \
    OPTIML_INLINE unsigned __vib##side##_s16x2(unsigned a, unsigned b, bool *high, bool *low) {                     \
        *high = static_cast<short>(a >> 16) how##= static_cast<short>(b >> 16);                                     \
        *low = static_cast<short>(a) how##= static_cast<short>(b);                                                  \
        return __v##side##_s16x2_(a, b);                                                                            \
    }                                                                                                               \
    OPTIML_INLINE unsigned __vib##side##_u16x2(unsigned a, unsigned b, bool *high, bool *low) {                     \
        *high = (a >> 16) how##= (b >> 16), *low = (a & 0xffffu) how##= (b & 0xffffu);                              \
        return __v##side##_u16x2_(a, b);                                                                            \
    }                                                                                                               \
    OPTIML_INLINE int __vib##side##_s32(int a, int b, bool *first) { return *first = a how##= b, *first ? a : b; }  \
    OPTIML_INLINE unsigned __vib##side##_u32(unsigned a, unsigned b, bool *first) { return *first = a how##= b, *first ? a : b; }
OPTIML_DPX(max, >)
OPTIML_DPX(min, <)
#undef OPTIML_DPX
namespace optiml {
OPTIML_INLINE int sum_s32(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)); }
OPTIML_INLINE unsigned sum_u32(unsigned a, unsigned b) { return a + b; }
OPTIML_INLINE unsigned sum_s16x2(unsigned a, unsigned b) { return __vadd2(a, b); }
OPTIML_INLINE unsigned sum_u16x2(unsigned a, unsigned b) { return __vadd2(a, b); }
}  // namespace optiml
#define OPTIML_DPX(T_, side, kind)                                                                                         \
    OPTIML_INLINE T_ __vi##side##3_##kind(T_ a, T_ b, T_ c) { return __v##side##_##kind##_(__v##side##_##kind##_(a, b), c); } \
    OPTIML_INLINE T_ __viadd##side##_##kind(T_ a, T_ b, T_ c) { return __v##side##_##kind##_(optiml::sum_##kind(a, b), c); }
#define OPTIML_DPX_RELU(T_, side, kind)                                                                                           \
    OPTIML_INLINE T_ __vi##side##_##kind##_relu(T_ a, T_ b) { return __vmax_##kind##_(__v##side##_##kind##_(a, b), 0); }            \
    OPTIML_INLINE T_ __vi##side##3_##kind##_relu(T_ a, T_ b, T_ c) { return __vmax_##kind##_(__vi##side##3_##kind(a, b, c), 0); }   \
    OPTIML_INLINE T_ __viadd##side##_##kind##_relu(T_ a, T_ b, T_ c) { return __vmax_##kind##_(__viadd##side##_##kind(a, b, c), 0); }
#define OPTIML_DPX_BOTH(T_, kind) OPTIML_DPX(T_, max, kind) OPTIML_DPX(T_, min, kind)
OPTIML_DPX_BOTH(int, s32)
OPTIML_DPX_BOTH(unsigned, u32)
OPTIML_DPX_BOTH(unsigned, s16x2)
OPTIML_DPX_BOTH(unsigned, u16x2)
OPTIML_DPX_RELU(int, max, s32)
OPTIML_DPX_RELU(int, min, s32)
OPTIML_DPX_RELU(unsigned, max, s16x2)
OPTIML_DPX_RELU(unsigned, min, s16x2)
#undef OPTIML_DPX
#undef OPTIML_DPX_RELU
#undef OPTIML_DPX_BOTH
