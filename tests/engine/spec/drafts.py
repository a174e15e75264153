"""A program of one file, drafts with and without trials, a draft read back as a spec, and a kernel with a launcher."""

from __future__ import annotations

from pathlib import Path

from engine.cpu import CpuMachine
from engine.cpu.draft_probe import CpuProbe
from engine.cuda.edit import apply
from engine.cuda.kernel import Edit, Span
from engine.cuda.parse import parse
from engine.model import Program
from engine.process.sandbox import sandbox
from engine.settings.folders import cache_folder
from engine.spec.draft import Draft, OriginalRuns, draft
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


def tried(code: str, folder: Path, kernel: str = "k") -> Draft:
    """The draft that trials of the kernel on the CPU complete."""
    made = draft(program(code), kernel)
    machine = CpuMachine(cache_folder() / "cpu", sandbox=sandbox(False), scratch=folder)
    probe = CpuProbe(program(code), made.spec, machine, folder)
    return draft(
        program(code),
        kernel,
        runs=OriginalRuns(probe=probe.touched, moved=probe.moved, roles=probe.roles, trials=probe),
    )


def read_back(program: Program, made: Draft, form: str) -> KernelSpec:
    if form == "toml":
        return specs_in(Program({**program.files, "optiml.toml": made.text.encode()}, "k.cu"), "optiml.toml")[0]
    start = parse(program.data, "k.cu").kernel(made.spec.kernel).span.start
    return specs_in(Program({"k.cu": apply(program.data, [Edit(Span(start, start), made.text)])}, "k.cu"), None)[0]
