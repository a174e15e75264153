"""Base against head, through the engine's own CPU path: predicted, and said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bot.base_comparison import compare, standing
from bot.bundle import Comparison
from engine.cuda.load import load_program
from engine.model import Evaluation, Failure, Outcome, Program
from engine.run.machine import make_machine
from engine.spec.find import find_spec
from tests.bot.make import measurement

KERNEL = """#include <cuda_runtime.h>
// optiml: args.in = { role = "in", size = "n" }
// optiml: args.out = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 1000 }]
// optiml: time = [{ n = 16777216 }]
__global__ void scale(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = 2.0f * in[i];
    }
}
void run(const float* in, float* out, int n) { scale<<<(n + 255) / 256, 256>>>(in, out, n); }
"""
FAST = "        out[i] = 2.0f * in[i];\n"
SLOW = """        unsigned seen = 0u;
        for (int k = 0; k < 32; ++k) {
            seen |= __float_as_uint(in[(i + k * 4097) % n]);
        }
        out[i] = seen == 0xdeadbeefu ? 1.0f : 2.0f * in[i];
"""
Compare = Callable[[str, str], Comparison]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compare]:
    root = tmp_path_factory.mktemp("repository")
    (root / ".git").mkdir()
    machine = make_machine(device="cpu")

    def against(base: str, head: str) -> Comparison:
        path: Path = root / "a.cu"
        path.write_text(base)
        spec, spec_path = find_spec(root, path)
        program = load_program(path, spec_file=spec_path)
        evaluator = machine.evaluator(spec, root, spec_path)
        try:
            return compare(evaluator, program, Program({**program.files, "a.cu": head.encode()}, "a.cu"))
        finally:
            evaluator.close()

    yield against
    machine.close()


@pytest.mark.slow
def test_a_slower_head_is_slower_and_a_faster_one_faster(run: Compare) -> None:
    slow = KERNEL.replace(FAST, SLOW)
    worse, better = run(KERNEL, slow), run(slow, KERNEL)
    assert (worse.standing, better.standing) == ("slower", "faster")
    for found in (worse, better):
        assert found.measurement is not None
        assert found.measurement.predicted


def test_another_name_for_a_variable_makes_no_difference(run: Compare) -> None:
    assert run(KERNEL, KERNEL.replace("2.0f * in[i]", "in[i] * 2.0f")).standing == "no difference"


def test_a_head_that_computes_something_else_is_not_compared(run: Compare) -> None:
    found = run(KERNEL, KERNEL.replace("2.0f", "3.0f"))
    assert found.standing == "not compared"
    assert "outputs of head and base differ" in found.reason
    assert found.measurement is None


def test_a_head_that_does_not_compile_is_not_compared(run: Compare) -> None:
    found = run(KERNEL, KERNEL.replace("2.0f", "undeclared"))
    assert found.standing == "not compared"
    assert found.reason


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (Evaluation(Outcome.ACCEPTED, measurement(1.2)), "faster"),
        (Evaluation(Outcome.SLOWER, measurement(0.8)), "slower"),
        (Evaluation(Outcome.GUARDRAIL, measurement(0.8)), "slower"),
        (Evaluation(Outcome.NO_DIFFERENCE, measurement(1.01)), "no difference"),
        (Evaluation(Outcome.SCREENED, measurement(1.03, predicted=True)), "no difference"),
        (Evaluation(Outcome.UNSTABLE, measurement(0.5)), "not compared"),
        (Evaluation(Outcome.DUPLICATE), "no difference"),
        (Evaluation(Outcome.CRASHED, failure=Failure("it fell")), "not compared"),
    ],
)
def test_noise_is_no_regression(evaluation: Evaluation, expected: str) -> None:
    assert standing(evaluation).standing == expected
