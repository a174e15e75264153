// CUDA's built-ins for a C++ compiler: what kernel code may use without an include. The runtime is behind optiml_abi.h.
#ifndef OPTIML_CUDA_H
#define OPTIML_CUDA_H
#include <cassert>
#include <new>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

// CUDA declares these outside of std too.
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

#include "../runtime/abi.h"

#define OPTIML_INLINE inline __attribute__((always_inline))
#ifndef OPTIML_PROGRAM  // with host code beside it: kernels are told by the word, and the C_ library is the host's
// GCC's ThreadSanitizer sees no store of a struct that a call returns, `y[i] = f(x)`: it sees it where the call is expanded in place.
#define __global__ __attribute__((flatten))
#endif
#ifndef OPTIML_MARKED  // device functions are told from the host's by the word
#define __device__
#endif
#define __host__
#define __constant__
#ifdef OPTIML_PROGRAM
#define __managed__ __attribute__((section("optiml_managed")))
#else
#define __managed__
#endif
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#undef __noinline__
#define __noinline__ __attribute__((unused))
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#define CUDA_VERSION 13000
#define OPTIML_CPU 1

// Where a caller stands. Default arguments are evaluated at the call.
#define OPTIML_WHERE int line = __builtin_LINE(), const char *file = __builtin_FILE()

#include "optiml_vectors.h"

extern "C" {
extern const uint3 threadIdx asm("optiml_thread_index");
extern const uint3 blockIdx asm("optiml_block_index");
// Plain aggregates: reads of a constant that has a constructor would be instrumented.
extern const uint3 blockDim asm("optiml_block_dim");
extern const uint3 gridDim asm("optiml_grid_dim");
}
constexpr int warpSize = 32;

namespace optiml {

// A shared array where it is declared: `float (&tile)[N] = SharedPlace{…}`.
struct SharedPlace {
    unsigned *slot;
    const char *name;
    int line;
    template <class T_>
    OPTIML_INLINE operator T_ &() const {
        using Element = std::remove_all_extents_t<T_>;
        return *static_cast<T_ *>(optiml_shared(slot, sizeof(T_), sizeof(Element), name, line));
    }
};

struct DynamicPlace {
    const char *name;
    int line;
    template <class T_>
    OPTIML_INLINE operator T_ &() const {
        return *static_cast<T_ *>(optiml_dynamic_shared(sizeof(std::remove_all_extents_t<std::remove_extent_t<T_>>), name, line));
    }
};

// The kernel's arguments arrive as addresses of their values.
template <class... P_, std::size_t... I_>
void call(void (*kernel)(P_...), void **arguments, std::index_sequence<I_...>) {
    kernel(*static_cast<std::remove_const_t<std::remove_reference_t<P_>> *>(arguments[I_])...);
}
template <class... P_>
void call(void (*kernel)(P_...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<P_...>{});
}
template <class F_>
struct Sizes;
template <class... P_>
struct Sizes<void (*)(P_...)> {
    static constexpr int count = sizeof...(P_);
    static constexpr int values[sizeof...(P_) + 1] = {static_cast<int>(sizeof...(P_)), static_cast<int>(sizeof(P_))...};
};

template <class To, class From>
OPTIML_INLINE To bits(From value) {
    static_assert(sizeof(To) >= sizeof(From) || sizeof(From) >= sizeof(To));
    To to{};
    __builtin_memcpy(&to, &value, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
    return to;
}

// Registers as the warp exchange carries them: 8 bytes at a time.
template <class T_>
OPTIML_INLINE T_ shuffle(int op, unsigned mask, T_ value, int argument, int width, int line, const char *file) {
    if constexpr (sizeof(T_) <= 8) {
        return bits<T_>(optiml_warp(op, mask, bits<uint64_t>(value), argument, width, line, file));
    } else {
        struct Words {
            uint64_t word[(sizeof(T_) + 7) / 8];
        } words{};
        __builtin_memcpy(&words, &value, sizeof(T_));
        for (auto &word : words.word) word = optiml_warp(op, mask, word, argument, width, line, file);
        __builtin_memcpy(&value, &words, sizeof(T_));
        return value;
    }
}

}  // namespace optiml

#define OPTIML_SHARED(NAME)                                                                            \
    ::optiml::SharedPlace {                                                                            \
        [] {                                                                                           \
            static unsigned slot = 0;                                                                  \
            return &slot;                                                                              \
        }(),                                                                                           \
            #NAME, __LINE__                                                                            \
    }
#define OPTIML_DYNAMIC(NAME) \
    ::optiml::DynamicPlace { #NAME, __LINE__ }
#define OPTIML_ENTRY(STEP, ...)                                                                                     \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void optiml_entry_##STEP(void **arguments_) {\
        ::optiml::call(&__VA_ARGS__, arguments_);                                                                          \
    }                                                                                                               \
    extern "C" __attribute__((visibility("default"))) const int *const optiml_size_pointer_##STEP =                 \
        ::optiml::Sizes<decltype(&__VA_ARGS__)>::values;
// A `__constant__` variable that is filled before each launch.
#define OPTIML_CONSTANT(NUMBER, ...)                                                                                       \
    extern "C" __attribute__((visibility("default"))) const void *const optiml_constant_##NUMBER = &__VA_ARGS__;             \
    extern "C" __attribute__((visibility("default"))) const unsigned long optiml_constant_bytes_##NUMBER = sizeof(__VA_ARGS__);

#ifndef OPTIML_PROGRAM
#undef assert
#define assert(condition) ((condition) ? (void)0 : optiml_assert_fail(__LINE__))
#endif
namespace optiml {
OPTIML_INLINE void assume(bool holds) {
    if (!holds) __builtin_trap();  // undefined behaviour, like what Toolchain.strict_flags ends
}
}  // namespace optiml
#define __builtin_assume(condition) ::optiml::assume(static_cast<bool>(condition))

// Barriers, votes, shuffles.
OPTIML_INLINE void __syncthreads(OPTIML_WHERE) { optiml_barrier(OPTIML_BLOCK_SYNC, 1, line, file); }
OPTIML_INLINE int __syncthreads_count(int p, OPTIML_WHERE) { return optiml_barrier(OPTIML_BLOCK_COUNT, p, line, file); }
OPTIML_INLINE int __syncthreads_and(int p, OPTIML_WHERE) { return optiml_barrier(OPTIML_BLOCK_AND, p, line, file); }
OPTIML_INLINE int __syncthreads_or(int p, OPTIML_WHERE) { return optiml_barrier(OPTIML_BLOCK_OR, p, line, file); }
OPTIML_INLINE void __syncwarp(unsigned mask = 0xffffffffu, OPTIML_WHERE) {
    optiml_warp(OPTIML_SYNC, mask, 0, 0, 32, line, file);
}
OPTIML_INLINE unsigned __activemask(OPTIML_WHERE) { return optiml_activemask(line, file); }
OPTIML_INLINE unsigned __ballot_sync(unsigned mask, int p, OPTIML_WHERE) {
    return static_cast<unsigned>(optiml_warp(OPTIML_BALLOT, mask, p != 0, 0, 32, line, file));
}
OPTIML_INLINE int __any_sync(unsigned mask, int p, OPTIML_WHERE) { return __ballot_sync(mask, p, line, file) != 0; }
OPTIML_INLINE int __all_sync(unsigned mask, int p, OPTIML_WHERE) { return __ballot_sync(mask, !p, line, file) == 0; }
OPTIML_INLINE int __uni_sync(unsigned mask, int p, OPTIML_WHERE) {
    unsigned yes = __ballot_sync(mask, p, line, file);
    return yes == 0 || __ballot_sync(mask, !p, line, file) == 0;
}
template <class T_>
OPTIML_INLINE T_ __shfl_sync(unsigned mask, T_ value, int source, int width = 32, OPTIML_WHERE) {
    return optiml::shuffle(OPTIML_SHFL_IDX, mask, value, source, width, line, file);
}
template <class T_>
OPTIML_INLINE T_ __shfl_up_sync(unsigned mask, T_ value, unsigned delta, int width = 32, OPTIML_WHERE) {
    return optiml::shuffle(OPTIML_SHFL_UP, mask, value, static_cast<int>(delta), width, line, file);
}
template <class T_>
OPTIML_INLINE T_ __shfl_down_sync(unsigned mask, T_ value, unsigned delta, int width = 32, OPTIML_WHERE) {
    return optiml::shuffle(OPTIML_SHFL_DOWN, mask, value, static_cast<int>(delta), width, line, file);
}
template <class T_>
OPTIML_INLINE T_ __shfl_xor_sync(unsigned mask, T_ value, int lanes, int width = 32, OPTIML_WHERE) {
    return optiml::shuffle(OPTIML_SHFL_XOR, mask, value, lanes, width, line, file);
}
template <class T_>
OPTIML_INLINE unsigned __match_any_sync(unsigned mask, T_ value, OPTIML_WHERE) {
    return static_cast<unsigned>(optiml_warp(OPTIML_MATCH_ANY, mask, optiml::bits<uint64_t>(value), 0, 32, line, file));
}
template <class T_>
OPTIML_INLINE unsigned __match_all_sync(unsigned mask, T_ value, int *predicate, OPTIML_WHERE) {
    auto all = static_cast<unsigned>(optiml_warp(OPTIML_MATCH_ALL, mask, optiml::bits<uint64_t>(value), 0, 32, line, file));
    *predicate = all != 0;
    return all;
}
#define OPTIML_REDUCE(NAME, TYPE, OP)                                                                            \
    OPTIML_INLINE TYPE NAME(unsigned mask, TYPE value, OPTIML_WHERE) {                                           \
        return static_cast<TYPE>(optiml_warp(OP, mask, static_cast<unsigned>(value), 0, 32, line, file));        \
    }
OPTIML_REDUCE(__reduce_add_sync, unsigned, OPTIML_REDUCE_ADD)
OPTIML_REDUCE(__reduce_add_sync, int, OPTIML_REDUCE_ADD)
OPTIML_REDUCE(__reduce_min_sync, unsigned, OPTIML_REDUCE_MIN_U)
OPTIML_REDUCE(__reduce_min_sync, int, OPTIML_REDUCE_MIN_S)
OPTIML_REDUCE(__reduce_max_sync, unsigned, OPTIML_REDUCE_MAX_U)
OPTIML_REDUCE(__reduce_max_sync, int, OPTIML_REDUCE_MAX_S)
OPTIML_REDUCE(__reduce_and_sync, unsigned, OPTIML_REDUCE_AND)
OPTIML_REDUCE(__reduce_or_sync, unsigned, OPTIML_REDUCE_OR)
OPTIML_REDUCE(__reduce_xor_sync, unsigned, OPTIML_REDUCE_XOR)

OPTIML_INLINE void __threadfence() { optiml_fence(); }
OPTIML_INLINE void __threadfence_block() { optiml_fence_block(); }
OPTIML_INLINE void __threadfence_system() { optiml_fence(); }
// Of a launch that may begin before the one before it has ended: here none does.
OPTIML_INLINE void cudaGridDependencySynchronize() {}
OPTIML_INLINE void cudaTriggerProgrammaticLaunchCompletion() {}
OPTIML_INLINE void __nanosleep(unsigned) { optiml_pause(); }
OPTIML_INLINE long long clock64() { return static_cast<long long>(optiml_clock()); }
OPTIML_INLINE unsigned long long __globaltimer() { return optiml_clock(); }
#ifndef OPTIML_PROGRAM
#define clock() static_cast<clock_t>(optiml_clock())
#endif
#define __trap() optiml_assert_fail(__LINE__)
#define __brkpt() ((void)0)

#include "optiml_atomics.h"
#include "optiml_math.h"
#include "optiml_simd.h"
#include "optiml_ptx.h"

// Cache hints say how, not what; but the read-only cache need not see what the launch wrote.
#define OPTIML_LOAD(NAME)             \
    template <class T_>                \
    OPTIML_INLINE T_ NAME(const T_ *p) { return *p; }
template <class T_>
OPTIML_INLINE T_ __ldg(const T_ *p) {
    optiml_read_only(p, sizeof(T_));
    return *p;
}
OPTIML_LOAD(__ldca)
OPTIML_LOAD(__ldcg)
OPTIML_LOAD(__ldcs)
OPTIML_LOAD(__ldlu)
OPTIML_LOAD(__ldcv)
#define OPTIML_STORE(NAME)            \
    template <class T_>                \
    OPTIML_INLINE void NAME(T_ *p, std::remove_cv_t<T_> value) { *p = value; }
OPTIML_STORE(__stwb)
OPTIML_STORE(__stcg)
OPTIML_STORE(__stcs)
OPTIML_STORE(__stwt)

namespace optiml {
OPTIML_INLINE void *copy(void *to, const void *from, size_t bytes) {
    optiml_access(from, bytes, 0);
    optiml_access(to, bytes, 1);
    return __builtin_memmove(to, from, bytes);
}
OPTIML_INLINE void *fill(void *to, int value, size_t bytes) {
    optiml_access(to, bytes, 1);
    return __builtin_memset(to, value, bytes);
}
template <class... A_>
OPTIML_INLINE int print(const char *, const A_ &...) { return 0; }
}  // namespace optiml
#ifndef OPTIML_PROGRAM
// Types of the runtime API that declarations beside device code name. NVRTC has them too; nothing here makes a value of one.
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUmemPoolHandle_st *cudaMemPool_t;
typedef struct cudaArray *cudaArray_t;
typedef enum cudaError { cudaSuccess = 0 } cudaError_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
struct cudaDeviceProp;
struct cudaFuncAttributes;

// A member function of two parameters may have the name.
#define OPTIML_SEVENTH(a, b, c, d, e, f, chosen, ...) chosen
#define OPTIML_COPY(...) ::optiml::copy(__VA_ARGS__)
#define OPTIML_OWN_MEMCPY(...) memcpy(__VA_ARGS__)
#define memcpy(...)                                                                                                    \
    OPTIML_SEVENTH(__VA_ARGS__, OPTIML_COPY, OPTIML_COPY, OPTIML_COPY, OPTIML_COPY, OPTIML_OWN_MEMCPY, OPTIML_OWN_MEMCPY, ) \
    (__VA_ARGS__)
#define memmove(to, from, bytes) ::optiml::copy(to, from, bytes)
#define memset(to, value, bytes) ::optiml::fill(to, value, bytes)
#define printf(...) ::optiml::print(__VA_ARGS__)
#endif

#endif
