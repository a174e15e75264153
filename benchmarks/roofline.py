"""Roofline floors of the suite: the least time that a kernel's compulsory bytes and operations take (Williams et al. 2009)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import arith
from engine.campaign.headroom import compulsory_bytes
from engine.predict.targets import TargetParameters
from engine.predict.timing_model import L2_SLICES, Fitted
from engine.spec.kernel_spec import Case, KernelSpec

TABLE = Path(__file__).parent / "suite" / "roofline.toml"


# Further work that an entry of the table may name, and what the whole device does of it in a second. Results per clock and SM are those
# of the CUDA C++ Programming Guide's table of arithmetic instructions, as `engine.predict.targets` has them.
_RATES: Mapping[str, Callable[[TargetParameters], float]] = {
    "special": lambda figures: _per_second(figures, figures.mufu_lanes),  # sine, logarithm, reciprocal, root: one each
    "instructions": lambda figures: _per_second(
        figures, 32 * figures.schedulers
    ),  # of a lane, multiply-adds count once
    "integer": lambda figures: _per_second(figures, figures.int_lanes),
    "conversions": lambda figures: _per_second(figures, figures.int_lanes),
    "shared_bytes": lambda figures: _per_second(figures, figures.l1_bytes_clock),
    "l2_bytes": lambda figures: figures.l2_bytes_s,
    "atomics": lambda figures: L2_SLICES / Fitted().atomic_lane_s,  # lanes; a vector atomic is one
}


@dataclass(frozen=True)
class Floor:
    """One case's floor. `bound` is "memory", "compute" or "scattered" (the suite's table says which, and why); `limit` is the part of
    the device that the floor is of: "memory", "fp32" or one of the table's other kinds of work.
    """

    bytes_moved: int
    flops: float
    bound: str
    floor_us: float
    limit: str = ""


def table() -> Mapping[str, Mapping[str, Any]]:
    """The suite's table: by file name without ending, `bound`, `flops` and perhaps `bytes`."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def floor(
    spec: KernelSpec, case: Case, entry: Mapping[str, Any], bytes_per_s: float, figures: TargetParameters
) -> Floor:
    """The floor of one case at a copy bandwidth (bytes per second, read plus written) and a target's rates.

    Raises ArithmeticError_ for an expression of the table that has no value.
    """
    moved = compulsory_bytes(spec, case)
    if "bytes" in entry:
        moved = arith.evaluate_int(entry["bytes"], case.sizes)
    flops = float(arith.evaluate(entry["flops"], case.sizes))
    seconds = {"memory": moved / bytes_per_s, "fp32": flops / _per_second(figures, 2 * figures.fp32_lanes)}
    for name, rate in _RATES.items():
        if name in entry:
            seconds[name] = float(arith.evaluate(entry[name], case.sizes)) / rate(figures)
    limit = max(seconds, key=lambda name: seconds[name])
    return Floor(moved, flops, entry["bound"], seconds[limit] * 1e6, limit)


def _per_second(figures: TargetParameters, per_clock: int) -> float:
    return figures.target.multiprocessors * per_clock * figures.clock_hz
