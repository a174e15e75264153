import pytest

from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.draft import OriginalRuns, draft
from engine.spec.struct_layout import Unclear, layout

HEADER = """
struct Base { int rows; };
template <typename T, int N = 3> struct Pack : Base {
    Pack() : scale(1.f) {}
    __host__ __device__ float at(int i) const { return values[i]; }
    static constexpr int size = N;
    char kind; T scale; float4 wide; short values[N];
};
struct Pair { float a, b; };
struct Held { int n; float* data; Pair* pairs[2]; };
struct Outer { Pair pair; double last; };
typedef struct latitude { float lat; float lng; } Place;
typedef struct { int id; Place place; } Named;
struct Strides { using index_t = long; typedef short tag_t; index_t row; };
struct Strided : Strides { index_t col; tag_t tag; float* x; };
struct Params { void* __restrict__ q; at::Philox state; };
struct Methods {
#ifdef __CUDACC__
    __device__ float& at(int i);
    template <typename T> __device__ T& as(int i);
    __device__ int both() const { return n; }
#endif
    int n; float* x;
};
struct Hidden {
#ifdef A
    FIELDS
#endif
    int b;
};
struct Guarded {
#ifdef A
    int a;
#endif
    int b;
};
"""


def _program(kernel: str = "") -> Program:
    code = f'#include "types.h"\n{kernel}'
    return Program({"k.cu": code.encode(), "types.h": HEADER.encode()}, "k.cu")


def test_a_class_lies_in_memory_as_a_compiler_puts_it() -> None:
    # What g++ 12 says of the same text (with float4 as 16 bytes aligned to 16), by sizeof and offsetof.
    found = layout(_program(), "Pack<double>", {})
    assert (found.size, found.align) == (48, 16)
    assert [(f.name, f.offset, f.count) for f in found.fields] == [
        ("rows", 0, 1), ("kind", 4, 1), ("scale", 8, 1), ("wide", 16, 1), ("values", 32, 3),
    ]  # fmt: skip
    assert layout(_program(), "Pack<T, 5>", {"T": "float"}).size == 48
    assert layout(_program(), "Held", {}).pointers == ("data", "pairs")
    assert layout(_program(), "Held", {}).size == 32
    assert layout(_program(), "Params", {}).pointers == ("q",)
    assert [(f.name, f.offset) for f in layout(_program(), "Place", {}).fields] == [("lat", 0), ("lng", 4)]
    named = layout(_program(), "Named", {})
    assert [(f.name, f.offset) for f in named.fields] == [("id", 0), ("place.lat", 4), ("place.lng", 8)]
    strided = layout(_program(), "Strided", {})
    assert [(f.name, f.offset) for f in strided.fields] == [("row", 0), ("col", 8), ("tag", 16), ("x", 24)]
    assert [(f.name, f.offset) for f in layout(_program(), "Outer", {}).fields] == [
        ("pair.a", 0),
        ("pair.b", 4),
        ("last", 8),
    ]


@pytest.mark.parametrize(
    ("kind", "why"),
    [("Guarded", "preprocessor"), ("Hidden", "preprocessor"), ("Nowhere", "defined in no file"), ("Pack<U>", "'U'")],
)
def test_what_the_text_does_not_show_has_a_reason(kind: str, why: str) -> None:
    with pytest.raises(Unclear, match=why):
        layout(_program(), kind, {})


LAUNCH = "void run(float* y, {kind} p, int n) {{ k<<<n / 32, 32>>>(y, p, n); }}"
BODY = "__global__ void k(float* y, {kind} p, int n) {{ int i = blockIdx.x * 32 + threadIdx.x; if (i < n) y[i] = {value}; }}\n"


def test_a_struct_of_fractions_gets_a_value_and_each_whole_number_is_an_argument() -> None:
    made = draft(_program((BODY + LAUNCH).format(kind="Pair", value="p.a * p.b")), "k")
    assert not made.missing
    assert 'args.p = { type = "struct:8", value = "hex:0000403f0000403f" }  # assumed: the value' in made.text
    made = draft(_program((BODY + LAUNCH).format(kind="Base", value="p.rows")), "k")
    assert not made.missing
    assert 'args.p.rows = { value = "1" }  # assumed: the value' in made.text


HANDED = "__device__ float each({kind} p, int i) {{ return p.{field} * i; }}\n"


def test_a_struct_that_is_handed_on_has_sizes_by_their_names() -> None:
    code = HANDED + BODY + LAUNCH
    made = draft(_program(code.format(kind="Base", field="rows", value="each(p, i)")), "k")
    assert not made.missing
    assert 'args.p.rows = { value = "rows" }' in made.text
    (gap,) = draft(
        _program("struct Odd { int a, b; };" + code.format(kind="Odd", field="a", value="each(p, i)")), "k"
    ).missing
    assert gap == "the value of 'p' (a at 0, b at 4): write hex: and its bytes"
    assert gap.key == "args.p"


def test_a_type_may_be_called_what_it_is() -> None:
    code = "enum Mode { A, B };\n" + (BODY + LAUNCH).format(kind="enum Mode", value="p == A ? 1 : 2")
    made = draft(_program(code), "k")
    assert not made.missing
    assert 'args.p = { value = "0" }  # assumed: A, the first of its values' in made.text


def test_the_fields_of_a_struct_are_arguments_of_their_own() -> None:
    body = (
        "__global__ void k(float* y, Held p, Base b) {\n"
        "  int i = blockIdx.x * 32 + threadIdx.x; if (i < p.n && i < b.rows) y[i] = p.data[i]; }\n"
        "void run(float* y, Held p, Base b) { k<<<p.n / 32, 32>>>(y, p, b); }"
    )
    made = draft(_program(body), "k", runs=OriginalRuns(probe=lambda sizes: {"y": sizes["n"], "p.data": sizes["n"]}))
    assert not made.missing
    lines = made.text.splitlines()
    assert '// optiml: args.p.n = { value = "n" }' in lines
    assert '// optiml: args.b.rows = { value = "rows" }' in lines
    assert any(line.startswith('// optiml: args.p.data = { role = "inout", size = "n"') for line in lines)
    # No trial followed them, so they stay null; the struct's own bytes are the source's to tell.
    assert not any("pairs" in line or "args.p =" in line for line in lines)


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        ("Held* p", "that contains pointers ('data', 'pairs'): a spec has no pointers in buffers"),
        ("Params p", "how they lie in it is not known: 'Philox' is defined in no file"),
        ("float** p", "'p' is a buffer of pointers ('float**'): a spec has no pointers in buffers"),
        (
            "const float* const* p",
            "'p' is a buffer of pointers ('const float* const*'): a spec has no pointers in buffers",
        ),
    ],
)
def test_pointers_that_no_spec_can_give_have_a_reason(parameter: str, why: str) -> None:
    code = f"__global__ void k(float* y, {parameter}) {{ y[threadIdx.x] = 1; }}\nvoid run(float* y, {parameter}) {{ k<<<1, 32>>>(y, p); }}"
    (gap,) = draft(_program(code), "k").missing
    assert why in gap
    assert gap.key == ""


def test_bytes_that_a_kernel_reads_as_something_else_make_finite_fractions() -> None:
    code = """
__global__ void k(const void* x, float* y, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) y[i] = ((const char*)x)[i]; }
void run(const void* x, float* y, int n) { k<<<n / 32, 32>>>(x, y, n); }
"""
    made = draft(Program({"k.cu": code.encode()}, "k.cu"), "k")
    x = made.spec.argument("x")
    assert (x.type, x.fill.kind, x.fill.high) == ("uint8", "integers", "60")


def test_functions_between_directives_take_no_room() -> None:
    found = layout(_program(), "Methods", {})
    assert (found.size, [f.name for f in found.fields], found.unclear) == (16, ["n", "x"], "")


def test_a_pointer_to_an_unknown_type_is_the_reason_and_not_a_missing_output() -> None:
    code = (
        "struct Out { Element* output; int n; };\n__global__ void k(Out p) { p.output[threadIdx.x] = p.n; }\n"
        "void run(Out p) { k<<<1, 32>>>(p); }"
    )
    missing = draft(Program({"k.cu": code.encode()}, "k.cu"), "k").missing
    assert ["what 'output' points to ('Element')" in gap for gap in missing] == [True]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("float x, y, z; float w[5];", "float[8]"),
        ("float4 a; float2 b; float c, d;", "float[8]"),
        ("half2 a; __half b[2];", "half[4]"),
        ("float x; int id;", "struct:8"),
        ("double x; float y, z;", "struct:16"),
        ("struct Pair inner; float c;", "float[3]"),
        ("alignas(16) float x; float y;", "struct:16"),
        ("float x; __align__(8) float y;", "struct:16"),
    ],
)
def test_elements_of_a_buffer_of_structs_are_numbers_where_all_are_of_one_type(fields: str, kind: str) -> None:
    body = (
        f"struct Item {{ {fields} }};\n"
        "__global__ void k(Item* y, const Item* x, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) y[i] = x[i]; }\n"
        "void run(Item* y, const Item* x, int n) { k<<<(n + 31) / 32, 32>>>(y, x, n); }"
    )
    made = draft(_program(body), "k")
    found = {argument.name: argument.type for argument in made.spec.arguments}
    assert found["x"] == found["y"] == kind
    assert f'args.x = {{ type = "{kind}", role = "in", size = "n"' in made.text


@pytest.mark.parametrize(
    ("head", "size"),
    [
        ("struct alignas(16) T", 16),
        ("struct __align__(8) T", 16),
        ("struct __attribute__((aligned(32))) T", 32),
        ("struct T", 12),
    ],
)
def test_a_class_is_as_long_as_its_alignment_asks_for(head: str, size: int) -> None:
    assert layout(_program(f"{head} {{ float x, y, z; }};\n"), "T", {}).size == size


def test_an_alignment_that_is_asked_for_counts() -> None:
    # What g++ 12 says of the same text, with `__align__(n)` as alignas(n).
    code = """
struct __align__(16) Ranks { void* all[3]; };
struct alignas(64) Flags { int a; alignas(32) char b; };
template <typename T, int N> struct __align__(sizeof(T) * N) Vec { T data[N]; };
struct Holder { char first; Vec<float, 4> v; };
template <int N> struct alignas(N * UNKNOWN) Odd { int x; };
__global__ void k(Ranks* r, float* y) { y[0] = r->all[0] != nullptr; }
"""
    program = Program({"k.cu": code.encode()}, "k.cu")
    assert (layout(program, "Ranks", {}).size, layout(program, "Ranks", {}).align) == (32, 16)
    assert [(f.name, f.offset) for f in layout(program, "Flags", {}).fields] == [("a", 0), ("b", 32)]
    assert layout(program, "Flags", {}).size == 64
    assert layout(program, "Holder", {}).size == 32
    with pytest.raises(Unclear, match="its alignment 'N \\* UNKNOWN' is not known"):
        layout(program, "Odd<4>", {})
    assert [k.name for k in parse(code.encode(), "k.cu").kernels] == ["k"]
