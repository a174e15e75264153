"""Assumptions that an edit may hand to the compiler, and those that are left to tests no longer."""

from __future__ import annotations

import pytest

from engine.cuda.items import items_of
from engine.spec.kernel_spec import Argument, Case, KernelSpec, Step
from engine.verify.promises import promises_hold

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("y", "n", "zero")),),
    (Argument("y", "float", "out", "n"), Argument("n", "int", "scalar", ""), Argument("zero", "int", "scalar", "", value="0")),
    (Case("a", {"n": 1}),), (Case("b", {"n": 9}),),
)  # fmt: skip
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def _hold(body: str, name: str = "k") -> bool:
    (item,) = items_of(f"__global__ void {name}(float* y, int n, int zero) {{ {body} }}\n")
    return promises_hold(item, SPEC)


@pytest.mark.parametrize("promise", ["n > 0", "n >= 1", "0 < n", "n != 0", "i >= 0", "0 <= i"])
def test_a_size_above_zero_and_a_place_in_the_grid_hold(promise: str) -> None:
    assert _hold(f"{INDEX} if (i < n) {{ __builtin_assume({promise}); y[i] = 1; }}")


@pytest.mark.parametrize(
    "body",
    [
        f"{INDEX} __builtin_assume(n > 1);", f"{INDEX} __builtin_assume(n % 4 == 0);", f"{INDEX} __builtin_assume(i < n);",
        "__builtin_assume(zero > 0);", f"{INDEX} i -= 4; __builtin_assume(i >= 0);", "int i = n - 5; __builtin_assume(i >= 0);",
        "n -= 4; __builtin_assume(n > 0);", "int& m = n; m = 0; __builtin_assume(n > 0);", "f(&n); __builtin_assume(n > 0);",
        "{ int n = y[0]; __builtin_assume(n > 0); }", "for (;; n--) __builtin_assume(n > 0);", "__builtin_assume(n > 0), y[0] = 1;",
        "__builtin_assume((n > 0)); auto f = __builtin_assume;", f"{INDEX} {{ {INDEX} i--; __builtin_assume(i >= 0); }}",
    ],
)  # fmt: skip
def test_what_may_be_false_does_not(body: str) -> None:
    assert not _hold(body)


def test_only_in_the_spec_s_own_kernels() -> None:
    assert not _hold("__builtin_assume(n > 0);", name="other")
