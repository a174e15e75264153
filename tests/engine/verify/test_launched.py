"""What belongs to a launch alone: its variables may get other values, and nothing else of host code may change with them."""

from __future__ import annotations

import pytest

from engine.model import Program
from engine.spec.reader import specs_in
from engine.verify.screen import screen

TEXT = """// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 129 }]
// optiml: time = [{ n = 1048576 }]
__global__ void twice(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 2 * x[i];
}
void log(int);
int run(const float* x, float* y, int n, int verbose) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    int level = 0;
    /*here*/
    twice<<<blocks, threads>>>(x, y, n);
    return level;
}
"""


def screened(text: str, added: str) -> str | None:
    program = Program({"k.cu": text.encode()}, "k.cu")
    changed = program.replace({"k.cu": text.replace("/*here*/", added).encode()})
    return screen(program, changed, specs_in(program, None)[0])


@pytest.mark.parametrize(
    "added",
    [
        "if (blocks > 2048) blocks = 2048;",
        "if (blocks > 2048) { blocks = 2048; }",
        "blocks = min(blocks, 1056);",
        "if (n < 1024) { threads = 64; }",
    ],
)
def test_a_statement_that_limits_a_launch_belongs_to_it(added: str) -> None:
    assert screened(TEXT, added) is None


@pytest.mark.parametrize(
    "added",
    [
        "if (blocks > 2048) level = 1;",  # what the function returns
        "level = blocks = 2048;",
        "if (blocks > 2048) log(blocks);",
        "if (log(1), blocks > 2048) blocks = 2048;",
        "if (verbose++ > 0) blocks = 2048;",
        "if (verbose = 1) { blocks = 2048; }",
        "if (blocks > 2048) { blocks = 2048; level = 1; }",
        "while (blocks > 2048) blocks = 2048;",
        "if (blocks > 2048) return 0; else blocks = 2048;",
        "int* out = &level; if (blocks > 2048) blocks = *out = 3;",
    ],
)
def test_what_does_more_than_limit_a_launch_is_host_code(added: str) -> None:
    assert "outside the kernel and its launch" in (screened(TEXT, added) or "")


def test_a_condition_that_other_code_hangs_on_stays() -> None:
    text = TEXT.replace("/*here*/", "/*here*/ if (verbose > 3) blocks = 7; else level = 2;")
    program = Program({"k.cu": text.encode()}, "k.cu")
    changed = program.replace({"k.cu": text.replace("verbose > 3", "verbose > 1").encode()})
    assert "outside the kernel" in (screen(program, changed, specs_in(program, None)[0]) or "")


def test_a_variable_that_other_code_reads_stays() -> None:
    text = TEXT.replace("int level = 0;", "int level = blocks;")
    assert "outside the kernel" in (screened(text, "if (blocks > 2048) blocks = 2048;") or "")
