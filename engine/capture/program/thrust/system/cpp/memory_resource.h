// Memory of Thrust's vectors, which run on the host here: kernels are given it, so it is allocated like any other.
#pragma once
#pragma GCC system_header
#include <optiml_thrust.h>
#include <thrust/detail/config.h>
#include <thrust/mr/fancy_pointer_resource.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/system/cpp/pointer.h>

THRUST_NAMESPACE_BEGIN
namespace system {
namespace cpp {
namespace detail {

struct cuda_resource : thrust::mr::memory_resource<> {
    void *do_allocate(std::size_t bytes, std::size_t) override {
        void *found = nullptr;
        if (cudaMalloc(&found, bytes ? bytes : 1) != cudaSuccess) throw std::bad_alloc();
        return found;
    }
    void do_deallocate(void *p, std::size_t, std::size_t) override { cudaFree(p); }
};
using native_resource = thrust::mr::fancy_pointer_resource<cuda_resource, thrust::cpp::pointer<void>>;
using universal_native_resource = thrust::mr::fancy_pointer_resource<cuda_resource, thrust::cpp::universal_pointer<void>>;

}  // namespace detail

using memory_resource = detail::native_resource;
using universal_memory_resource = detail::universal_native_resource;
using universal_host_pinned_memory_resource = universal_memory_resource;

}  // namespace cpp
}  // namespace system
THRUST_NAMESPACE_END
