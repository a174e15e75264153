"""Contents at which one form of the arithmetic differs from another: far from zero, halves, subnormal ones, many NaN."""

from __future__ import annotations

import numpy as np

from engine.spec.alike import faint, far, halves, spread, with_nan
from engine.spec.data import poisoned
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step

CASE = Case("c", {"n": 5000})
ARGUMENTS = (
    Argument("x", "float", "in", "n", fill=Fill("normal")),
    Argument("r", "float", "in", "n", fill=Fill("uniform", "0.5", "1.5")),
    Argument("y", "float", "out", "n"),
)
SPEC = KernelSpec("k.cu", (Step("k", "", ("x", "r", "y")),), ARGUMENTS, (CASE,), (CASE,))
DRAWN = poisoned(SPEC, CASE, 3, "declared")


def test_far_numbers_keep_their_spread_and_others_stay() -> None:
    assert spread(SPEC) == ["x"]
    for seed in range(8):
        found = far(SPEC, DRAWN, "x", seed)
        assert 4000 < abs(found["x"].mean()) < 13000
        assert 0.9 < found["x"].std() < 1.1
        assert np.array_equal(found["r"], DRAWN["r"])


def test_halves_reach_their_peak_and_are_exact() -> None:
    for seed in range(8):
        found = halves(SPEC, DRAWN, 127, seed)
        assert found is not None
        unit = np.abs(found["x"]).max() / 127
        assert unit in (0.5, 0.25, 0.125)
        quotients = found["x"].astype(np.float64) / unit
        assert np.isin(quotients * 2 % 2, (0, 1)).all()
        assert 0.3 < np.mean(quotients % 1 == 0.5) < 0.45
        assert 0.2 < np.mean(np.abs(quotients) == 127) < 0.3


def test_subnormal_numbers_are_that_and_keep_some_bits() -> None:
    found = faint(SPEC, DRAWN, 5, subnormal=True)
    assert found is not None
    assert np.abs(found["x"]).max() < np.finfo(np.float32).tiny
    assert np.mean(found["x"] != 0) > 0.99
    assert np.array_equal(found["r"], DRAWN["r"])


def test_nan_stands_in_as_many_places_as_asked_for() -> None:
    for share in (96, 2):
        both = with_nan(SPEC, DRAWN, 7, share)
        assert both is not None
        places = np.isnan(both[0]["x"])
        assert 0.5 / share < places.mean() < 1.5 / share
        assert (both[1]["x"][places] == 0).all()
