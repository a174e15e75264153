"""Two runs beside each other: what differs between them, and whether their speedups may be compared at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.model import CaseTiming, Measurement
from engine.report.number_words import speed
from engine.report.run_folder import StoredRun
from engine.run.result import OptimizationResult, TrajectoryStep

_CASES, _STEPS = 500, 100  # rows of a table. Ours


@dataclass(frozen=True)
class Pair:
    """One property of both runs in words."""

    name: str
    a: str
    b: str

    @property
    def differs(self) -> bool:
        return self.a != self.b


@dataclass(frozen=True)
class ShapePair:
    """One timing case in both runs. `ratio` is how much faster the second run's best is; None where that cannot be said."""

    case: str
    a: CaseTiming | None
    b: CaseTiming | None
    ratio: float | None
    overlap: bool


@dataclass(frozen=True)
class StepPair:
    """An edit on the way to the best, and its place among the steps of each run; None where it is none of them."""

    summary: str
    a: int | None
    b: int | None


@dataclass(frozen=True)
class Comparison:
    """`unlike` says why speedups of the two are not comparable; empty where they are."""

    unlike: tuple[str, ...]
    verdict: str
    facts: tuple[Pair, ...]
    outcomes: tuple[Pair, ...]
    shapes: tuple[ShapePair, ...]
    steps: tuple[StepPair, ...]


def compare(a: StoredRun, b: StoredRun) -> Comparison:
    """Compare two runs of `optiml optimize`."""
    unlike = tuple(_unlike(a, b))
    outcomes = sorted({*a.result.counts, *b.result.counts} - {"candidates", "verified"})
    return Comparison(
        unlike,
        _verdict(a.result, b.result, bool(unlike)),
        tuple(_facts(a.result, b.result)),
        tuple(Pair(name, *(f"{r.counts.get(name, 0)}" for r in (a.result, b.result))) for name in outcomes),
        tuple(_shapes(_measured(a.result), _measured(b.result), bool(unlike)))[:_CASES],
        tuple(_steps(a.result.trajectory, b.result.trajectory))[:_STEPS],
    )


def _unlike(a: StoredRun, b: StoredRun) -> list[str]:
    one, other = a.result, b.result
    found = []
    if one.mode != other.mode:
        found.append(f"the first run is {one.mode}, the second is {other.mode}")
    if (one.file, one.kernel) != (other.file, other.kernel):
        found.append(
            f"the runs search different kernels, {one.kernel} in {one.file} and {other.kernel} in {other.file}"
        )
    elif a.original.get(one.file) != b.original.get(other.file):
        found.append("the original's source is not the same")
    if _device(one) != _device(other):
        found.append(f"the devices are not the same, {_device(one)} and {_device(other)}")
    if one.spec.get("time") != other.spec.get("time"):
        found.append("the timing cases are not the same")
    return found


def _device(result: OptimizationResult) -> str:
    device = _table(result.signals.get("device"))
    return str(device.get("arch" if result.mode == "predicted" else "name", "unknown"))


def _measured(result: OptimizationResult) -> Measurement | None:
    return result.best.evaluation.measurement if result.best is not None else None


def _verdict(a: OptimizationResult, b: OptimizationResult, unlike: bool) -> str:
    one, other = _measured(a), _measured(b)
    if unlike:
        return "The speedups of these runs cannot be compared."
    if one is None or other is None:
        missing = [name for name, m in (("first", one), ("second", other)) if m is None]
        return f"No suggestion in the {' and the '.join(missing)} run."
    if _overlap(one, other):
        if one.predicted:
            return "The two runs predict the same speedup."
        return "The two runs found the same speedup within their 95 % intervals."
    ratio = other.ratio / one.ratio if one.ratio > 0 else 0.0
    which, factor = ("second", ratio) if ratio >= 1 else ("first", 1 / ratio if ratio > 0 else 0.0)
    if one.predicted:
        return f"By prediction, not measurement, the {which} run's best is {factor:.2g} times as fast as the other's."
    return f"The {which} run's best is {factor:.2f} times as fast as the other's."


def _overlap(one: Measurement | CaseTiming, other: Measurement | CaseTiming) -> bool:
    return one.low <= other.high and other.low <= one.high


def _speedup(result: OptimizationResult) -> str:
    return speed(_measured(result)) if result.best is not None else "no suggestion"


def _facts(a: OptimizationResult, b: OptimizationResult) -> list[Pair]:
    def both(name: str, words: Any) -> Pair:
        return Pair(name, str(words(a)), str(words(b)))

    return [
        both("Speedup", _speedup),
        both("Steps to the best", lambda r: len(r.trajectory)),
        both("Device", _device),
        both("Candidates", lambda r: r.counts.get("candidates", 0)),
        both("Passed all checks", lambda r: r.counts.get("verified", 0)),
        both("Seconds", lambda r: f"{r.elapsed_s:.0f}"),
        both("Ended because", lambda r: r.stopped),
        both("Search", lambda r: r.search),
        both("Seed", lambda r: r.seed),
        both("Budget", lambda r: ", ".join(f"{v:g} {k}" if isinstance(v, float) else f"{v} {k}" for k, v in r.budget.items() if v)),
        both("Proposers", lambda r: ", ".join(sorted(r.proposers)) or "not recorded"),
        both("OptiML", lambda r: _table(r.provenance.get("versions")).get("optiml", "unknown")),
        both("Date", lambda r: r.provenance.get("date", "unknown")),
    ]  # fmt: skip


def _shapes(one: Measurement | None, other: Measurement | None, unlike: bool) -> list[ShapePair]:
    a = {case.case: case for case in one.cases} if one is not None else {}
    b = {case.case: case for case in other.cases} if other is not None else {}
    found = []
    for name in dict.fromkeys([*a, *b]):
        x, y = a.get(name), b.get(name)
        both = x is not None and y is not None and not unlike and x.ratio > 0
        # Speedups and not times: each run timed its best in turn with the same original.
        ratio = y.ratio / x.ratio if both and x is not None and y is not None else None
        overlap = ratio is not None and x is not None and y is not None and _overlap(x, y)
        found.append(ShapePair(name, x, y, ratio, overlap))
    return found


def _steps(a: tuple[TrajectoryStep, ...], b: tuple[TrajectoryStep, ...]) -> list[StepPair]:
    def places(steps: tuple[TrajectoryStep, ...]) -> dict[tuple[str, str, str], int]:
        return {(s.rule, s.summary, repr(sorted(s.parameters.items()))): at for at, s in enumerate(steps, 1)}

    one, other = places(a), places(b)
    return [StepPair(key[1], one.get(key), other.get(key)) for key in dict.fromkeys([*one, *other])]


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
