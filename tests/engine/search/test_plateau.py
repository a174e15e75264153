"""A search for so many seconds ends where its gains have become small, unless it shall exhaust them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plateau import replay, summary
from engine.search.progress import FLAT, SPENT, Budget, Plateau
from tests.engine.search.fakes import Factors
from tests.engine.search.test_loop import start

# One gain among edits of which thousands of combinations change nothing for the better.
_ONE_GAIN = Factors(("2.0", *(f"0.9{i:02}" for i in range(40))), {"2.0": 0.9})


def test_a_plateau_is_half_of_the_candidates_without_a_gain() -> None:
    plateau = Plateau(0, 1.0)
    plateau.note(10, 2.0)
    plateau.note(90, 3.0)
    assert not plateau.reached(179)
    assert not plateau.reached(199)  # too few
    assert plateau.reached(200)
    plateau.note(201, 3.01)  # too small a gain
    assert plateau.reached(202)
    plateau.note(203, 3.1)
    assert not plateau.reached(405)
    assert plateau.reached(406)


def test_a_plateau_is_near_where_the_last_quarter_of_it_is_left() -> None:
    plateau = Plateau(1000, 1.0)
    plateau.note(1090, 2.0)
    assert not plateau.near(1149)
    assert plateau.near(1150)
    assert not plateau.reached(1199)
    plateau.note(1150, 3.0)
    assert not plateau.near(1200)
    assert plateau.near(1226)


def test_what_a_search_ends_with_is_prepared_before_a_plateau_ends_it(tmp_path: Path) -> None:
    """The profiler was asked for the likely suggestion when the search had ended, and waited for: 4 s of 30."""
    search = start(tmp_path, _ONE_GAIN)
    seen: list[int] = []
    search.run(Budget(seconds=60.0), nearly=Budget(seconds=54.0), then=lambda: seen.append(search.progress.evaluated))
    assert search.progress.stopped == FLAT
    assert len(seen) == 1
    assert 150 <= seen[0] < search.progress.evaluated - 20


def test_a_part_that_goes_on_has_patience_of_its_own() -> None:
    plateau = Plateau(1000, 2.0)
    assert not plateau.reached(1199)
    assert plateau.reached(1200)


@pytest.mark.parametrize(
    ("budget", "ended"),
    [(Budget(seconds=60.0), FLAT), (Budget(seconds=1.5, exhaust=True), SPENT), (Budget(candidates=260), SPENT)],
)
def test_what_ends_a_search(tmp_path: Path, budget: Budget, ended: str) -> None:
    search = start(tmp_path, _ONE_GAIN)
    search.run(budget)
    assert search.progress.stopped == ended
    assert search.progress.best_ratio == pytest.approx(2.0)
    if ended == FLAT:
        assert 200 <= search.progress.evaluated < 400
    elif budget.candidates:
        assert search.progress.evaluated == budget.candidates


def test_a_replay_says_what_the_rule_would_have_cost() -> None:
    row = replay([(0, 0.0, 1.0), (50, 5.0, 2.0), (450, 45.0, 2.1), (500, 50.0, 2.1)])
    assert (row["ended_candidates"], row["ended_ratio"]) == (200, 2.0)
    assert row["ended_s"] == pytest.approx(20.0)
    assert row["loss"] == pytest.approx(1 - 2.0 / 2.1)
    whole = replay([(0, 0.0, 1.0), (50, 5.0, 2.0), (150, 15.0, 2.0)])
    assert (whole["ended_candidates"], whole["loss"]) == (150, 0.0)
    found = summary([row, whole])
    assert found["time_ratio"] == pytest.approx(65 / 35)
    assert found["worst"] == row["loss"]
