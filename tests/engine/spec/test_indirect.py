"""Sizes of buffers whose indices come from others: found from two series of trials, and never where the indices do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from engine.spec.extents import trial_sizes
from engine.spec.indirect import ROWS, Indirect, indirect

Reach = Callable[[Mapping[str, int], int], int]  # sizes, every index -> elements reached


@pytest.mark.parametrize(
    ("names", "reach", "found"),
    [
        ("btc", lambda s, i: i * s["c"] + s["c"], Indirect(f"{ROWS}*c", "")),
        ("nd", lambda s, i: (i + 1) * s["d"] * s["d"], Indirect(f"{ROWS}*d*d", "")),
        ("btv", lambda s, i: (s["b"] * s["t"] - 1) * s["v"] + i + 1, Indirect("b*t*v", "v")),
        ("n", lambda s, i: i + 1, Indirect("n", "n")),
        ("mn", lambda s, i: i * s["m"] + s["n"], Indirect(f"{ROWS - 1}*m + n", "")),
        ("mnk", lambda s, i: (i * s["m"] + s["n"]) * s["k"], Indirect(f"{ROWS - 1}*m*k + n*k", "")),
        ("mn", lambda s, i: i * s["m"] + s["n"] % 7, None),
        ("mn", lambda s, i: 2 * i + 1, None),
        ("n", lambda s, i: i + 2, Indirect("n + 1", "n")),
        ("nm", lambda s, i: (s["n"] - 1) + i * s["n"] + 1, Indirect(f"{ROWS}*n", "")),
        ("n", lambda s, i: s["n"], None),
        ("n", lambda s, i: s["n"] - i, None),
        ("n", lambda s, i: s["n"] + i * (s["n"] % 7), None),
        ("n", lambda s, i: 0, None),
    ],
)
def test_sizes_follow_the_indices(names: str, reach: Reach, found: Indirect | None) -> None:
    trials = [[(sizes, reach(sizes, i)) for sizes in trial_sizes(list(names))] for i in (0, 1)]
    assert indirect(*trials) == found


def test_one_trial_says_nothing() -> None:
    assert indirect([({"n": 5}, 1)], [({"n": 5}, 2)]) is None
    assert indirect([], []) is None
