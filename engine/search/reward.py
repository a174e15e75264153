"""What an evaluation is worth to the search, with every constant and its reason.

The objective follows OptiML (arXiv 2602.12305): runtime, proxies of the hardware's bottlenecks, guardrails. That paper's weights
and constants are not public; all of these are ours.
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
class RewardConstants:
    """Every constant of the reward. Rewards count doublings: twice as fast is worth 1."""

    lowest: float = _constant(-2.0, "four times slower or worse is all the same to the search")
    unmeasured: float = _constant(0.0, "what could not be told apart or measured well may still be a step on a way")

    proxy_cap: float = _constant(
        0.05,
        "the most that counters may shift a speedup, either way: 3.5 %; and never beyond its interval, so that they decide "
        "only what the clock leaves open",
    )
    predicted_interval: float = _constant(
        0.05, "stands for the interval that a predicted speedup does not have: the model tells nothing nearer apart"
    )
    bytes_weight: float = _constant(0.4, "memory traffic binds most kernels, so its share of the cap is the largest")
    instructions_weight: float = _constant(
        0.3, "fewer instructions help what is bound by issue slots, and nothing else"
    )
    relief_weight: float = _constant(
        0.3, "warps that wait less, or more of them, hide latency; they bring nothing by themselves"
    )
    judge_cap: float = _constant(
        0.05, "the most that a judge who is always right may shift a speedup; within its interval, as the counters"
    )
    saturation: float = _constant(
        1.0, "one halving of bytes or instructions earns a proxy's full weight: the rest shows in the time"
    )
    relief_saturation: float = _constant(
        0.5, "half of the warps more, or half of the cycles less spent waiting, earns the full weight"
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


CONSTANTS = RewardConstants()

_PENALTIES: Mapping[Outcome, str] = MappingProxyType(
    {
        outcome: outcome.value
        for outcome in (
            Outcome.SCREENED_OUT, Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR, Outcome.RACE,
            Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.GUARDRAIL,
        )
    }
)  # fmt: skip


@dataclass(frozen=True)
class Proxies:
    """What counters say of a program, of one timing case: bytes to and from device memory, warp instructions, the share of the
    possible warps that are active, the share of their cycles that warps spend on the reason they wait for most. None: unknown."""

    bytes_moved: float | None = None
    instructions: float | None = None
    occupancy: float | None = None
    stalled: float | None = None


def failed(outcome: Outcome) -> bool:
    """Whether a candidate with this outcome must not be built upon."""
    return outcome in _PENALTIES


class Reward:
    """Rewards of one run's candidates, relative to its original. `proxies` off: time, penalties and failures alone."""

    def __init__(self, *, proxies: bool = True, constants: RewardConstants = CONSTANTS) -> None:
        self.proxies, self.constants = proxies, constants
        self.original: Proxies | None = None
        self.resources: tuple[Resources, ...] = ()

    def __call__(self, evaluation: Evaluation, proxies: Proxies | None = None, *, opinion: float = 0.0) -> float:
        """The reward of one evaluation, with what counters say of it where they do, and a judge's opinion.

        For two candidates whose measured intervals do not overlap, the faster one's value is never the lower one, whatever
        the proxies say: each value lies within its own interval. Penalties come off after that.
        """
        c = self.constants
        if failed(evaluation.outcome):
            penalty: float = getattr(c, _PENALTIES[evaluation.outcome])
            return penalty
        measurement = evaluation.measurement
        if measurement is None or evaluation.outcome is Outcome.UNSTABLE:
            return c.unmeasured
        value = _log2(measurement.ratio)
        counted = self.proxies and proxies is not None and self.original is not None
        shift = opinion + (self.shift(proxies) if counted and proxies is not None else 0.0)
        if shift:
            low, high = self._interval(measurement)
            value = min(max(value + shift, low), high)
        return max(c.lowest, value) - self._penalty(evaluation, measurement)

    def shift(self, proxies: Proxies) -> float:
        """What the counters speak for, from `-proxy_cap` to `proxy_cap`; what is not known of both programs says nothing."""
        c, before = self.constants, self.original or Proxies()
        total = c.bytes_weight * _halvings(before.bytes_moved, proxies.bytes_moved, c.saturation)
        total += c.instructions_weight * _halvings(before.instructions, proxies.instructions, c.saturation)
        reliefs = [_relief(proxies.occupancy, before.occupancy), _relief(before.stalled, proxies.stalled)]
        known = [r for r in reliefs if r is not None]
        if known:
            total += c.relief_weight * _clamped(max(known) / c.relief_saturation)
        return c.proxy_cap * _clamped(total)

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


def _halvings(before: float | None, after: float | None, saturation: float) -> float:
    if before is None or after is None or before <= 0 or after <= 0:
        return 0.0
    return _clamped((math.log2(before) - math.log2(after)) / saturation)


def _relief(more: float | None, less: float | None) -> float | None:
    return None if more is None or less is None else more - less


def _clamped(value: float) -> float:
    return min(1.0, max(-1.0, value))
