"""Extents of buffers whose last row is not read to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from engine.spec.extents import Extent, fit, trial_sizes


@pytest.mark.parametrize(
    ("names", "touched", "found"),
    [
        (("rows", "pitch", "width"), lambda s: (s["rows"] - 1) * s["pitch"] + s["width"], "(rows - 1)*pitch + width"),
        (("k", "n", "m", "c"), lambda s: ((s["k"] - 1) * s["n"] + s["m"]) * s["c"], "((k - 1)*n + m)*c"),
        (("a", "b", "c", "d"), lambda s: 4 * (s["a"] + s["b"]) * s["c"] * s["d"], "4*(a + b)*c*d"),
    ],
)
def test_what_is_touched_of_rows_is_explained(
    names: tuple[str, ...], touched: Callable[[Mapping[str, int]], int], found: str
) -> None:
    assert fit([(sizes, touched(sizes)) for sizes in trial_sizes(names)]) == Extent(found, True)
