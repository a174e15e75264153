"""Evaluations of what failed on the CPU path, from what a run found."""

from __future__ import annotations

from dataclasses import replace

from engine.compile.built import Built, NotBuilt
from engine.cpu import CpuFinding
from engine.model import Evaluation, Failure, Outcome

OUTCOMES = {
    "out_of_bounds": Outcome.MEMORY_ERROR, "shared_out_of_bounds": Outcome.MEMORY_ERROR,
    "uninitialised": Outcome.MEMORY_ERROR, "input_written": Outcome.MEMORY_ERROR,
    "stale_read": Outcome.MEMORY_ERROR,
    "race": Outcome.RACE, "barrier_divergence": Outcome.RACE, "deadlock": Outcome.RACE,
    "timeout": Outcome.TIMED_OUT, "sample_full": Outcome.TIMED_OUT, "crash": Outcome.CRASHED, "misaligned": Outcome.CRASHED,
    "undefined": Outcome.CRASHED, "assert": Outcome.CRASHED,
}  # fmt: skip


def refused(evaluation: Evaluation, finding: CpuFinding, case: str) -> Evaluation:
    failure = Failure(finding.message, case=case, argument=finding.array or "", index=finding.index, line=finding.line)
    return replace(evaluation, outcome=OUTCOMES[finding.kind], failure=failure)


def not_built(outcome: Outcome, reason: str, built: Built) -> NotBuilt:
    evaluation = Evaluation(
        outcome, None, Failure(reason), built.binary.resources, built.binary.code_hash, dict(built.stage_s)
    )
    return NotBuilt(reason, evaluation=evaluation)
