"""What the rules write gives what the original gives, also where rules follow each other, and brings no race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.rewrite.site import Site
from tests.engine.rules import (
    test_atomic_aggregate,
    test_block_size,
    test_row_vectorize,
    test_transpose_tile,
    test_unroll,
)
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, make, one

Chain = Sequence[tuple[str, Mapping[str, Any]]]
_PLANE = test_block_size.PLANE.replace(", r = blockIdx", ";\n    const int r = blockIdx")


def chained(site: Site, chain: Chain) -> Site:
    for rule, parameters in chain:
        site = one(site, rule, **parameters)
    return site


@pytest.mark.parametrize(
    "chain",
    [
        [("vectorize", {"width": 4})],
        [("coarsen", {"factor": 4, "form": "block"})],
        [("restrict", {"restrict": 2}), ("coarsen", {"factor": 4, "form": "grid"}), ("row_vectorize", {"width": 4})],
        [("block_size", {"x": 64}), ("vectorize", {"width": 2})],
    ],
    ids=str,
)
def test_elementwise(chain: Chain) -> None:
    site = make(SCALE, SCALE_LAUNCH)
    assert_equal(site, [chained(site, chain)], [{"n": 1}, {"n": 255}, {"n": 1003}])


@pytest.mark.parametrize("chain", [[("block_size", {"x": 32, "y": 8})], [("coarsen", {"factor": 4})]], ids=str)
def test_plane(chain: Chain) -> None:
    site = make(_PLANE, test_block_size.PLANE_LAUNCH, **test_block_size.PLANE_SIZES)
    assert_equal(site, [chained(site, chain)], [{"rows": 1, "cols": 1}, {"rows": 41, "cols": 129}])


@pytest.mark.parametrize(
    "tile",
    [{"tile": 32, "rows": 8}, {"tile": 64, "rows": 8, "vector": 0}, {"tile": 64, "rows": 8, "vector": 1}],
    ids=str,
)
def test_transpose(tile: Mapping[str, int]) -> None:
    site = make(test_transpose_tile.TRANSPOSE, test_transpose_tile.LAUNCH, **test_transpose_tile.SIZES)
    cases = [{"rows": 1, "cols": 1}, {"rows": 7, "cols": 129}, {"rows": 66, "cols": 34}]
    assert_equal(site, [one(site, "transpose_tile", **tile)], cases, races=True)


@pytest.mark.parametrize(
    "chain",
    [
        [("unroll", {"accumulators": 4})],
        [("row_vectorize", {"width": 4})],
        [("row_vectorize", {"width": 2}), ("unroll", {"loop": "all"})],
    ],
    ids=str,
)
def test_sum_of_rows(chain: Chain) -> None:
    site = make(test_unroll.ROWS, test_unroll.LAUNCH, **test_unroll.SIZES)
    assert_equal(site, [chained(site, chain)], [{"n": 1, "m": 1}, {"n": 5, "m": 64}, {"n": 3, "m": 131}])


def test_rows_shared_by_a_block() -> None:
    source = test_row_vectorize.NORM.replace("sum += in[j] * in[j];", "sum += 1.0f;").replace("* sum", "+ sum * 0.0f")
    site = make(source, test_row_vectorize.LAUNCH, **test_row_vectorize.SIZES)
    cases = [{"rows": 2, "cols": 1}, {"rows": 3, "cols": 128}, {"rows": 5, "cols": 517}]
    assert_equal(site, [one(site, "row_vectorize", width=4)], cases, races=True)


@pytest.mark.parametrize(
    "chain",
    [
        [("atomic_aggregate", {"form": "sum"})],
        [
            ("coarsen", {"factor": 4, "form": "grid"}),
            ("atomic_aggregate", {"form": "sum"}),
            ("row_vectorize", {"width": 4}),
        ],
    ],
    ids=str,
)
def test_sum_over_all(chain: Chain) -> None:
    site = make(test_atomic_aggregate.SUM, test_atomic_aggregate.SUM_LAUNCH, elements={"total": "1"})
    assert_equal(site, [chained(site, chain)], [{"n": 1}, {"n": 1003}], races=True)


@pytest.mark.parametrize("bins", ["256", "5"])
def test_counters(bins: str) -> None:
    # Indices below four fit, whichever number of bins the spec tells.
    source = test_atomic_aggregate.COUNT.replace("data[i]", "(data[i] & 3)")
    site = make(source, test_atomic_aggregate.COUNT_LAUNCH, elements={"bins": bins})
    private = one(site, "atomic_aggregate", elements=16)
    assert_equal(site, [private], [{"n": 1}, {"n": 4099}], races=True)
