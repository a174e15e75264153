"""Template arguments followed through host code, and launches that are no `kernel<<<…>>>`, each in few lines."""

from __future__ import annotations

import pytest

from engine.cuda.instances import launched_instances
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.draft import draft

KERNEL = "template <typename T, int N> __global__ void k(const T* x, T* y, int n) { y[0] = x[0]; }\n"


def _program(code: str, **others: str) -> Program:
    files = {"src/k.cu": code.encode(), **{f"src/{name}.cu": text.encode() for name, text in others.items()}}
    return Program(files, "src/k.cu")


def _first(code: str, **others: str) -> str:
    return next((i.arguments for i in launched_instances(_program(code, **others), "k")), "")


LAUNCHER = "template <typename T, int N> void run(const T* x, T* y, int n) { k<T, N><<<n, N>>>(x, y, n); }\n"


CLASS = "template <class U, int W> struct Runner { static void run(U* x, int n) { k<U, W><<<n, 1>>>(x, x, n); } };\n"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("void f(float* x, float* y, int n) { k<float, 128><<<n, 128>>>(x, y, n); }", "float, 128"),
        (LAUNCHER + "template void run<double, 64>(const double*, double*, int);", "double, 64"),
        (LAUNCHER + "void f(float* x, float* y, int n) { run<float, 32>(x, y, n); }", "float, 32"),
        (LAUNCHER + "template <typename T> void g(T* x, int n) { run<T, 8>(x, x, n); }\ntemplate void g<half>(half*, int);", "half, 8"),
        (
            LAUNCHER + "#define REGISTER(S, T) \\\n    void run_##S##_##T(T* x, int n) { \\\n        run<T, S>(x, x, n); \\\n    }\n"
            "REGISTER(512, float)\n",
            "float, 512",
        ),
        (
            LAUNCHER + "#define INNER(S, T) void i_##S(T* x) { run<T, S>(x, x, 1); }\n#define OUTER(S) INNER(S, float)\nOUTER(96)\n",
            "float, 96",
        ),
        (
            "void f(float* x, int n) { constexpr int kN = 16; using type = float; k<type, kN><<<n, 1>>>(x, x, n); }",
            "float, 16",
        ),
        (
            "#define SWITCH(C, NAME, ...) [&] { if (C) { constexpr int NAME = 4; return __VA_ARGS__(); } }()\n"
            "void f(float* x, int n) { SWITCH(n > 1, W, [&] { k<float, W><<<n, 1>>>(x, x, n); }); }",
            "float, 4",
        ),
        (
            "#define EACH(TYPE, LEVEL, NAME, ...) switch (TYPE) { case 0: { using scalar_t_##LEVEL = double; __VA_ARGS__; break; } }\n"
            "void f(int t, void* x, int n) { EACH(t, 0, \"f\", k<scalar_t_0, 2><<<n, 1>>>((scalar_t_0*)x, (scalar_t_0*)x, n);); }",
            "double, 2",
        ),
        ("template <typename T> void f(T* x, int n) { k<T, 1><<<n, 1>>>(x, x, n); }", ""),  # nothing uses it
        # Launched by a member of a class template.
        (CLASS + "void f(float* x, int n) { Runner<float, 8>::run(x, n); }", "float, 8"),
        (CLASS + "void f(half* x, int n) { Runner<half, 4> runner; runner.run(x, n); }", "half, 4"),
        (
            CLASS + "template <class T> void f(T* x, int n) { Runner<T, 2>{}.run(x, n); }\ntemplate void f<double>(double*, int);",
            "double, 2",
        ),
        (CLASS, ""),
        # A kernel's expression has numbers, no arithmetic.
        (LAUNCHER + "template void run<float, 4 * (8 + 1)>(const float*, float*, int);", "float, 36"),
        (
            "template <class T, int N> struct P {};\nvoid f(float* x, int n) { k<P<float, 32 * 32>, 64 / 2><<<n, 1>>>(x, x, n); }",
            "P<float, 1024>, 32",
        ),
        ("void f(float* x, int n) { k<float, 7 / 0><<<n, 1>>>(x, x, n); }", "float, 7 / 0"),
    ],
)  # fmt: skip
def test_template_arguments_are_followed_to_a_concrete_instance(host: str, expected: str) -> None:
    assert _first(KERNEL + host) == expected


def test_a_traits_class_is_named_with_its_namespace_and_where_it_comes_from() -> None:
    code = (
        "namespace ns {\ntemplate <typename T, int N> struct Traits { using type = T; static constexpr int n = N; };\n"
        "template <typename Tr> __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * Tr::n; }\n}\n"
        "using namespace ns;\n"
        "template <typename T, int N> void run(const float* x, float* y) {\n"
        "    using Traits = Traits<T, N>;\n    auto kernel = &k<Traits>;\n    kernel<<<1, 32>>>(x, y);\n}\n"
        "template void run<float, 4>(const float*, float*);\n"
    )
    made = draft(_program(code), "k")
    assert made.spec.steps[0].template_args == "ns::Traits<float, 4>"
    assert "those of src/k.cu:" in made.text
    assert not [gap for gap in made.missing if "launch" in gap]


def test_arguments_that_nothing_makes_concrete_are_asked_for() -> None:
    code = (
        "template <typename Tr> __global__ void k(float* y) { y[0] = Tr::n; }\n"
        "template <typename T> void run(float* y) { k<T><<<1, 1>>>(y); }\n"
    )
    (gap,) = draft(_program(code), "k").missing
    assert "the template argument for 'typename Tr'" in gap
    assert gap.key == "kernel"


PLAIN = "__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }\n"


@pytest.mark.parametrize(
    "host",
    [
        "auto kernel = k; kernel<<<n / 32, 32>>>(y, n);",
        "auto kernel = &k;\n    kernel<<<n / 32, 32>>>(y, n);",
        "auto kernel = n == 7 ? &ns::k : &other<float>;\n    kernel<<<n / 32, 32>>>(y, n);",
        "auto kernel = n > 7\n        ? other<float>\n        : k;\n    kernel<<<n / 32, 32>>>(y, n);",
        "void* args[] = {&y, &n};\n    cudaLaunchKernel((void*)k, dim3(n / 32), dim3(32), args, 0, 0);",
        "void* args[] = {(void*)&y, (void*)&n};\n    auto f = &k;\n    cudaLaunchCooperativeKernel((void*)f, n / 32, 32, args, 0, 0);",
        "cudaLaunchConfig_t c = {};\n    c.gridDim = n / 32;\n    c.blockDim = 32;\n    cudaLaunchKernelEx(&c, k, y, n);",
        "cudaLaunchConfig_t c{n / 32, 32, 0, 0};\n    void* args[] = {&y, &n};\n    cudaLaunchKernelExC(&c, (const void*)k, args);",
        "const Params p = Params(n / 32, 32, 0, 0);\n    start(k, p, y, n);",
    ],
)
def test_launches_of_other_forms_are_read(host: str) -> None:
    helper = (
        "template <typename K, typename... A> void start(K f, Params p, A... a) { f<<<p.grid, p.block>>>(a...); }\n"
    )
    program = _program(f"{PLAIN}{helper}void f(float* y, int n) {{\n    {host}\n}}\n")
    (site,) = readable_sites(program, "k")
    assert ([part.text for part in site.parts[:2]], site.arguments) in (
        (["n / 32", "32"], ("y", "n")),
        (["dim3(n / 32)", "dim3(32)"], ("y", "n")),
    )


def test_a_pointer_that_is_given_another_kernel_is_no_launch_of_the_first() -> None:
    code = (
        PLAIN
        + PLAIN.replace("void k(", "void other(")
        + "void f(float* y, int n) { auto g = k; g = other; g<<<1, 32>>>(y, n); }\n"
    )
    assert not readable_sites(_program(code), "k")


def test_statements_in_a_dispatch_macro_and_a_bare_macro_before_a_launch_are_parsed() -> None:
    code = KERNEL + (
        "void f(float* x, int n) {\n    DISPATCH(t, 0, \"f\", using a = map<float, 2>; k<a, 2><<<n, 4>>>(x, x, n););\n}\n"
        "void g(float* x, int n) {\n    SWITCH_ON(t, N, { k<float, N><<<n, 8>>>(x, x, n); })\n}\n"
        "void h(float* x, int n) {\n    TIMER_BEGIN\n    k<float, 1><<<n, 16>>>(x, x, n);\n}\n"
    )  # fmt: skip
    found = parse(code.encode(), "k.cu").launches
    assert [(site.kernel, site.parts[1].text, site.function) for site in found] == [
        ("k", "4", "f"),
        ("k", "8", "g"),
        ("k", "16", "h"),
    ]
    assert all(code.encode()[s.span.start :].startswith(b"k<") for s in found)


def test_templates_that_call_each_other_in_many_places_are_each_followed_once() -> None:
    """Twelve steps through eight functions with eight calls each took for ever."""
    names = [f"f{i}" for i in range(8)]
    calls = " ".join(f"{name}<T>(x, n);" for name in names)
    code = KERNEL + "".join(f"template <typename T> void {name}(T* x, int n) {{ {calls} }}\n" for name in names)
    code += "template <typename T> void g(T* x, int n) { f0<T>(x, n); k<T, 1><<<n, 1>>>(x, x, n); }\n"
    code += "template <typename T> void h(T* x, int n) { f0<T>(x, n); }\ntemplate void f7<double>(double*, int);\n"
    code = code.replace("void f0(T* x, int n) {", "void f0(T* x, int n) { g<T>(x, n);")
    assert _first(code) == "double, 1"
    assert {i.arguments for i in launched_instances(_program(code), "k")} == {"double, 1"}


def test_a_union_may_be_a_template_argument() -> None:
    """Its name was taken for one that nothing defines, and `float` was assumed, which has no members."""
    code = "union Pixel { unsigned all; struct { unsigned char r, g, b, a; } one; };\n" + LAUNCHER
    made = draft(_program(KERNEL + code + "template void run<Pixel, 64>(const Pixel*, Pixel*, int);"), "k")
    assert made.spec.steps[0].template_args == "Pixel, 64"


def test_what_the_program_defines_is_guessed_where_nothing_is_launched() -> None:
    code = "enum class Order { UP, DOWN };\ntemplate <Order O, int N> __global__ void k(float* y) { y[N] = O == Order::UP; }\n"
    (gap,) = draft(_program(code), "k").missing
    assert (gap.key, gap.guess) == ("kernel", 'kernel = "k<Order::UP, 256>"')


def test_no_number_is_assumed_for_traits_that_a_function_takes() -> None:
    code = "template <class T> __device__ int width() { return T::WIDTH; }\n"
    code += "template <typename Traits> __global__ void k(float* y) { y[threadIdx.x] = width<Traits>(); }\n"
    (gap,) = draft(_program(code), "k").missing
    assert gap.startswith("the template argument for 'typename Traits'")
