"""A program of one file, a draft read back as the spec it is, and a kernel with a launcher: what tests of drafts share."""

from __future__ import annotations

from engine.cuda.edit import apply
from engine.cuda.kernel import Edit, Span
from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.draft import Draft
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in

LAUNCHER = """
__global__ void k(const float *x, float *y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i]; }
void run(const float *x, float *y, int rows, int cols, int threads) {
    const int n = rows * cols, blocks = (n + threads - 1) / threads;
    k<<<blocks, threads>>>(x, y, n);
}
"""


def program(code: str) -> Program:
    return Program({"k.cu": code.encode()}, "k.cu")


def read_back(program: Program, made: Draft, form: str) -> KernelSpec:
    if form == "toml":
        return specs_in(Program({**program.files, "optiml.toml": made.text.encode()}, "k.cu"), "optiml.toml")[0]
    start = parse(program.data, "k.cu").kernel(made.spec.kernel).span.start
    return specs_in(Program({"k.cu": apply(program.data, [Edit(Span(start, start), made.text)])}, "k.cu"), None)[0]
