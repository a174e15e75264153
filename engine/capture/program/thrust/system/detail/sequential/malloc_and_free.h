// `thrust::device_malloc` and the memory of algorithms, for which see `system/cpp/memory_resource.h`.
#pragma once
#pragma GCC system_header
#include <optiml_thrust.h>
#include <thrust/detail/config.h>
#include <thrust/detail/raw_pointer_cast.h>
#include <thrust/system/detail/sequential/execution_policy.h>

THRUST_NAMESPACE_BEGIN
namespace system {
namespace detail {
namespace sequential {

template <class Policy_>
inline void *malloc(execution_policy<Policy_> &, std::size_t bytes) {
    void *found = nullptr;
    return cudaMalloc(&found, bytes ? bytes : 1) == cudaSuccess ? found : nullptr;
}

template <class Policy_, class Pointer_>
inline void free(execution_policy<Policy_> &, Pointer_ pointer) {
    cudaFree(thrust::raw_pointer_cast(pointer));
}

}  // namespace sequential
}  // namespace detail
}  // namespace system
THRUST_NAMESPACE_END
