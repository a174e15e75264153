"""What the host disturbed is timed again, and not believed where that goes on."""

from __future__ import annotations

import pytest

from engine.gpu.pace import HOST_OVER_EVENTS, Pace


def _kept(pace: Pace, gaps: list[float]) -> list[float]:
    return [gap for gap in gaps if not pace.spoilt(1000.0 * gap, 1000.0)]


def test_batches_with_a_pause_do_not_count() -> None:
    pace = Pace(38)
    assert _kept(pace, [1.1, 9.0, 1.3, 4.0, 1.2]) == [1.1, 1.3, 1.2]
    assert pace.worst == pytest.approx(1.3)


@pytest.mark.parametrize(("batches", "allowed"), [(3, 2), (5, 2), (15, 3), (38, 9)])
def test_a_host_that_lags_again_and_again_is_told_of(batches: int, allowed: int) -> None:
    pace = Pace(batches)
    assert _kept(pace, [3.0] * batches) == [3.0] * (batches - allowed)
    assert pace.worst > HOST_OVER_EVENTS


def test_the_worst_is_of_what_counts() -> None:
    pace = Pace(3)
    assert _kept(pace, [50.0, 50.0, HOST_OVER_EVENTS]) == [HOST_OVER_EVENTS]
    assert pace.worst <= HOST_OVER_EVENTS


def test_events_without_a_span_are_a_lag() -> None:
    assert Pace(3).spoilt(10.0, 0.0)
