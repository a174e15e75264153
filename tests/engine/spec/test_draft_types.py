"""Types and template arguments of other people's kernels: packs, classes, enumerations, instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model import LaunchConfig, Program
from engine.spec.draft import draft
from engine.spec.launch_config import evaluate
from engine.spec.strides import Numbers, strides
from tests.engine.spec.drafts import program, read_back, tried


def test_a_parameter_that_is_a_class_is_asked_for() -> None:
    code = "template <typename T> __global__ void k(float* y) { y[threadIdx.x] = T::value; }\nvoid run(float* y) { k<<<1, 32>>>(y); }"
    missing = draft(program(code), "k").missing
    assert [gap for gap in missing if gap.key == "kernel"] == [
        "the template argument for 'typename T': write it in the kernel's name"
    ]


def test_a_parameter_pack_is_called_one() -> None:
    made = draft(
        program(
            "template <typename T, typename... Args> __global__ void k(T* y, int n, Args... args) { y[n] = f(args...); }"
        ),
        "k",
    )
    assert list(made.missing) == ["'args' is a parameter pack ('Args...'): a spec names single parameters"]


def test_template_arguments_come_from_what_the_host_template_is_instantiated_with() -> None:
    code = """
template <typename T, int N> __global__ void k(const T* x, T* y, int n) {
    int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = x[i];
}
template <typename U, int TILE> void run(const U* x, U* y, int n) { k<U, TILE><<<(n + TILE - 1) / TILE, TILE>>>(x, y, n); }
"""
    explicit = draft(
        program(code + "template void run<unsigned char, 64>(const unsigned char*, unsigned char*, int);"), "k"
    )
    assert explicit.spec.steps[0].template_args == "unsigned char, 64"
    called = code + (
        "template <typename V> void both(const V* x, V* y, int n) { run<V, 128>(x, y, n); }\n"
        "void all(const short* x, short* y, int n) { both<short>(x, y, n); }\n"
    )
    assert draft(program(called), "k").spec.steps[0].template_args == "short, 128"
    assert draft(program(code), "k").spec.steps[0].template_args == "float, 256"  # nothing shows them: assumed


@pytest.mark.parametrize("use", ["y[i] = f(x[i]);", "y[i] = apply(f, x[i]);"])
def test_a_function_object_is_asked_for_and_those_of_the_program_are_named(use: str) -> None:
    code = f"""
namespace ops {{ struct Twice {{ __device__ float operator()(float x) const {{ return 2 * x; }} }}; struct Shape {{ int n; }}; }}
template <typename F> __device__ float apply(F f, float x) {{ return f(x); }}
template <typename T, typename MapFn> __global__ void k(const T* x, T* y, int n, MapFn f) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {use}
}}
void run(const float* x, float* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n, [] __device__(float v) {{ return v; }}); }}
"""
    (gap,) = draft(program(code), "k").missing
    assert gap == "the template argument for 'typename MapFn': write it in the kernel's name, such as ops::Twice"
    assert gap.key == "kernel"


def test_the_values_of_an_enumeration_are_named() -> None:
    code = """
namespace a { enum class Mode { kOne, kTwo = 4, kThree }; }
template <a::Mode mode> __global__ void k(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = mode == a::Mode::kOne;
}
void run(float* y, int n, int which) { dispatch(which, [&](auto m) { k<m.value><<<(n + 255) / 256, 256>>>(y, n); }); }
"""
    (gap,) = draft(program(code), "k").missing
    assert gap == (
        "the template argument for 'a::Mode mode': write it in the kernel's name, such as a::Mode::kOne, a::Mode::kTwo, a::Mode::kThree"
    )


OPERATORS = """
static __device__ float twice(float x) {{ return 2 * x; }}
template <float (*op)(float), typename T, int N> __global__ void k(const T* x, T* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) for (int j = 0; j < N; j++) y[i * N + j] = op(x[i * N + j]);
}}
#define EACH_WIDTH(w, W, ...) switch (w) {{ \\
    case 4: {{ constexpr int W = 4; __VA_ARGS__; break; }} case 2: {{ constexpr int W = 2; __VA_ARGS__; }} }}
template <float (*op)(float), typename T> void run(const T* x, T* y, int n, int w) {{
    EACH_WIDTH(w, WIDTH, {{ k<op, T, WIDTH><<<(n + 255) / 256, 256>>>(x, y, n); }});
}}
{caller}
"""


@pytest.mark.parametrize(
    ("caller", "chosen", "gaps"),
    [
        ("void f(double* x, int n) { run<twice, double>(x, x, n, 4); }", "twice, double, 4", 0),
        ("template <class T> void f(T* x, int n) { run<twice>(x, x, n, 4); }", "twice, float, 4", 0),
        ("", "?, float, 4", 1),
    ],
)
def test_what_a_launch_says_of_some_template_arguments_is_taken(caller: str, chosen: str, gaps: int) -> None:
    made = draft(program(OPERATORS.format(caller=caller)), "k")
    assert made.spec.steps[0].template_args == chosen
    assert len([gap for gap in made.missing if "template argument" in gap]) == gaps


def test_a_parameter_of_type_void_is_none() -> None:
    made = draft(
        program("__device__ int seen;\n__global__ void k(void) { seen = 1; }\nvoid run() { k<<<1, 1>>>(); }\n"), "k"
    )
    assert not made.spec.arguments
    assert [str(gap) for gap in made.missing] == [
        "an output: the kernel writes to no buffer that it is given, so nothing can be compared"
    ]


@pytest.mark.parametrize(
    ("declared", "kind", "value"),
    [
        ("enum mode { MAX = 3, MEAN };", "mode", "3"),
        ("enum mode { MAX, MEAN };", "const enum mode", "0"),
        ("enum class mode : unsigned char { MAX, MEAN };", "mode", "0"),
        ("typedef enum { MAX = -1, MEAN } mode;", "mode", "-1"),
        ("enum mode { MAX = 1 << 4, MEAN };", "mode", "16"),
    ],
)
def test_an_enumeration_is_no_size(declared: str, kind: str, value: str) -> None:
    code = f"""
{declared}
__global__ void k(const float* x, float* y, int n, {kind} op) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (int)op < 5) y[i] = (int)op == 0 ? x[i] : 2 * x[i];
}}
void run(const float* x, float* y, int n, {kind} op) {{ k<<<(n + 255) / 256, 256>>>(x, y, n, op); }}
"""
    made = draft(program(code), "k")
    assert not made.missing
    assert made.spec.argument("op").value == value
    assert made.spec.argument("op").type == ("uint8" if "char" in declared else "int32")
    assert "assumed: MAX" in made.text


def test_classes_of_a_library_that_has_a_stand_in_may_be_template_arguments() -> None:
    code = """
#include "opencv2/core/cuda_types.hpp"
using namespace cv::cuda;
template <typename T, class Image> __global__ void k(int cols, int rows, const Image from, PtrStep<T> to) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows && j < cols) to(i, j) = from(i, j);
}
template <typename T> struct Run {
    static void call(PtrStepSz<T> x, PtrStepSz<T> y) { k<T, PtrStep<T> ><<<dim3(x.cols / 8, x.rows), 8>>>(x.cols, x.rows, x, y); }
};
template <typename T> void run(PtrStepSzb x, PtrStepSzb y) { Run<T>::call(PtrStepSz<T>(x), PtrStepSz<T>(y)); }
template void run<uchar3>(PtrStepSzb x, PtrStepSzb y);
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "uchar3, cv::cuda::PtrStep<uchar3>"
    assert not [gap for gap in made.missing if "template argument" in gap]


def test_a_type_is_one_for_which_what_the_kernel_uses_is_defined() -> None:
    code = """
template <typename T> struct Vec;
template <> struct Vec<__nv_bfloat16> { static constexpr int n = 2; };
template <> struct Vec<half> { static constexpr int n = 2; };
template <typename T> struct Any { static constexpr int n = 1; };
template <typename T, typename U> __global__ void k(const T* x, U* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float(x[i]) * Vec<T>::n * Any<U>::n;
}
template <typename T, typename U> void run(const T* x, U* y, int n) { k<T, U><<<(n + 255) / 256, 256>>>(x, y, n); }
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "__nv_bfloat16, float"


def test_a_template_s_own_names_are_no_types_of_the_program(tmp_path: Path) -> None:
    code = """
struct Other { using IdType = int; };
template <int VEC, typename T, typename IdType> __global__ void k(const T* x, const IdType* ids, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[ids[i]];
}
template <typename T, typename IdType> void run(const T* x, const IdType* ids, T* y, int n) {
    k<VEC_OF(T), T, IdType><<<(n + 255) / 256, 256>>>(x, ids, y, n);
}
"""
    assert draft(program(code), "k").spec.expressions == ("k<4, float, int>",)


def test_a_host_s_own_type_is_that_of_what_it_passes(tmp_path: Path) -> None:
    code = """
template <typename T, typename U> __global__ void k(const T* x, U* y, int n) {
    extern __shared__ char s[];
    for (int i = blockIdx.y; i < n; i += gridDim.y) y[i] = x[i];
}
template <typename In, typename Out> void run(const In* a, Out* b, int n) {
    const unsigned long most = at::cuda::getCurrentDeviceProperties()->maxGridSize[1];
    k<<<dim3(1, std::min((unsigned long)n, most)), 32, 4 * sizeof(Out)>>>(a, b, n);
}
"""
    made = tried(code, tmp_path)
    assert made.missing == ()
    assert evaluate(program(code), made.spec, 0, {"n": 100_000}) == LaunchConfig((1, 65535, 1), (32, 1, 1), 16)


VOID = """
template <typename E, int N> struct Vec {
    E data[N];
    __device__ void load(const void* p, int at) { for (int i = 0; i < N; i++) data[i] = static_cast<const E*>(p)[at * N + i]; }
};
template <typename In> struct Traits { using in_t = In; using Pack = Vec<in_t, 2>; };
struct Args { const void* x; void* sum; void* raw; int n; };
template <typename T> __global__ void k(Args a, const void* scale, void* y) {
    using Pack = typename T::Pack;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    Pack p;
    p.load(a.x, i);
    float* sum = static_cast<float*>(a.sum);
    sum[i] = p.data[0] + p.data[1];
    ((half2*)y)[i] = __floats2half2_rn(p.data[0] * *(const float*)scale, p.data[1]);
    ((char*)a.raw)[i] = sizeof(*(float*)a.raw);
}
void run(Args a, const void* s, void* y) { k<Traits<float>><<<(a.n + 255) / 256, 256>>>(a, s, y); }
"""


def test_a_pointer_to_void_has_the_type_that_the_kernel_sees(tmp_path: Path) -> None:
    made = tried("#include <cuda_fp16.h>\n" + VOID, tmp_path)
    assert made.missing == ()
    spec = read_back(program("#include <cuda_fp16.h>\n" + VOID), made, "comments")
    types = {a.name: (a.type, a.size) for a in spec.arguments if a.role != "scalar"}
    assert types == {
        "a.x": ("float", "2*n"), "a.sum": ("float", "n"), "a.raw": ("uint8", "n"), "scale": ("float", "1"),
        "y": ("half", "2*n"),
    }  # fmt: skip
    assert spec.argument("a.x").fill.kind == "normal"
    assert "assumed: the type that the kernel casts it to" in made.text


PIXELS = """
namespace img {{
union Bgr {{ uchar3 v; struct {{ unsigned char b, g, r; }} c; }};
{more}
template <class Pair, class Color> __global__ void k(const unsigned char* x, unsigned char* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair p = ((const Pair*)x)[i];
    Color color{{}};
    color.c.b = p.x; color.c.g = p.y;
    y[2 * i] = color.v.x; y[2 * i + 1] = color.v.y;
}}
template <class P, class C> void run(const unsigned char* x, unsigned char* y, int n) {{ k<P, C><<<(n + 255) / 256, 256>>>(x, y, n); }}
}}
"""


def test_a_type_with_members_is_a_class_that_has_them(tmp_path: Path) -> None:
    made = tried(PIXELS.format(more=""), tmp_path)
    assert made.missing == ()
    assert made.spec.expressions == ("img::k<uchar2, img::Bgr>",)
    (gap,) = draft(program(PIXELS.format(more="struct Rgb { uchar3 v; Held c; };")), "k").missing
    assert gap == "the template argument for 'class Color': write it in the kernel's name, such as img::Bgr, img::Rgb"


def test_types_of_a_part_are_those_of_the_source_that_includes_it() -> None:
    files = {
        "k.cu": b"#include <stdio.h>\n__global__ void k(real* y, Shape s) { if (threadIdx.x < s.n) y[threadIdx.x] = s.scale; }\n",
        "main.cu": b'#include "types.h"\n#include "k.cu"\nvoid run(real* y, Shape s) { k<<<1, 256>>>(y, s); }\n',
        "types.h": b"#define real double\ntypedef struct { int n; real scale; } Shape;\n",
    }
    made = draft(Program(files, "k.cu"), "k")
    assert [gap for gap in made.missing if "type" in gap] == []
    assert made.spec.argument("y").type == "double"
    assert (made.spec.argument("s.n").value, made.spec.argument("s.scale").value) == ("n", "0.75")


def test_what_kernels_take_of_opencv_s_device_headers(tmp_path: Path) -> None:
    made = tried(
        """
#include "opencv2/core/cuda/common.hpp"
#include "opencv2/core/cuda/border_interpolate.hpp"
using namespace cv::cuda;
using namespace cv::cuda::device;
template <class Border> __global__ void k(const PtrStepSz<uchar4> src, PtrStep<float4> dst, Border border, int* least) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= src.cols || y >= src.rows) return;
    BorderReader<PtrStepSz<uchar4>, Border> pixels(src, border);
    dst(y, x) = 0.5f * (pixels(y - 1, x) + pixels(y, x + 1)) - src(y, x) * CV_PI_F;
    if (WithOutMask()(y, x)) Emulation::smem::atomicMin(least, (int)src(y, x).x);
}
void run(const PtrStepSz<uchar4> src, PtrStep<float4> dst, int* least) {
    BrdReflect101<uchar4> border(src.rows, src.cols);
    k<BrdReflect101<uchar4>><<<dim3((src.cols + 255) / 256, src.rows), 256>>>(src, dst, border, least);
}
""",
        tmp_path,
    )
    assert made.missing == ()
    assert made.spec.argument("dst.data").size == "cols*rows"


def test_an_enumeration_is_read_where_the_grammar_loses_what_is_around_it() -> None:
    code = """
LIB_DEPRECATED(LIB_API struct thing * make(
    struct context * ctx, int n),
    "use other instead");
LIB_NORETURN LIB_FORMAT(3, 4) LIB_API struct thing * other(const char * format, ...) LIB_END
struct context * get(
enum mode { MODE_TWICE, MODE_SAME };
__global__ void k(float* y, int n, enum mode m) { int i = threadIdx.x; if (i < n) y[i] = m == MODE_TWICE ? 2 : 1; }
void run(float* y, int n, enum mode m) { k<<<1, 256>>>(y, n, m); }
"""
    made = draft(program(code), "k")
    assert [gap for gap in made.missing if "type" in gap] == []
    assert (made.spec.argument("m").type, made.spec.argument("m").value) == ("int32", "0")
    assert 'args.m = { type = "int32", value = "0" }' in made.text


DEDUCED = """
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
template <typename T> struct View { T* data; int cols; };
template <typename T, class Op> __global__ void k(const View<T> x, float* y, int n, Op op) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = op(x.data[i], 1);
}
template <typename T> void run(View<char> x, float* y, int n) {
    Sum op;
    k<<<(n + 255) / 256, 256>>>((View<T>)x, y, n, op);
}
template void run<int>(View<char> x, float* y, int n);
"""


def test_a_launch_that_names_no_template_arguments_is_what_it_passes() -> None:
    made = draft(program(DEDUCED), "k")
    assert [gap for gap in made.missing if gap.key == "kernel"] == []
    assert made.spec.steps[0].template_args == "int, Sum"


def test_a_type_that_is_no_name_is_no_enumeration() -> None:
    code = """
template <int N> struct P;
__global__ void k(float* y, P<(3> 1)> p) { y[threadIdx.x] = 1; }
void run(float* y, P<(3> 1)> p) { k<<<1, 32>>>(y, p); }
"""
    assert any("the type of 'p'" in gap for gap in draft(program(code), "k").missing)


def test_template_parameters_may_have_any_name() -> None:
    code = """
template <typename P, typename w, float (*f)(float)> struct Pair { P* first; w* second; int n; };
template <typename P, typename w, float (*f)(float)> __global__ void k(const Pair<P, w, f> p, P* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) y[i] = f(p.first[i] + p.second[i]);
}
__device__ float twice(float x) { return 2 * x; }
void run(Pair<float, int, twice> p, float* y) { k<<<(p.n + 255) / 256, 256>>>(p, y); }
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "float, int, twice"


def test_a_row_is_as_long_as_the_template_says_whatever_sizes_count() -> None:
    names = ["nnz", "rotary_dim", "q_stride_n"]
    given = Numbers(names, names[:2], {"q": 4}, constants={"HEAD_DIM": 64, "BLOCK_DIM": 32})
    assert strides(given) == {"q_stride_n": "64"}
    given = Numbers(names, names[:2], {"q": 4}, constants={"BLOCK_DIM": 32})
    assert strides(given) == {"q_stride_n": "rotary_dim"}
