"""What a draft lacks as lines to write: guesses, answers, and what stays open."""

from __future__ import annotations

import pytest

from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.draft import draft
from engine.spec.gaps import Gap, answered, assumptions, is_open, lines_of, proposal
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
    assert lines["launch"] == 'launch = { grid = "cdiv(n, 256)", block = "256" }'
    assert 'type = "struct:8", value = "hex:?"' in lines["args.c"]
    assert is_open(lines["args.c"])
    assert not is_open(lines["launch"])
    assert all(gap.key in lines_of(made.text) or gap.key == "launch" for gap in made.missing)


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
