"""Contents that differ between a kernel's inputs: one near the end of its type's range, or far from zero, the others ordinary."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import KernelSpec

Arrays = dict[str, "np.ndarray[Any, Any]"]

HUGE, SPREAD, SMALL, AWAY, FROM_ONE = "huge", "spread", "small", "far from zero", "of magnitudes from one on"
_HUGE, _TOP, _END = 0.3, 0.9, 0.999  # powers of a type's largest number: half of the huge values lie beyond _TOP
_SPREAD = (-7.0, 6.5)  # powers of two: where exponentials neither vanish nor overflow in single precision
# Power of the largest number: squares of it vanish beside a usual epsilon, and nothing near zero cancels out
_SMALL = -0.08
# Power of the largest number that they reach: products of three such numbers do not overflow. Below one a form of a function may be exact
# in absolute terms alone, as a tangent by exponentials is. Ours
_MOST_FROM_ONE = 0.31
_STEPS = 3  # even numbers above one where neighbours are 1 apart: the sum of two of these is exact. Ours
MOST = 12  # mixes of one kernel; ours

Mix = Mapping[str, str]  # the magnitude of each float input that the spec fills with a normal distribution


def mixes(spec: KernelSpec, rng: random.Random) -> tuple[Mix, ...]:
    """Each input in turn huge beside others that are spread or small; at most `MOST`, drawn."""
    names = _normal(spec)
    found: list[Mix] = []
    for name in names:
        for rest in (SPREAD, SMALL) if len(names) > 1 else (SPREAD,):
            found.append({each: HUGE if each == name else rest for each in names})
    return tuple(found if len(found) <= MOST else rng.sample(found, MOST))


def away(spec: KernelSpec, rng: random.Random) -> tuple[Mix, ...]:
    """Each input in turn far from zero, as few steps of its type apart as numbers around a large mean; at most `MOST`, drawn."""
    names = _normal(spec)
    found: list[Mix] = [{each: AWAY if each == name else SPREAD for each in names} for name in names]
    return tuple(found if len(found) <= MOST else rng.sample(found, MOST))


def all_magnitudes(spec: KernelSpec) -> Mix | None:
    """Every number of every float input of a magnitude of its own, whatever its range. None: there is no such input."""
    kinds = ("normal", "uniform")
    names = [a.name for a in spec.arguments if a.role in ("in", "inout") and a.fill.kind in kinds and _float(a.type)]
    return dict.fromkeys(names, FROM_ONE) or None


def _normal(spec: KernelSpec) -> list[str]:
    return [a.name for a in spec.arguments if a.role in ("in", "inout") and a.fill.kind == "normal" and _float(a.type)]


def mixed(spec: KernelSpec, buffers: Arrays, mix: Mix, seed: int, room: float = 1.0) -> Arrays:
    """The buffers with the contents of a mix in the place of these inputs; huge values, and all those
    of any magnitude, are so many times smaller."""
    rng, found = np.random.default_rng(seed), dict(buffers)
    for name, magnitude in mix.items():
        dtype = parse_dtype(spec.argument(name).type)
        old = dtype.to_float64(buffers[name])
        most = float(dtype.limits[1])
        if magnitude == SMALL:
            new = np.copysign(most**_SMALL * rng.uniform(0.5, 1.0, old.size), old)
        elif magnitude == AWAY:
            new = (1.0 + 0.5 * rng.random()) / dtype.epsilon // 2.0 * 2.0 + 2.0 * rng.integers(0, _STEPS, old.size)
        elif magnitude == FROM_ONE:
            new = np.copysign(most ** rng.uniform(0.0, _MOST_FROM_ONE, old.size) / room, old)
        elif magnitude == SPREAD:
            new = np.copysign(np.exp2(rng.uniform(*_SPREAD, old.size)), old)
        else:
            near = rng.random(old.size) < 0.5
            powers = np.where(near, rng.uniform(_TOP, _END, old.size), rng.uniform(_HUGE, _TOP, old.size))
            new = np.copysign(most**powers / room, old)
        found[name] = dtype.from_float64(new)
    return found


def top(spec: KernelSpec, buffers: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """All numbers of float inputs times one power of two: the largest of them ends near the end of its type's range."""
    room, found = [], dict(buffers)
    names = list(all_magnitudes(spec) or ())
    for name in names:
        dtype = parse_dtype(spec.argument(name).type)
        largest = np.abs(dtype.to_float64(buffers[name])).max(initial=0.0)
        room += [np.floor(np.log2(float(dtype.limits[1]) / largest))] if largest > 0 else []
    for name in names:
        dtype = parse_dtype(spec.argument(name).type)
        found[name] = dtype.from_float64(dtype.to_float64(buffers[name]) * np.exp2(min(room, default=0.0)))
    return found


def _float(name: str) -> bool:
    dtype: DType = parse_dtype(name)
    return dtype.kind == "float"
