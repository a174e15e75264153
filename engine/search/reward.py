"""What an evaluation is worth to the search, with every constant and its reason."""

from __future__ import annotations

import math

from engine.model import Evaluation, Outcome

# Doubling the speed is worth 1; ten times slower or worse is all the same to the search.
_LOWEST = -2.0
# A failing candidate is worse than one that is merely 1.6 times slower: it teaches nothing about speed. Ours.
FAILURE = -0.7
# What could not be told apart or measured well is worth nothing, but may be a step on a way.
NEUTRAL = 0.0

_FAILED = frozenset(
    {
        Outcome.SCREENED_OUT,
        Outcome.COMPILE_ERROR,
        Outcome.WRONG_RESULT,
        Outcome.MEMORY_ERROR,
        Outcome.RACE,
        Outcome.TIMED_OUT,
        Outcome.CRASHED,
        Outcome.GUARDRAIL,
    }
)


def failed(outcome: Outcome) -> bool:
    """Whether a candidate with this outcome must not be built upon."""
    return outcome in _FAILED


def reward(evaluation: Evaluation) -> float:
    """log2 of the speedup, bounded below; a fixed penalty for each failing outcome."""
    if failed(evaluation.outcome):
        return FAILURE
    if evaluation.measurement is None:
        return NEUTRAL
    return max(_LOWEST, math.log2(max(evaluation.measurement.ratio, 1e-9)))
