// Atomics: begin gives the old value, end stores the new one, and no other thread runs in between.
#pragma once

namespace optiml {

template <class T_, class F_>
OPTIML_INLINE T_ update(T_ *address, F_ next) {
    std::remove_volatile_t<T_> old;
    auto *p = const_cast<std::remove_volatile_t<T_> *>(address);
    optiml_atomic_begin(p, &old, sizeof old);
    std::remove_volatile_t<T_> value = next(old);
    optiml_atomic_end(p, &value, sizeof value);
    return old;
}

template <class T_>
struct same {
    using type = T_;
};
template <class T_>
using same_t = typename same<T_>::type;

}  // namespace optiml

// The operand's type is not deduced, so that atomicAdd(float *, 1) converts as an overload would.
#define OPTIML_V optiml::same_t<T_>

#define OPTIML_ATOMIC_AS(NAME, EXPRESSION)                                    \
    template <class T_>                                                        \
    OPTIML_INLINE T_ NAME(T_ *address, OPTIML_V value) {                        \
        return optiml::update(address, [&](T_ old) -> T_ { return EXPRESSION; }); \
    }
#define OPTIML_ATOMIC(NAME, EXPRESSION)        \
    OPTIML_ATOMIC_AS(NAME, EXPRESSION)         \
    OPTIML_ATOMIC_AS(NAME##_block, EXPRESSION) \
    OPTIML_ATOMIC_AS(NAME##_system, EXPRESSION)

OPTIML_ATOMIC(atomicAdd, static_cast<T_>(old + value))
OPTIML_ATOMIC(atomicSub, static_cast<T_>(old - value))
OPTIML_ATOMIC(atomicExch, ((void)old, value))
OPTIML_ATOMIC(atomicMin, value < old ? value : old)
OPTIML_ATOMIC(atomicMax, old < value ? value : old)
OPTIML_ATOMIC(atomicInc, old >= value ? T_(0) : static_cast<T_>(old + 1))
OPTIML_ATOMIC(atomicDec, old == T_(0) || old > value ? value : static_cast<T_>(old - 1))
OPTIML_ATOMIC(atomicAnd, static_cast<T_>(old & value))
OPTIML_ATOMIC(atomicOr, static_cast<T_>(old | value))
OPTIML_ATOMIC(atomicXor, static_cast<T_>(old ^ value))

// Added float by float, at an address that is a multiple of the whole vector.
#define OPTIML_VECTOR_ADD(NAME)                                                                                  \
    OPTIML_INLINE float2 NAME(float2 *address, float2 value) {                                                    \
        return optiml::update(address, [&](float2 old) { return float2{old.x + value.x, old.y + value.y}; });     \
    }                                                                                                             \
    OPTIML_INLINE float4 NAME(float4 *address, float4 value) {                                                    \
        return optiml::update(address, [&](float4 old) {                                                          \
            return float4{old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w};                    \
        });                                                                                                       \
    }
OPTIML_VECTOR_ADD(atomicAdd)
OPTIML_VECTOR_ADD(atomicAdd_block)
OPTIML_VECTOR_ADD(atomicAdd_system)
#undef OPTIML_VECTOR_ADD

#define OPTIML_CAS(NAME)                                                              \
    template <class T_>                                                                \
    OPTIML_INLINE T_ NAME(T_ *address, OPTIML_V compare, OPTIML_V value) {              \
        return optiml::update(address, [&](T_ old) -> T_ {                              \
            return __builtin_memcmp(&old, &compare, sizeof(T_)) == 0 ? value : old;    \
        });                                                                           \
    }
OPTIML_CAS(atomicCAS)
OPTIML_CAS(atomicCAS_block)
OPTIML_CAS(atomicCAS_system)
#undef OPTIML_CAS
#undef OPTIML_ATOMIC
#undef OPTIML_ATOMIC_AS

// The compiler's atomics, `__nv_atomic_*`: their order and scope are constants of these names.
enum { __NV_ATOMIC_RELAXED, __NV_ATOMIC_CONSUME, __NV_ATOMIC_ACQUIRE, __NV_ATOMIC_RELEASE, __NV_ATOMIC_ACQ_REL, __NV_ATOMIC_SEQ_CST };
enum { __NV_THREAD_SCOPE_THREAD, __NV_THREAD_SCOPE_BLOCK, __NV_THREAD_SCOPE_CLUSTER, __NV_THREAD_SCOPE_DEVICE, __NV_THREAD_SCOPE_SYSTEM };
#define OPTIML_ORDERED int, int = __NV_THREAD_SCOPE_SYSTEM
#define OPTIML_NV_ATOMIC(NAME, EXPRESSION)                                        \
    template <class T_>                                                            \
    OPTIML_INLINE T_ __nv_atomic_##NAME(T_ *address, optiml::same_t<T_> value, OPTIML_ORDERED) { \
        return optiml::update(address, [&](T_ old) -> T_ { return EXPRESSION; });  \
    }
OPTIML_NV_ATOMIC(exchange_n, ((void)old, value))
OPTIML_NV_ATOMIC(fetch_add, static_cast<T_>(old + value))
OPTIML_NV_ATOMIC(fetch_sub, static_cast<T_>(old - value))
OPTIML_NV_ATOMIC(fetch_and, static_cast<T_>(old & value))
OPTIML_NV_ATOMIC(fetch_or, static_cast<T_>(old | value))
OPTIML_NV_ATOMIC(fetch_xor, static_cast<T_>(old ^ value))
OPTIML_NV_ATOMIC(fetch_min, value < old ? value : old)
OPTIML_NV_ATOMIC(fetch_max, old < value ? value : old)
#undef OPTIML_NV_ATOMIC
template <class T_>
OPTIML_INLINE std::remove_cv_t<T_> __nv_atomic_load_n(T_ *address, OPTIML_ORDERED) {
    return optiml::update(const_cast<std::remove_cv_t<T_> *>(address), [](auto old) { return old; });
}
template <class T_>
OPTIML_INLINE T_ __nv_atomic_load_n(const T_ *address, OPTIML_ORDERED) { return *address; }  // which nobody may write
template <class T_>
OPTIML_INLINE void __nv_atomic_load(T_ *address, std::remove_cv_t<T_> *to, OPTIML_ORDERED) { *to = __nv_atomic_load_n(address, 0); }
template <class T_>
OPTIML_INLINE void __nv_atomic_store_n(T_ *address, optiml::same_t<T_> value, OPTIML_ORDERED) { __nv_atomic_exchange_n(address, value, 0); }
template <class T_>
OPTIML_INLINE void __nv_atomic_store(T_ *address, T_ *value, OPTIML_ORDERED) { __nv_atomic_exchange_n(address, *value, 0); }
template <class T_>
OPTIML_INLINE void __nv_atomic_exchange(T_ *address, T_ *value, T_ *old, OPTIML_ORDERED) {
    *old = __nv_atomic_exchange_n(address, *value, 0);
}
template <class T_>
OPTIML_INLINE bool __nv_atomic_compare_exchange_n(T_ *address, T_ *expected, optiml::same_t<T_> value, bool, int, OPTIML_ORDERED) {
    const T_ old = atomicCAS(address, *expected, value);
    const bool equal = __builtin_memcmp(&old, expected, sizeof(T_)) == 0;
    if (!equal) *expected = old;
    return equal;
}
template <class T_>
OPTIML_INLINE bool __nv_atomic_compare_exchange(T_ *address, T_ *expected, T_ *value, bool weak, int success, OPTIML_ORDERED) {
    return __nv_atomic_compare_exchange_n(address, expected, *value, weak, success, 0);
}
OPTIML_INLINE void __nv_atomic_thread_fence(OPTIML_ORDERED) { optiml_fence(); }
#undef OPTIML_ORDERED
