"""Contents of which most values are one value, faint ones, ones far from zero, halves, and with NaN: what an edit takes for granted.

An edit that looks at some elements and concludes from them what the others are is right for contents without any order, where the
ones it looks at hardly ever agree. Where most values are alike they nearly always do. Where all are faint, what keeps a divisor away
from zero is larger than what is divided. Where all are far from zero by many times their spread, squares lose what a variance is
made of. Where all are multiples of a half, roundings that differ at halves alone differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, Fill, KernelSpec

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

_FILLS = frozenset({"normal", "uniform", "integers"})
_FAINT = (-0.7, -0.55)  # powers of the type's largest number: about 1e-24 in single precision. Ours
_SIDE = (28.0, 31.0)  # powers of two of a time stamp. Ours
_MOST_SIDE = 0.4  # a power of the type's largest number, of which squares are no infinity. Ours
_LAST = re.compile(r"\*\s*(\w+)$")
_SUBNORMAL = (3.0, 6.0)  # powers of two below the type's least normal number. Ours
_FAR = (12.0, 13.5)  # powers of two: times their spread that numbers are from zero. Ours
NAN_SHARES = (96, 2)  # one element of so many is NaN: most rows have one or none; most threads begin with one. Ours
_PEAKS = 4  # one element of so many is as large as any: each row has one. Ours
_HALVED = (1, 4)  # powers of two that a peak is divided by: powers of two round nothing. Ours


@dataclass(frozen=True)
class Alike:
    """Contents whose elements are one value but for one in so many.

    `zero`: that value is zero where the spec allows for any. `largest`: it is the largest of those that were drawn. `sign`: it is a
    zero of either sign, and the others have this one: a zero is the largest or the smallest.
    """

    exceptions: int
    zero: bool = False
    largest: bool = False
    sign: int = 0

    @property
    def words(self) -> str:
        """How a message names such inputs."""
        if self.sign:
            others = "negative" if self.sign < 0 else "positive"
            return f"inputs of zeros of both signs but for one {others} element in {self.exceptions}"
        value = "zeros" if self.zero else "the largest value" if self.largest else "one value"
        return f"inputs of {value} but for one element in {self.exceptions}"


# Few exceptions leave rows and columns without any, many leave none; both are needed. Ours.
ALIKE = (Alike(16), Alike(16, largest=True), Alike(128, zero=True), Alike(128), Alike(1024, zero=True),
         Alike(16, sign=-1), Alike(16, sign=1))  # fmt: skip


def alike(spec: KernelSpec, buffers: Arrays, how: Alike, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The buffers with most elements of what is independently drawn replaced by one of them, or by zero."""
    rng, found = np.random.default_rng(seed), dict(buffers)
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if (
            argument.role not in ("in", "inout")
            or argument.fill.kind not in _FILLS
            or dtype.kind not in ("float", "int")
        ):
            continue
        old = buffers[argument.name]
        rare = rng.random(old.size) * how.exceptions < 1.0
        if how.sign:
            if dtype.kind == "float" and argument.fill.kind == "normal" and _holds_zero(argument.fill):
                zeros = np.copysign(0.0, rng.random(old.size) - 0.5)
                sided = how.sign * np.abs(dtype.to_float64(old))
                found[argument.name] = dtype.from_float64(np.where(rare, sided, zeros))
            continue
        common = old[int(rng.integers(old.size))]
        if how.largest:
            common = old[int(np.argmax(dtype.to_float64(old) if dtype.kind == "float" else old))]
        if how.zero and _holds_zero(argument.fill):
            common = np.zeros((), old.dtype)
        found[argument.name] = np.where(rare, old, common).astype(old.dtype)
    return found


def faint(
    spec: KernelSpec, buffers: Arrays, seed: int, *, subnormal: bool = False
) -> dict[str, np.ndarray[Any, Any]] | None:
    """The buffers with all that may be near zero many times smaller, by one power of two each, or subnormal. None: nothing may."""
    rng, found = np.random.default_rng(seed), dict(buffers)
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        ranged = argument.fill.kind in ("normal", "uniform")
        if argument.role in ("in", "inout") and ranged and _near_zero(argument.fill) and dtype.kind == "float":
            power = np.log2(float(dtype.limits[1])) * rng.uniform(*_FAINT)
            if subnormal:
                power = np.log2(dtype.tiny) - rng.uniform(*_SUBNORMAL)
            scaled = dtype.to_float64(buffers[argument.name]) * np.exp2(np.round(power))
            found[argument.name] = dtype.from_float64(scaled)
    return found if any(found[name] is not buffers[name] for name in buffers) else None


def far(spec: KernelSpec, buffers: Arrays, name: str, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The buffers with all numbers of one input thousands of times their spread from zero."""
    rng, dtype = np.random.default_rng(seed), parse_dtype(spec.argument(name).type)
    values = dtype.to_float64(buffers[name])
    shift = np.exp2(rng.uniform(*_FAR)) * float(np.std(values)) * rng.choice((-1.0, 1.0))
    return {**buffers, name: dtype.from_float64(values + shift)}


def spread(spec: KernelSpec) -> list[str]:
    """The inputs whose numbers may lie anywhere."""
    return [
        argument.name
        for argument in spec.arguments
        if argument.role in ("in", "inout")
        and argument.fill.kind == "normal"
        and parse_dtype(argument.type).kind == "float"
    ]


def side_by_side(spec: KernelSpec, case: Case, buffers: Arrays, seed: int) -> dict[str, np.ndarray[Any, Any]] | None:
    """The buffers with one large number in one place of each row, the same in all rows and inputs. None: no input has rows.

    A row is as long as the last size of a product, such as 64 of `rows*64`.
    """
    rng, found = np.random.default_rng(seed), dict(buffers)
    large, place = np.exp2(rng.uniform(*_SIDE)), rng.random()
    for argument in spec.arguments:
        dtype, last = parse_dtype(argument.type), _LAST.search(argument.size)
        if argument.role not in ("in", "inout") or argument.fill.kind != "normal" or dtype.kind != "float" or not last:
            continue
        row = int(case.sizes.get(last[1], 0) or (last[1] if last[1].isdigit() else 0))
        if row < 2 or buffers[argument.name].size % row:
            continue
        values = dtype.to_float64(buffers[argument.name]).reshape(-1, row)
        values[:, int(place * row)] = min(large, float(dtype.limits[1]) ** _MOST_SIDE)
        found[argument.name] = dtype.from_float64(values.reshape(-1))
    return found if any(found[name] is not buffers[name] for name in buffers) else None


def halves(spec: KernelSpec, buffers: Arrays, peak: int, seed: int) -> dict[str, np.ndarray[Any, Any]] | None:
    """The buffers with multiples of a half up to `peak` in what may have any value, divided by one power of two. None: nothing may."""
    rng, found = np.random.default_rng(seed), dict(buffers)
    scale = 0.5 / (1 << int(rng.integers(*_HALVED)))
    for name in spread(spec):
        dtype, size = parse_dtype(spec.argument(name).type), buffers[name].size
        drawn = rng.integers(-2 * peak, 2 * peak, size, endpoint=True)
        ends = rng.choice((-2 * peak, 2 * peak), size)
        found[name] = dtype.from_float64(np.where(rng.random(size) * _PEAKS < 1.0, ends, drawn) * scale)
    return found if any(found[name] is not buffers[name] for name in buffers) else None


def _near_zero(fill: Fill) -> bool:
    """Whether numbers of any size down to zero are among the contents that a spec asks for."""
    if fill.kind == "normal":
        return True
    try:
        return float(fill.low or "0") <= 0.0
    except ValueError:
        return False


def _holds_zero(fill: Fill) -> bool:
    """Whether zero is among the contents: of a normal distribution around it, or of whole numbers that reach it."""
    if fill.kind == "normal":
        return fill.low in ("", "0", "0.0")
    return fill.kind == "integers" and _near_zero(fill)


def with_nan(spec: KernelSpec, buffers: Arrays, seed: int, share: int) -> tuple[Arrays, Arrays] | None:
    """The buffers with NaN for one of so many normally distributed elements, and the same with zeros there. None: nothing is."""
    rng, marked, plain = np.random.default_rng(seed), dict(buffers), dict(buffers)
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if argument.role not in ("in", "inout") or argument.fill.kind != "normal" or dtype.kind != "float":
            continue
        values = dtype.to_float64(buffers[argument.name])
        places = rng.random(values.size) * share < 1.0
        places[int(rng.integers(values.size))] = True
        marked[argument.name] = dtype.from_float64(np.where(places, np.nan, values))
        plain[argument.name] = dtype.from_float64(np.where(places, 0.0, values))
    return (marked, plain) if any(marked[name] is not buffers[name] for name in buffers) else None
