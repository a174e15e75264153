"""How far a candidate may be from the exact result: ten times the original's own error, and a few units in the last place."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.dtypes import DType
from engine.verify.defences import LOOSE_TOLERANCE

# ρ = ‖candidate − ref64‖∞ / ‖original − ref64‖∞ ≤ 10 (KernelOPT, arXiv 2609.30059, section on the numeric gate).
MAX_ERROR_RATIO = 10.0
# An original can be exact by luck (one element, no rounding); a candidate then still may round this many times. Ours.
FLOOR_ULPS = 16.0
# Without a float64 reference the original's error is unknown: reductions of some 10^4 terms stay below these, of the outputs'
# root mean square or of an element that is larger (a softmax's largest is many times that). Ours.
BLIND_ULPS = {2: 8.0, 4: 256.0, 8: 256.0}
# A result may round each element by this many units of its own magnitude. Ours.
RELATIVE_ULPS = 4.0


@dataclass(frozen=True)
class Noise:
    """The original's largest error against float64 (absolute), and the root mean square of the exact result."""

    error: float
    rms: float


def allowed(dtype: DType, noise: Noise, *, declared: float | None, widened: bool, loose: bool = False) -> float:
    """The absolute tolerance of one output.

    A declared tolerance is relative to the output's root mean square and replaces the automatic one. Integers without
    a declared tolerance must be equal. `loose` is what this defence is measured against: a fixed absolute tolerance.
    """
    if loose and dtype.kind == "float":
        return LOOSE_TOLERANCE
    if declared is not None:
        return declared * noise.rms
    if dtype.kind != "float":
        return 0.0
    ulps = _units(dtype, FLOOR_ULPS) if widened else _blind(dtype)
    return max(MAX_ERROR_RATIO * noise.error, ulps * dtype.epsilon * noise.rms)


def relative_term(dtype: DType, *, known: bool) -> float:
    """The part of the tolerance that grows with each element. `known`: there is a float64 reference, or a declared tolerance."""
    return (_units(dtype, RELATIVE_ULPS) if known else _blind(dtype)) * dtype.epsilon if dtype.kind == "float" else 0.0


def _blind(dtype: DType) -> float:
    return _units(dtype, BLIND_ULPS.get(dtype.itemsize // dtype.lanes, 256.0))


def _units(dtype: DType, many: float) -> float:
    """Units in the last place: one of a float of eight bits, whose units are wide and which nobody sums up in."""
    return 1.0 if dtype.itemsize == dtype.lanes else many
