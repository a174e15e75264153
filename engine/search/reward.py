"""What an evaluation is worth to the search, with every constant and its reason.

The objective follows OptiML (arXiv 2602.12305), runtime and guardrails; all constants are ours. Its proxies of the hardware's
bottlenecks are left out: 50 of 50 searches ended equal with and without them (benchmarks/results/ablation-proxies.json).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from engine.model import Evaluation, Measurement, Outcome, Resources


def _constant(value: float, reason: str) -> Any:
    return field(default=value, metadata={"reason": reason})


@dataclass(frozen=True)
class Constants:
    """Every constant of the reward. Rewards count doublings: twice as fast is worth 1."""

    lowest: float = _constant(-2.0, "four times slower or worse is all the same to the search")
    unmeasured: float = _constant(0.0, "what could not be told apart or measured well may still be a step on a way")

    predicted_interval: float = _constant(
        0.05, "stands for the interval that a predicted speedup does not have: the model tells nothing nearer apart"
    )
    judge_cap: float = _constant(
        0.05, "the most that a judge who is always right may shift a speedup, and never beyond its interval"
    )

    spills_penalty: float = _constant(
        0.05,
        "more local memory than the original passes the guardrail where time paid for it, but is a debt on the next target",
    )
    losing_case_penalty: float = _constant(
        0.1, "a timing case that lost, though within what the guardrail allows, leaves no room for the next edit"
    )

    screened_out: float = _constant(-0.5, "refused before it cost a compiler")
    compile_error: float = _constant(-0.6, "cost a compiler and nothing else")
    wrong_result: float = _constant(-0.7, "worse than 1.6 times slower: it teaches nothing about speed")
    memory_error: float = _constant(-0.8, "wrong, and it costs the worker that ran it")
    race: float = _constant(-0.8, "wrong, even where its results look right")
    crashed: float = _constant(-0.8, "costs the worker that ran it")
    timed_out: float = _constant(-1.0, "costs its whole deadline, seconds in which fifty others are tried")
    guardrail: float = _constant(-0.4, "right, and perhaps fast, but not to be suggested: its neighbours may be")

    def described(self) -> dict[str, dict[str, float | str]]:
        """Every constant with its reason, for the result."""
        return {f.name: {"value": getattr(self, f.name), "reason": f.metadata["reason"]} for f in fields(self)}


CONSTANTS = Constants()

_PENALTIES: Mapping[Outcome, str] = MappingProxyType(
    {
        outcome: outcome.value
        for outcome in (
            Outcome.SCREENED_OUT, Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR, Outcome.RACE,
            Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.GUARDRAIL,
        )
    }
)  # fmt: skip


def failed(outcome: Outcome) -> bool:
    """Whether a candidate with this outcome must not be built upon."""
    return outcome in _PENALTIES


class Reward:
    """Rewards of one run's candidates, relative to its original: time, penalties and failures."""

    def __init__(self, constants: Constants = CONSTANTS) -> None:
        self.constants = constants
        self.resources: tuple[Resources, ...] = ()

    def __call__(self, evaluation: Evaluation, *, opinion: float = 0.0) -> float:
        """The reward of one evaluation, with a judge's opinion.

        For two candidates whose measured intervals do not overlap, the faster one's value is never the lower one, whatever
        the judge says: each value lies within its own interval. Penalties come off after that.
        """
        c = self.constants
        if failed(evaluation.outcome):
            penalty: float = getattr(c, _PENALTIES[evaluation.outcome])
            return penalty
        measurement = evaluation.measurement
        if measurement is None or evaluation.outcome is Outcome.UNSTABLE:
            return c.unmeasured
        value = _log2(measurement.ratio)
        if opinion:
            low, high = self._interval(measurement)
            value = min(max(value + opinion, low), high)
        return max(c.lowest, value) - self._penalty(evaluation, measurement)

    def _interval(self, measurement: Measurement) -> tuple[float, float]:
        value = _log2(measurement.ratio)
        if measurement.predicted:
            return value - self.constants.predicted_interval, value + self.constants.predicted_interval
        return min(value, _log2(measurement.low)), max(value, _log2(measurement.high))

    def _penalty(self, evaluation: Evaluation, measurement: Measurement) -> float:
        total = 0.0
        if _local(evaluation.resources) > _local(self.resources) and self.resources:
            total += self.constants.spills_penalty
        if any(case.high < 1.0 for case in measurement.cases) and measurement.ratio > 1.0:
            total += self.constants.losing_case_penalty
        return total


def _local(resources: Sequence[Resources]) -> int:
    return sum(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes for r in resources)


def _log2(ratio: float) -> float:
    return math.log2(max(ratio, 1e-9))
