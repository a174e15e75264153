// Matrix products of a warp. Every lane keeps the whole of a factor, and of a sum the elements that it would store.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "optiml_cuda.h"

namespace nvcuda {
namespace wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <class Element_>
struct OptimlStored { using type = Element_; };
template <>
struct OptimlStored<precision::tf32> { using type = float; };

// A factor: rows_ x cols_ elements, row after row.
template <class Use_, int M_, int N_, int K_, class Element_, class Layout_ = void>
struct fragment {
    using element_type = typename OptimlStored<Element_>::type;
    static constexpr int rows_ = std::is_same_v<Use_, matrix_a> ? M_ : K_, cols_ = std::is_same_v<Use_, matrix_a> ? K_ : N_;
    static constexpr int num_elements = rows_ * cols_;
    element_type x[num_elements];
};
// A sum: of its elements, row after row, each 32nd is a lane's.
template <int M_, int N_, int K_, class Element_>
struct fragment<accumulator, M_, N_, K_, Element_, void> {
    using element_type = Element_;
    static constexpr int num_elements = M_ * N_ / 32;
    element_type x[num_elements];
};

template <class Use_, int M_, int N_, int K_, class Element_, class Layout_>
OPTIML_INLINE void fill_fragment(fragment<Use_, M_, N_, K_, Element_, Layout_> &to, const std::common_type_t<typename OptimlStored<Element_>::type> &value) {
    for (auto &each : to.x) each = value;
}

template <class Use_, int M_, int N_, int K_, class Element_, class Layout_>
OPTIML_INLINE void load_matrix_sync(fragment<Use_, M_, N_, K_, Element_, Layout_> &to, const typename OptimlStored<Element_>::type *from, unsigned step) {
    constexpr int width = to.cols_;
    for (int i = 0; i < to.num_elements; ++i) {
        const unsigned row = i / width, column = i % width;
        to.x[i] = from[std::is_same_v<Layout_, row_major> ? row * step + column : column * step + row];
    }
}

namespace optiml_tile {
OPTIML_INLINE size_t place(int element, int width, unsigned step, layout_t layout) {
    const unsigned at = element * 32 + optiml::lane(), row = at / width, column = at % width;
    return layout == mem_row_major ? size_t{row} * step + column : size_t{column} * step + row;
}
// What the product takes of an element: of a float its upper 19 bits, where the factor is TF32.
template <class Element_, class Stored_>
OPTIML_INLINE auto taken(const Stored_ &value) {
    if constexpr (std::is_same_v<Element_, precision::tf32>)
        return optiml::bits<float>(optiml::bits<uint32_t>(value) & 0xffffe000u);
    else if constexpr (std::is_same_v<Stored_, double>)
        return value;
    else if constexpr (std::is_integral_v<Stored_>)
        return int(value);
    else
        return float(value);
}
}  // namespace optiml_tile

template <int M_, int N_, int K_, class Element_>
OPTIML_INLINE void load_matrix_sync(fragment<accumulator, M_, N_, K_, Element_> &to, const Element_ *from, unsigned step, layout_t layout) {
    for (int i = 0; i < to.num_elements; ++i) to.x[i] = from[optiml_tile::place(i, N_, step, layout)];
}

template <int M_, int N_, int K_, class Element_>
OPTIML_INLINE void store_matrix_sync(Element_ *to, const fragment<accumulator, M_, N_, K_, Element_> &from, unsigned step, layout_t layout) {
    for (int i = 0; i < from.num_elements; ++i) to[optiml_tile::place(i, N_, step, layout)] = from.x[i];
}

template <int M_, int N_, int K_, class Factor_, class A_, class B_, class To_, class From_>
OPTIML_INLINE void mma_sync(fragment<accumulator, M_, N_, K_, To_> &to, const fragment<matrix_a, M_, N_, K_, Factor_, A_> &a,
                            const fragment<matrix_b, M_, N_, K_, Factor_, B_> &b, const fragment<accumulator, M_, N_, K_, From_> &from,
                            bool = false) {
    for (int i = 0; i < to.num_elements; ++i) {
        const int at = i * 32 + optiml::lane(), row = at / N_, column = at % N_;
        auto sum = optiml_tile::taken<From_>(from.x[i]);
        for (int k = 0; k < K_; ++k)
            sum += optiml_tile::taken<Factor_>(a.x[row * K_ + k]) * optiml_tile::taken<Factor_>(b.x[k * N_ + column]);
        to.x[i] = To_(sum);
    }
}

OPTIML_INLINE float __float_to_tf32(float value) {
    return optiml::bits<float>((optiml::bits<uint32_t>(value) + 0x1000u) & 0xffffe000u);
}
}  // namespace wmma
}  // namespace nvcuda
