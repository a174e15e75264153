"""Reading specs: what is written is what is read, and every mistake is told with its line and what to write instead."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import SourceError, SpecError
from engine.model import Program
from engine.spec.kernel_spec import Argument, Case, CompileOptions, Fill, KernelSpec, LaunchExpr
from engine.spec.reader import specs_in

CODE = """\
typedef float real;
using idx_t = unsigned int;
#define COUNT_T int
struct Params { float a, b; };
__global__ void copy(const real* x, real* y, COUNT_T n, idx_t m) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + m; }
template <typename T, int B = 4>
__global__ void reduce(const T* x, T* sums, int n) { sums[0] = x[n - 1] * B; }
__global__ void opaque(const Params* p, const void* raw, int* out, Params by_value) { out[0] = 1; }
"""
COPY = """\
[[kernel]]
file = "k.cu"
kernel = "copy"
[kernel.args]
x = { role = "in", size = "n" }
y = { role = "out", size = "n" }
[[kernel.check]]
n = 7
m = 1
[[kernel.time]]
n = 4096
m = 1
"""


def _specs(toml: str | bytes, code: str = CODE) -> tuple[KernelSpec, ...]:
    data = toml if isinstance(toml, bytes) else toml.encode()
    return specs_in(Program({"k.cu": code.encode(), "optiml.toml": data}, "k.cu"), "optiml.toml")


def _spec(toml: str, code: str = CODE) -> KernelSpec:
    (spec,) = _specs(toml, code)
    return spec


def _comments(toml: str) -> str:
    return "".join(f"// optiml: {line}\n" for line in toml.splitlines())


def test_a_kernel_in_a_namespace_is_named_with_it() -> None:
    """`init` rejected its own draft of such a kernel: "identifier 'k' is undefined"."""
    lines = """// optiml: args.y = { role = "out", size = "n" }
    // optiml: check = [{ n = 7 }]
    // optiml: time = [{ n = 4096 }]
    """
    kernel = "__global__ void k(int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = VALUE; }\n"
    code = f"namespace a {{\n{kernel}}}\nnamespace b {{ namespace c {{\n{lines}{kernel}}} }}\n"
    (spec,) = specs_in(Program({"k.cu": code.encode()}, "k.cu"), "k.cu")
    assert spec.kernel == "b::c::k"
    toml = COPY.replace('"copy"', '"copy"')
    assert _spec(toml, f"namespace device {{\n{CODE}}}\n").kernel == "device::copy"


def test_a_full_table_is_read() -> None:
    spec = _spec("""
[[kernel]]
file = "./k.cu"
kernel = "reduce<float,256>"
tolerance = 1e-4
deterministic = false
args.x = { type = "float", role = "in", size = "2*n", fill = { kind = "uniform", low = -1, high = "n" } }
args.sums = { role = "inout", size = 1, fill = "normal", tolerance = 0.01 }
launch = { grid = ["cdiv(n, 256)", 1], block = "256", shared = "4*256" }
check = [{ n = 7 }]
time = [{ n = 4096, weight = 2 }, { n = 8192 }]
compile = { defines = ["N=4", "FAST", "T=float", "EPS=1e-5f"], include = ["include", "a/../b"], std = "c++20" }
""")
    assert spec.file == "k.cu"
    assert spec.kernel == "reduce"
    assert spec.steps[0].template_args == "float, 256"
    assert spec.steps[0].arguments == ("x", "sums", "n")
    assert spec.steps[0].launch == LaunchExpr(("cdiv(n, 256)", "1"), ("256",), "4*256")
    assert spec.arguments == (
        Argument("x", "float", "in", "2*n", Fill("uniform", "-1", "n")),
        Argument("sums", "float", "inout", "1", Fill("normal"), tolerance=0.01),
        Argument("n", "int32", "scalar"),
    )
    assert spec.check == (Case("n=7", {"n": 7}),)
    assert spec.time == (Case("n=4096", {"n": 4096}, 2.0), Case("n=8192", {"n": 8192}))
    assert spec.compile == CompileOptions(("N=4", "FAST", "T=float", "EPS=1e-5f"), ("include", "b"), "c++20")
    assert (spec.tolerance, spec.deterministic, spec.origin) == (1e-4, False, "optiml.toml:2")


def test_types_come_from_the_source_through_typedefs_aliases_and_macros() -> None:
    assert [a.type for a in _spec(COPY).arguments] == ["float", "float", "int32", "uint32"]


def test_comments_say_the_same_as_a_table() -> None:
    body = COPY.split("\n", 3)[3].replace("kernel.", "")
    (spec,) = specs_in(
        Program(
            {"k.cu": CODE.replace("__global__ void copy", _comments(body) + "__global__ void copy").encode()}, "k.cu"
        ),
        None,
    )
    assert spec.origin == "k.cu:5"
    expected = _spec(COPY)
    assert (spec.arguments, spec.check, spec.time, spec.steps) == (
        expected.arguments,
        expected.check,
        expected.time,
        expected.steps,
    )


def test_comments_belong_to_the_next_kernel_and_win_over_a_table() -> None:
    lines = ["time = [{ n = 64, m = 2 }]", 'args.x.size = "n"', 'args.y = { role = "out", size = "n" }']
    line = "// a note\n".join(_comments(text) for text in lines)
    code = CODE.replace("__global__ void copy", line + "__global__ void copy")
    spec = _spec(COPY, code)
    assert spec.origin == "k.cu:5"
    assert spec.time[0].sizes == {"n": 64, "m": 2}


def test_a_chain_is_read() -> None:
    spec = _spec("""
[[kernel]]
file = "k.cu"
args.a = { size = "n" }
args.partial = { role = "inout", size = "n" }
args.result = { role = "out", size = "1" }
time = [{ n = 64, m = 3 }]
[[kernel.chain]]
kernel = "copy"
args = ["a", "partial", "n", "m"]
launch = { grid = "1", block = "n" }
[[kernel.chain]]
kernel = "reduce<float>"
args = ["partial", "result", "n"]
""")
    assert [s.arguments for s in spec.steps] == [("a", "partial", "n", "m"), ("partial", "result", "n")]
    assert spec.steps[1].template_args == "float"
    assert [a.name for a in spec.arguments] == ["a", "partial", "n", "m", "result"]


def test_missing_check_cases_are_derived_awkward_and_within_the_expressions() -> None:
    spec = _spec(COPY.replace("[[kernel.check]]\nn = 7\nm = 1\n", ""))
    lengths = [int(c.sizes["n"]) for c in spec.check]
    assert 1 in lengths
    assert any(n % 2 for n in lengths if n > 1)
    assert all(n <= 4096 for n in lengths)
    assert all(c.sizes["m"] == 1 for c in spec.check)
    halved = _spec(COPY.replace("[[kernel.check]]\nn = 7\nm = 1\n", "").replace('size = "n"', 'size = "n/2"'))
    assert 1 not in [c.sizes["n"] for c in halved.check]


def test_a_size_of_which_no_buffer_has_an_extent_may_be_zero() -> None:
    """A pad, a phase, an offset: callers pass 0 for each of these."""
    spec = _spec(COPY.replace("m = 1", "m = 0"))
    assert [c.sizes["m"] for c in (*spec.check, *spec.time)] == [0, 0]


# what is replaced in COPY, by what, the line that is told, words of the message
MISTAKES = [
    ('kernel = "copy"', 'kernel = "cpoy"', 3, "copy"),
    ('kernel = "copy"', "kernel = 3", 3, "string"),
    ('kernel = "copy"', 'kernel = "copy"\nkernle = 1', 4, "'kernel'"),
    ('kernel = "copy"', 'kernel = "copy"\ntolerance = "loose"', 4, "auto"),
    ('kernel = "copy"', 'kernel = "copy"\ntolerance = 5', 4, "auto"),
    ('kernel = "copy"', 'kernel = "copy"\ndeterministic = "no"', 4, "true or false"),
    ('kernel = "copy"', 'kernel = "reduce"', 3, "typename T"),
    ("[kernel.args]", "[kernel.argz]", 4, "'args'"),
    ('x = { role = "in"', 'xx = { role = "in"', 5, "'x'"),
    ('role = "in", size', 'role = "in", sise', 5, "'size'"),
    ('role = "in"', 'role = "input"', 5, "inout"),
    ('role = "out", size', "size", 6, "role"),
    ('y = { role = "out", size = "n" }', 'y = { role = "out" }', 6, "size"),
    ('size = "n" }\ny', 'size = "n+" }\ny', 5, "expression"),
    ('size = "n" }\ny', 'size = "k" }\ny', 5, "unknown name 'k'"),
    ('size = "n" }\ny', 'size = "n-7" }\ny', 5, "positive"),
    ('size = "n" }\ny', 'size = "n/2.0" }\ny', 5, "whole"),
    ('size = "n" }\ny', 'size = "9**9**9" }\ny', 5, "expression"),
    ('size = "n" }\ny', 'size = "1<<40" }\ny', 10, "GiB"),
    ('size = "n" }\ny', "size = true }\ny", 5, "expression"),
    ('size = "n" }\ny', 'size = "n", type = "duoble" }\ny', 5, "double"),
    ('size = "n" }\ny', 'size = "n", type = "int" }\ny', 5, "float"),
    ('size = "n" }\ny', 'size = "n", fill = "norml" }\ny', 5, "'normal'"),
    ('size = "n" }\ny', 'size = "n", fill = { kind = "uniform", hihg = 1 } }\ny', 5, "'high'"),
    ('size = "n" }\ny', 'size = "n", fill = { kind = "uniform", low = 3, high = 1 } }\ny', 5, "empty"),
    ('size = "n" }\ny', 'size = "n", fill = "permutation" }\ny', 5, "integer"),
    ('size = "n" }\ny', 'size = "n", fill = "symmetric" }\ny', 5, "no square matrix"),
    ('size = "n" }\ny', 'size = "n", value = "3" }\ny', 5, "'value'"),
    ('size = "n" }\ny', 'size = "?" }\ny', 5, "not filled in"),
    ("n = 7", "n = 0", 5, "'x' has 0 elements in the case n=0,m=1"),
    ("n = 7", "n = -3", 8, "'n' is -3"),
    ("n = 7", 'n = "7"', 8, "a string"),
    ("n = 7", "n = true", 8, "true or false"),
    ("n = 7", "n = nan", 8, "finite"),
    ("n = 7", "n = 7\nweight = 2", 9, "weight"),
    ("n = 7", "k = 7", 7, "every case"),
    ("n = 4096", "n = 4096\nweight = 0", 12, "weight"),
    ("n = 4096", "n = 3000000000", 11, "int32"),
    ("n = 4096", "n = 4096.5", 5, "whole"),
    ("[[kernel.time]]\nn = 4096\nm = 1\n", "", 1, "timing case"),
    ("[kernel.args]", 'launch = { grid = "n", block = "n" }\n[kernel.args]', 4, "block extent of 4096"),
    ("[kernel.args]", 'launch = { grid = "0", block = "32" }\n[kernel.args]', 4, "grid extent of 0"),
    ("[kernel.args]", 'launch = { grid = "1" }\n[kernel.args]', 4, "block"),
    ("[kernel.args]", 'launch = { grid = ["1","1","1","1"], block = 1 }\n[kernel.args]', 4, "one to three"),
    ("[kernel.args]", 'launch = { grid = "1", block = 1, stream = 0 }\n[kernel.args]', 4, "'stream'"),
    ("[kernel.args]", 'compile.defines = ["N=4 -o /etc/passwd"]\n[kernel.args]', 4, "define"),
    ("[kernel.args]", 'compile.defines = ["N=4\\n"]\n[kernel.args]', 4, "define"),
    ("[kernel.args]", 'compile.defines = ["-I/etc"]\n[kernel.args]', 4, "define"),
    ("[kernel.args]", 'compile.include = ["../.."]\n[kernel.args]', 4, "include"),
    ("[kernel.args]", 'compile.include = ["/etc"]\n[kernel.args]', 4, "include"),
    ("[kernel.args]", 'compile.include = ["-isystem"]\n[kernel.args]', 4, "include"),
    ("[kernel.args]", 'compile.std = "c++17 -DX"\n[kernel.args]', 4, "standard"),
    ("[kernel.args]", 'compile.flags = ["-lineinfo"]\n[kernel.args]', 4, "unknown key"),
    ("[kernel.args]", "[kernel.args", 4, "TOML"),
    ("[kernel.args]", "x = " + "9" * 5000 + "\n[kernel.args]", 1, "TOML"),
    ("[kernel.args]", "x = " + "[" * 3000 + "\n[kernel.args]", 1, "nested"),
    (
        "[[kernel]]",
        "guardrails = 1\n[[kernel]]",
        1,
        "unknown key 'guardrails'; only [[kernel]] tables are allowed here; settings belong in",
    ),
    ('file = "k.cu"\n', "", 1, "'file' is missing"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), MISTAKES, ids=[f"{i}-{m[3]}" for i, m in enumerate(MISTAKES)])
def test_mistakes_are_told_with_their_line(old: str, new: str, line: int, words: str) -> None:
    assert old in COPY
    with pytest.raises(SpecError) as caught:
        _specs(COPY.replace(old, new, 1))
    assert caught.value.where == f"optiml.toml:{line}"
    assert words in str(caught.value)


def test_mistakes_in_comments_are_told_with_the_line_of_the_cuda_file() -> None:
    good = 'time = [{ n = 64, m = 2 }]\nargs.y = { role = "out", size = "n" }\n'
    for bad, line in (('args.x = { sice = "n" }', 7), ('args.x = { size = "n" ', 7), ("args.x = 3", 7)):
        code = CODE.replace("__global__ void copy", _comments(good + bad) + "__global__ void copy")
        with pytest.raises(SpecError) as caught:
            specs_in(Program({"k.cu": code.encode()}, "k.cu"), None)
        assert caught.value.where == f"k.cu:{line}"


def test_comments_where_no_kernel_is_meant_are_refused() -> None:
    for code in (
        CODE + "// optiml: tolerance = 1\n",
        CODE.replace("sums[0] =", "\n// optiml: tolerance = 1\nsums[0] ="),
    ):
        with pytest.raises(SpecError, match="above"):
            specs_in(Program({"k.cu": code.encode()}, "k.cu"), None)


def test_unknown_types_ask_for_one_and_structs_are_bytes() -> None:
    toml = """
[[kernel]]
file = "k.cu"
kernel = "opaque"
args.p = { size = "4", type = "struct:8", fill = "constant" }
args.raw = { size = "4", type = "float" }
args.out = { role = "out", size = "1" }
args.by_value = { type = "struct:8", value = "hex:0000803f00000040" }
time = [{ n = 1 }]
"""
    assert [a.type for a in _spec(toml).arguments] == ["struct:8", "float", "int32", "struct:8"]
    with pytest.raises(SpecError, match="type"):
        _spec(toml.replace(', type = "struct:8", fill', ", fill"))
    untyped = toml.replace(', type = "float"', ', fill = "constant"')  # of a pointer to void
    assert _spec(untyped).argument("raw").type == "uint8"
    with pytest.raises(SpecError, match="8 bytes"):
        _spec(toml.replace("hex:0000803f00000040", "hex:00"))


def test_integers_need_a_fill() -> None:
    with pytest.raises(SpecError, match="fill is missing"):
        _spec(COPY.replace("x = {", 'x = { type = "int",'), CODE.replace("typedef float", "typedef int"))


def test_two_specs_for_one_kernel_are_refused() -> None:
    with pytest.raises(SpecError, match="second spec"):
        _spec(COPY + COPY)


def test_the_limit_of_memory_is_the_callers() -> None:
    program = Program({"k.cu": CODE.encode(), "optiml.toml": COPY.encode()}, "k.cu")
    with pytest.raises(SpecError, match="32768 bytes, which exceeds the limit of 32767 bytes"):
        specs_in(program, "optiml.toml", limit_bytes=32767)


# ---- any bytes


def _spec_or_error(data: bytes) -> None:
    try:
        specs = _specs(data)
    except SpecError:
        return
    assert all(spec.time and spec.check for spec in specs)


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"kernel = 1")
@example(b"[kernel]")
@example(b"kernel = [1]")
@example(b"[[kernel]]\nfile = 'k.cu'\nkernel = 'copy<'")
def test_any_bytes_give_a_spec_or_an_error(data: bytes) -> None:
    _spec_or_error(data)


_PIECES = st.sampled_from(
    [
        *COPY.splitlines(),
        "1e400",
        "nan",
        "-1",
        '"n"',
        "{",
        "}",
        "[",
        "]",
        "=",
        "x",
        "args",
        "check",
        '""',
        "'''",
        "true",
        "\\",
        'chain = [{ kernel = "copy", args = ["x"] }]',
        "launch = {}",
        "compile = {}",
        "1979-05-27",
        '"struct:4"',
        "0x10",
        'size = "1e400"',
        'size = "1/0"',
        'fill = { kind = "sorted" }',
        'fill = { kind = "csr_offsets", of = "y" }',
        'value = "hex:"',
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(COPY)), _PIECES, st.integers(0, 30)), min_size=1, max_size=4))
def test_any_change_of_a_good_spec_gives_a_spec_or_an_error(changes: list[tuple[int, str, int]]) -> None:
    text = COPY
    for at, piece, cut in changes:
        text = text[:at] + piece + text[at + cut :]
    _spec_or_error(text.encode())


_scalar = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from(["n", "1e400", "n*n*n*n*n", "hex:00", "normal", "in", "out", "struct:3", "inf", ""]),
)
_any = st.recursive(
    _scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "kind",
                    "low",
                    "high",
                    "of",
                    "role",
                    "size",
                    "type",
                    "value",
                    "n",
                    "m",
                    "weight",
                    "grid",
                    "block",
                    "kernel",
                    "args",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=6,
)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower()


_paths = [
    "args.x.fill",
    "args.x.size",
    "args.x",
    "args.y",
    "args.n",
    "args.m",
    "launch",
    "check",
    "time",
    "compile",
    "chain",
    "tolerance",
    "file",
    "kernel",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(_paths), _any, max_size=3))
def test_any_values_for_known_keys_give_a_spec_or_an_error(values: dict[str, object]) -> None:
    base = {
        "file": "k.cu", "kernel": "copy", "args.x.size": "n", "args.y": {"role": "out", "size": "n"},
        "time": [{"n": 64, "m": 1}],
    }  # fmt: skip
    if "args.x" in values or "args.x.fill" in values:
        base.pop("args.x.size")
    _spec_or_error(("[[kernel]]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in {**base, **values}.items())).encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 4))
def test_any_bytes_in_comments_give_a_spec_or_an_error(data: bytes, place: int) -> None:
    lines = CODE.encode().splitlines(keepends=True)
    code = b"".join([*lines[:place], b"// optiml: " + data + b"\n", *lines[place:]])
    with contextlib.suppress(SpecError, SourceError):
        specs_in(Program({"k.cu": code}, "k.cu"), None)
