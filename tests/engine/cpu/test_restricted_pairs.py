"""Which pointers of a function must not be one, and that a run reports where they are."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cpu.condition_marks import mark_conditions
from engine.cpu.restricted_pairs import restricted_pairs
from tests.engine.cpu.conftest import Make, launch


def _pairs(parameters: str) -> list[tuple[str, str]]:
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    text = f"static inline void f({parameters}) {{ to[0] = from[0]; }}"
    root = Parser(Language(tree_sitter_cuda.language())).parse(text.encode()).root_node
    return [(pair.first, pair.second) for pair in restricted_pairs(root)]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("const float* __restrict__ from, float* to", [("from", "to")]),
        ("float const *from, float *__restrict to, int n", [("from", "to")]),
        ("const float* from, float* to", []),
        ("const float* __restrict__ from, const float* __restrict__ to", []),
        ("float* __restrict__ from, float* __restrict__ to, const float* x", [("from", "to"), ("from", "x"), ("to", "x")]),
        ("float& from, float* __restrict__ to", []),
    ],
)  # fmt: skip
def test_a_pair_needs_a_promise_and_a_pointer_that_may_be_written_through(
    parameters: str, expected: list[tuple[str, str]]
) -> None:
    assert _pairs(parameters) == expected


@pytest.mark.parametrize(
    ("passed", "one"), [("y, y", True), ("y + n - n, y", True), ("x, y", False), ("y + 1, y", False)]
)
def test_a_run_reports_pointers_that_are_one(passed: str, one: bool, make: Make) -> None:
    text = f"""
__device__ void f(const float* __restrict__ from, float* __restrict__ to) {{ to[0] = 1.0f; }}
__global__ void k(const float* x, float* y, int n) {{ f({passed}); }}
"""
    arguments = [
        ("x", "in", np.zeros(4, np.float32)),
        ("y", "out", np.zeros(4, np.float32)),
        ("n", "scalar", np.int32(4)),
    ]
    kernel = make(text, "k", launch(1, 1), arguments)
    binary = kernel.machine.marked(text, kernel.binary, ["k"])
    (condition,) = [each for each in binary.conditions if each.apart and each.text.endswith("of f")]
    assert condition.line == 2
    (run,) = kernel.machine.run_many(binary, [kernel.job(0)])
    binary.saw(run)
    assert bool(binary.seen[binary.conditions.index(condition)] & 2) is one


def test_null_is_no_pointer_to_anything() -> None:
    marked = mark_conditions('# 1 "k.cu"\nvoid f(const int* __restrict__ p, int* q) { }\n', "k.cu", "end")
    assert "p && (const volatile void*)p == (const volatile void*)q" in marked.text
