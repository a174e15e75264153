"""Whether a kernel passes NaN and infinities on: only then is it defined what an edit must make of them.

Sums and products pass it on. Comparisons drop it or keep it by the order in which they are made, which an honest edit may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import KernelSpec

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

# What stands for NaN in the other run: beyond ordinary values, so that a maximum, an order or a count changes with it.
_INSTEAD = 1e3
_EXTREME = 0.35  # power of a type's largest number from which on a value is extreme: below what the family has
_CLOSE = 1e-3  # of a result in double precision: rounding, not an overflow or a cancellation


def is_extreme(dtype: DType, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which float64 values of a type are infinite or so large that sums and products lose or overflow."""
    found: np.ndarray[Any, Any] = np.abs(values) > dtype.limits[1] ** _EXTREME
    return found


def without(spec: KernelSpec, buffers: Arrays, *, extremes: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """The first contents with an ordinary number in the place of each NaN, or of each extreme value."""
    found = {}
    for name, array in buffers.items():
        argument = spec.argument(name)
        dtype = parse_dtype(argument.type)
        found[name] = array
        if argument.role != "out" and dtype.kind == "float":
            values = dtype.to_float64(array)
            replaced = is_extreme(dtype, values) if extremes else np.isnan(values)
            if replaced.any():
                instead = np.copysign(_INSTEAD, np.where(np.isnan(values), 1.0, values))
                found[name] = dtype.from_float64(np.where(replaced, instead, values))
    return found


def defined(spec: KernelSpec, buffers: Arrays, results: Arrays, wide: Arrays | None, ordinary: Arrays) -> bool:
    """Whether what comes of extreme inputs does not hang on the order or the form of the arithmetic.

    No result is NaN. With results in double precision each is close to that one: nothing overflowed on the way, and nothing
    cancelled out. Without, no more of them than there are extreme inputs differ from those of `ordinary` inputs.
    """
    count = 0
    for name, array in buffers.items():
        dtype = parse_dtype(spec.argument(name).type)
        if spec.argument(name).role != "out" and dtype.kind == "float":
            count += int(is_extreme(dtype, dtype.to_float64(array)).sum())
    for argument in spec.outputs:
        dtype = parse_dtype(argument.type)
        if dtype.kind != "float":
            if not np.array_equal(results[argument.name], ordinary[argument.name]):
                return False
            continue
        now, before = (dtype.to_float64(a[argument.name]) for a in (results, ordinary))
        if np.isnan(now).any():
            return False
        if wide is not None:
            if not np.isclose(now, wide[argument.name], rtol=max(_CLOSE, 8 * dtype.epsilon), atol=0.0).all():
                return False
        elif int((now != before).sum()) > count:
            return False
    return True


def passes_on(spec: KernelSpec, with_nan: Arrays, ordinary: Arrays) -> frozenset[str]:
    """The outputs of which every element is NaN, or what it is without NaN among the inputs."""
    found = set[str]()
    for argument in spec.outputs:
        dtype = parse_dtype(argument.type)
        before, after = ordinary[argument.name], with_nan[argument.name]
        same = before == after
        if dtype.kind == "float":
            a, b = dtype.to_float64(after), dtype.to_float64(before)
            same = np.isnan(a) | np.isclose(a, b, rtol=1e-3, atol=0.0)
        if np.all(same):
            found.add(argument.name)
    return frozenset(found)
