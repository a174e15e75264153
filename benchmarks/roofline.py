"""Roofline floors of the suite: the least time that a kernel's compulsory bytes and operations take (Williams et al. 2009)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import arith
from engine.campaign.headroom import compulsory_bytes
from engine.predict.targets import Figures
from engine.spec.kernel_spec import Case, KernelSpec

TABLE = Path(__file__).parent / "suite" / "roofline.toml"


@dataclass(frozen=True)
class Floor:
    """One case's floor. `bound` is "memory", "compute" or "scattered" (the suite's table says which, and why)."""

    bytes_moved: int
    flops: float
    bound: str
    floor_us: float


def table() -> Mapping[str, Mapping[str, Any]]:
    """The suite's table: by file name without ending, `bound`, `flops` and perhaps `bytes`."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def floor(spec: KernelSpec, case: Case, entry: Mapping[str, Any], bytes_per_s: float, figures: Figures) -> Floor:
    """The floor of one case at a copy bandwidth (bytes per second, read plus written) and a target's fp32 rate.

    Raises ArithmeticError_ for an expression of the table that has no value.
    """
    moved = compulsory_bytes(spec, case)
    if "bytes" in entry:
        moved = arith.evaluate_int(entry["bytes"], case.sizes)
    flops = float(arith.evaluate(entry["flops"], case.sizes))
    rate = figures.target.multiprocessors * figures.fp32_lanes * 2 * figures.clock_hz
    return Floor(moved, flops, entry["bound"], max(moved / bytes_per_s, flops / rate) * 1e6)
