"""The feasible set: every point that the user's conditions and the target's limits allow, as far as the text says."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import RefusedError
from engine.model import LaunchConfig, Resources, Target
from engine.predict.occupancy import resident_warps
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
    reasons = {point: _limit(template.figures(point), target) for point in points}
    return without(template, Feasible(points, excluded), {p: reason for p, reason in reasons.items() if reason})


def without(template: Template, found: Feasible, reasons: Mapping[Point, str]) -> Feasible:
    """The set without the points that a reason is given for, each a condition that they break. Raises RefusedError where
    nothing is left to tune, which names the condition that took the last point.
    """
    kept = tuple(point for point in found.points if point not in reasons)
    excluded = _with(found.excluded, Counter(reasons.values()))
    _something_left(template, kept, excluded)
    return Feasible(kept, excluded)


def check_left(template: Template, found: Feasible, by_compiler: Mapping[str, int]) -> None:
    """Raises RefusedError as `without` does where limits that points' own compiles showed took all that was to be tried."""
    others = len(found.points) - (template.default in found.points)
    if sum(by_compiler.values()) >= others:
        excluded = _with(found.excluded, by_compiler)
        _something_left(template, tuple(p for p in found.points if p == template.default), excluded)


def _with(excluded: tuple[Excluded, ...], counts: Mapping[str, int]) -> tuple[Excluded, ...]:
    """What was excluded with more of it; a condition that is there already stands where it took its last point."""
    before = Counter({e.condition: e.points for e in excluded if e.condition in counts})
    kept = (e for e in excluded if e.condition not in counts)
    return (*kept, *(Excluded(reason, before[reason] + count) for reason, count in counts.items()))


def _something_left(template: Template, kept: tuple[Point, ...], excluded: tuple[Excluded, ...]) -> None:
    if not kept:
        raise empty(template.space.size, excluded)
    if kept == (template.default,):
        at = ", ".join(f"{n} = {v}" for n, v in template.space.named(kept[0]).items())
        took = "; ".join(f"'{e.condition}' excludes {e.points}" for e in excluded)
        told = f"; of {template.space.size}, {took}" if took else ""
        where = excluded[-1].where if excluded else ""
        what = f"the only feasible point is the original: {at}{told}"
        raise RefusedError(what, where, "add values, or change the conditions")


def _limit(figures: Figures, target: Target) -> str:
    """The limit of the target that a point breaks, as a condition; "" where it breaks none."""
    if figures.impossible:
        return figures.impossible
    if figures.shared_bytes is not None and figures.shared_bytes > target.shared_per_block:
        return f"static shared memory <= {target.shared_per_block} bytes"
    for step, launch in ((step, launch) for case in figures.launches or () for step, launch in enumerate(case)):
        bound = figures.bounds[step] if figures.bounds else None
        if bound is not None and launch.threads > bound:
            return f"threads per block <= {bound} (__launch_bounds__)"
        if min(launch.block) < 1 or launch.threads > target.max_threads_per_block:
            return f"1 <= threads per block <= {target.max_threads_per_block}"
        if launch.block[2] > 64 or any(not 1 <= g <= most for g, most in zip(launch.grid, _MAX_GRID, strict=True)):
            return "the grid and block are within the launch limits"
        if not 0 <= launch.shared_bytes <= target.shared_most:
            return f"dynamic shared memory <= {target.shared_most} bytes"
    return ""


def fits(resources: tuple[Resources, ...], launches: tuple[tuple[LaunchConfig, ...], ...], target: Target) -> str:
    """Why compiled code cannot run in its blocks, from what it uses: registers times threads; "" where it can.

    All warps of a block are on one multiprocessor at a time. Source: CUDA C++ Programming Guide, "Compute Capabilities".
    """
    for case in launches:
        for used, launch in zip(resources, case, strict=True):
            if -(-launch.threads // target.warp) > resident_warps(used.registers, target):
                return f"registers * threads <= {target.registers_per_sm}"
            if used.shared_bytes + launch.shared_bytes > target.shared_most:
                return f"shared memory <= {target.shared_most} bytes"
    return ""
