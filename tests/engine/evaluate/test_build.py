"""What is built can be launched: blocks beyond the bound that a kernel declares are refused, on every path."""

from pathlib import Path

import pytest

from engine.compile.built import NotBuilt
from engine.compile.compiler import Translation
from engine.errors import SourceError
from engine.evaluate.build import Builder
from engine.model import Outcome, Program
from engine.run.machine import make_machine
from engine.spec.reader import specs_in

TEXT = """// optiml: args.x = { role = "inout", size = "n", fill = "normal" }
// optiml: check = [{ n = 129 }]
// optiml: time = [{ n = 65536 }]
__global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2 * x[i];
}
void run(float* x, int n) { twice<<<(n + 255) / 256, 256>>>(x, n); }
"""


@pytest.fixture(scope="module")
def machine():
    found = make_machine(device="cpu", jobs=1)
    yield found
    found.close()


def program(bound: str) -> Program:
    return Program({"k.cu": TEXT.replace("void twice", f"void {bound} twice").encode()}, "k.cu")


def test_a_block_beyond_the_kernels_own_bound_is_refused(machine):
    """Without a GPU such candidates passed: the CPU path gives every kernel the block that its launch asks for."""
    original = program("")
    spec = specs_in(original, None)[0]
    builder = Builder(spec, Path("/nowhere"), machine.compiler, machine.target)
    builder.original(original)
    assert builder.candidate(program("__launch_bounds__(256)")).binary.resources
    with pytest.raises(
        NotBuilt, match="a block of 256 threads exceeds the kernel's __launch_bounds__ of 128"
    ) as caught:
        builder.candidate(program("__launch_bounds__(sizeof(float) * 32)"))
    assert caught.value.evaluation.outcome is Outcome.SCREENED_OUT
    with pytest.raises(SourceError, match="the kernel's __launch_bounds__ of 96"):
        Builder(spec, Path("/nowhere"), machine.compiler, machine.target).original(program("__launch_bounds__(96, 2)"))


def test_the_machine_code_says_how_many_threads_it_takes(machine):
    text = "__global__ void {} k(float* x) {{ x[threadIdx.x] = 1; }}"
    for bound, most in (("", None), ("__launch_bounds__(96, 2)", 96), ("__block_size__((64, 2, 1))", 128)):
        binary = machine.compiler.compile(Translation(text.format(bound), "k.cu", ("k",)))
        assert binary.most_threads == (most,)
