"""Where it is defined what an edit must make of infinities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from engine.verify.propagation import defined, passes_on, without

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("x", "y")),),
    (Argument("x", "double", "in", "n", fill=Fill("normal")), Argument("y", "double", "out", "n")),
    (Case("c", {"n": 4}),), (),
)  # fmt: skip
X = np.array([1.0, np.inf, 1e250, -2.0])


def _defined(kernel: Any, wide: Any = None) -> bool:
    buffers = {"x": X, "y": np.zeros(4)}
    ordinary = without(SPEC, buffers, extremes=True)
    with np.errstate(all="ignore"):
        results, plain = {"y": kernel(X)}, {"y": kernel(ordinary["x"])}
        return defined(SPEC, buffers, results, None if wide is None else {"y": wide(X)}, plain)


def test_only_extreme_values_are_replaced() -> None:
    assert without(SPEC, {"x": X}, extremes=True)["x"].tolist() == [1.0, 1e3, 1e3, -2.0]
    assert without(SPEC, {"x": X})["x"] is X


def test_a_result_of_each_element_is_defined() -> None:
    assert _defined(lambda x: 2.5 * x + 1.0)


def test_a_sum_over_all_is_not_without_a_reference() -> None:
    assert not _defined(lambda x: x + x.sum())


def test_what_turns_to_nan_is_not() -> None:
    assert not _defined(lambda x: x - x)


def test_what_overflows_on_the_way_is_not() -> None:
    assert not _defined(lambda x: 1.0 / (x * x), lambda x: 1.0 / x / x + 1e-300)


def test_signs_of_extreme_values_stay() -> None:
    """A maximum over both infinities was another with one number in the place of both: its results counted as undefined."""
    found = without(SPEC, {"x": np.array([-np.inf, np.inf, np.nan])}, extremes=True)["x"]
    assert found[:2].tolist() == [-1e3, 1e3]


def test_outputs_pass_nan_on_by_themselves() -> None:
    """A kernel that passes NaN through and counts what it clips was tried with no NaN at all, as the count is none."""
    count = Argument("count", "int", "inout", "1", fill=Fill("constant", "0"))
    spec = replace(SPEC, arguments=(*SPEC.arguments, count))
    with_nan = {"y": np.array([np.nan, 1.0]), "count": np.array([3])}
    assert passes_on(spec, with_nan, {"y": np.array([5.0, 1.0]), "count": np.array([4])}) == {"y"}
    assert passes_on(spec, with_nan, {"y": np.array([5.0, 2.0]), "count": np.array([3])}) == {"count"}
