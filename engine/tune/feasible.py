"""The feasible set: every point that the user's conditions and the target's limits allow, found before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RefusedError
from engine.model import LaunchConfig, Resources
from engine.rules.model import Target
from engine.tune.space import Excluded, Point, empty
from engine.tune.template import Figures, Template

_MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Feasible:
    """The points in the order of their values, and what each condition took away of the product of all values."""

    points: tuple[Point, ...]
    excluded: tuple[Excluded, ...]


def feasible(template: Template, target: Target) -> Feasible:
    """The feasible set of a template on a target. Raises RefusedError that names the condition which leaves nothing."""
    points, excluded = template.space.points()
    counts: dict[str, int] = {}
    kept = []
    for point in points:
        reason = _limit(template.figures(point), target)
        if reason:
            counts[reason] = counts.get(reason, 0) + 1
        else:
            kept.append(point)
    found = (*excluded, *(Excluded(reason, count) for reason, count in counts.items()))
    if not kept:
        raise empty(template.space.size, found)
    if kept == [template.default]:
        at = ", ".join(f"{n} = {v}" for n, v in template.space.named(kept[0]).items())
        raise RefusedError(f"the only feasible point is the original: {at}", do="give more values, or other conditions")
    return Feasible(tuple(kept), found)


def _limit(figures: Figures, target: Target) -> str:
    """The limit of the target that a point breaks, as a condition; "" where it breaks none."""
    if figures.impossible:
        return figures.impossible
    if figures.shared_bytes is not None and figures.shared_bytes > target.shared_per_block:
        return f"static shared memory <= {target.shared_per_block} bytes"
    for launch in (launch for case in figures.launches or () for launch in case):
        if min(launch.block) < 1 or launch.threads > target.max_threads_per_block:
            return f"1 <= threads per block <= {target.max_threads_per_block}"
        if launch.block[2] > 64 or any(not 1 <= g <= most for g, most in zip(launch.grid, _MAX_GRID, strict=True)):
            return "the grid and the block can be launched"
        if not 0 <= launch.shared_bytes <= target.shared_per_sm:
            return f"dynamic shared memory <= {target.shared_per_sm} bytes"
    return ""


def fits(resources: tuple[Resources, ...], launches: tuple[tuple[LaunchConfig, ...], ...], target: Target) -> str:
    """Why compiled code cannot run in its blocks, from what it uses: registers times threads; "" where it can.

    Registers are given out to warps in units of 256. Source: CUDA C++ Programming Guide, "Compute Capabilities".
    """
    for case in launches:
        for used, launch in zip(resources, case, strict=True):
            warps = -(-launch.threads // target.warp)
            registers = -(-used.registers * target.warp // 256) * 256 * warps
            if registers > target.registers_per_sm:
                return f"registers * threads <= {target.registers_per_sm}"
            if used.shared_bytes + launch.shared_bytes > target.shared_per_sm:
                return f"shared memory <= {target.shared_per_sm} bytes"
    return ""
