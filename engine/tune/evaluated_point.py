"""What becomes of a tuner's points."""

import math
from concurrent.futures import Future
from dataclasses import dataclass

from engine.compile.built import Built
from engine.model import PASSED, Evaluation, Outcome, Program
from engine.search.journal import Entry
from engine.tune.space import Point
from engine.tune.template import Template

# What is not the original's result. A point that takes too long or cannot be launched is only a bad point.
WRONG = (Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR, Outcome.RACE)


@dataclass(frozen=True)
class RunningPoint:
    """A point that is on the device, and what it is measured beside."""

    point: Point
    built: Built
    champion: Built | None
    answer: Future[tuple[Evaluation, float | None]]


@dataclass(frozen=True)
class Tried:
    """One evaluated point. `value` is log2 of its speedup over the original, None where it failed."""

    id: int
    point: Point
    evaluation: Evaluation
    value: float | None


@dataclass(frozen=True)
class Mark:
    """How good the best was after so many evaluations on the device (and configurations decided in all)."""

    evaluations: int
    configurations: int
    elapsed_s: float
    ratio: float  # of the best so far, over the original
    time_us: float  # of the best so far: weighted geometric mean over the timing cases


def value_of(evaluation: Evaluation) -> float | None:
    """log2 of the speedup over the original; None where there is none to go by."""
    measurement = evaluation.measurement
    if measurement is None or evaluation.outcome not in (*PASSED, Outcome.DUPLICATE, Outcome.UNSTABLE):
        return None
    return math.log2(max(measurement.ratio, 1e-9))


def original_us(evaluation: Evaluation) -> float:
    """The original's time in microseconds, as the weighted geometric mean of the cases; 0 where nothing was measured."""
    cases = evaluation.measurement.cases if evaluation.measurement is not None else ()
    total = sum(c.weight for c in cases)
    if not total:
        return 0.0
    return math.exp(sum(c.weight * math.log(c.original_us) for c in cases) / total)


def entry_of(tried: Tried, template: Template, original: Program, built: Built | None, elapsed_s: float) -> Entry:
    """What the journal keeps of an evaluated point."""
    values = template.space.named(tried.point)
    files = built.program.files if built is not None else original.files
    changed = {k: v for k, v in files.items() if original.files.get(k) != v}
    summary = "Set " + ", ".join(f"{n} = {v}" for n, v in values.items())
    digest = built.program.digest if built is not None else ""
    return Entry(
        tried.id, 0, "tuner", template.name, dict(values), summary, digest, built.launches if built else (),
        tried.evaluation, changed, elapsed_s,
    )  # fmt: skip
