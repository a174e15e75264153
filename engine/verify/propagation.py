"""Whether a kernel passes NaN on: only then is it defined what an edit must make of it.

Sums and products pass it on. Comparisons drop it or keep it by the order in which they are made, which an honest edit may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

# What stands for NaN in the other run: beyond ordinary values, so that a maximum, an order or a count changes with it.
_INSTEAD = 1e3


def without_nan(spec: KernelSpec, buffers: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """The first contents with a finite number in the place of each NaN."""
    found = {}
    for name, array in buffers.items():
        argument = spec.argument(name)
        dtype = parse_dtype(argument.type)
        found[name] = array
        if argument.role != "out" and dtype.kind == "float":
            values = dtype.to_float64(array)
            if np.isnan(values).any():
                found[name] = dtype.from_float64(np.where(np.isnan(values), _INSTEAD, values))
    return found


def passes_on(spec: KernelSpec, with_nan: Arrays, without: Arrays) -> bool:
    """Whether every output element is NaN, or what it is without NaN among the inputs."""
    for argument in spec.arguments:
        if argument.role not in ("out", "inout"):
            continue
        dtype = parse_dtype(argument.type)
        before, after = without[argument.name], with_nan[argument.name]
        same = before == after
        if dtype.kind == "float":
            a, b = dtype.to_float64(after), dtype.to_float64(before)
            same = np.isnan(a) | np.isclose(a, b, rtol=1e-3, atol=0.0)
        if not np.all(same):
            return False
    return True
