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
// `mma.m16n8`: the lane's registers of the two matrices and of the sums.
struct FirstFactors { uint32_t of[4]; };
struct SecondFactors { uint32_t of[2]; };
struct MatrixSums { float of[4]; };
OPTIML_INLINE void matrix_product(
    int kind, float (&to)[4], const FirstFactors &first, const SecondFactors &second, const MatrixSums &sums, OPTIML_WHERE) {
    const uint32_t factors[6] = {first.of[0], first.of[1], first.of[2], first.of[3], second.of[0], second.of[1]};
    for (int e = 0; e < 4; ++e) to[e] = sums.of[e];
    optiml_matrix_product(kind, to, factors, line, file);
}
}  // namespace optiml
OPTIML_INLINE size_t __cvta_generic_to_shared(const void *p) {
    __atomic_store_n(&optiml::shared_above, reinterpret_cast<uint64_t>(p) & ~0xffffffffull, __ATOMIC_RELAXED);
    return reinterpret_cast<size_t>(p);
}
OPTIML_INLINE size_t __cvta_generic_to_global(const void *p) { return reinterpret_cast<size_t>(p); }
OPTIML_INLINE void *__cvta_shared_to_generic(size_t a) { return optiml::shared_at(a); }
