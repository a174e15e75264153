"""Drafts: what they infer must read back as a spec, and what they cannot find out they must say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.arith import evaluate_int
from engine.cuda.aliases import aliases
from engine.cuda.parse import parse
from engine.errors import SpecError, UsageError
from engine.model import Program
from engine.spec.draft import Draft, DraftForm, OriginalRuns, draft
from engine.spec.extents import Extent, candidates, fit, trial_sizes
from engine.spec.kernel_spec import Fill
from engine.spec.launch_config import evaluate
from engine.spec.reader import specs_in
from engine.spec.usage import Usage
from tests.engine.spec.drafts import LAUNCHER
from tests.engine.spec.drafts import program as _program
from tests.engine.spec.drafts import read_back as _read_back

ROOT = Path(__file__).parents[3]


MATMUL = """
__global__ void mm(const float *A, const float *B, float *C, int M, int N, int K, float alpha) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < M && col < N) {
        float acc = 0;
        for (int k = 0; k < K; ++k) acc += A[row * K + k] * B[(size_t)k * N + col];
        C[row * N + col] = alpha * acc;
    }
}
void run(const float *A, const float *B, float *C, int M, int N, int K) {
    dim3 block(16, 16), grid((N + 15) / 16, (M + 15) / 16);
    mm<<<grid, block>>>(A, B, C, M, N, K, 1.0f);
}
"""


@pytest.mark.parametrize("form", ["comments", "toml"])
def test_a_matrix_product_is_drafted_from_its_text(form: str) -> None:
    program = _program(MATMUL)
    made = draft(program, "mm", written=DraftForm(form=form))
    assert made.missing == ()
    spec = _read_back(program, made, form)
    assert [(a.name, a.role, a.size) for a in spec.arguments[:3]] == [
        ("A", "in", "M*K"),
        ("B", "in", "N*K"),
        ("C", "out", "M*N"),
    ]
    assert [a.role for a in spec.arguments[3:]] == ["scalar"] * 4
    assert spec.argument("alpha").value == "0.75"
    assert (spec.arguments, spec.check, spec.time) == (made.spec.arguments, made.spec.check, made.spec.time)
    assert "assumed: the value" in made.text


def test_a_probe_decides_over_the_text() -> None:
    asked: list[Mapping[str, int]] = []

    def probe(sizes: Mapping[str, int]) -> Mapping[str, int]:
        asked.append(sizes)
        return {"A": sizes["M"] * sizes["K"] + 1, "B": sizes["K"] * sizes["N"], "C": 2 * sizes["M"] * sizes["N"]}

    made = draft(_program(MATMUL), "mm", runs=OriginalRuns(probe=probe))
    assert [a.size for a in made.spec.arguments[:3]] == ["M*K + 1", "N*K", "2*M*N"]
    assert len(asked) >= 3
    assert "from the text" not in made.text


def test_what_nothing_explains_is_missing_and_does_not_read_as_a_spec() -> None:
    program = _program(
        "__global__ void k(float *y, int n) { if (threadIdx.x < n) y[blockIdx.x * 77 + threadIdx.x] = n; }\n"
    )
    made = draft(program, "k", runs=OriginalRuns(probe=lambda sizes: {"y": hash(str(sizes)) % 100_000 + 10**7}))
    assert any("size of 'y'" in m for m in made.missing)
    assert any("launch" in m for m in made.missing)
    with pytest.raises(SpecError, match="expression"):
        _read_back(program, made, "comments")


def _arguments(parameters: str, body: str) -> Draft:
    code = f"__global__ void k({parameters}) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {body} }} }}\n"
    return draft(_program(code), "k")


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("y[i] = 1;", "out"),
        ("y[i] += 1;", "inout"),
        ("y[i] = y[i] * 2;", "inout"),
        ("y[i]++;", "inout"),
        ("float v = y[i]; y[i] = v;", "inout"),
        ("y[i] = 0; for (int j = 0; j < n; ++j) y[i] += j;", "out"),
        ("if (n > 3) { y[i] = 0; y[i] += 2; }", "out"),
        ("if (n > 3) { y[i] = 0; } else { y[i] *= 2; }", "inout"),
        ("if (n > 3) y[i] = 0; y[i] += 2;", "inout"),
        ("switch (n) { case 1: y[i] = 0; break; default: y[i] += 2; }", "inout"),
        ("atomicAdd(&y[i], 1.f);", "inout"),
        ("atomicAdd(y + i, 1.f);", "inout"),
        ("float *p = y + i; *p = 3;", "out"),
        ("__stcs(y + i, 1.f);", "out"),
        ("float *p = y + i; __stwt(p, 2 * i);", "out"),
        ("__stcg(y + i, __ldcg(y + i) + 1);", "inout"),
        ("__stcs(&y[i], 1.f);", "out"),
        ("float v = __ldcs(&y[i]);", "in"),
        ("float *p = y + i; p[0] += 3;", "inout"),
        ("float *p = &y[i]; *p += 3;", "inout"),
        ("helper(y, i);", "inout"),
        ("reinterpret_cast<float4*>(y)[i] = make_float4(0, 0, 0, 0);", "inout"),
        ("float v = y[i]; if (v > 3) __trap();", "in"),
        ("if (y != nullptr) { const float &v = y[i]; if (v > 3) __trap(); }", "in"),
        ("const float *p = y + i; if (*p + p[1] > 3) __trap();", "in"),
        ("float &v = y[i]; v = v * 2;", "inout"),
        ("float *p; p = y + i; p[0] = y[i] * 2;", "inout"),
        ("float v = y[i], *p = y + i; *p++ = v * 2;", "inout"),
        ("float v = y[i]; *(y + i) = v * 2;", "inout"),
        ("float v = y[i], *p = n > 3 ? y : y + 1; p[i] = v * 2;", "inout"),
    ],
)
def test_roles_follow_the_accesses(body: str, role: str) -> None:
    made = _arguments("float *y, int n", body)
    assert made.spec.argument("y").role == role


def test_atomics_on_floats_start_at_zero_and_may_differ_from_run_to_run() -> None:
    made = _arguments("const float *x, float *y, int n", "atomicAdd(y, x[i]);")
    assert made.spec.argument("y").fill == Fill("constant", "0")
    assert made.spec.argument("y").size == "1"
    assert not made.spec.deterministic
    assert _arguments("const int *x, int *y, int n", "atomicAdd(y, x[i]);").spec.deterministic


def test_an_index_buffer_stays_inside_what_it_indexes() -> None:
    made = _arguments("const float *x, const int *idx, float *y, int n, int m", "if (m > 0) y[i] = x[idx[i]];")
    assert any("size of 'x'" in m for m in made.missing)
    made = _arguments("const int *idx, float *y, int n", "y[idx[i]] = 1; y[i] = 2;")
    assert made.spec.argument("idx").fill.kind == "integers"
    assert made.spec.argument("idx").size == "n"


@pytest.mark.parametrize(
    ("kind", "used", "fill"),
    [
        ("signed char", "x[i]", Fill("integers", "-128", "128")),
        ("short", "x[i]", Fill("integers", "-256", "256")),
        ("unsigned char", "x[i]", Fill("integers", "0", "256")),
        ("int", "x[i]", Fill("integers", "0", "256")),
        ("signed char", "t[x[i]]", Fill("integers", "0", "128")),
    ],
)
def test_narrow_signed_values_are_negative_too_unless_they_are_indices(kind: str, used: str, fill: Fill) -> None:
    code = f"""
__global__ void k(const {kind} *x, const float *t, float *y, int n) {{
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i < n) y[i] = {used} + t[i];
}}
void run(const {kind} *x, const float *t, float *y, int n) {{ k<<<(n + 31) / 32, 32>>>(x, t, y, n); }}
"""
    made = draft(_program(code), "k", runs=OriginalRuns(probe=lambda sizes: dict.fromkeys("xty", sizes["n"])))
    assert made.spec.argument("x").fill == fill


def test_scalars_that_bound_nothing_get_a_value() -> None:
    made = _arguments("float *y, int n, int flag, float eps, bool relu", "y[i] = flag + eps + relu;")
    values = {a.name: a.value for a in made.spec.arguments if a.role == "scalar"}
    assert values == {"n": "", "flag": "1", "eps": "1e-5", "relu": "1"}
    assert set(made.spec.time[0].sizes) == {"n"}


def test_templates_take_the_arguments_of_the_launch() -> None:
    code = """
template <typename T, int B> __global__ void k(const T *x, T *y, int n) { int i = blockIdx.x * B + threadIdx.x; if (i < n) y[i] = x[i]; }
void run(double *x, double *y, int n) { k<double, 128><<<(n + 127) / 128, 128>>>(x, y, n); }
"""
    made = draft(_program(code), "k")
    assert (made.spec.steps[0].template_args, made.spec.argument("x").type) == ("double, 128", "double")
    assert _read_back(_program(code), made, "comments").steps == made.spec.steps
    alone = draft(_program(code.split("void run")[0]), "k")
    assert alone.spec.argument("x").type == "float"
    assert "assumed: template arguments" in alone.text
    assert draft(_program(code), "k<half, 64>").spec.argument("x").type == "half"


@pytest.mark.parametrize(
    ("change", "name", "each", "threads"),
    [
        (lambda code: code, "threads", 256, 256),
        (lambda code: code.replace("<<<blocks, threads>", "<<<blocks, dim3(threads, threads)>"), "threads", 16, 256),
        (lambda code: code.replace("int threads)", "int warps)").replace("int n =", "int threads = 32 * warps, n ="), "warps", 16, 512),
    ],
)  # fmt: skip
def test_a_block_that_the_host_is_told_gets_a_size_of_its_own(
    change: Callable[[str], str], name: str, each: int, threads: int
) -> None:
    program = _program(change(LAUNCHER))
    made = draft(program, "k")
    assert made.missing == ()
    assert [case.sizes[name] for case in (*made.spec.check, *made.spec.time)] == [each] * 5
    assert [case.sizes["n"] for case in made.spec.check] == [1, 129, 903, 4099]
    spec = _read_back(program, made, "comments")
    assert (spec.check, spec.time) == (made.spec.check, made.spec.time)
    assert evaluate(program, spec, 0, spec.time[0].sizes).threads == threads


def test_a_size_of_the_kernel_that_the_block_follows_is_that_of_a_block() -> None:
    code = LAUNCHER.replace("int n)", "int n, int width)").replace("x, y, n)", "x, y, n, threads)")
    made = draft(_program(code.replace("int i = blockIdx.x * blockDim.x", "int i = blockIdx.x * width")), "k")
    assert made.missing == ()
    assert made.spec.time[0].sizes == {"n": 4096, "width": 256}
    assert [case.sizes["width"] for case in made.spec.check] == [256] * 5  # the last one has several blocks


def _fractal(arguments: str, more: str = "") -> str:
    return f"""
constexpr float STEP = 0.25f;
__global__ void k(float *x, int n, float a, float b, float c, float d, int most) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x, it = 0;
    if (i >= n) return;
    float v = a + i * b;
    while (v < c && it < most) {{ v = v * d; ++it; }}
    x[i] = it;
}}
void run(float *x, int n{more}) {{ k<<<(n + 127) / 128, 128>>>(x, n, {arguments}); }}
"""


def test_numbers_are_those_of_the_launch_but_for_what_would_hide_a_term() -> None:
    runs = OriginalRuns(probe=lambda sizes: {"x": sizes["n"]})
    made = draft(_program(_fractal("-0.5f, STEP, 1.5e3f, 1.0f, 300")), "k", runs=runs)
    assert [made.spec.argument(name).value for name in "abcd"] == ["-0.5", "0.25", "1500.0", "0.75"]
    assert "assumed: the value, as k.cu:" in made.text
    assert made.spec.time[0].sizes == {"n": 1 << 24, "most": 300}
    assert max(case.sizes["most"] for case in made.spec.check) < 300
    told = draft(_program(_fractal("f, f, f, f, most", ", float f, int most")), "k", runs=runs)
    assert [told.spec.argument(name).value for name in "abcd"] == ["0.75"] * 4
    assert told.spec.time[0].sizes["most"] == 256  # no launch says how many; not as many as there are elements
    fixed = (
        _fractal("f, f, f, f, most", ", float f, int most")
        .replace("int n,", "int most_,")
        .replace("i >= n", "i >= 1048576")
    )
    fixed = fixed.replace("(n + 127) / 128", "8192").replace("(x, n, f", "(x, 0, f").replace("int n", "int unused")
    alone = draft(_program(fixed), "k", runs=OriginalRuns(probe=lambda sizes: {"x": 1 << 20}))
    assert alone.spec.time[0].sizes == {"most": 256}  # the only size


def test_a_number_that_only_the_launch_depends_on_is_a_size() -> None:
    code = """
__global__ void k(const float *x, float *y, int rows, int n, int mode) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = mode * x[blockIdx.x * n + i];
}
void run(const float *x, float *y, int rows, int n) { int blocks = rows / 8 * 8; k<<<blocks, 128>>>(x, y, rows, n, 3); }
"""
    made = draft(
        _program(code), "k", runs=OriginalRuns(probe=lambda sizes: dict.fromkeys("xy", sizes["rows"] * sizes["n"]))
    )
    assert (made.missing, made.spec.argument("x").size) == ((), "rows*n")
    assert set(made.spec.time[0].sizes) == {"rows", "n"}
    assert [made.spec.argument(name).value for name in ("rows", "n", "mode")] == [
        "",
        "",
        "3",
    ]  # as the launch passes it


def test_shapes_without_a_launch_are_left_out() -> None:
    code = """
__global__ void k(const float *x, float *y, int w, int h, int radius) {
    int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y;
    float sum = 0;
    for (int d = 0; d < radius; ++d) sum += x[j * w + i];
    y[j * w + i] = sum;
}
void run(const float *x, float *y, int w, int h, int radius) { k<<<dim3(GRID, ROWS), 32>>>(x, y, w, h, radius); }
"""
    probe = lambda sizes: dict.fromkeys("xy", sizes["w"] * sizes["h"])  # noqa: E731
    whole = draft(
        _program(code.replace("GRID", "w / 32").replace("ROWS", "h")), "k", runs=OriginalRuns(probe=probe)
    ).spec
    tiles = [{"w": 64, "h": 64}, {"w": 64, "h": 192}, {"w": 192, "h": 64}, {"w": 128, "h": 320}]
    assert [case.sizes for case in whole.check] == [{**tile, "radius": 3} for tile in tiles]
    assert whole.time[0].sizes == {"w": 4096, "h": 4096, "radius": 3}
    three = (
        code.replace("int radius", "int z").replace("radius", "z").replace("GRID", "w / 8").replace("ROWS", "h * z / 8")
    )
    sizes = [case.sizes for case in draft(_program(three), "k").spec.check]
    assert sizes == [{"w": 8, "h": 8, "z": 8}, {"w": 8, "h": 16, "z": 8}, {"w": 16, "h": 8, "z": 8}]
    some = draft(
        _program(code.replace("GRID", "(w + 31) / 32").replace("ROWS", "h * 100")), "k", runs=OriginalRuns(probe=probe)
    ).spec
    assert some.time[0].sizes == {"w": 512, "h": 512, "radius": 3}  # 65535 blocks in a column
    assert [case.sizes["h"] for case in some.check] == [1, 129, 7, 257]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("#ifdef FAST_PATH\n", "\n#endif\n", "#ifdef FAST_PATH"),
        ("#if defined(FAST_PATH) && 1\n", "\n#else\nint a;\n#endif\n", "#if defined(FAST_PATH)"),
        ("#ifndef FAST_PATH\n", "\n#endif\n", ""),
        ("#ifdef FAST_PATH\nint a;\n#else\n", "\n#endif\n", ""),
        ("#if __CUDA_ARCH__ > 800\n", "\n#endif\n", ""),
    ],
)
def test_a_kernel_behind_a_condition_is_told(before: str, after: str, told: str) -> None:
    kernel, _, host = LAUNCHER.partition("void run")
    missing = draft(_program(before + kernel.strip() + after + "void run" + host), "k").missing
    assert [told in m for m in missing] == [True] * bool(told)


def test_a_kernel_that_writes_nowhere_is_told_so() -> None:
    (missing,) = draft(
        _program("__global__ void k() { __shared__ int s; s = 1; }\nvoid r() { k<<<1, 32>>>(); }"), "k"
    ).missing
    assert missing.startswith("an output: ")


def test_a_constant_reach_yields_to_what_the_text_says() -> None:
    made = draft(_program(LAUNCHER), "k", runs=OriginalRuns(probe=lambda sizes: {"x": 383, "y": 383}))
    assert [made.spec.argument(a).size for a in "xy"] == ["n", "n"]
    fixed = LAUNCHER.replace("if (i < n) y[i] = x[i]", "if (i < 64) y[i] = n * x[i]")
    assert (
        draft(_program(fixed), "k", runs=OriginalRuns(probe=lambda sizes: {"x": 64, "y": 64})).spec.argument("x").size
        == "64"
    )
    assert fit([({}, 256)]) == Extent("256", True)


def test_trials_are_whole_tiles_where_the_grid_counts_them() -> None:
    asked: list[Mapping[str, int]] = []

    def probe(sizes: Mapping[str, int]) -> Mapping[str, int]:
        asked.append(sizes)
        return dict.fromkeys("xy", sizes["n"])

    code = LAUNCHER.replace("(n + threads - 1)", "n")
    assert draft(_program(code), "k", runs=OriginalRuns(probe=probe)).spec.argument("y").size == "n"
    assert [sizes["n"] for sizes in asked] == [512, 1280, 2816, 5888]  # of blocks of 256


def test_a_template_of_defaults_is_written_out() -> None:
    code = """
template <bool Sign = true, int N = 4> __global__ void k(float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = Sign ? N : -N; }
void run(float *y, int n) { k<<<1, 64>>>(y, n); }
"""
    made = draft(_program(code), "k")
    assert (made.spec.steps[0].template_args, made.missing) == ("true, 4", ())
    assert _read_back(_program(code), made, "comments").steps == made.spec.steps
    bare = made.text.replace('kernel = "k<true, 4>"', 'kernel = "k"')
    assert _read_back(_program(code), replace(made, text=bare), "comments").steps == made.spec.steps
    other = draft(_program(code.replace("bool Sign = true, int N = 4", "callback F, unsigned N")), "k")
    assert other.missing[0].startswith("the template argument for 'callback F'")
    assert other.spec.steps[0].template_args == "?, 256"


def test_a_literal_with_a_suffix_is_a_template_argument() -> None:
    code = """
template <unsigned N> __global__ void k(float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = N; }
void run(float *y, int n) { k<8U><<<1, 64>>>(y, n); }
"""
    made = draft(_program(code), "k")
    assert (made.spec.steps[0].template_args, made.missing) == ("8U", ())


def test_types_named_in_a_header_follow_its_conditions() -> None:
    header = """
#ifndef TYPES_H
#define TYPES_H
#if defined(USE_BF16)
typedef __nv_bfloat16 real;
#elif defined(USE_HALF) && LEVEL > 1
typedef half real;
#else
typedef float real;
#endif
#define acc_t double
#ifdef __CUDA_ARCH__
using odd = int;
#else
using odd = float;
#endif
#endif
"""
    code = """#include "types.h"
__global__ void k(const real *x, acc_t *y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i]; }
void run(real *x, acc_t *y, int n) { k<<<(n + 127) / 128, 128>>>(x, y, n); }
"""
    program = Program({"k.cu": code.encode(), "types.h": header.encode()}, "k.cu")
    assert [a.type for a in draft(program, "k").spec.arguments] == ["float", "double", "int32"]
    for defines, real in (
        (("USE_BF16",), "__nv_bfloat16"), (("USE_HALF",), "float"), (("USE_HALF", "LEVEL=2"), "half"),
    ):  # fmt: skip
        known = aliases(program, defines)
        assert (known["real"], known["acc_t"]) == (real, "double")
        assert "odd" not in known  # device and host disagree
    toml = made_of(draft(program, "k", written=DraftForm(form="toml")).text, 'compile.defines = ["USE_BF16"]')
    assert (
        specs_in(Program({**program.files, "optiml.toml": toml}, "k.cu"), "optiml.toml")[0].argument("x").type
        == "bfloat16"
    )


def made_of(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def test_a_header_of_endless_conditions_is_left_alone() -> None:
    nested = "#if A\n" * 3000 + "typedef int T;\n" + "#endif\n" * 3000
    chain = "#if A\n" + "#elif B\ntypedef float T;\n" * 3000 + "#endif\n"
    for text, known in ((nested, None), (chain, None), (chain.replace("elif B", "elif 1"), "float")):
        assert aliases(_program(text + "__global__ void k(int n) {}")).get("T") == known


def test_structs_are_missing_their_size() -> None:
    made = _arguments("const Particle *p, float *y, int n, Config c", "y[i] = p[i].x * c.scale;")
    assert any("'p'" in m for m in made.missing)
    assert any("'c'" in m for m in made.missing)


def test_an_unknown_kernel_is_told_with_those_that_are_there() -> None:
    with pytest.raises(UsageError, match="it has mm"):
        draft(_program(MATMUL), "nm")


def test_drafts_of_the_examples_agree_with_their_specs() -> None:
    agreed = 0
    for file in sorted((ROOT / "examples").glob("*.cu")):
        toml = (ROOT / "examples/optiml.toml").read_bytes()
        program = Program(
            {f"examples/{file.name}": file.read_bytes(), "examples/optiml.toml": toml}, f"examples/{file.name}"
        )
        (spec,) = specs_in(program, "examples/optiml.toml")
        made = draft(program, spec.kernel).spec
        for argument in spec.arguments:
            got = made.argument(argument.name)
            assert (got.role, got.type) == (argument.role, argument.type), (file.name, argument.name)
            if got.size:
                for case in spec.check:
                    assert evaluate_int(got.size, case.sizes) == evaluate_int(argument.size, case.sizes)
                agreed += 1
    assert agreed >= 18


# ---- extents


@settings(deadline=None)
@given(st.integers(1, 4), st.data())
def test_every_candidate_is_found_again(count: int, data: st.DataObject) -> None:
    names = ["n", "rows", "cols", "depth"][:count]
    text = data.draw(st.sampled_from(candidates(names)))
    trials = [(s, evaluate_int(text, s)) for s in trial_sizes(names)]
    found = fit(trials)
    assert found
    assert found.exact
    assert [evaluate_int(found.text, s) for s, _ in trials] == [touched for _, touched in trials]
    if "cdiv" not in text and "round_up" not in text:
        fresh = {n: 1009 + 12 * i for i, n in enumerate(names)}  # sizes never tried
        assert evaluate_int(found.text, fresh) == evaluate_int(text, fresh)


def test_plain_extents_are_never_confused() -> None:
    names = ["rows", "cols", "k"]
    for text in (
        "rows",
        "rows*cols",
        "cols*k",
        "rows*cols*k",
        "rows + 1",
        "2*cols",
        "cdiv(rows, 32)",
        "rows + cols",
        "(rows + cols)*k",
        "(rows + 2*cols)*k",
    ):
        assert fit([(s, evaluate_int(text, s)) for s in trial_sizes(names)]) == Extent(text, True)


def test_a_border_left_alone_is_covered() -> None:
    trials = [(s, (s["h"] - 1) * s["w"] - 1) for s in trial_sizes(["h", "w"])]
    assert fit(trials) == Extent("h*w", False)
    divided = {"c": "heads"}
    trials = [
        (s, 3 * s["b"] * s["t"] * s["c"] - s["c"]) for s in trial_sizes(["b", "t", "c", "heads"], divided=divided)
    ]
    assert fit(trials) == Extent("3*b*t*c", False)
    assert fit([(s, 5 * s["h"] * s["w"] + s["h"] ** 3) for s in trial_sizes(["h", "w"])]) is None
    assert fit([]) is None


def test_trial_sizes_are_co_prime_and_differ() -> None:
    for count in range(1, 6):
        trials = trial_sizes([f"s{i}" for i in range(count)])
        assert len(trials) >= 3
        for trial in trials:
            assert len(set(trial.values())) == count
        assert len({tuple(t.values()) for t in trials}) == len(trials)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_sizes_that_are_multiples_of_others_are_so_in_every_trial(count: int, tiled: bool) -> None:
    names = [f"s{i}" for i in range(count)]
    divided = {"s0": "s1"} | ({"s2": "s1"} if count > 2 else {})
    for trial in trial_sizes(names, tiled=tiled, divided=divided):
        assert all(
            trial[whole] % trial[part] == 0 and trial[whole] > trial[part] > 1 for whole, part in divided.items()
        )
        assert len(set(trial.values())) == count


@settings(deadline=None)
@given(st.text("ab[]()+-*/<>=;,{}&|!? \n0x", max_size=80))
def test_any_body_gives_a_draft(body: str) -> None:
    program = _program(f"__global__ void k(const float *a, int *x, int b) {{ {body} }}\n")
    if not parse(program.data, "k.cu").kernels:
        return
    Usage(parse(program.data, "k.cu"), parse(program.data, "k.cu").kernels[0])
    made = draft(program, "k")
    assert len(made.spec.arguments) == 3
