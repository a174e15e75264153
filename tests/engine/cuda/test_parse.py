from collections import OrderedDict

import pytest
import tree_sitter

import engine.cuda.parse
from engine.cuda.items import pieces_of
from engine.cuda.kernel import Span
from engine.cuda.parse import not_understood, note_errors, once_a_node, parse, walk
from engine.errors import SourceError
from tests.spent import spent

SOURCE = b"""\
#define TILE 16  // the tile
#include "local.cuh"
#include <cuda_fp16.h>
constexpr int kWidth = 4;
enum Mode { A, B = 7, C };
namespace outer { namespace inner {
template <typename T, int N>
__global__ void __launch_bounds__(256, 2) first(const T* __restrict__ x, float y[], unsigned int n) {
    __shared__ float tile[TILE][TILE + 1], extra;
    extern __shared__ float dynamic[];
    for (int i = 0; i < n; ++i) {
        while (n) { y[i] += x[2 * i + 1]; break; }
        tile[i][0] = x[i];
    }
    atomicAdd(&y[0], 1.0f);
}
}}
extern "C" __global__ void second(int* p) { p[0]++; }
#ifdef SOMETHING
static __global__ void third(float* q) { q[0] = 1; }
#endif
__host__ __device__ inline float both(float a) { return a; }
void host(float* x, int n) {
    dim3 block(16, 16);
    outer::inner::first<float, 4><<<dim3(n, 2), block, 64 * sizeof(float)>>>(x, x, n);
    second<<<1, 1>>>((int*)x);
}
"""


def test_kernels_are_found_wherever_they_stand():
    unit = parse(SOURCE, "k.cu")
    assert [k.qualified for k in unit.kernels] == ["outer::inner::first", "second", "third"]
    assert unit.kernel("first") is unit.kernel("outer::inner::first")
    with pytest.raises(KeyError):
        unit.kernel("fourth")


def test_a_kernel_is_described():
    kernel = parse(SOURCE, "k.cu").kernel("first")
    assert kernel.template_parameters == ("typename T", "int N")
    assert kernel.launch_bounds == "256, 2"
    x, y, n = kernel.parameters
    assert (x.name, x.base, x.pointer, x.const, x.restrict) == ("x", "T", True, True, True)
    assert (y.name, y.base, y.pointer, y.const) == ("y", "float", True, False)
    assert (n.name, n.base, n.pointer) == ("n", "unsigned int", False)
    assert [(loop.kind, loop.variable, loop.depth) for loop in kernel.loops] == [("for", "i", 0), ("while", "", 1)]
    assert (kernel.loops[0].start, kernel.loops[0].condition, kernel.loops[0].step) == ("0", "i < n", "++i")
    assert [(a.array, a.indices, a.kind) for a in kernel.accesses] == [
        ("y", ("i",), "update"),
        ("x", ("2 * i + 1",), "read"),
        ("tile", ("i", "0"), "write"),
        ("x", ("i",), "read"),
        ("y", ("0",), "update"),
    ]
    assert [(s.name, s.extents, s.dynamic) for s in kernel.shared] == [
        ("tile", ("TILE", "TILE + 1"), False),
        ("extra", (), False),
        ("dynamic", ("",), True),
    ]
    assert "atomicAdd" in kernel.calls


def test_the_files_own_names_are_known():
    unit = parse(SOURCE, "k.cu")
    assert unit.macros == {"TILE": "16"}
    assert unit.constants == {"kWidth": "4", "A": "0", "B": "7", "C": "(B)+1"}
    assert [(name, quoted) for name, quoted, _ in unit.includes] == [("local.cuh", True), ("cuda_fp16.h", False)]
    assert {f.name: f.qualifier for f in unit.functions}["both"] == "host device"


def test_launches_carry_their_parts():
    first, second = parse(SOURCE, "k.cu").launches
    assert (first.kernel, first.template_args, first.function) == ("outer::inner::first", "float, 4", "host")
    assert [p.text for p in first.parts] == ["dim3(n, 2)", "block", "64 * sizeof(float)"]
    assert first.arguments == ("x", "x", "n")
    assert second.arguments == ("(int*)x",)
    assert SOURCE[first.parts[1].span.start : first.parts[1].span.end] == b"block"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_line_endings_and_marks_change_nothing(newline, bom):
    data = bom + SOURCE.replace(b"\n", newline)
    unit = parse(data, "k.cu")
    assert unit.newline.encode() == newline
    assert unit.bom == bool(bom)
    assert [k.name for k in unit.kernels] == ["first", "second", "third"]
    assert unit.errors == ()


def test_syntax_that_the_grammar_does_not_know_hides_nothing_else():
    data = (
        SOURCE
        + b"__global__ void odd() { extern __shared__ __align__(16) float s[]; auto f = [=] __device__ (int i) { return i; }; }\n"
    )
    unit = parse(data, "k.cu")
    assert unit.errors
    assert {"first", "second", "third"} <= {k.name for k in unit.kernels}


HEADS = [  # each with the text of its launch bounds
    ("__global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(1024) name", "1024"),
    ("__global__ void __launch_bounds__(1024) __cluster_dims__(8, 1, 1) name", "1024"),
    ("__global__ void __launch_bounds__(32 * (1 + 2), (2)) name", "32 * (1 + 2), (2)"),
    ("__global__ __cluster_dims__(8, 1, 1) void name", ""),
    ("__cluster_dims__(8, 1, 1) __global__ void name", ""),
    ("__launch_bounds__(128) __global__ void name", "128"),
    ("__global__ void __maxnreg__(64) name", ""),
    ("__global__ void __maxnreg__(/* é */ (2 * (16 + MAX(1, 2))))\n    name", ""),
    ("__global__ void __block_size__((256, 1, 1), (2, 1, 1)) name", ""),
    ("__global__ void __attribute__((noinline)) name", ""),
    ("__global__ __launch_bounds__(64) __attribute__((aligned(8))) void __cluster_dims__ (8) name", "64"),
    ('extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128) name', "128"),
    ("template <int B> static __global__ void __cluster_dims__(2) __launch_bounds__(B, MIN(3)) name", "B, MIN(3)"),
    ("__global__ auto __launch_bounds__(64) __maxnreg__(32) name", "64"),
    ("template <int B> __global__ BOUNDS(B, MIN(3)) void name", ""),
    ("__global__ void BOUNDS(64) __launch_bounds__(32) name", "32"),
]


@pytest.mark.parametrize(("head", "bounds"), HEADS)
def test_a_kernels_name_is_read_behind_any_attributes(head, bounds):
    given = f"// __maxnreg__(1)\n{head}(const __grid_constant__ int n, float* x) {{ x[0] = n; }}\n".encode()
    unit = parse(given, "k.cu")
    kernel = unit.kernel("name")
    assert unit.errors == ()
    assert kernel.launch_bounds == bounds
    assert [p.name for p in kernel.parameters] == ["n", "x"]
    assert unit.text(kernel.name_span) == "name"
    assert unit.text(kernel.span) == given.decode().split("\n", 1)[1].rstrip("\n")
    assert kernel.attributes == {a for a in ("__cluster_dims__", "__block_size__", "__maxnreg__") if a in head}


@pytest.mark.parametrize(("data", "line"), [(b"a\n\xff\n", 2), (b"a\nb\nc\0", 3)])
def test_what_is_no_text_is_refused_with_its_line(data, line):
    with pytest.raises(SourceError) as error:
        parse(data, "k.cu")
    assert error.value.where == f"k.cu:{line}"


def test_ten_thousand_lines_are_quick():
    data = b"".join(
        b"__global__ void k%d(float* x, int n) {\n    int i = threadIdx.x;\n    if (i < n) x[i] *= 2;\n}\n\n" % i
        for i in range(2100)
    )
    assert data.count(b"\n") > 10_000
    with spent() as cost:
        assert len(parse(data, "big.cu").kernels) == 2100
    assert cost.seconds < 2


@pytest.mark.parametrize(
    "text", [SOURCE, b"__global__ void k(float* x) { x[0] = ; }\n", b"int f( {\n__global__ void k() {}\n"]
)
def test_what_is_not_understood_can_be_asked_alone(text):
    assert not_understood(text, "k.cu") == parse(text, "k.cu").errors
    assert bool(not_understood(text, "k.cu")) == (text is not SOURCE)


def test_what_another_process_did_not_understand_of_a_file_is_not_read_here_again(monkeypatch):
    """Each program that a search built upon was parsed once more, on the thread that feeds the device."""
    monkeypatch.setattr(tree_sitter, "Parser", lambda language: pytest.fail("it is read"))
    for number, errors in enumerate([(), (Span(1, 4),)]):
        text = b"int of_another_process_%d;\n" % number
        note_errors(text, "k.cu", errors)
        assert not_understood(text, "k.cu") == errors


def test_of_the_latest_files_alone_it_is_kept_what_was_not_understood(monkeypatch):
    monkeypatch.setattr(engine.cuda.parse, "_MOST_ERRORS", 3)
    monkeypatch.setattr(engine.cuda.parse, "_errors", OrderedDict())
    for number in range(5):
        assert not_understood(b"int kept_%d;\n" % number, "k.cu") == ()
    assert [text for text, _ in engine.cuda.parse._errors] == [b"int kept_%d;\n" % n for n in (2, 3, 4)]


def test_pieces_are_the_whole_text_within_directives_as_well() -> None:
    text = '#pragma unroll 4 // é "x"\nint a[16u] = {1\'000}; /* 5 */ auto s = R"(7 // )";\r\n#define N \\\n 8\n'
    found = pieces_of(text)
    assert "".join(found) == text
    assert {"4", "16u", "1'000", "8", "/* 5 */", 'R"(7 // )"', '// é "x"'} <= set(found)
    assert "7" not in found


def test_a_macro_for_visibility_hides_no_declaration():
    data = b"""#define LIB_API extern
LIB_API struct thing * make(
        struct context * ctx,  // why
        int n);
enum kind {
    KIND_A,
    KIND_B,
};
LIB_API enum kind kind_of(const struct thing * thing);
"""
    unit = parse(data, "lib.h")
    assert unit.errors == ()
    assert any(node.type == "enumerator" for node in walk(unit.root))


def test_what_is_said_of_a_node_is_worked_out_once_for_each_text(monkeypatch):
    """A third of reading a program was to ask what its loops change, for each of two dozen rules again."""
    asked = []

    @once_a_node
    def text_of(node):
        asked.append(node.text)
        return node.text

    first, second = (parse(f"__global__ void k() {{ a = {n}; }}".encode()).functions[0].block for n in (1, 2))
    assert [text_of(node) for node in (first, second, first, first.parent.child_by_field_name("body"))] == [
        b"{ a = 1; }", b"{ a = 2; }", b"{ a = 1; }", b"{ a = 1; }",
    ]  # fmt: skip
    assert asked == [b"{ a = 1; }", b"{ a = 2; }"]
    monkeypatch.setattr(engine.cuda.parse, "_MOST_SAID", 2)  # so many are kept
    third = parse(b"__global__ void k() { a = 3; }").functions[0].block
    assert text_of(third) == text_of(third) == b"{ a = 3; }"
    assert text_of(first) == b"{ a = 1; }"
    assert asked[2:] == [b"{ a = 3; }", b"{ a = 1; }"]


def test_a_condition_around_attributes_in_a_head_ends_no_template():
    """The template's parameter was asked for as a type that nothing defines."""
    code = b"""template <class T, bool B>
#if __CUDA_ARCH__ >= 700
__launch_bounds__(128)
#endif
    __global__ void k(T* x) { x[0] = B; }
"""
    (kernel,) = parse(code, "k.cu").kernels
    assert [kernel.name, *kernel.template_parameters] == ["k", "class T", "bool B"]


def test_a_text_is_read_once():
    """Since the syntax tree alone was kept, a candidate's build read its file fifty times: half of what the build took."""
    data = SOURCE + b"// read once\n"
    assert parse(data, "once.cu") is parse(bytes(bytearray(data)), "once.cu")
    assert parse(data, "other.cu").path == "other.cu"
