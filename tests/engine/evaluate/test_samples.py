"""What samples say: by hand from lists of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.evaluate.guardrails import LIMITS
from engine.evaluate.samples import (
    beside_incumbent,
    beside_original,
    certain_bytes,
    floors_us,
    judge,
    moved_bytes,
    with_process_spread,
)
from engine.model import CaseTiming, Evaluation, Measurement, Outcome
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step


def _spec(fill: Fill | None = None) -> KernelSpec:
    arguments = (Argument("x", "float", "in", "n", fill or Fill()), Argument("y", "float", "out", "n"))
    cases = (Case("big", {"n": 1 << 26}), Case("small", {"n": 1 << 10}))
    return KernelSpec("k.cu", (Step("k", "", ("x", "y")),), arguments, cases[:1], cases)


def _results(*programs: Sequence[float]) -> list[dict[str, Any]]:
    """The same samples for both cases."""
    return [{"samples_us": [list(p) for p in programs]}] * 2


def _timed(*ratios: float, original_us: float = 100.0) -> Measurement:
    cases = [CaseTiming("c", 1.0, original_us, original_us / r, r, 0.99 * r, 1.01 * r, 8) for r in ratios]
    return Measurement(tuple(cases), ratios[0], 0.99 * ratios[0], 1.01 * ratios[0])


def test_beside_original_and_incumbent() -> None:
    spec = _spec()
    alone, none = beside_original(spec, _results([80.0] * 8, [20.0] * 8))
    assert (alone.ratio, alone.low, none) == (pytest.approx(4.0), pytest.approx(4.0), None)
    assert [c.candidate_us for c in alone.cases] == [20.0, 20.0]
    between, against = beside_original(spec, _results([80.0] * 8, [40.0] * 8, [20.0] * 8))
    assert (between.ratio, against) == (pytest.approx(4.0), pytest.approx(2.0))


def test_what_was_timed_beside_the_incumbent_alone_has_its_interval_too() -> None:
    held = _timed(3.0, 3.0)
    found, against = beside_incumbent(_spec(), _results([30.0] * 8, [20.0] * 8), held)
    assert against == pytest.approx(1.5)
    assert (found.ratio, found.low, found.high) == pytest.approx((4.5, 0.99 * 4.5, 1.01 * 4.5))
    assert [(c.original_us, c.candidate_us) for c in found.cases] == [(100.0, 20.0)] * 2


def _floors(spec: KernelSpec, original_us: float) -> tuple[float, ...]:
    sizes = [certain_bytes(spec, case) for case in spec.time]
    copies_us = [sum(pair) / 4e12 * 1e6 for pair in sizes]
    return floors_us(sizes, copies_us, _timed(1.0, 1.0, original_us=original_us), 50 << 20)


def test_the_least_time_is_most_of_a_copy_of_the_same_bytes() -> None:
    # 2 * 4 * 2**26 bytes at 4e12 bytes/s take 134 µs; the small case lies in the cache.
    big, small = _floors(_spec(), 500.0)
    assert (big, small) == (pytest.approx(0.9 * 134.2, rel=1e-3), 0.0)
    # Indices may leave the most part of the input unread.
    assert _floors(_spec(Fill("integers")), 500.0)[0] == pytest.approx(big / 2)
    # An original that is faster itself shows that the bytes are not all moved.
    assert _floors(_spec(), 50.0) == (0.0, 0.0)


def test_a_copy_that_was_not_measured_gives_no_floor() -> None:
    sizes = [certain_bytes(_spec(), case) for case in _spec().time]
    assert floors_us(sizes, [0.0, 0.0], _timed(1.0, 1.0, original_us=500.0), 50 << 20) == (0.0, 0.0)


def test_an_array_that_is_updated_is_read_and_written() -> None:
    spec = replace(_spec(), arguments=tuple(replace(a, role="inout") for a in _spec().arguments if a.role != "scalar"))
    read, written = moved_bytes(spec, spec.time[0])
    assert read == written == sum(moved_bytes(_spec(), _spec().time[0]))


def test_intervals_hold_for_another_process_too() -> None:
    alone = _timed(2.0, 2.0)
    near, far = with_process_spread(alone, _timed(2.0, 2.0)), with_process_spread(alone, _timed(2.1, 2.1))
    assert alone.high < near.high < far.high
    assert far.low < near.low < alone.low
    assert far.high > 2.08  # most of the way to what the other process measured
    assert (near.ratio, near.cases[1].ratio) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("ratios", "floor", "outcome"),
    [
        ((2.0, 2.0), 60.0, Outcome.GUARDRAIL),  # 50 µs: faster than the bytes allow
        ((2.0, 2.0), 40.0, Outcome.ACCEPTED),
        ((2.0, 0.9), 0.0, Outcome.GUARDRAIL),  # one case lost
        ((0.9, 0.9), 0.0, Outcome.SLOWER),
        ((1.0, 1.0), 0.0, Outcome.NO_DIFFERENCE),
    ],
)
def test_how_an_evaluation_ends(ratios: tuple[float, float], floor: float, outcome: Outcome) -> None:
    ended = judge(Evaluation(Outcome.CRASHED), _timed(*ratios), (floor, 0.0), LIMITS)
    assert ended.outcome is outcome
    assert (ended.failure is not None) == (outcome is Outcome.GUARDRAIL)
