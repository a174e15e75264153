// Stands in for PyTorch's random state of CUDA generators; its two 64-bit values may be pointers under graph capture.
#pragma once
#include <tuple>
namespace at {
struct PhiloxCudaState {
    unsigned long long seed_;
    unsigned long long offset_;
    unsigned int offset_intragraph_;
    bool captured_;
};
namespace cuda {
namespace philox {
__host__ __device__ __forceinline__ std::tuple<unsigned long long, unsigned long long> unpack(PhiloxCudaState state) {
    if (state.captured_) {
        return std::make_tuple(*(unsigned long long*)state.seed_, *(unsigned long long*)state.offset_ + state.offset_intragraph_);
    }
    return std::make_tuple(state.seed_, state.offset_);
}
}  // namespace philox
}  // namespace cuda
}  // namespace at
