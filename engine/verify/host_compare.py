"""Correctness on the host: the same rules as on the device, over NumPy arrays that a CPU run gave back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model import Failure
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, KernelSpec
from engine.verify.tolerance import Noise, allowed, relative_term

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


def exact(argument: Argument, spec: KernelSpec) -> bool:
    """Whether this output must be equal to the last bit: no float, and no declared tolerance."""
    declared = spec.tolerance if argument.tolerance is None else argument.tolerance
    return parse_dtype(argument.type).kind != "float" and declared is None


def noise(spec: KernelSpec, name: str, original: Arrays, reference: Arrays) -> Noise:
    """The original's largest error against the reference, and the reference's root mean square."""
    dtype = parse_dtype(spec.argument(name).type)
    o = dtype.to_float64(original[name])
    r = reference[name].astype(np.float64) if reference is not original else o
    finite = np.isfinite(o) & np.isfinite(r)
    if not finite.any():
        return Noise(0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return Noise(float(np.abs(o - r)[finite].max()), math.sqrt(float(np.mean(np.square(r[finite])))))


@dataclass(frozen=True)
class Outputs:
    """The outputs of one case: a candidate's, the original's, and as float64 those of the widened original where there is one."""

    got: Arrays
    original: Arrays
    wide: Arrays | None = None


def difference(
    spec: KernelSpec, name: str, outputs: Outputs, known: Noise, case: str, *, loose: bool = False
) -> Failure | None:
    """Where an output is further from the reference than its tolerance; None when nowhere. `known` is the noise measured at validation."""
    got, original, wide = outputs.got, outputs.original, outputs.wide
    argument = spec.argument(name)
    dtype = parse_dtype(argument.type)
    if exact(argument, spec):
        different = np.atleast_1d(got[name] != original[name])
        if dtype.kind == "bytes":
            different = different.reshape(-1)
        if not different.any():
            return None
        return _failure(name, case, different, original[name], got[name], 0.0)
    g, o = dtype.to_float64(got[name]), dtype.to_float64(original[name])
    r = wide[name].astype(np.float64) if wide is not None and dtype.kind == "float" else o
    declared = spec.tolerance if argument.tolerance is None else argument.tolerance
    tolerance = allowed(dtype, known, declared=declared, widened=wide is not None, loose=loose)
    with np.errstate(invalid="ignore", over="ignore"):
        relative = relative_term(dtype, known=wide is not None or declared is not None)
        close = np.abs(g - r) <= tolerance + relative * np.abs(r)
        same = (g == o) | (np.isnan(g) & np.isnan(o))
    finite = np.isfinite(g) & np.isfinite(r)
    ok = np.where(finite & np.isfinite(o), close, same | (finite & close))
    if ok.all():
        return None
    return _failure(name, case, ~ok, r, g, tolerance)


def _failure(
    name: str, case: str, differ: NDArray[np.bool_], wanted: NDArray[Any], got: NDArray[Any], tolerance: float
) -> Failure:
    first, bad, total = int(differ.argmax()), int(differ.sum()), differ.size
    expected, actual = float(wanted.reshape(-1)[first]), float(got.reshape(-1)[first])
    return Failure(
        f"'{name}' differs at {bad} of {total} elements, first at index {first}: {actual:.9g} instead of {expected:.9g}",
        case=case, argument=name, index=first, expected=expected, got=actual, error=abs(actual - expected), tolerance=tolerance,
    )  # fmt: skip
