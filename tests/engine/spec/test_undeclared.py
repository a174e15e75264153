"""Contents that fills leave out: outside of a range where there is an outside, rows in any order, NaN beside zeros."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from engine.spec.data import poisoned
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from engine.spec.undeclared import (
    EMPTY_SEGMENTS,
    LONG_ROWS,
    ONE_SEGMENT,
    contents,
    in_order,
    long_rows,
    long_segment,
    outputs_in_order,
    undeclared,
)

CASE = Case("c", {"n": 4000, "rows": 500, "cols": 90})


def _spec(*arguments: Argument) -> KernelSpec:
    every = (*arguments, Argument("out", "float", "out", "n"))
    return KernelSpec("k.cu", (Step("k", "", tuple(a.name for a in every)),), every, (CASE,), (CASE,))


def _whole(type_: str, low: str, high: str) -> Argument:
    return Argument("x", type_, "in", "n", fill=Fill("integers", low, high))


@pytest.mark.parametrize(
    ("argument", "kinds"),
    [
        (_whole("unsigned char", "0", "2"), {"above", "far above"}),
        (_whole("unsigned char", "0", "256"), set()),
        (_whole("long long", "-1", "cols"), {"below", "above", "far above"}),
        (_whole("unsigned int", "0", "1000"), {"above", "far above"}),
        (_whole("unsigned int", "1", "8"), {"below", "above", "far above"}),
        (_whole("int", "1", "8"), {"below", "none", "above", "far above"}),
        (_whole("unsigned int", "0", "2000000000"), set()),
    ],
)
def test_whole_numbers_leave_their_range_where_their_type_lets_them(argument: Argument, kinds: set[str]) -> None:
    spec = _spec(argument)
    found = [each for each in undeclared(spec) if each.argument == "x"]
    assert {each.kind for each in found} == kinds
    low, high = int(argument.fill.low), CASE.sizes.get(argument.fill.high, argument.fill.high)
    for each in found:
        values = contents(spec, CASE, 3, each.words)["x"].astype(object)
        outside = [v for v in values if not low <= v < int(high)]
        assert 0.15 < len(outside) / values.size < 0.35
        assert all((v < low) is (each.kind in ("below", "none")) for v in outside)
        assert each.kind != "none" or not any(outside)


def test_samples_of_both_signs_are_at_both_ends_of_their_type() -> None:
    """A product in 32 bits of neighbours' difference was met by draws below the range, and by chance."""
    spec = _spec(_whole("short", "-8000", "8000"))
    (ends,) = [each for each in undeclared(spec) if each.kind == "ends"]
    values = contents(spec, CASE, 3, ends.words)["x"].astype(np.int64)
    assert np.mean(np.abs(np.diff(values)) == 65535) > 0.2
    assert 0.15 < np.mean(np.abs(values) <= 8000) < 0.35


def test_nan_lies_beside_zeros_and_in_ranges() -> None:
    arguments = (
        Argument("a", "float", "in", "n", fill=Fill("normal")),
        Argument("b", "float", "in", "n", fill=Fill("uniform", "0.5", "1.5")),
    )
    spec = _spec(*arguments)
    made = {each.kind: contents(spec, CASE, 5, each.words) for each in undeclared(spec)}
    assert made.keys() == {"ranged nan", "zeros beside nan", "masked"}
    zeros, ranged, masked = made["zeros beside nan"], made["ranged nan"], made["masked"]
    assert 0.4 < np.isneginf(masked["a"]).mean() < 0.6
    assert np.isfinite(masked["b"]).all()
    assert np.mean(zeros["a"] == 0.0) > 0.98
    assert not np.isnan(zeros["a"]).any()
    assert 0 < np.isnan(zeros["b"]).mean() < 0.05
    assert np.isnan(ranged["b"]).any()


SPARSE = (
    Argument("offsets", "int", "in", "rows+1", fill=Fill("csr_offsets", of="columns")),
    Argument("columns", "int", "in", "rows*8", fill=Fill("csr_columns", "", "cols", "offsets")),
    Argument("values", "float", "in", "rows*8", fill=Fill("normal")),
)


def test_rows_of_a_matrix_are_long_and_out_of_order_and_can_be_put_in_order() -> None:
    spec = _spec(*SPARSE)
    (rows,) = [each for each in undeclared(spec) if each.kind == "rows"]
    made = contents(spec, CASE, 7, rows.words)
    offsets, columns = made["offsets"], made["columns"]
    assert (offsets[0], offsets[-1]) == (0, columns.size)
    lengths = np.diff(offsets)
    assert lengths.min() >= 0
    assert lengths.max() >= columns.size // 2
    assert (columns >= 0).all()
    assert (columns < 90).all()
    ordered = in_order(spec, made)
    x = np.random.default_rng(1).standard_normal(90)
    sums = [np.add.reduceat(b["values"] * x[b["columns"]], offsets[:-1][lengths > 0]) for b in (made, ordered)]
    assert np.allclose(*sums, rtol=1e-4, atol=1e-3)
    inner = np.ones(columns.size - 1, bool)
    inner[offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < columns.size)] - 1] = False
    assert (np.diff(ordered["columns"])[inner] >= 0).all()
    assert (np.diff(columns)[inner] < 0).any()


def test_other_families_are_those_of_the_fills() -> None:
    spec = _spec(_whole("int", "0", "9"))
    for name, array in poisoned(spec, CASE, 1, "declared").items():
        assert (contents(spec, CASE, 1, "declared")[name] == array).all()


@pytest.mark.parametrize(("type_", "low"), [("float", "1"), ("int", "0"), ("unsigned char", "255")])
def test_a_buffer_of_one_value_gets_more(type_: str, low: str) -> None:
    """Bins that the spec fills with zeros: a store in the place of an addition was correct for them."""
    spec = _spec(Argument("bins", type_, "inout", "n", fill=Fill("constant", low)))
    (filled,) = undeclared(spec)
    values = contents(spec, CASE, 4, filled.words)["bins"]
    assert np.unique(values).size > 10


def test_a_factor_in_constant_memory_is_zero_beside_nan() -> None:
    taps = Argument("taps", "float", "in", "64", fill=Fill("normal"), symbol="taps")
    spec = _spec(taps, Argument("a", "float", "in", "n", fill=Fill("normal")))
    made = contents(spec, CASE, 5, "NaN beside zeros in 'taps'")
    assert np.mean(made["taps"] == 0.0) > 0.9
    assert np.isnan(made["a"]).any()


def test_one_segment_is_longer_than_16_bits_count_and_ends_with_the_buffer() -> None:
    """A length in 16 bits, and reads of whole words at the end of the last record, were met by no check."""
    starts = Argument("starts", "int", "in", "rows+1", fill=Fill("offsets", "0", "cols+1"))
    spec = _spec(starts, Argument("data", "unsigned char", "in", "rows*cols", fill=Fill("integers", "0", "256")))
    assert [each.words for each in undeclared(spec)] == [ONE_SEGMENT, EMPTY_SEGMENTS]
    lengths = np.diff(contents(spec, CASE, 7, EMPTY_SEGMENTS)["starts"])
    assert lengths[0] == 0
    assert 0.3 < (lengths == 0).mean() < 0.7
    case = long_segment(spec, CASE, random.Random(3))
    assert case is not None
    for each in (CASE, case):
        made = contents(spec, each, 7, ONE_SEGMENT)
        lengths = np.diff(made["starts"])
        assert sorted(lengths)[-1] == made["starts"][-1] == made["data"].size
        assert bool(lengths.max() > 1 << 16) is (each is case)
    shorter = replace(spec, arguments=(replace(starts, fill=Fill("offsets", "1", "cols")), *spec.arguments[1:]))
    made = contents(shorter, CASE, 7, ONE_SEGMENT)
    assert made["starts"][-1] == made["data"].size  # where the spec's segments never fill it
    assert long_segment(_spec(_whole("int", "0", "9")), CASE, random.Random(3)) is None


def test_what_belongs_to_an_entry_moves_with_it_and_a_row_is_longer_than_shared_memory() -> None:
    spec = _spec(*SPARSE)
    spec = replace(spec, arguments=(*SPARSE, Argument("out", "float", "out", "rows*8")))
    case = long_rows(spec, CASE, random.Random(3))
    assert case is not None
    made = contents(spec, case, 7, LONG_ROWS)
    assert np.diff(made["offsets"]).max() * 4 > 48 << 10
    weights = {"out": made["values"] * made["columns"]}
    ordered = in_order(spec, made)
    assert (ordered["columns"] != made["columns"]).any()
    moved = outputs_in_order(spec, made, weights)["out"]
    assert np.array_equal(moved, ordered["values"] * ordered["columns"])
    assert long_rows(_spec(_whole("int", "0", "9")), CASE, random.Random(3)) is None
