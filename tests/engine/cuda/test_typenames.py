"""Sizes of types and constants of classes, where a launch is made of them."""

from __future__ import annotations

import pytest

from engine.cuda.typenames import TypeNames, split_arguments
from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.spec.kernel_spec import Argument, CompileOptions, KernelSpec, Step
from engine.spec.launch_config import evaluate

PACKED = """\
template <class Element, int Bytes = 16>
struct alignas(Bytes) Packed {
    static constexpr const int size = Bytes / sizeof(Element), twice = 2 * size;
    enum { LANES = size * 2, LAST };
    static int counted;
    int plain = 7;
    Element payload[size];
};
"""
SPECIAL = """\
template <class T> struct Two;
template <> struct Two<float> { using type = float2; };
template <> struct Two<double> { typedef double2 type; };
template <> struct Two<half> { using type = half2; };
template <class T, int M, int N> struct Part {
    using Inner = Part<T, M, 1>;
    using pair_t = typename Inner::pair_t;
    enum { BYTES = 2 * N * M * sizeof(pair_t) };
};
template <class T, int M> struct Part<T, M, 1> {
    using pair_t = typename Two<T>::type;
    enum { BYTES = 16 };
};
"""
TRAITS = """\
constexpr int WARP = 32;
template <class T_, int THREADS_> struct Base {
    using T = T_;
    enum { THREADS = THREADS_ };
};
template <class T_, int W, class Above = Base<T_, W * WARP>> struct Traits : public Above {
    using T = typename Above::T;
    enum { WIDE = W > 1 ? 8 : 1 };
    using part = Part<T, W, WIDE>;
    using pair = typename part::pair_t;
    enum { ROW = Above::THREADS * sizeof(T) };
    enum { BYTES = part::BYTES };
};
"""
KERNEL = "__global__ void k(float* x, int n) { x[0] = n; }\n"


def blocks(head: str, grid: str, defines: tuple[str, ...] = (), header: str = "") -> int:
    """The blocks that a launch with this grid has, for n = 1024."""
    files = {"k.cu": f"{head}{KERNEL}void h(float* x, int n) {{ k<<<{grid}, 32>>>(x, n); }}\n".encode()}
    program = Program(files | ({"t.h": header.encode()} if header else {}), "k.cu")
    arguments = (Argument("x", "float", "out", "n"), Argument("n", "int", "scalar"))
    spec = KernelSpec("k.cu", (Step("k", "", ("x", "n")),), arguments, (), (), compile=CompileOptions(defines=defines))
    return evaluate(program, spec, 0, {"n": 1024}).grid[0]


@pytest.mark.parametrize(
    ("head", "grid", "expected"),
    [
        (PACKED + "typedef Packed<float> x128;\n", "n / x128::size", 256),
        (PACKED + "typedef float floatX;\nusing x128 = Packed<floatX>;\n", "n / x128::size", 256),
        (PACKED, "n / Packed<double>::size", 512),
        (PACKED, "n / Packed<half, 2 * 16>::size", 64),
        (PACKED, "n / Packed<float>::twice", 128),
        (PACKED, "n / Packed<float>::LANES", 128),
        ("constexpr int B = 8;\n" + PACKED, "n / Packed<char, B>::size", 128),
        ("struct Tile { static const int n = 4; };\n", "n / Tile::n", 256),
        ("namespace cfg { struct Tile { static constexpr int w{16}; }; }\n", "n / cfg::Tile::w", 64),
        ("namespace cfg { constexpr int size = 4; }\n", "n / cfg::size", 256),
        # Classes as libraries build them: specialised, derived, with other names for types.
        (
            PACKED + "template <> struct Packed<float> { static constexpr int size = 1; };\n",
            "n / Packed<float>::size",
            1024,
        ),
        (
            PACKED + "template <> struct Packed<float> { static constexpr int size = 1; };\n",
            "n / Packed<double>::size",
            512,
        ),
        (SPECIAL, "n / Part<float, 4, 8>::BYTES", 1024 // (2 * 8 * 4 * 8)),
        (SPECIAL, "n / Part<float, 4, 1>::BYTES", 1024 // 16),
        (SPECIAL, "n / Part<double, 1, 2>::BYTES", 1024 // (2 * 2 * 1 * 16)),
        (SPECIAL + TRAITS, "n / Traits<float, 4>::BYTES", 1024 // (2 * 8 * 4 * 8)),
        (SPECIAL + TRAITS, "n / Traits<half, 2>::ROW", 1024 // (32 * 2 * 2)),
        (SPECIAL + TRAITS, "n / Traits<half, 2>::part::BYTES", 1024 // (2 * 8 * 2 * 4)),
        (SPECIAL + TRAITS, "n / sizeof(Traits<half, 2>::pair)", 1024 // 4),
        (TRAITS, "n / Traits<half, 2>::THREADS", 1024 // 64),
        # What the host and the spec call so is another thing.
        ("constexpr int m = 2;\nstruct T { static constexpr int n = 4, size = n * m; };\n", "n / T::size", 128),
        ("#define floatX float\n", "n / sizeof(floatX)", 256),
        ("typedef double2 pair;\ntypedef pair both;\n", "n / sizeof(both)", 64),
    ],
)
def test_values(head: str, grid: str, expected: int) -> None:
    assert blocks(head, grid) == expected


def test_names_are_those_of_the_branch_that_is_compiled() -> None:
    header = "#ifdef HALF\ntypedef half floatX;\n#else\ntypedef float floatX;\n#endif\n" + PACKED
    text = '#include "t.h"\ntypedef Packed<floatX> x128;\n'
    assert blocks(text, "n / x128::size", header=header) == 256
    assert blocks(text, "n / x128::size", ("HALF",), header=header) == 128


def test_what_the_compiler_is_told_holds_in_classes_too() -> None:
    text = "#ifndef WIDE\n#define WIDE 4\n#endif\nstruct Tile { static constexpr int n = 2 * WIDE; };\n"
    assert blocks(text, "n / Tile::n") == 128
    assert blocks(text, "n / Tile::n", ("WIDE=8",)) == 64


@pytest.mark.parametrize("outer", ["T", "Scalar"])
def test_a_launch_in_a_template_is_of_the_instance_that_the_spec_wants(outer: str) -> None:
    text = (
        PACKED + "template <class T> __global__ void k(T* x, int n) { x[0] = n; }\n"
        f"template <class {outer}> void h({outer}* x, int n) {{ k<{outer}><<<n / Packed<{outer}>::size, sizeof({outer})>>>(x, n); }}\n"
    )
    for name, per in (("float", 4), ("double", 2)):
        arguments = (Argument("x", name, "out", "n"), Argument("n", "int", "scalar"))
        spec = KernelSpec("k.cu", (Step("k", name, ("x", "n")),), arguments, (), ())
        found = evaluate(Program({"k.cu": text.encode()}, "k.cu"), spec, 0, {"n": 1024})
        assert found == LaunchConfig((1024 // per, 1, 1), (16 // per, 1, 1), 0)


@pytest.mark.parametrize(
    ("head", "grid", "says"),
    [
        (PACKED, "n / Packed<Unknown>::size", "the size of 'Unknown' is not known"),
        (PACKED, "n / Packed<float>::counted", "'Packed<float>::counted' is not known"),
        (PACKED, "n / Packed<float>::plain", "'Packed<float>::plain' is not known"),
        (PACKED, "n / Packed<float>::LAST", "'Packed<float>::LAST' is not known"),
        (
            PACKED + "template <class T> struct Packed<T*> { static constexpr int size = 1; };\n",
            "n / Packed<float*>::size", "not known",
        ),
        (
            "template <int A, int B> struct P { enum { n = 1 }; };\ntemplate <int A> struct P<A, 2> { enum { n = 2 }; };\n"
            "template <int B> struct P<2, B> { enum { n = 4 }; };\n", "n / P<2, 2>::n", "not known",
        ),
        ("template <class T> struct A { using B = A<A<T>>; enum { n = B::n }; };\n", "A<int>::n", ""),
        ("struct A : A { };\n", "A::n", "not known"),
        ("constexpr int size = 4;\nstruct Tile { static int size; };\n", "n / Tile::size", "'Tile::size' is not known"),
        ("struct T { static constexpr int a = b, b = a; };\n", "n / T::a", ""),
        ("struct T { static constexpr int a = T::b, b = T::a; };\n", "n / T::a", ""),
        ("struct T {" + "".join(f"static constexpr int a{i} = a{i + 1} + a{i + 1};" for i in range(60)) + "};\n", "T::a0", ""),
        ("typedef two one;\ntypedef one two;\n", "sizeof(one)", "the size of"),
    ],
)  # fmt: skip
def test_what_is_in_doubt_has_no_value(head: str, grid: str, says: str) -> None:
    with pytest.raises(SourceError) as raised:
        blocks(head, grid)
    assert says in raised.value.what


def test_arguments_are_split_outside_of_brackets() -> None:
    assert split_arguments("a<b, c>, (d, e), {f, g}, h[1, 2]") == ["a<b, c>", "(d, e)", "{f, g}", "h[1, 2]"]
    assert split_arguments("a<(b > c)>, (d < e)") == ["a<(b > c)>", "(d < e)"]
    assert split_arguments("  ") == []


def test_sizes_of_parameters_of_a_template_are_theirs_alone() -> None:
    names = TypeNames(Program({"k.cu": b"typedef float T;\n"}, "k.cu"))
    assert names.size("T") == 4
    assert names.within({"T": "double"}).size("const T") == 8
    assert names.size("T") == 4
