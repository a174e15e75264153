"""What an edit changed in the counters: the ones that moved, in words, for the steps of a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.profile import counters

# What is told: a tenth of a quantity, or five points of a percentage. Ours: below it, two runs of one kernel differ as much.
RATIO, _POINTS = 1.1, 5.0


@dataclass(frozen=True)
class CounterChange:
    """One counter before and after an edit. `unit` is "µs", "bytes", "%", "" for plain numbers."""

    what: str
    before: float
    after: float
    unit: str

    @property
    def weight(self) -> float:
        """How much it moved: the factor of a quantity, points of a percentage as a factor of 1 + points / 25."""
        if self.unit == "%":
            return 1 + abs(self.after - self.before) / 25
        low, high = sorted((abs(self.before), abs(self.after)))
        return high / low if low > 0 else 10.0 if high > 0 else 1.0

    def __str__(self) -> str:
        return f"{self.what} {_figure(self.before, self.unit)} → {_figure(self.after, self.unit)}"


_Read = Callable[[counters.Profile], float | None]


def moved(before: counters.Profile, after: counters.Profile, most: int = 6) -> tuple[CounterChange, ...]:
    """The counters that an edit moved, the time first, then by how much they moved; at most `most` of them.

    Percentages of several steps are weighted by the steps' times. Counters that one side lacks are left out.
    """
    changes = []
    for what, (read, unit) in _READ.items():
        a, b = read(before), read(after)
        if a is not None and b is not None:
            changes.append(CounterChange(what, a, b, unit))
    told = [c for c in changes if (abs(c.after - c.before) >= _POINTS if c.unit == "%" else c.weight >= RATIO)]
    return tuple(sorted(told, key=lambda c: (c.what != "time", -c.weight, c.what))[:most])


def _mean(*metrics: str) -> _Read:
    """A percentage (the largest of several) over all steps, weighted by their times."""

    def read(profile: counters.Profile) -> float | None:
        total = 0.0
        weights = 0.0
        for step in profile.steps:
            value, time = step.most(metrics), step.duration_us
            if value is None or time is None:
                return None
            total += value * time
            weights += time
        return total / weights if weights else None

    return read


def _ratio(over: str, under: str) -> _Read:
    def read(profile: counters.Profile) -> float | None:
        top, bottom = _total(profile.steps, over), _total(profile.steps, under)
        return top / bottom if top is not None and bottom else None

    return read


def _sum(metric: str) -> _Read:
    return lambda profile: _total(profile.steps, metric)


def _largest(metric: str) -> _Read:
    def read(profile: counters.Profile) -> float | None:
        values = [step.get(metric) for step in profile.steps]
        known = [v for v in values if v is not None]
        return max(known) if known and len(known) == len(values) else None

    return read


def _total(steps: tuple[counters.StepProfile, ...], metric: str) -> float | None:
    values = [step.get(metric) for step in steps]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


_READ: Mapping[str, tuple[_Read, str]] = {
    "time": (lambda p: p.duration_us, "µs"),
    "device memory traffic": (lambda p: p.dram_bytes, "bytes"),
    "warp instructions": (lambda p: p.instructions, ""),
    "sectors per load": (_ratio(counters.LOAD_SECTORS, counters.LOAD_REQUESTS), ""),
    "sectors per store": (_ratio(counters.STORE_SECTORS, counters.STORE_REQUESTS), ""),
    "load requests": (_sum(counters.LOAD_REQUESTS), ""),
    "bank conflict cycles": (_sum(counters.BANK_CONFLICTS), ""),
    "registers per thread": (_largest(counters.REGISTERS), ""),
    "active lanes per warp": (_mean(counters.ACTIVE_LANES), ""),
    "device memory utilisation": (_mean(counters.DRAM_PCT), "%"),
    "cache utilisation": (_mean(*counters.CACHES), "%"),
    "arithmetic pipe utilisation": (_mean(*counters.PIPES), "%"),
    "issue slot utilisation": (_mean(counters.ISSUE_PCT), "%"),
    "active warps": (_mean(counters.OCCUPANCY_PCT), "%"),
    "L1 hit rate": (_mean(counters.L1_HIT_PCT), "%"),
    **{f"warps {meaning}": (_mean(counters.stall_metric(reason)), "%") for reason, meaning in counters.STALLS.items()},
}


def _figure(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f} %"
    if unit == "bytes":
        for limit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= limit:
                return f"{value / limit:.3g} {name}"
        return f"{value:.0f} bytes"
    for limit, name in ((1e9, "billion"), (1e6, "million")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {name}"
    return f"{value:,.0f} {unit}".rstrip() if abs(value) >= 1000 else f"{value:.3g} {unit}".rstrip()
