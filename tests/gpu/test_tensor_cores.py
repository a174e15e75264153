"""Products on the tensor cores of a real GPU: the CPU path has its own of them, which these compare with the original's sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cuda.edit import edit_program
from engine.evaluate.analysis import Analysis
from engine.model import Outcome
from engine.run.machine import Machine, make_machine
from tests.gpu.test_evaluate import Bench

pytestmark = pytest.mark.gpu

PRODUCT = """\
#include <HEADER>
// optiml: args.a = { role = "in", size = "m * k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k * n", fill = "normal" }
// optiml: args.c = { role = "out", size = "m * n" }
// optiml: check = [{ m = 1, n = 1, k = 1 }, { m = 70, n = 65, k = 33 }, { m = 128, n = 136, k = 104 }]
// optiml: time = [{ m = 1024, n = 1024, k = 1024 }]
__global__ void product(const TYPE* a, const TYPE* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += WIDE(a[row * k + i]) * WIDE(B);
        }
        c[row * n + col] = sum;
    }
}

void launch(const TYPE* a, const TYPE* b, float* c, int m, int n, int k) {
    product<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, b, c, m, n, k);
}
"""
KINDS = {
    "float": ("cuda_runtime.h", "float", ""),
    "half": ("cuda_fp16.h", "half", "__half2float"),
    "bfloat16": ("cuda_bf16.h", "__nv_bfloat16", "__bfloat162float"),
}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = make_machine(device="gpu")
    yield found
    found.close()


@pytest.mark.parametrize("b", ["b[i * n + col]", "b[col * k + i]"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_products_agree_and_are_faster(machine: Machine, tmp_path: Path, kind: str, b: str) -> None:
    header, element, wide = KINDS[kind]
    text = PRODUCT.replace("HEADER", header).replace("TYPE", element).replace("WIDE", wide).replace("B)", f"{b})")
    bench = Bench(machine, tmp_path, text)
    try:
        proposals, failures = Analysis(bench.spec, tmp_path, machine.target).propose(bench.program)
        found = [p for p in proposals if p.parameters.get("tensor")]
        assert not failures
        assert len(found) >= 4
        for proposal in found:
            built = bench.evaluator.build(edit_program(bench.program, proposal.edits), by_rules=True)
            evaluation = bench.evaluator.evaluate(built, None)[0]
            assert evaluation.outcome is Outcome.ACCEPTED, (proposal.parameters, evaluation)
            assert evaluation.measurement.ratio > 2.0
    finally:
        bench.evaluator.close()
