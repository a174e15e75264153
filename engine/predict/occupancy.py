"""How many blocks of a kernel fit a multiprocessor, by the rules of CUDA's occupancy calculator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.model import LaunchConfig, Resources, Target
from engine.predict.targets import TargetParameters

Limit = Literal["registers", "shared memory", "threads", "blocks", "grid", "does not fit"]


@dataclass(frozen=True)
class Occupancy:
    """`blocks` and `warps` that are resident on one multiprocessor at a time; `fraction` of the possible warps.

    `waves` says how often all multiprocessors are filled; `active` is the share of multiprocessors that get a block.
    """

    blocks: int
    warps: int
    fraction: float
    limit: Limit
    waves: float
    active: float


def occupancy(resources: Resources, launch: LaunchConfig, figures: TargetParameters) -> Occupancy:
    """The occupancy of one launch. `blocks` is 0 where not one block fits."""
    target = figures.target
    warps = -(-launch.threads // target.warp)
    max_warps = target.max_threads_per_sm // target.warp
    fitting = resident_warps(resources.registers, target, figures.register_unit, figures.schedulers)
    shared = _up(resources.shared_bytes + launch.shared_bytes + target.shared_reserved, figures.shared_unit)
    limits: dict[Limit, int] = {
        "threads": max_warps // max(warps, 1),
        "blocks": target.max_blocks_per_sm,
        "registers": fitting // max(warps, 1),
        "shared memory": target.shared_per_sm // shared,
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    if launch.threads > target.max_threads_per_block or blocks == 0 or launch.blocks == 0:
        return Occupancy(
            0, 0, 0.0, "does not fit" if launch.threads > target.max_threads_per_block else limit, 0.0, 0.0
        )
    waves = launch.blocks / (blocks * target.multiprocessors)
    per_sm = -(-launch.blocks // target.multiprocessors)
    if per_sm < blocks:
        blocks, limit = per_sm, "grid"
    active = min(1.0, launch.blocks / target.multiprocessors)
    return Occupancy(blocks, blocks * warps, blocks * warps / max_warps, limit, waves, active)


def resident_warps(
    registers: int,
    target: Target,
    unit: int = TargetParameters.register_unit,
    schedulers: int = TargetParameters.schedulers,
) -> int:
    """The warps whose registers (so many for each thread) fit one multiprocessor at a time."""
    per_warp = _up(registers * target.warp, unit)
    # Registers belong to the schedulers' files, and a warp lives in one of them.
    return schedulers * (target.registers_per_sm // schedulers // max(per_warp, 1))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
