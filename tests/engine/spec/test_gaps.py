"""What a draft lacks as lines to write: guesses, answers, and what stays open."""

from __future__ import annotations

import pytest

from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.draft import OriginalRuns, draft
from engine.spec.gaps import Gap, answered, assumptions, is_open, lines_of, proposal
from engine.spec.kernel_spec import LaunchExpr
from engine.spec.tables import comment_tables

CODE = """\
struct Config { int a; int b; };
__device__ int at(Config c) { return c.a + c.b; }
__global__ void pick(const float *x, float *y, Config c, int n) {
    if (threadIdx.x % n) y[threadIdx.x] = x[at(c) % n];
}
"""


def test_each_gap_names_the_line_that_closes_it() -> None:
    made = draft(Program({"k.cu": CODE.encode()}, "k.cu"), "pick")
    lines = {gap.key: proposal(gap, made.text, made.spec.time[0].sizes) for gap in made.missing}
    assert lines["launch"] == 'launch = { grid = "1", block = "256" }'
    assert 'type = "struct:8", value = "hex:?"' in lines["args.c"]
    assert is_open(lines["args.c"])
    assert not is_open(lines["launch"])
    assert all(gap.key in lines_of(made.text) or gap.key == "launch" for gap in made.missing)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n * x[0]) y[i] = 1;",
            'grid = "cdiv(n, 256)", block = "256"',
        ),
        (
            "for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[0];",
            'grid = "blocks", block = "256"',
        ),
        (
            "int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockDim.y * blockIdx.y + threadIdx.y;"
            " if (i < n && j < m) y[j * n + i] = 1;",
            'grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"]',
        ),
        (
            "if (threadIdx.x < n) y[(blockIdx.y * m + blockIdx.x) * n + threadIdx.x] = 1;",
            'grid = ["blocks_x", "blocks_y"], block = ["256", "1"]',
        ),
    ],
)
def test_a_launch_is_guessed_from_how_the_kernel_numbers_its_threads(body: str, line: str) -> None:
    code = f"__global__ void k(const float *x, float *y, int n, int m) {{ {body} }}\n"
    made = draft(Program({"k.cu": code.encode()}, "k.cu"), "k")
    (gap,) = [each for each in made.missing if each.key == "launch"]
    assert proposal(gap, made.text, made.spec.time[0].sizes) == f"launch = {{ {line} }}"


def test_a_given_launch_may_have_a_size_of_its_own() -> None:
    code = (
        "__global__ void k(float *y, int n) { for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = i; }\n"
    )
    launch = LaunchExpr(("rows",), ("128",))
    runs = OriginalRuns(probe=lambda sizes: {"y": sizes["rows"] * sizes["n"]})
    made = draft(Program({"k.cu": code.encode()}, "k.cu"), "k", launch=launch, runs=runs)
    assert not made.missing
    assert made.spec.argument("y").size in ("rows*n", "n*rows")
    assert all({"rows", "n"} == case.sizes.keys() for case in made.spec.check)


def test_sizes_that_a_launch_would_show_are_not_asked_for_beside_it() -> None:
    code = (
        "__global__ void k(float *y, int n) { for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = i; }\n"
    )
    program = Program({"k.cu": code.encode()}, "k.cu")
    made = draft(program, "k", runs=OriginalRuns(untried="no launch of 'k' was found"))
    assert [gap.key for gap in made.missing] == ["launch"]
    made = draft(program, "k", runs=OriginalRuns(untried="it uses CuTe"))
    assert [gap.key for gap in made.missing] == ["args.y", "launch"]


def test_a_size_is_guessed_from_what_trials_touched_though_indices_come_from_a_buffer() -> None:
    """All sizes together were proposed: more than a check has room for."""
    code = (
        "__global__ void k(const float *x, const int *at, float *y, int n, int m, int w) {\n"
        "    int i = blockIdx.x * 256 + threadIdx.x;\n    if (i < n) for (int j = 0; j < m; ++j)"
        " for (int k = 0; k < w; ++k) y[i] += x[i * m + at[j] + j];\n}\n"
        "void run(float *x, int *at, float *y, int n, int m, int w) { k<<<(n + 255) / 256, 256>>>(x, at, y, n, m, w); }\n"
    )
    probe = OriginalRuns(
        probe=lambda s: {"x": s["n"] * s["m"], "at": s["m"], "y": s["n"]}, roles=lambda s: {"y": "inout"}
    )
    made = draft(Program({"k.cu": code.encode()}, "k.cu"), "k", runs=probe)
    (gap,) = made.missing
    assert 'size = "n*m"' in proposal(gap, made.text, made.spec.time[0].sizes)


def test_the_proposed_lines_are_lines_of_a_spec() -> None:
    made = draft(Program({"k.cu": CODE.encode()}, "k.cu"), "pick")
    lines = lines_of(made.text)
    lines |= {gap.key: proposal(gap, made.text, made.spec.time[0].sizes) for gap in made.missing}
    text = "".join(f"// optiml: {line}\n" for line in lines.values())
    (table,) = comment_tables(parse((text + CODE).encode(), "k.cu"))
    assert {"args", "launch", "check", "time"} <= set(table.data)


@pytest.mark.parametrize(
    ("line", "answer", "result"),
    [
        ('args.x = { role = "in", size = "n" }', "2*n", 'args.x = { role = "in", size = "2*n" }'),
        ('args.x = { role = "in", size = "n" }', "", 'args.x = { role = "in", size = "n" }'),
        ('args.x = { role = "in", size = "n" }', 'args.x = { role = "inout", size = "7" }', 'args.x = { role = "inout", size = "7" }'),
        ('launch = { grid = "1", block = "256" }', "cdiv(n, 8), 8", 'launch = { grid = "cdiv(n, 8)", block = "8" }'),
        ('launch = { grid = "1", block = "256" }', "cdiv(n, 8)", 'launch = { grid = "cdiv(n, 8)", block = "256" }'),
        ('kernel = "k<?, float>"', "4, float", 'kernel = "k<4, float>"'),
        ('compile.defines = ["?"]', "WIDE, N=4", 'compile.defines = ["WIDE", "N=4"]'),
        ('args.c = { type = "struct:?", value = "hex:?" }', "8", 'args.c = { type = "struct:8", value = "hex:?" }'),
        ('args.c = { type = "struct:8", value = "hex:?" }', "0011", 'args.c = { type = "struct:8", value = "hex:0011" }'),
        ('args.x = { role = "in", size = "n" }', 'n" }\n', 'args.x = { role = "in", size = "n }" }'),
    ],
)  # fmt: skip
def test_an_answer_takes_the_place_of_the_guess(line: str, answer: str, result: str) -> None:
    assert answered(line, answer) == result


def test_a_gap_is_its_sentence() -> None:
    assert Gap("the launch: unseen", "launch") == "the launch: unseen"
    assert proposal(Gap("an output"), "", {}) == ""


def test_assumptions_name_the_line_that_they_are_about() -> None:
    text = '// optiml: args.x = { role = "in" }  # assumed: the size\n// optiml: time = [{}]\n'
    assert assumptions(text) == ('assumed: the size: args.x = { role = "in" }',)
