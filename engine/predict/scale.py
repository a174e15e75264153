"""From counts of small runs to counts at full size: how each count grows with each size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.errors import RefusedError
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts

Sizes = Mapping[str, int | float]

# Sizes of the base run by the number of sizes: some 16,000 elements of work each, a few milliseconds on a CPU.
_CAPS = {1: 16_384, 2: 256, 3: 64}
_CAP = 32
_STEEPEST = 3.0  # no count grows faster than the cube of a size; beyond that it is noise of a small run


def probe_sizes(
    sizes: Sizes,
    fits: Callable[[Sizes], bool] = lambda sizes: True,
    *,
    blocks: Callable[[Sizes], int] = lambda sizes: 0,
    fits_at_most: Callable[[Sizes], bool] | None = None,
    work: Callable[[Sizes], int] = lambda sizes: 0,
    least_work: int = 0,
    shrink: int = 1,
) -> tuple[dict[str, int | float], ...]:
    """Small versions of one timing case: a base, then for each size that was shrunk the base with that size doubled.

    Sizes are halved while they stay whole, so that what was a multiple of a block stays one; a size that cannot be
    halved far enough is cut. The first is the base. Never larger than `sizes`. The base is halved further until `fits` says
    that it is small enough: with n by n matrices one size does more than one size's work.

    `blocks` gives a launch's number of blocks. Counts grow as they do at full size only where the grid does: a size is
    doubled again while all its work stays in one block, or while a grid that is capped at full size is not yet, as long
    as `fits_at_most` (default: `fits`) allows. Where the grid is of one size, `work` has to reach `least_work` instead: the sizes
    that move it are doubled, the one furthest from its full size first. The base is smaller by `shrink` where work grows faster than sizes.
    """
    whole = [name for name, value in sizes.items() if isinstance(value, int) and value > 1]
    cap = max(1, _CAPS.get(len(whole), _CAP) // shrink)
    base = dict(sizes)
    for name in whole:
        value = int(sizes[name])
        while value > cap and value % 2 == 0:
            value //= 2
        base[name] = min(value, cap)
    while not fits(base) and any(int(base[name]) > 1 for name in whole):
        base = {**base, **{name: max(1, int(base[name]) // 2) for name in whole}}
    for name in whole:
        base = _in_step(base, name, int(sizes[name]), blocks, fits_at_most or fits)
    while work(base) < least_work:
        larger = {name: {**base, name: 2 * int(base[name])} for name in whole if 2 * int(base[name]) <= sizes[name]}
        moving = [name for name in larger if work(larger[name]) > work(base)]
        furthest = max(moving, key=lambda name: sizes[name] / base[name], default="")
        if not furthest or not (fits_at_most or fits)(larger[furthest]):
            break
        base = larger[furthest]
    doubled = [{**base, name: min(2 * int(base[name]), int(sizes[name]))} for name in whole if base[name] < sizes[name]]
    return (base, *doubled)


def _in_step(
    base: dict[str, int | float], name: str, full: int, blocks: Callable[[Sizes], int], fits: Callable[[Sizes], bool]
) -> dict[str, int | float]:
    """The base with one size doubled until the grid grows from there on as it does up to the full size."""
    most = blocks({**base, name: full})
    if blocks(base) == most:
        return base  # this size does not move the grid
    while 2 * int(base[name]) <= full:
        larger = {**base, name: 2 * int(base[name])}
        now, then = blocks(base), blocks(larger)
        in_step = then > now and most > now * full / int(base[name]) / 2
        if in_step or not fits(larger):
            break
        base = larger
        if now == most:
            break  # one doubling beyond the cap: every thread has work for more than one trip
    return base


def extrapolate(
    probes: Sequence[tuple[Sizes, AccessCounts]],
    sizes: Sizes,
    launches: Sequence[LaunchConfig],
    *,
    load_bytes: float = math.inf,
    store_bytes: float = math.inf,
    array_bytes: Mapping[str, int] | None = None,
) -> AccessCounts:
    """Counts at `sizes` with `launches`, one per step, from the runs of `probe_sizes` in its order.

    Each count c is taken to grow as c(base) · Π (size / base size)^e, with e = log(c(doubled) / c(base)) / log(growth)
    of each size alone. Exact for what is a product of powers; near for sums that one term leads.
    `load_bytes` and `store_bytes` are the sizes of all buffers that are read and written at `sizes`: no more is touched;
    `array_bytes` those of each.
    Raises RefusedError when there is no probe, or probes differ in their number of steps.
    """
    if not probes or any(len(counts.kernels) != len(launches) for _, counts in probes):
        raise RefusedError("the runs that count accesses are missing or do not match the launches")
    base_sizes, base = probes[0]
    growth: list[tuple[int, float, float]] = []  # (probe, log of its growth, log of the growth asked for)
    for index, (other, _) in enumerate(probes[1:], 1):
        names = [name for name in other if other[name] != base_sizes.get(name)]
        if len(names) == 1:
            small, large, wanted = float(base_sizes[names[0]]), float(other[names[0]]), float(sizes[names[0]])
            growth.append((index, math.log(large / small), math.log(wanted / small)))

    def scaled(pick: Callable[[AccessCounts], float]) -> float:
        start = pick(base)
        if start <= 0:
            # Nothing in the base run: what the largest other run saw is the best that is known.
            return max((pick(counts) for _, counts in probes), default=0.0)
        exponent = 0.0
        for index, step, wanted in growth:
            then = pick(probes[index][1])
            if then > 0:
                exponent += min(max(math.log(then / start) / step, -1.0), _STEEPEST) * wanted
        return start * math.exp(exponent)

    kernels = []
    for step, launch in enumerate(launches):
        sites = _sites([counts.kernels[step] for _, counts in probes])
        kernels.append(
            KernelCounts(
                launch=launch,
                sites=tuple(_site(key, step, scaled) for key in sites),
                unique_load_bytes=min(scaled(lambda c, k=step: c.kernels[k].unique_load_bytes), load_bytes),  # type: ignore[misc]
                unique_store_bytes=min(scaled(lambda c, k=step: c.kernels[k].unique_store_bytes), store_bytes),  # type: ignore[misc]
                barriers=scaled(lambda c, k=step: c.kernels[k].barriers),  # type: ignore[misc]
                block_load_bytes=scaled(lambda c, k=step: c.kernels[k].block_load_bytes),  # type: ignore[misc]
                array_bytes=dict(array_bytes or {}),
                max_warp_loads=scaled(lambda c, k=step: c.kernels[k].max_warp_loads),  # type: ignore[misc]
            )
        )
    return AccessCounts(tuple(kernels))


def _key(site: SiteCounts) -> SiteCounts:
    return replace(site, requests=0.0, lanes=0.0, passes=0.0, same_address=0.0, cache_lines=0.0, block_bytes=0.0)


def _sites(kernels: Sequence[KernelCounts]) -> list[SiteCounts]:
    return list(dict.fromkeys(_key(site) for kernel in kernels for site in kernel.sites))


def _site(key: SiteCounts, step: int, scaled: Callable[[Callable[[AccessCounts], float]], float]) -> SiteCounts:
    def total(name: str) -> float:
        def pick(counts: AccessCounts) -> float:
            return float(sum(getattr(site, name) for site in counts.kernels[step].sites if _key(site) == key))

        return scaled(pick)

    return replace(
        key,
        requests=total("requests"),
        lanes=total("lanes"),
        passes=total("passes"),
        same_address=total("same_address"),
        cache_lines=total("cache_lines"),
        block_bytes=total("block_bytes"),
    )
