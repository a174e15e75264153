// What inline PTX comes to on the CPU (engine/cpu/inline_ptx.py).
#pragma once

namespace optiml {
// A register's contents as another type of register: the same bits where one is a fraction and the other is not, else the number.
template <class To, class From>
OPTIML_INLINE To as(const From &from) {
    if constexpr (std::is_floating_point_v<To> != std::is_floating_point_v<From> && sizeof(To) == sizeof(From)) return bits<To>(from);
    else return static_cast<To>(from);
}
template <class To, class From>
OPTIML_INLINE To in(const From &from) {
    if constexpr (std::is_pointer_v<From>) return static_cast<To>(reinterpret_cast<uintptr_t>(from));
    else if constexpr (std::is_class_v<From> && sizeof(From) == sizeof(To)) return bits<To>(from);
    else return static_cast<To>(from);
}
template <class To, class From>
OPTIML_INLINE void out(To &to, const From &from) {
    if constexpr (std::is_pointer_v<To>) to = reinterpret_cast<To>(static_cast<uintptr_t>(from));
    else if constexpr (std::is_class_v<To>) to = bits<To>(from);
    else to = static_cast<To>(from);
}
template <class T_, int N_>
struct alignas(sizeof(T_) * N_) lanes { T_ of[N_]; };
template <class T_>
OPTIML_INLINE T_ *at(uint64_t address) { return reinterpret_cast<T_ *>(address); }
// Addresses of shared memory have 32 bits on a GPU; here the upper ones are those of the last that was asked for.
inline uint64_t shared_above = 0;
OPTIML_INLINE char *shared_at(uint64_t address) {
    return reinterpret_cast<char *>(address >> 32 ? address : __atomic_load_n(&shared_above, __ATOMIC_RELAXED) | address);
}
OPTIML_INLINE void *copy_some(void *to, const void *from, size_t bytes, size_t given) {
    if (given) optiml_access(from, given, 0);
    optiml_access(to, bytes, 1);
    __builtin_memmove(to, from, given);
    return __builtin_memset(static_cast<char *>(to) + given, 0, bytes - given);
}
// Copies by `cp.async` and `__pipeline_memcpy_async`: what reads them before they must have arrived finds what was there before.
OPTIML_INLINE void wait_for_copies(unsigned left) {
    void *to;
    const void *from;
    size_t bytes, given;
    while (optiml_copy_take(left, &to, &from, &bytes, &given)) copy_some(to, from, bytes, given);
}
OPTIML_INLINE void wait_for_all_copies() { optiml_copy_close(), wait_for_copies(0); }
OPTIML_INLINE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t found = 0;
    for (int k = 0; k < 8; ++k)
        if (table >> k & 1) found |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return found;
}
template <class H_>
OPTIML_INLINE uint32_t pair(const H_ &low, const H_ &high) {
    return static_cast<uint32_t>(bits<uint16_t>(low)) | static_cast<uint32_t>(bits<uint16_t>(high)) << 16;
}
OPTIML_INLINE unsigned lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
// `mma.m16n8k8` in TF32. Of a warp's factors lane 4g + t holds the elements (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of the first and
// (t, g), (t + 4, g) of the second, and of sums (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) (PTX ISA, "Matrix Fragments for mma.m16n8k8").
struct Tf32First { uint32_t of[4]; };
struct Tf32Second { uint32_t of[2]; };
struct Tf32Sums { float of[4]; };
// The factors of each warp's lanes, in turn in two places: one barrier keeps a lane from the next factors until all have these. Blocks follow
// each other in the same places, which is no race.
inline uint32_t tf32_factors[2][32][32][6];
inline uint8_t tf32_turns[32][32];
inline __attribute__((noinline, no_sanitize("thread"))) void tf32_product(float (&to)[4], const Tf32First &first, const Tf32Second &second,
                                                                         const Tf32Sums &sums, OPTIML_WHERE) {
    const unsigned warp = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32, own = lane();
    auto &held = tf32_factors[tf32_turns[warp][own] ^= 1][warp];
    __builtin_memcpy(held[own], first.of, sizeof(first.of));
    __builtin_memcpy(held[own] + 4, second.of, sizeof(second.of));
    __syncwarp(~0u, line, file);
    for (unsigned e = 0; e < 4; ++e) {
        to[e] = sums.of[e];
        for (unsigned k = 0; k < 8; ++k) {
            const uint32_t left = held[(own & ~3u) + k % 4][k / 4 * 2 + e / 2], right = held[(own % 4 * 2 + e % 2) * 4 + k % 4][4 + k / 4];
            float a, b;  // a number's upper 19 bits
            const uint32_t taken[2] = {left & 0xffffe000u, right & 0xffffe000u};
            __builtin_memcpy(&a, &taken[0], 4), __builtin_memcpy(&b, &taken[1], 4);
            to[e] += a * b;
        }
    }
}
}  // namespace optiml
OPTIML_INLINE size_t __cvta_generic_to_shared(const void *p) {
    __atomic_store_n(&optiml::shared_above, reinterpret_cast<uint64_t>(p) & ~0xffffffffull, __ATOMIC_RELAXED);
    return reinterpret_cast<size_t>(p);
}
OPTIML_INLINE size_t __cvta_generic_to_global(const void *p) { return reinterpret_cast<size_t>(p); }
OPTIML_INLINE void *__cvta_shared_to_generic(size_t a) { return optiml::shared_at(a); }
