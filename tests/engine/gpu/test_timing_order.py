"""The order in which programs are timed: none has the better place more often than another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.gpu.timing_order import turns


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("rounds", [2, 4, 8, 152])
def test_each_runs_before_each_other_in_half_of_the_rounds(count: int, rounds: int) -> None:
    for seed in range(20):
        drawn = turns(count, rounds, np.random.default_rng(seed))
        assert len(drawn) == rounds
        assert all(sorted(turn) == list(range(count)) for turn in drawn)
        for a, b in itertools.combinations(range(count), 2):
            assert sum(turn.index(a) < turn.index(b) for turn in drawn) == rounds // 2


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize("place", [0, -1])
def test_each_place_is_anybodys(rounds: int, place: int) -> None:
    """With the candidate always the last one, a kernel was found 0.1 to 0.3 % faster than itself."""
    drawn = [turns(3, rounds, np.random.default_rng(seed))[place][place] for seed in range(3000)]
    assert all(850 < drawn.count(program) < 1150 for program in range(3))
