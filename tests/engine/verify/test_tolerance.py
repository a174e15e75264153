"""Properties of the tolerance rule, on arrays of any finite and other values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, LaunchExpr, Step
from engine.verify.host_compare import Outputs, difference, noise
from engine.verify.tolerance import MAX_ERROR_RATIO, Noise, allowed, relative_term

TYPES = {"float": np.float32, "double": np.float64, "half": np.float16}
floats = st.sampled_from(sorted(TYPES))
errors = st.floats(0, 1e6)
noises = st.builds(Noise, errors, errors)


def spec(kind: str, tolerance: float | None = None) -> KernelSpec:
    return KernelSpec(
        "k.cu", (Step("k", "", ("y",), LaunchExpr(("1",), ("32",), "0")),),
        (Argument("y", kind, "out", "n", Fill("constant"), tolerance=tolerance),), (Case("c", {"n": 8}),), (Case("t", {"n": 8}),),
    )  # fmt: skip


def arrays(kind: str, **given: Any) -> Any:
    width = {"float": 32, "double": 64, "half": 16}[kind]
    return hnp.arrays(TYPES[kind], st.integers(1, 8), elements=st.floats(width=width, **given))


@given(floats, noises, st.none() | st.floats(0, 1), st.booleans())
def test_it_is_never_negative_and_grows_with_the_originals_own_error(
    kind: str, known: Noise, declared: float | None, widened: bool
) -> None:
    dtype = parse_dtype(kind)
    one = allowed(dtype, known, declared=declared, widened=widened)
    assert one >= 0
    more = allowed(dtype, Noise(known.error * 2 + 1, known.rms), declared=declared, widened=widened)
    assert more >= one
    if declared is not None:
        assert one == declared * known.rms
    else:
        assert one >= MAX_ERROR_RATIO * known.error


@given(floats, noises, st.integers(-20, 20), st.booleans())
def test_it_scales_with_the_values(kind: str, known: Noise, power: int, widened: bool) -> None:
    """Small results are held to small errors: there is no absolute part."""
    factor = 2.0**power
    one = allowed(parse_dtype(kind), known, declared=None, widened=widened)
    scaled = allowed(parse_dtype(kind), Noise(known.error * factor, known.rms * factor), declared=None, widened=widened)
    assert scaled == pytest.approx(one * factor)


@settings(max_examples=200)
@given(st.data(), floats)
def test_the_original_always_passes(data: st.DataObject, kind: str) -> None:
    """Whatever it gives: infinities and what is no number too."""
    original = {"y": data.draw(arrays(kind))}
    assert difference(spec(kind), "y", Outputs(original, original), Noise(0.0, 0.0), "c") is None
    wide = {"y": original["y"].astype(np.float64)}
    assert (
        difference(spec(kind), "y", Outputs(original, original, wide), noise(spec(kind), "y", original, wide), "c")
        is None
    )


@settings(max_examples=200)
@given(st.data(), floats, st.integers(0, 7), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_no_number_is_found_where_the_original_has_one(
    data: st.DataObject, kind: str, at: int, wrong: float
) -> None:
    original = {"y": data.draw(arrays(kind, allow_nan=False, allow_infinity=False))}
    got = {"y": original["y"].copy()}
    at %= got["y"].size
    got["y"][at] = wrong
    found = difference(spec(kind), "y", Outputs(got, original), Noise(1e6, 1e6), "c")
    assert found is not None
    assert found.index == at


@settings(max_examples=200)
@given(st.data(), floats, st.integers(0, 7), noises)
def test_one_element_beyond_the_tolerance_is_found_and_within_it_is_not(
    data: st.DataObject, kind: str, at: int, known: Noise
) -> None:
    dtype = parse_dtype(kind)
    original = {"y": data.draw(arrays(kind, allow_nan=False, allow_infinity=False))}
    at %= original["y"].size
    right = float(original["y"][at])
    limit = allowed(dtype, known, declared=None, widened=False) + relative_term(dtype, known=False) * abs(right)
    for factor, passes in ((0.4, True), (2.5, False)):
        got = {"y": original["y"].copy()}
        with np.errstate(over="ignore"):
            got["y"][at] = right + factor * limit
        error = abs(float(got["y"][at]) - right)
        assume(math.isfinite(error))
        assume(error <= 0.8 * limit if passes else error >= 1.5 * limit > 0)  # rounding to the type may move it
        found = difference(spec(kind), "y", Outputs(got, original), known, "c")
        assert (found is None) is passes
        if found is not None:
            assert (found.index, found.argument) == (at, "y")


@given(hnp.arrays(np.int32, st.integers(1, 8)), st.integers(0, 7), st.integers(1, 2**31 - 1))
def test_integers_must_be_equal(values: Any, at: int, off: int) -> None:
    got = {"y": values.copy()}
    at %= values.size
    got["y"][at] ^= np.int32(off)
    found = difference(spec("int"), "y", Outputs(got, {"y": values}), Noise(1e9, 1e9), "c")
    assert found is not None
    assert found.index == at


@settings(max_examples=100)
@given(st.data(), floats)
def test_zeros_never_pass_for_results_of_one_size(data: st.DataObject, kind: str) -> None:
    """An output whose values are all about as large is not right when it is zero, however small they are."""
    size = data.draw(st.floats(2.0**-10, 2.0**10))
    factors = data.draw(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(0.5, 2.0)))
    original = {"y": (size * factors).astype(TYPES[kind])}
    wide = {"y": original["y"].astype(np.float64)}
    known = noise(spec(kind), "y", original, wide)
    assert (
        difference(spec(kind), "y", Outputs({"y": np.zeros_like(original["y"])}, original, wide), known, "c")
        is not None
    )


def test_without_a_reference_a_large_element_may_round_as_a_sum_of_its_size_does() -> None:
    """A softmax's largest element is many times the root mean square: every other order of its sum was refused."""
    wanted = np.full(1024, 1e-3, np.float32)
    wanted[7] = 0.03
    near, far = ({"y": wanted.copy()} for _ in range(2))
    near["y"][7] *= np.float32(1 + 3e-6)
    far["y"][7] *= np.float32(1 + 1e-4)
    found = noise(spec("float"), "y", {"y": wanted}, {"y": wanted})
    assert difference(spec("float"), "y", Outputs(near, {"y": wanted}), found, "c") is None
    assert difference(spec("float"), "y", Outputs(far, {"y": wanted}), found, "c") is not None
    exact = {"y": wanted.astype(np.float64)}
    assert difference(spec("float"), "y", Outputs(near, {"y": wanted}, exact), found, "c") is not None
