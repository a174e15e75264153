"""compute-sanitizer on buffers of an odd number of bytes: the kernel runs under every tool, and each report names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import RefusedError
from engine.gpu.sanitize import TOOLS, Sanitized
from engine.run.machine import Machine, make_machine
from engine.verify.plan import plan
from tests.gpu.test_evaluate import Bench

pytestmark = pytest.mark.gpu

HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
TYPES = (*HEADERS, "signed char")
DOUBLES = "if (i < n) { y[i] = x[i] + x[i]; }"
# Each fault leaves the outputs as they are.
FAULTS = {
    "memcheck": "if (i < n) { last = (float)x[i + 1]; y[i] = x[i] + x[i]; if (last == 77.0f) { y[i] = x[0]; } }",
    "racecheck": "shared[0] = i; if (i < n) { y[i] = x[i] + x[i]; if (shared[63 - threadIdx.x] == -7) { y[i] = x[0]; } }",
    "synccheck": "if (threadIdx.x < 33) { __syncthreads(); } if (i < n) { y[i] = x[i] + x[i]; }",
}


def _kernel(kind: str, body: str = DOUBLES) -> str:
    include = f"#include <{HEADERS[kind]}>\n" if kind in HEADERS else ""
    fill = '"normal"' if include else '{ kind = "integers", low = 1, high = 50 }'
    return f"""{include}\
// optiml: args.x = {{ role = "in", size = "n", fill = {fill} }}
// optiml: args.y = {{ role = "out", size = "n" }}
// optiml: check = [{{ n = 1 }}, {{ n = 333 }}, {{ n = 4099 }}]
// optiml: time = [{{ n = 4000001 }}]
__global__ void twice(const {kind}* x, {kind}* y, int n) {{
    __shared__ int shared[64];
    float last = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    shared[threadIdx.x] = i;
    {body}
}}

void launch(const {kind}* x, {kind}* y, int n) {{
    twice<<<(n + 63) / 64, 64>>>(x, y, n);
}}
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = make_machine(device="gpu")
    yield found
    found.close()


def _sanitized(bench: Bench, body: str) -> dict[str, Sanitized]:
    built = bench.build(DOUBLES, body)
    checks = plan(bench.evaluator._spec, bench.evaluator._random)
    return {found.tool: found for found in bench.evaluator._sanitized(built, checks)}


@pytest.mark.parametrize("kind", TYPES)
def test_buffers_of_odd_sizes_are_judged_by_every_tool(machine: Machine, tmp_path: Path, kind: str) -> None:
    """A fill wrote past a buffer of one half, which ended the worker before the kernel ran; the guardrail then passed."""
    bench = Bench(machine, tmp_path, _kernel(kind))
    try:
        assert {s.tool: s.errors for s in bench.evaluator._reports} == dict.fromkeys(TOOLS, 0)
        assert not [line for line in bench.evaluator.signals.missing if "no verdict" in line]
        for tool, body in FAULTS.items():
            found = _sanitized(bench, body)[tool]
            assert found.errors, (tool, found)
            assert "twice" in found.first
    finally:
        bench.evaluator.close()


@pytest.mark.parametrize("tool", FAULTS)
def test_an_original_with_a_report_is_refused(machine: Machine, tmp_path: Path, tool: str) -> None:
    with pytest.raises(RefusedError, match=f"compute-sanitizer reports errors.*{tool}.*twice"):
        Bench(machine, tmp_path, _kernel("__half", FAULTS[tool]))
