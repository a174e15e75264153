"""Contents of which most values are one value, contents of faint ones, and with a few NaN: what an edit takes for granted of values.

An edit that looks at some elements and concludes from them what the others are is right for contents without any order, where the
ones it looks at hardly ever agree. Where most values are alike they nearly always do. Where all are faint, what keeps a divisor away
from zero is larger than what is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Fill, KernelSpec

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

_FILLS = frozenset({"normal", "uniform", "integers"})
_FAINT = (-0.7, -0.55)  # powers of the type's largest number: about 1e-24 in single precision. Ours
_NAN_SHARE = 96  # one element of so many is NaN: most rows have one or none. Ours


@dataclass(frozen=True)
class Alike:
    """Contents whose elements are one value but for one in so many.

    `zero`: that value is zero where the spec allows for any. `largest`: it is the largest of those that were drawn.
    """

    exceptions: int
    zero: bool = False
    largest: bool = False

    @property
    def words(self) -> str:
        """How a message names such inputs."""
        value = "zeros" if self.zero else "the largest value" if self.largest else "one value"
        return f"inputs of {value} but for one element in {self.exceptions}"


# Few exceptions leave rows and columns without any, many leave none; both are needed. Ours.
ALIKE = (Alike(16), Alike(16, largest=True), Alike(128, zero=True), Alike(128), Alike(1024, zero=True))


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
        common = old[int(rng.integers(old.size))]
        if how.largest:
            common = old[int(np.argmax(dtype.to_float64(old) if dtype.kind == "float" else old))]
        if how.zero and argument.fill.kind == "normal" and argument.fill.low in ("", "0", "0.0"):
            common = np.zeros((), old.dtype)
        found[argument.name] = np.where(rng.random(old.size) * how.exceptions < 1.0, old, common).astype(old.dtype)
    return found


def faint(spec: KernelSpec, buffers: Arrays, seed: int) -> dict[str, np.ndarray[Any, Any]] | None:
    """The buffers with all that may be near zero many times smaller, by one power of two each. None: nothing may."""
    rng, found = np.random.default_rng(seed), dict(buffers)
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if argument.role in ("in", "inout") and _near_zero(argument.fill) and dtype.kind == "float":
            scale = np.exp2(np.round(np.log2(float(dtype.limits[1])) * rng.uniform(*_FAINT)))
            found[argument.name] = dtype.from_float64(dtype.to_float64(buffers[argument.name]) * scale)
    return found if any(found[name] is not buffers[name] for name in buffers) else None


def _near_zero(fill: Fill) -> bool:
    """Whether numbers of any size down to zero are among the contents that a spec asks for."""
    if fill.kind != "uniform":
        return fill.kind == "normal"
    try:
        return float(fill.low or "0") <= 0.0
    except ValueError:
        return False


def with_nan(spec: KernelSpec, buffers: Arrays, seed: int) -> tuple[Arrays, Arrays] | None:
    """The buffers with some NaN among what is normally distributed, and the same with zeros in their place. None: nothing is."""
    rng, marked, plain = np.random.default_rng(seed), dict(buffers), dict(buffers)
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if argument.role not in ("in", "inout") or argument.fill.kind != "normal" or dtype.kind != "float":
            continue
        values = dtype.to_float64(buffers[argument.name])
        places = rng.random(values.size) * _NAN_SHARE < 1.0
        places[int(rng.integers(values.size))] = True
        marked[argument.name] = dtype.from_float64(np.where(places, np.nan, values))
        plain[argument.name] = dtype.from_float64(np.where(places, 0.0, values))
    return (marked, plain) if any(marked[name] is not buffers[name] for name in buffers) else None
