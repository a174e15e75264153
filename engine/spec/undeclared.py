"""Contents that a spec's fills leave out and a caller may pass: what an edit may only take for granted where the original does.

Whole numbers beyond their range, other values in a buffer that the spec fills with one, NaN in what has a range, NaN beside zeros, many
elements of minus infinity, rows of a sparse matrix in any order and of any length. A family is tried where the original is defined on
it; `in_order` gives the contents that must have the same results.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from engine import arith
from engine.spec.data import NAN, buffer_elements, poisoned, seed_of
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

Arrays = dict[str, "np.ndarray[Any, Any]"]
_WORD = re.compile(r"[A-Za-z_]\w*")
Kind = Literal[
    "below",
    "above",
    "far above",
    "ends",
    "filled",
    "ranged nan",
    "zeros beside nan",
    "masked",
    "rows",
    "segments",
    "empty",
    "none",
]

LONG_ROWS = "long rows with columns in any order"
ONE_SEGMENT = "one long segment, which ends with the buffer"
EMPTY_SEGMENTS = "segments without elements"
_NAN_SHARE = 64  # one element of so many is NaN: most rows keep a finite result
_KEPT = 256  # one element of so many stays among zeros: most tiles have none. Ours
_ALTERED = 4  # one whole number of so many is beyond its range. Ours
_NEAR = 200  # below the range: half of them are so near, as other marks of padding are. Ours
_WIDTHS = 16  # times the range that "above" goes beyond it. Ours
_MORE = 32  # above the value that fills a buffer. Ours
_LONG = 1 << 16  # entries of a row or a segment: 16 bits do not count them, and no block's memory holds them. Ours
_NEARLY = 4  # of which one part of a type's numbers makes a range wide. Ours
_SIGNED = 1 << 24  # the most a signed number is: sums and squares of larger ones overflow, which is undefined. Ours


@dataclass(frozen=True)
class Undeclared:
    """One family: how the contents of an argument ("": of several) change."""

    kind: Kind
    argument: str = ""

    @property
    def nan(self) -> bool:
        return self.kind in ("ranged nan", "zeros beside nan")

    @property
    def words(self) -> str:
        """The name of the family, as messages have it."""
        return {
            "below": f"'{self.argument}' below its range",
            "above": f"'{self.argument}' above its range",
            "far above": f"'{self.argument}' far above its range",
            "ends": f"'{self.argument}' at both ends of its type",
            "filled": f"'{self.argument}' filled with more than one value",
            "ranged nan": "NaN also where the spec gives a range",
            "zeros beside nan": f"NaN beside zeros in '{self.argument}'",
            "masked": f"'{self.argument}' minus infinity in every other place",
            "rows": LONG_ROWS,
            "none": f"'{self.argument}' zero in places",
            "segments": ONE_SEGMENT,
            "empty": EMPTY_SEGMENTS,
        }[self.kind]


def undeclared(spec: KernelSpec) -> tuple[Undeclared, ...]:
    """The families that make different data for this spec."""
    found = list[Undeclared]()
    for argument in _read(spec):
        if _independent_whole(argument) and (bounds := _bounds(spec, argument)) is not None:
            low, high, most = bounds
            least = int(parse_dtype(argument.type).limits[0])
            found += [Undeclared("below", argument.name)] if least < low else []
            found += (
                [Undeclared("none", argument.name)] if least < 0 < low else []
            )  # a count of nothing, where less than that is no count
            wide = (high - low) * _NEARLY >= most  # so large a range leaves out what it does by intent
            found += [Undeclared("above", argument.name)] if high <= most and not wide else []
            found += [Undeclared("far above", argument.name)] if high + _WIDTHS * (high - low) < most else []
            found += [Undeclared("ends", argument.name)] if least < low and 0 < high <= -2 * low else []
    found += [Undeclared("filled", argument.name) for argument in _read(spec) if argument.fill.kind == "constant"]
    if any(_ranged(argument) for argument in _read(spec)):
        found.append(Undeclared("ranged nan"))
    floats = [argument.name for argument in _read(spec) if _takes_nan(argument)]
    for argument in spec.arguments:  # a factor may stand in constant memory
        if argument.role in ("in", "inout") and _takes_zero(spec, argument) and set(floats) - {argument.name}:
            found.append(Undeclared("zeros beside nan", argument.name))
    found += [Undeclared("masked", name) for name in floats if spec.argument(name).fill.kind == "normal"]
    if any(argument.fill.kind == "csr_offsets" for argument in _read(spec)):
        found.append(Undeclared("rows"))
    if any(argument.fill.kind == "offsets" for argument in _read(spec)):
        found += [Undeclared("segments"), Undeclared("empty")]
    return tuple(found)


def contents(spec: KernelSpec, case: Case, seed: int, family: str) -> Arrays:
    """As `poisoned`, of these families too."""
    change = next((each for each in undeclared(spec) if each.words == family), None)
    if change is None:
        return poisoned(spec, case, seed, family)
    rng = np.random.default_rng(seed_of(spec, case, spec.arguments[0], family, seed))
    buffers = poisoned(spec, case, seed, NAN if change.kind == "ranged nan" else "declared")
    if change.kind in ("below", "none", "above", "far above", "ends"):
        argument = spec.argument(change.argument)
        buffers[argument.name] = _beyond(spec, argument, change.kind, buffers[argument.name], rng)
        return buffers
    if change.kind == "filled":
        old, dtype = buffers[change.argument], parse_dtype(spec.argument(change.argument).type)
        if dtype.kind == "float":
            buffers[change.argument] = dtype.from_float64(dtype.to_float64(old) + rng.random(old.size))
        elif dtype.kind == "int":
            buffers[change.argument] = np.minimum(old, dtype.limits[1] - _MORE) + rng.integers(
                0, _MORE, old.size
            ).astype(old.dtype)
        return buffers
    if change.kind == "masked":
        old, dtype = buffers[change.argument], parse_dtype(spec.argument(change.argument).type)
        values = np.where(rng.random(old.size) < 0.5, -np.inf, dtype.to_float64(old))
        return {**buffers, change.argument: dtype.from_float64(values)}
    if change.kind == "rows":
        return {**buffers, **_other_rows(spec, case, buffers, rng)}
    if change.kind == "segments":
        return {**buffers, **_one_segment(spec, case, buffers, rng)}
    if change.kind == "empty":
        return {**buffers, **_empty_segments(spec, buffers, rng)}
    if change.argument:
        old = buffers[change.argument]
        buffers[change.argument] = np.where(rng.random(old.size) * _KEPT < 1.0, old, np.zeros((), old.dtype))
    for argument in _read(spec):
        old, dtype = buffers[argument.name], parse_dtype(argument.type)
        if argument.name == change.argument:
            continue
        if _ranged(argument) or (change.kind == "zeros beside nan" and _takes_nan(argument)):
            values = np.where(rng.random(old.size) * _NAN_SHARE < 1.0, np.nan, dtype.to_float64(old))
            buffers[argument.name] = dtype.from_float64(values)
    return buffers


def in_order(spec: KernelSpec, buffers: Arrays, *, falling: bool = False) -> Arrays:
    """The contents with the columns of each row of a sparse matrix in order, and what belongs to each of them at its side."""
    names = [argument.name for argument in _read(spec) if argument.name in buffers]
    return _sorted(spec, buffers, {**buffers}, _Order(names, falling))


def outputs_in_order(spec: KernelSpec, buffers: Arrays, outputs: Arrays, *, falling: bool = False) -> Arrays:
    """Results for `buffers`, with those that belong to an entry where `in_order` puts it."""
    return _sorted(spec, buffers, {**outputs}, _Order(list(outputs), falling))


@dataclass(frozen=True)
class _Order:
    """Which arrays get the order of the columns in each row; `falling`: the largest column first."""

    names: list[str]
    falling: bool


def _sorted(spec: KernelSpec, buffers: Arrays, arrays: Arrays, by: _Order) -> Arrays:
    for argument in spec.arguments:
        if argument.fill.kind != "csr_offsets":
            continue
        columns = buffers[argument.fill.of]
        row = np.searchsorted(buffers[argument.name][1:], np.arange(columns.size), side="right")
        order = np.lexsort((-columns.astype(np.int64) if by.falling else columns, row))
        size = spec.argument(argument.fill.of).size
        for name in by.names:
            if spec.argument(name).size == size and arrays[name].size == columns.size:
                arrays[name] = arrays[name][order]
    return arrays


def long_segment(spec: KernelSpec, case: Case, rng: random.Random) -> Case | None:
    """A case with so long a segment that 16 bits do not count its elements; None where no contents give the lengths."""
    for argument in _read(spec):
        name = next((n for n in _WORD.findall(argument.fill.high) if isinstance(case.sizes.get(n), int)), "")
        if argument.fill.kind == "offsets" and name:
            segments = max(1, buffer_elements(spec, case)[argument.name] - 1)
            value = max(int(case.sizes[name]), rng.randint(_LONG, _LONG + _LONG // 8) // segments + 1 | 1)
            return Case(f"{case.name}, {name} = {value}, drawn", {**case.sizes, name: value})
    return None


def _one_segment(spec: KernelSpec, case: Case, buffers: Arrays, rng: np.random.Generator) -> Arrays:
    """Offsets of which one segment has all that the longest of the spec's segments have together but for the least of the others.

    The last one ends with the smallest of the other inputs that holds them all.
    """
    found = Arrays()
    for argument in spec.arguments:
        if argument.fill.kind != "offsets" or argument.name not in buffers:
            continue
        bounds, count = _bounds(spec, argument, case), buffers[argument.name].size - 1
        if bounds is None or count < 1:
            continue
        low, high, _ = bounds
        steps = np.full(count, low, np.int64)
        others = [buffers[a.name].size for a in _read(spec) if a.name in buffers and a.name != argument.name]
        room = min((size for size in others if size >= (high - 1) * count), default=(high - 1) * count)
        steps[int(rng.integers(count))] += room - low * count
        ends = np.concatenate(([0], np.cumsum(steps)))
        if ends[-1] <= parse_dtype(argument.type).limits[1]:
            found[argument.name] = ends.astype(buffers[argument.name].dtype)
    return found


def _empty_segments(spec: KernelSpec, buffers: Arrays, rng: np.random.Generator) -> Arrays:
    """Offsets of which every other segment or so, and the first one, has no element; the others are as long as they were."""
    found = Arrays()
    for argument in spec.arguments:
        if argument.fill.kind == "offsets" and argument.name in buffers:
            steps = np.diff(buffers[argument.name])
            kept = rng.random(steps.size) < 0.5
            kept[:1] = False
            ends = np.concatenate(([0], np.cumsum(np.where(kept, steps, 0))))
            found[argument.name] = ends.astype(buffers[argument.name].dtype)
    return found


def long_rows(spec: KernelSpec, case: Case, rng: random.Random) -> Case | None:
    """A case with so many entries of a sparse matrix that its longest row holds more than a block's memory does; None without one."""
    for argument in _read(spec):
        if argument.fill.kind != "csr_offsets":
            continue
        entries = spec.argument(argument.fill.of)
        name = next((n for n in _WORD.findall(entries.size) if isinstance(case.sizes.get(n), int)), "")
        if name:
            times = 2 * rng.randint(_LONG, _LONG + _LONG // 8) / buffer_elements(spec, case)[entries.name]
            value = math.ceil(case.sizes[name] * max(times, 1.0))
            return Case(f"{case.name}, {name} = {value}, drawn", {**case.sizes, name: value})
    return None


def _read(spec: KernelSpec) -> list[Argument]:
    return [argument for argument in spec.arguments if argument.role in ("in", "inout") and not argument.symbol]


def _independent_whole(argument: Argument) -> bool:
    return parse_dtype(argument.type).kind == "int" and argument.fill.kind in ("normal", "uniform", "integers")


def _ranged(argument: Argument) -> bool:
    return parse_dtype(argument.type).kind == "float" and argument.fill.kind == "uniform"


def _takes_nan(argument: Argument) -> bool:
    return parse_dtype(argument.type).kind == "float" and argument.fill.kind in ("normal", "uniform")


def _takes_zero(spec: KernelSpec, argument: Argument) -> bool:
    if _independent_whole(argument):
        bounds = _bounds(spec, argument)
        return bounds is not None and bounds[0] <= 0 < bounds[1]
    fill = argument.fill
    return parse_dtype(argument.type).kind == "float" and fill.kind == "normal" and fill.low in ("", "0", "0.0")


def _bounds(spec: KernelSpec, argument: Argument, case: Case | None = None) -> tuple[int, int, int] | None:
    """The range of whole numbers over these cases, its end not in it, and the largest number that is tried."""
    dtype = parse_dtype(argument.type)
    most = int(dtype.limits[1])
    most = most if dtype.limits[0] == 0 else min(most, _SIGNED)
    lows, highs = set[int](), set[int]()
    for each in (*spec.check, *spec.time) if case is None else (case,):
        try:
            lows.add(int(arith.evaluate(argument.fill.low, each.sizes)) if argument.fill.low else 0)
            highs.add(int(arith.evaluate(argument.fill.high, each.sizes)) if argument.fill.high else 1 << 16)
        except arith.ArithmeticError_:
            return None
    return min(lows), max(highs), most


def _beyond(
    spec: KernelSpec, argument: Argument, kind: Kind, old: np.ndarray[Any, Any], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Some of the elements replaced by numbers that lie outside of the argument's range in every case."""
    dtype: DType = parse_dtype(argument.type)
    bounds = _bounds(spec, argument)
    assert bounds is not None
    low, high, most = bounds
    if kind == "below":
        least = int(dtype.limits[0])
        near = rng.integers(max(least, low - _NEAR), low, old.size, dtype=np.int64)
        far = rng.integers(max(least, -(1 << 40)), low, old.size, dtype=np.int64)
        new = np.where(rng.random(old.size) < 0.5, near, far)
    elif kind == "none":
        new = np.zeros(old.size, np.int64)
    elif kind == "ends":  # differences are as large as they can be
        new = np.where(rng.random(old.size) < 0.5, max(int(dtype.limits[0]), -most - 1), most)
        return np.where(rng.random(old.size) * _ALTERED < 1.0, old, new.astype(old.dtype))
    elif kind == "above":
        new = rng.integers(high, min(most, high + _WIDTHS * (high - low)), old.size, dtype=np.uint64, endpoint=True)
    else:
        new = rng.integers(high, most, old.size, dtype=np.uint64, endpoint=True)
    altered = rng.random(old.size) * _ALTERED < 1.0
    altered[int(rng.integers(old.size))] = True
    return np.where(altered, new.astype(old.dtype), old)


def _other_rows(spec: KernelSpec, case: Case, buffers: Arrays, rng: np.random.Generator) -> Arrays:
    """A sparse matrix with one long row, whose columns come in any order and more than once, in half of the rows close together."""
    found = Arrays()
    for argument in spec.arguments:
        if argument.fill.kind != "csr_offsets" or argument.name not in buffers:
            continue
        columns = spec.argument(argument.fill.of)
        bounds = _bounds(spec, columns, case)
        entries, rows = buffers[columns.name].size, buffers[argument.name].size - 1
        if bounds is None or rows < 1:
            continue
        weights = rng.random(rows) + 1e-9
        lengths = rng.multinomial(entries // 2, weights / weights.sum())
        lengths[int(rng.integers(rows))] += entries - entries // 2
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        found[argument.name] = offsets.astype(buffers[argument.name].dtype)
        row = np.repeat(np.arange(rows), lengths)
        close = rng.integers(0, bounds[1], rows)[row] + rng.integers(0, np.maximum(lengths, 1)[row])
        anywhere = rng.integers(0, bounds[1], entries)
        drawn = np.where(rng.random(rows)[row] < 0.5, close % bounds[1], anywhere)
        found[columns.name] = drawn.astype(buffers[columns.name].dtype)
    return found
