// CUDA's runtime API for a program whose kernels run on the CPU: types and declarations are those of the real header, the
// functions that exist are in runtime.cpp, and the linker names those that do not.
#pragma once
#pragma GCC system_header
#define OPTIML_PROGRAM 1
#include <memory>  // has a word that CUDA defines as a macro
#include "optiml_cuda.h"

// The real header's own vector types and attributes are left out: ours are there.
#define __VECTOR_TYPES_H__
#define __CUDA_RUNTIME_H__
#define __HOST_DEFINES_H__
#define __CUDA_DEVICE_RUNTIME_API_H__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define CUDARTAPI_CDECL
#include OPTIML_RUNTIME_API
#include OPTIML_LIBRARY_TYPES
extern "C" {
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
}

#include <time.h>

#include <new>
#include <tuple>

// CUDA's mathematics are global functions.
using std::isfinite;
using std::isinf;
using std::isnan;

namespace optiml {

// What a launch does for every thread: calls the kernel with copies of its arguments.
struct Call {
    void (*thread)(void *);  // with the address of the values below
    size_t bytes;            // of all values together
    size_t align;
    void (*place)(void *to, const void *from);
    const void *values;
    const void *function;  // the kernel's address, or null where the compiler deduced its arguments
    const char *name;
    int count;
    const size_t *offsets, *sizes;  // of each argument within the values
};

struct Config {
    dim3 grid, block;
    size_t shared = 0;
    cudaStream_t stream = nullptr;
    Config(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr)
        : grid(grid), block(block), shared(shared), stream(stream) {}
};

cudaError_t launch(const Config &config, const Call &call);
void host_writes();  // from now on the host writes to allocations unseen: no launch is taken for a repetition
// At the begin of each kernel, with its own name: false, with an error, where the host calls it like a function.
bool launched(const char *pretty);
extern bool asking;  // a kernel is called for its name and its arguments alone
void asked(size_t bytes, const void *value);
template <class... P_>
void arguments(const P_ &...given) {
    (asked(sizeof(given), &given), ...);
}

template <class F_, class... P_, std::size_t... I_>
cudaError_t start(const Config &config, const char *name, const void *address, F_ function, std::tuple<P_...> &given,
                  std::index_sequence<I_...>) {
    struct Values {
        F_ function;
        std::tuple<P_...> given;
    } values{function, given};
    static size_t offsets[sizeof...(P_) + 1], sizes[sizeof...(P_) + 1] = {sizeof(P_)..., 0};
    ((offsets[I_] = static_cast<size_t>(reinterpret_cast<char *>(&std::get<I_>(values.given)) - reinterpret_cast<char *>(&values))), ...);
    Call call{};
    call.thread = [](void *at) {
        auto &own = *static_cast<Values *>(at);
        own.function(std::get<I_>(own.given)...);
    };
    call.bytes = sizeof(Values), call.align = alignof(Values);
    call.place = [](void *to, const void *from) { new (to) Values(*static_cast<const Values *>(from)); };
    call.values = &values, call.function = address, call.name = name;
    call.count = sizeof...(P_), call.offsets = offsets, call.sizes = sizes;
    return launch(config, call);
}

// kernel<<<…>>>(…) where the kernel is one function: arguments are converted to its parameters.
template <class... P_>
auto launcher(const Config &config, const char *name, void (*kernel)(P_...)) {
    return [=](P_... given) {
        std::tuple<std::remove_cv_t<std::remove_reference_t<P_>>...> values(given...);
        start(config, name, reinterpret_cast<const void *>(kernel), kernel, values, std::index_sequence_for<P_...>{});
    };
}

// The same where the compiler deduces the template's arguments from the call.
template <class F_>
auto deduced(const Config &config, const char *name, F_ function) {
    return [=](auto... given) {
        std::tuple<decltype(given)...> values(given...);
        start(config, name, nullptr, function, values, std::index_sequence_for<decltype(given)...>{});
    };
}

template <class... P_, std::size_t... I_>
cudaError_t unpacked(const Config &config, void (*kernel)(P_...), void **given, std::index_sequence<I_...> all) {
    std::tuple<std::remove_cv_t<std::remove_reference_t<P_>>...> values(
        *static_cast<std::remove_cv_t<std::remove_reference_t<P_>> *>(given[I_])...);
    return start(config, "", reinterpret_cast<const void *>(kernel), kernel, values, all);
}

}  // namespace optiml

template <class... P_>
cudaError_t cudaLaunchKernel(void (*kernel)(P_...), dim3 grid, dim3 block, void **given, size_t shared = 0, cudaStream_t stream = nullptr) {
    return optiml::unpacked(optiml::Config(grid, block, shared, stream), kernel, given, std::index_sequence_for<P_...>{});
}
template <class T_>
cudaError_t cudaMalloc(T_ **p, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void **>(p), bytes);
}
template <class T_>
cudaError_t cudaMallocAsync(T_ **p, size_t bytes, cudaStream_t stream) {
    return cudaMallocAsync(reinterpret_cast<void **>(p), bytes, stream);
}
template <class T_>
cudaError_t cudaMallocHost(T_ **p, size_t bytes, unsigned = 0) {
    return cudaMallocHost(reinterpret_cast<void **>(p), bytes);
}
template <class T_>
cudaError_t cudaHostAlloc(T_ **p, size_t bytes, unsigned flags) {
    return cudaHostAlloc(reinterpret_cast<void **>(p), bytes, flags);
}
template <class T_>
cudaError_t cudaHostGetDevicePointer(T_ **p, void *host, unsigned flags) {
    return cudaHostGetDevicePointer(reinterpret_cast<void **>(p), host, flags);
}
template <class T_>
cudaError_t cudaMallocManaged(T_ **p, size_t bytes, unsigned flags = cudaMemAttachGlobal) {
    return cudaMallocManaged(reinterpret_cast<void **>(p), bytes, flags);
}
template <class T_>
cudaError_t cudaMallocPitch(T_ **p, size_t *pitch, size_t width, size_t height) {
    return cudaMallocPitch(reinterpret_cast<void **>(p), pitch, width, height);
}
template <class T_>
cudaError_t cudaMemcpyToSymbol(const T_ &symbol, const void *from, size_t count, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    return cudaMemcpyToSymbol(static_cast<const void *>(&symbol), from, count, offset, kind);
}
template <class T_>
cudaError_t cudaMemcpyToSymbolAsync(const T_ &symbol, const void *from, size_t count, size_t offset, cudaMemcpyKind kind,
                                    cudaStream_t stream = nullptr) {
    return cudaMemcpyToSymbolAsync(static_cast<const void *>(&symbol), from, count, offset, kind, stream);
}
template <class T_>
cudaError_t cudaMemcpyFromSymbol(void *to, const T_ &symbol, size_t count, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    return cudaMemcpyFromSymbol(to, static_cast<const void *>(&symbol), count, offset, kind);
}
template <class T_>
cudaError_t cudaGetSymbolAddress(void **p, const T_ &symbol) {
    return cudaGetSymbolAddress(p, static_cast<const void *>(&symbol));
}
template <class T_>
cudaError_t cudaGetSymbolSize(size_t *bytes, const T_ &) {
    *bytes = sizeof(T_);
    return cudaSuccess;
}
template <class T_>
cudaError_t cudaFuncSetAttribute(T_ *kernel, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class T_>
cudaError_t cudaFuncSetCacheConfig(T_ *kernel, cudaFuncCache config) {
    return cudaFuncSetCacheConfig(reinterpret_cast<const void *>(kernel), config);
}
template <class T_>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *found, T_ *kernel) {
    return cudaFuncGetAttributes(found, reinterpret_cast<const void *>(kernel));
}
template <class T_>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T_ kernel, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(kernel), threads, shared);
}
template <class T_>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int *grid, int *block, T_, size_t = 0, int limit = 0) {
    *block = limit > 0 && limit < 256 ? limit : 256;
    *grid = 132 * (2048 / *block);
    return cudaSuccess;
}
template <class T_>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, T_ kernel, int threads, size_t shared, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
template <class T_>
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, T_ *p, size_t bytes = 0, unsigned flags = cudaMemAttachSingle) {
    return cudaStreamAttachMemAsync(stream, static_cast<void *>(p), bytes, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }
