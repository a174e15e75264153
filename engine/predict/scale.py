"""From counts of small runs to counts at full size: how each count grows with each size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.errors import RefusedError
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
from engine.predict.probe_sizes import Sizes

_STEEPEST = 3.0  # no count grows faster than the cube of a size; beyond that it is noise of a small run
# An exponent this near to a multiple of a half is one: the difference is a border, or what a few elements more bring. For counts
# that depend on the inputs the second: two samples may be equal by chance.
_NEAR, _NEAR_SAMPLED = 0.06, 0.12
_ERRORS = 2.0  # standard errors of such counts within which an exponent is rounded as well
_SECTOR = 32


@dataclass(frozen=True)
class CountedRuns:
    """Runs of one program: the base with each of its inputs, and one run for each direction in which sizes grow."""

    base_sizes: Sizes
    base: Sequence[AccessCounts]  # of the same sizes, with other inputs: where they differ, counts are samples
    grown: Sequence[tuple[Sizes, AccessCounts]] = ()


@dataclass(frozen=True)
class Full:
    """What is asked for: sizes, with a launch for each step. `load_bytes` and `store_bytes` are the sizes of all buffers that are read
    and written: no more is touched. `array_bytes` are those of each.
    """

    sizes: Sizes
    launches: Sequence[LaunchConfig]
    load_bytes: float = math.inf
    store_bytes: float = math.inf
    array_bytes: Mapping[str, int] = field(default_factory=dict)


def extrapolate(
    counted: CountedRuns, full: Full, *, sample: int | None = None, start: tuple[Sizes, AccessCounts] | None = None
) -> AccessCounts:
    """Counts at full size.

    Each count c is taken to grow as c(base) · Π growth^e over the directions, with e = log(c(grown) / c(base)) / log(growth). An
    exponent within its sampling error of a multiple of a half is that multiple. Exact for what is a product of powers; near for sums
    that one term leads. With `sample` the base is that one of its runs instead of their mean; with `start` the same exponents are
    applied to the counts of another run.
    Raises RefusedError when there is no run, or runs differ in their number of steps.
    """
    runs = [*counted.base, *(counts for _, counts in counted.grown), *([start[1]] if start else [])]
    if not counted.base or any(len(counts.kernels) != len(full.launches) for counts in runs):
        raise RefusedError("the runs that count accesses are missing or do not match the launches")
    kernels = []
    for step, launch in enumerate(full.launches):
        scale = _Scale(counted, full, step, sample=sample, start=start)
        sites = dict.fromkeys(_key(site) for counts in runs for site in counts.kernels[step].sites)
        kernels.append(
            KernelCounts(
                launch=launch,
                sites=tuple(scale.site(key) for key in sites),
                unique_load_bytes=min(scale(lambda k: k.unique_load_bytes), full.load_bytes),
                unique_store_bytes=min(scale(lambda k: k.unique_store_bytes), full.store_bytes),
                barriers=scale(lambda k: k.barriers),
                block_load_bytes=scale(lambda k: k.block_load_bytes),
                array_bytes=dict(full.array_bytes),
                max_warp_loads=scale(lambda k: k.max_warp_loads),
            )
        )
    return AccessCounts(tuple(kernels))


class _Scale:
    """Counts of one step, at full size."""

    def __init__(
        self,
        counted: CountedRuns,
        full: Full,
        step: int,
        *,
        sample: int | None,
        start: tuple[Sizes, AccessCounts] | None,
    ) -> None:
        self._sample = sample
        self._base = [counts.kernels[step] for counts in counted.base]
        self._start = start[1].kernels[step] if start else None
        self._grown: list[
            tuple[KernelCounts, float, float]
        ] = []  # (counts, log of the growth, log of the growth asked for)
        for sizes, counts in counted.grown:
            names = [name for name in sizes if sizes[name] != counted.base_sizes.get(name)]
            if names:
                from_sizes = start[0] if start else counted.base_sizes
                growth = _mean_log(sizes, counted.base_sizes, names)
                self._grown.append((counts.kernels[step], growth, _mean_log(full.sizes, from_sizes, names)))

    def __call__(self, pick: Callable[[KernelCounts], float]) -> float:
        samples = [pick(kernel) for kernel in self._base]
        base = sum(samples) / len(samples) if self._sample is None else samples[self._sample]
        begin = base if self._start is None else pick(self._start)
        if base <= 0 or begin <= 0:
            # Nothing in the base run: what the largest other run saw is the best that is known.
            return max((pick(kernel) for kernel, _, _ in self._grown), default=begin)
        power = 0.0
        for kernel, growth, wanted in self._grown:
            then = pick(kernel)
            if then > 0:
                power += _exponent(math.log(then / base) / growth, _error(samples) / growth) * wanted
        return begin * math.exp(power)

    def site(self, key: SiteCounts) -> SiteCounts:
        def total(name: str) -> float:
            return self(lambda kernel: float(sum(getattr(s, name) for s in kernel.sites if _key(s) == key)))

        return _possible(
            replace(
                key,
                requests=total("requests"),
                lanes=total("lanes"),
                passes=total("passes"),
                same_address=total("same_address"),
                cache_lines=total("cache_lines"),
                block_bytes=total("block_bytes"),
            )
        )


def _mean_log(large: Sizes, small: Sizes, names: Sequence[str]) -> float:
    return sum(math.log(large[name] / small[name]) for name in names) / len(names)


def _error(samples: Sequence[float]) -> float:
    """The standard error of the logarithm of a count between a run and the mean of `samples`; 0 where they are equal."""
    if min(samples) <= 0:
        return math.inf
    logs = [math.log(sample) for sample in samples]
    mean = sum(logs) / len(logs)
    variance = sum((value - mean) ** 2 for value in logs) / max(1, len(logs) - 1)
    return math.sqrt(variance * (1 + 1 / len(logs)))


def _exponent(measured: float, error: float) -> float:
    nearest = round(2 * measured) / 2
    near = max(_NEAR_SAMPLED, _ERRORS * error) if error else _NEAR
    held = nearest if abs(measured - nearest) <= near else measured
    return min(max(held, -1.0), _STEEPEST)


def _possible(site: SiteCounts) -> SiteCounts:
    """Counts that can be of one place: a request has 1 to 32 lanes, and no more sectors, lines or conflicts than these lanes have."""
    lanes = site.lanes
    requests = min(max(site.requests, lanes / 32), lanes)
    pieces = max(1.0, site.width_bytes / (_SECTOR if site.space == "global" else 4))
    passes = min(max(site.passes, requests), lanes * pieces)
    lines = min(site.cache_lines, passes) if site.cache_lines else 0.0
    same = min(max(site.same_address, requests), lanes) if site.same_address else 0.0
    return replace(site, requests=requests, passes=passes, cache_lines=lines, same_address=same)


def _key(site: SiteCounts) -> SiteCounts:
    return replace(site, requests=0.0, lanes=0.0, passes=0.0, same_address=0.0, cache_lines=0.0, block_bytes=0.0)
