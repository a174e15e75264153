// Thrust's policies for a stream: on the CPU everything is in order.
#pragma once
#pragma GCC system_header
#include <thrust/system/cpp/execution_policy.h>

THRUST_NAMESPACE_BEGIN
namespace cuda {

struct par_t : thrust::system::cpp::detail::par_t {
    const thrust::system::cpp::detail::par_t &on(cudaStream_t) const { return *this; }
};
inline constexpr par_t par{}, par_nosync{};

}  // namespace cuda
THRUST_NAMESPACE_END
