"""What is known of a point beyond its values, before it runs: figures of its launch, and of its machine code once it is compiled.

These are what the model of the default strategy sees beside the parameters. Each is a plain number on a scale on which equal steps
mean about as much (logarithms of what spans powers of two), and costs no more than arithmetic: nothing here disassembles or runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.errors import OptimlError
from engine.model import LaunchConfig, Resources
from engine.predict.occupancy import occupancy
from engine.predict.targets import TargetParameters, figures_for


def figures_of(arch: str) -> TargetParameters | None:
    """What is known of an architecture; None where that is nothing."""
    try:
        return figures_for(arch)
    except OptimlError:
        return None


def of_launch(launch: LaunchConfig) -> Mapping[str, float]:
    """Threads of a block and blocks of the grid, as logarithms to the base 2."""
    return {"threads": math.log2(max(1, launch.threads)), "blocks": math.log2(max(1, launch.blocks))}


def of_code(used: Resources, launch: LaunchConfig, figures: TargetParameters) -> Mapping[str, float]:
    """What a launch of compiled code uses of its target.

    `occupancy`: resident warps as a share of the possible; `registers` of a thread; `shared`: kilobytes of shared memory of a block,
    as log2(1 + x); `spilled`: bytes stored and loaded for want of registers, as log2(1 + x); `tail`: the share of the last wave of
    blocks that is filled, spread over all waves (1: nothing idles at the end).
    """
    found = occupancy(used, launch, figures)
    waves = found.waves
    return {
        **of_launch(launch),
        "occupancy": found.fraction,
        "registers": float(used.registers),
        "shared": math.log2(1 + (used.shared_bytes + launch.shared_bytes) / 1024),
        "spilled": math.log2(1 + used.spill_store_bytes + used.spill_load_bytes),
        "tail": waves / math.ceil(waves) if waves > 0 else 0.0,
    }
