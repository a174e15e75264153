"""The device slice: what a device compiler gets of files that were written for two sides. NVRTC judges it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.slice import DeviceSlice, device_slice
from engine.errors import SourceError
from engine.model import Program
from tests.spent import spent

KERNEL = "__global__ void k(float* x) { x[0] = 1.0f; }\n"


def compiled(text: str, *expressions: str) -> None:
    """Compile through NVRTC for sm_90; what it refuses is the test's failure, with its log."""
    from engine.compile.program import Refused, compile_text
    from engine.compile.toolkit import include_folders

    folders = [f"--include-path={path}" for path in include_folders()]
    try:
        assert compile_text(text, "a.cu", expressions, ["-arch=sm_90", "--std=c++17", *folders]).code
    except Refused as error:
        raise AssertionError(error.log) from None


def sliced(source: str, *kernels: str, root: Path | None = None, **others: str) -> DeviceSlice:
    files = {"a.cu": source.encode(), **{name: text.encode() for name, text in others.items()}}
    return device_slice(Program(files, "a.cu"), kernels or ("k",), root=root)


def test_lines_stay_where_they_are() -> None:
    source = "#include <iostream>\n\nint host() { return 1; }\n\n\n" + KERNEL + "int main() {}\n"
    text = sliced(source).text
    assert text.split("\n")[5] == KERNEL.rstrip()
    assert text.count("\n") == source.count("\n")
    assert "host" not in text
    assert "iostream" not in text
    compiled(text, "k")


HARD = r"""#include <iostream>
#include <torch/extension.h>
#include <vector>
#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
using namespace std;
#define HD __host__ __device__ inline
#ifdef __CUDACC__
#define DEV __device__ __forceinline__
#else
#define DEV
#endif
struct Shape {
    int rows; int cols;
    Shape() : rows(1), cols{2} { std::cout << "made" << std::endl; }
    Shape(const std::vector<int>& v);
    explicit Shape(int r)
        : rows(r)
#ifdef DEBUG
        , cols(0)
#endif
    { }
    HD int size() const { return rows * cols; }
    static constexpr int kMax = 8;
    constexpr int twice() const { return 2 * rows; }
    struct Inner { int z; Inner(int q) { z = q; } };
    template <typename T> T host(T a) { return a; }
    Shape& operator=(const Shape&) = default;
} global_shape;
typedef struct { float x, y; } Pair;
enum class Mode : int { kFast = 1, kSlow };
constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }
template <typename T> constexpr T twice(T a) { return a + a; }
static const int kTile = 16;
static const std::vector<int> sizes = {1, 2};
const int from_host = std::stoi("3");
const float scale = twice(2) * 1.5f;
__constant__ float table[kTile];
DEV float helper(float v, Mode m) {
    return m == Mode::kFast ? v * table[0] : INFINITY;
}
HD uint32_t mix(uint32_t a) { return a ^ 0x9e3779b9u; }
template <typename T, int N = sizeof(int)>
struct alignas(16) Pack { T v[N]; HD T& operator[](int i) { return v[i]; } };
HD Pair operator+(const Pair& a, const Pair& b) { return Pair{a.x + b.x, a.y + b.y}; }
template <typename T>
__global__ void __launch_bounds__(cdiv(500, 2)) k(const T* x, T* y, Shape s, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    auto block = cg::this_thread_block();
    Pack<float> p; p[0] = scale; float big = numeric_limits<float>::max();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto f = [=] __device__ (int q) { return q + mix(q); };
    if (i < std::min(n, s.size())) y[i] = (T)(helper((float)x[i], Mode::kSlow) + f(i) + p[0] + FLT_MAX + s.twice() + M_PI + big);
    block.sync();
}
void launch(torch::Tensor a) { k<float><<<1, 2>>>(a.data_ptr<float>(), nullptr, Shape(2), 3); std::cout << "}" << '{'; }
TORCH_LIBRARY(foo, m) { m.def("k"); }
int main() { return 0; }
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_for_two_sides(newline: str, mark: bytes) -> None:
    data = mark + HARD.replace("\n", newline).encode()
    text = device_slice(Program({"a.cu": data}, "a.cu"), ["k"], root=None).text
    for gone in ("iostream", "torch", "vector", "stoi", "main", "TORCH_LIBRARY", "global_shape"):
        assert gone not in text
    compiled(text, "k<float>", "k<half>")


@pytest.mark.parametrize(
    "source",
    [
        "#include <cstdint>\n__global__ void k(uint64_t* x) { x[0] = UINT64_MAX + (uint8_t)INT_MAX; }",
        "#include <type_traits>\ntemplate <class T> __device__ std::enable_if_t<std::is_same<T, float>::value, T> f(T a) { return a; }\n"
        "__global__ void k(float* x) { x[0] = f(std::max(x[1], std::sqrt(x[2]))); }",
        "typedef unsigned int uint;\n#define FLT_MAX 3.0f\n__global__ void k(float* x) { uint q = 1; x[q] = FLT_MAX; }",
        "__global__ void k(float* x, uint n) { ushort s = n; x[s] = NAN; }",
        "#include <cublas_v2.h>\n__global__ void k(nv_bfloat16* x) { x[0] = __float2bfloat16(2.0f); }",
        "#include <cub/cub.cuh>\n#include <thrust/sort.h>\n" + KERNEL,
        "#include <mma.h>\nusing namespace nvcuda;\n__global__ void k(half* x) { wmma::fragment<wmma::matrix_a, 16, 16, 16, half, "
        "wmma::row_major> a; wmma::load_matrix_sync(a, x, 16); }",
        "namespace a { namespace { __device__ int f() { return 1; } } inline namespace b { __global__ void k(int* x) { x[0] = f(); } } }",
        'extern "C" {\n__global__ void k(int* x) { x[0] = 1; }\n}\n',
        "#ifdef __cplusplus\nextern \"C\" {\n#endif\n__global__ void k(int* x) { x[0] = 1; }\n#ifdef __cplusplus\n}\n#endif\n",
        "#if defined(WIDE)\n__global__ void k(long* x, int a) {\n#else\n__global__ void k(int* x, int a) {\n#endif\n  x[a] = 1;\n}\n",
        "__device__ int later(int a);\n__global__ void k(int* x) { x[0] = later(1); }\n__device__ int later(int a) { return a; }",
        "#define MAKE(name, T) __global__ void name(T* x) { x[0] = 1; }\nMAKE(other, int)\n" + KERNEL,
        'const char* text = "}{ // /*"; char c = \'}\'; /* } */ // }\n' + KERNEL,
        'auto raw = R"x(}}} __global__ )x";\n' + KERNEL,
        "template <int N> struct Unroll { template <class F> static __device__ void run(F f) { f(N); Unroll<N - 1>::run(f); } };\n"
        "template <> struct Unroll<0> { template <class F> static __device__ void run(F) {} };\n"
        "__global__ void k(int* x) { Unroll<3>::run([&](int i) { x[i] = i; }); }",
        "static_assert(sizeof(int) == 4, \"int\");\nstruct Host; int f(Host*);\n" + KERNEL,
        "class P { public: P(float a) : v(a) {} private: friend struct Q; float v; };\n"
        "__global__ void k(P* p, float* x) { x[0] = sizeof(P); }",
        "struct R { float (&rows)[8]; int (*pick)(int); __device__ R(float (&r)[8]) : rows(r) {} float sum() const { return rows[0]; } };\n"
        "__global__ void k(float* x) { float a[8]; R r(a); x[0] = r.rows[1]; }",
        "#pragma once\n#pragma GCC diagnostic ignored \"-Wall\"\n#warning old\n" + KERNEL,
        "int a = 1, b[] = {1, 2}; float* d_x; std::string s{\"x\"};\n__global__ void k(float* d_x) { d_x[0] = 1; }",
    ],
)  # fmt: skip
def test_forms_that_compile(source: str) -> None:
    text = sliced(source).text
    compiled(text, "a::k" if "namespace a" in source else "k")


KEPT_ERRORS = [
    "#error never\n",
    "#if __CUDA_ARCH__ < 1000\n#error needs sm_100\n#endif\n",
    "#ifndef BLOCK\n#error compile with -DBLOCK=256\n#endif\n",
    "#include <cuda_runtime.h>\n#include <cstdio>\n#include <stdio.h>\n#ifndef BLOCK // 3L of it\n#error no block\n#endif\n",
    "#define BLOCK 48\n#define WARPS (BLOCK / 32)\n#if WARPS * 32 != BLOCK\n#error whole warps alone\n#endif\n",
    "#define MODE 3\n#if MODE == 1\n#elif MODE == 2\n#else\n#error no such mode\n#endif\n",
    "#if 0\n#else\nvoid host() {\n#error inside the host\n}\n#endif\n",
]


def test_what_the_device_runtime_has_of_dependent_launches_is_there_without_it() -> None:
    source = "__global__ void k(int* x) { cudaGridDependencySynchronize(); x[0] = 1; cudaTriggerProgrammaticLaunchCompletion(); }\n"
    text = sliced(source, "k").text
    assert "griddepcontrol.wait" in text
    compiled(text, "k")
    assert "griddepcontrol" not in sliced(KERNEL, "k").text


@pytest.mark.parametrize("head", KEPT_ERRORS)
def test_an_error_of_the_kernels_own_is_reported(head: str) -> None:
    """It was dropped: a figure that the author forbids compiled, and was searched."""
    source = head + KERNEL
    line = source[: source.index("#error")].count("\n") + 1
    with pytest.raises(AssertionError, match=rf"\({line}\): .*#error"):
        compiled(sliced(source).text, "k")


def test_an_error_in_a_local_header_is_reported(tmp_path: Path) -> None:
    (tmp_path / "h.h").write_text("#pragma once\n#if TILE > 32\n#error too large a tile\n#endif\n")
    source = '#define TILE 64\n#include "h.h"\n' + KERNEL
    with pytest.raises(AssertionError, match=r"h\.h\(3\): .*#error"):
        compiled(sliced(source, root=tmp_path).text, "k")


@pytest.mark.parametrize(
    "head",
    [
        # Inactive for a device compiler.
        "#ifdef _WIN32\n#error no Windows\n#endif\n#if __CUDA_ARCH__ < 700\n#error too old\n#endif\n",
        "#ifndef __CUDACC__\n#error for nvcc alone\n#endif\n#if __cplusplus < 201703L\n#error C++17\n#endif\n",
        "#define BLOCK 64\n#if BLOCK % 32\n#error warps\n#endif\n",
        # What only the host's compiler, or a header that is left out, defines says nothing here.
        "#if defined(__linux)\n#elif defined(WIN32)\n#else\n#error unsupported system\n#endif\n",
        "#if CUDART_VERSION < 11000\n#error old toolkit\n#endif\n#ifndef __NVCC__\n#error nvcc\n#endif\n",
        "#include <torch/extension.h>\n#ifndef TORCH_VERSION_MAJOR\n#error no torch\n#endif\n",
        "#ifndef INT_MAX\n#error limits\n#endif\n",
    ],
)
def test_an_error_that_does_not_hold_or_cannot_be_judged_is_none(head: str) -> None:
    compiled(sliced(head + KERNEL).text, "k")


def test_headers_are_flattened_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/deep.h").write_text(
        "#ifndef DEEP_H\n#define DEEP_H\n#define TWO 2\nint host() { return 1; }\n#endif\n"
    )
    (tmp_path / "inc/once.cuh").write_text('#pragma once\n#include "deep.h"\n__device__ int two() { return TWO; }\n')
    source = '#include "inc/once.cuh"\n#include "inc/deep.h"\n#include "inc/once.cuh"\n'
    source += "__global__ void k(int* x) { x[0] = two() + wrong; }\n"
    found = sliced(source, root=tmp_path)
    assert found.headers == ("inc/once.cuh", "inc/deep.h")
    assert "host" not in found.text
    with pytest.raises(AssertionError, match=r"a\.cu\(4\): error: identifier \"wrong\""):
        compiled(found.text, "k")
    compiled(found.text.replace(" + wrong", ""), "k")


def test_an_error_in_a_header_has_the_headers_line() -> None:
    source = '#include "h.cuh"\n__global__ void k(int* x) { x[0] = f(); }\n'
    text = sliced(source, **{"h.cuh": "#pragma once\n\n__device__ int f() { return wrong; }\n"}).text
    with pytest.raises(AssertionError, match=r"h\.cuh\(3\): error: identifier \"wrong\""):
        compiled(text, "k")


def test_a_header_in_a_branch_counts_in_the_other_too() -> None:
    source = '#if 0\n#include "h.cuh"\n#endif\n#include "h.cuh"\n__global__ void k(int* x) { x[0] = f(); }\n'
    compiled(sliced(source, **{"h.cuh": "#pragma once\n__device__ int f() { return 1; }\n"}).text, "k")


def test_a_table_included_in_an_initialiser() -> None:
    source = '__constant__ int t[] = {\n#include "t.inc"\n};\n__global__ void k(int* x) { x[0] = t[0]; }\n'
    compiled(sliced(source, **{"t.inc": "1, 2,\n3\n"}).text, "k")


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.h", "x/../../secret.h"])
def test_nothing_outside_the_repository_is_read(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.h").write_text("int secret;\n")
    with pytest.raises(SourceError, match="outside the repository") as caught:
        sliced(f'\n#include "{name}"\n' + KERNEL, root=root)
    assert caught.value.where == "a.cu:2"


def test_a_link_out_of_the_repository_gives_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.h").write_text("__device__ int secret;\n")
    (root / "h.h").symlink_to(tmp_path / "secret.h")
    assert "secret" not in sliced('#include "h.h"\n' + KERNEL.replace("1.0f", "secret"), root=root).text.replace(
        "= secret", ""
    )


def test_include_folders_are_looked_through(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/f.h").write_text("__device__ int f() { return 1; }\n")
    program = Program({"a.cu": b"#include <f.h>\n__global__ void k(int* x) { x[0] = f(); }\n"}, "a.cu")
    compiled(device_slice(program, ["k"], root=tmp_path, include=["include"]).text, "k")


def test_what_is_nowhere_is_named() -> None:
    with pytest.raises(SourceError, match=r"a\.cu:2: 'k' needs at::Tensor"):
        sliced("#include <ATen/ATen.h>\n__global__ void k(float* x) { at::Tensor h; }\n")
    with pytest.raises(SourceError, match="has no kernel 'kk'"):
        sliced(KERNEL, "kk")
    with pytest.raises(SourceError, match="not UTF-8"):
        device_slice(Program({"a.cu": KERNEL.encode() + b"\xff"}, "a.cu"), ["k"], root=None)


def test_includes_that_multiply_end() -> None:
    files = {f"h{i}.h": f'#include "h{i + 1}.h"\n' * 2 for i in range(40)}
    with pytest.raises(SourceError, match="includes too much"):
        sliced('#include "h0.h"\n' + KERNEL, **files)
    chain = {f"h{i}.h": f'#include "h{i + 1}.h"\n' for i in range(1_500)}
    with pytest.raises(SourceError, match="includes too much"):
        sliced('#include "h0.h"\n' + KERNEL, **chain)
    sliced('#include "a.h"\n' + KERNEL, **{"a.h": '#include "a.h"\n'})


@pytest.mark.parametrize(
    "source",
    ["}}}}", "((((", "#endif\n#else\n", "#if\n#if\n", '"', "/*", 'R"x(', "template <", "\\", "#", "struct {", "a" * 10],
)
def test_broken_text_does_not_break_it(source: str) -> None:
    """Whatever stands behind a kernel: the slice is made, and it is the compiler that speaks."""
    assert "x[0] = 1.0f" in sliced(KERNEL + source).text


@pytest.mark.parametrize(
    "source",
    ["int x={}" + "{}" * 50_000, "a()" + "= {}" * 25_000, 'R"(\n' * 30_000, "template<" * 25_000, "(" * 100_000,
     ">()" * 25_000 + "{}", "#if\n" * 40_000, "/*" * 50_000, "a::" * 35_000, "struct S { " * 3_000 + "};" * 3_000],
    ids=lambda source: source[:8].strip(),
)  # fmt: skip
def test_hostile_text_costs_little(source: str) -> None:
    with spent() as cost:
        sliced("struct S;\n" + KERNEL.replace("float* x", "float* x, S* s") + source)
    assert cost.seconds < 4.0


def test_large_files_are_fast() -> None:
    body = "".join(
        f"__device__ int f{i}(int a) {{\n    // adds\n    return a + {i};\n}}\nvoid g{i}() {{ f{i}(1); }}\n\n"
        for i in range(1700)
    )
    source = body + KERNEL
    assert source.count("\n") > 10_000
    with spent() as cost:
        text = sliced(source).text
    assert cost.seconds < 4.0
    assert "f12" not in text


HEADER = "__global__ void k(real *x) { x[threadIdx.x] = SCALE; }\n"
INCLUDER = '#define SCALE 2\ntypedef float real;\n#include "k.cuh"\nvoid run(real *x) { k<<<1, 32>>>(x); }\n'


def test_a_kernel_in_a_header_is_compiled_through_the_file_that_includes_it() -> None:
    program = Program({"k.cuh": HEADER.encode(), "a.cu": INCLUDER.encode()}, "k.cuh")
    made = device_slice(program, ["k"], root=None, unit="a.cu")
    compiled(made.text, "k")
    assert made.path == "k.cuh"
    assert '#line 1 "k.cuh"' in made.text
    assert made.text.index('#line 1 "a.cu"') < made.text.index("typedef float real")


def test_a_unit_that_does_not_include_the_kernels_file_does_not_count() -> None:
    program = Program({"k.cu": KERNEL.encode(), "a.cu": b"typedef int k;\n"}, "k.cu")
    made = device_slice(program, ["k"], root=None, unit="a.cu")
    assert made == device_slice(program, ["k"], root=None)


def test_what_device_code_takes_from_pytorch_has_a_meaning_without_its_headers() -> None:
    text = sliced(
        "#include <ATen/ATen.h>\n__global__ void k(at::Half* x, float* y) {\n"
        "at::acc_type<at::Half, true> s = static_cast<float>(x[0]); gpuAtomicAdd(y, WARP_SHFL_DOWN(s, C10_WARP_SIZE / 2)); }\n"
    ).text
    assert "using Half = __half;" in text
    assert "#define C10_WARP_SIZE 32" in text
    assert "T gpuAtomicAdd(T* p, T v) { return atomicAdd(p, v); }" in text
    assert "BFloat16" not in text.replace("__nv_bfloat16", "")
    assert (
        "gpuAtomicAdd(T* p"
        not in sliced("__device__ void gpuAtomicAdd(int* p) {}\n__global__ void k(int* x) { gpuAtomicAdd(x); }\n").text
    )


def test_halves_of_pytorch_compute_with_fractions_of_other_types() -> None:
    """ "ambiguous overload for 'operator+'": PyTorch's headers say what `Half + float` is, CUDA's alone do not."""
    code = "__global__ void k(at::Half* x, float* y) { y[0] = x[0] + y[1] * 0.5f; y[2] = y[1] - x[1]; y[3] = x[2] * 2.0; }\n"
    compiled(sliced(f"#include <ATen/ATen.h>\n{code}").text, "k")


def test_the_version_of_cuda_is_known_without_its_header() -> None:
    """The arm for CUDA 8 was compiled, whose functions are gone."""
    code = """
__global__ void k(float* x) {
#if CUDA_VERSION >= 9000
    x[0] = __shfl_xor_sync(0xffffffffu, x[0], 1);
#else
    x[0] = __shfl_xor(x[0], 1);
#endif
}
"""
    compiled(sliced(code).text, "k")


def test_a_word_of_gnu_compilers_is_nothing_to_nvrtc() -> None:
    code = """#define EXTENSION __extension__
typedef struct { EXTENSION union { struct { short d, m; }; int both; }; } block;
__global__ void k(const block* x, int* y) { y[threadIdx.x] = x[threadIdx.x].both; }
"""
    found = device_slice(Program({"k.cu": code.encode()}, "k.cu"), ["k"], root=None).text
    assert "#ifdef __CUDACC_RTC__\n#ifndef __extension__\n#define __extension__" in found


def test_storage_of_an_alignment_is_cuda_s_own_in_nvrtc() -> None:
    code = b"""__global__ void k(float* x) {
    typedef typename std::aligned_storage<4 * sizeof(float), 4 * alignof(float)>::type Pack;
    ((Pack*)x)[1] = ((Pack*)x)[0];
}
"""
    assert "using ::cuda::std::aligned_storage;" in device_slice(Program({"a.cu": code}, "a.cu"), ["k"], root=None).text


def test_an_operator_of_a_class_that_nothing_needs_is_left_out():
    code = b"""#include <cuda/cmath>
struct Odd { cuda::fast_mod_div<unsigned> by; };
struct Pair { float a, b; __device__ Pair& operator+=(const Pair& o) { a += o.a; return *this; } };
__device__ unsigned operator/(unsigned n, const Odd& odd) { return n / odd.by; }
__device__ Pair operator+(Pair x, const Pair& y) { return x += y; }
__global__ void k(Pair* x) { x[0] = x[0] + x[1]; }
"""
    text = device_slice(Program({"a.cu": code}, "a.cu"), ["k"], root=None).text
    assert "Odd" not in text
    assert "Pair operator+(" in text
