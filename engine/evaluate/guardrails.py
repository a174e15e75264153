"""The hard conditions that a candidate must pass to be suggested, each with its threshold and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.model import Evaluation, Failure, Guardrail, LaunchConfig, Measurement, Outcome, Resources
from engine.predict.occupancy import occupancy
from engine.predicted_number import approximate
from engine.settings.config import TOOLS, Guardrails

if TYPE_CHECKING:
    from engine.gpu.sanitize import Sanitized
    from engine.model import Refusal
    from engine.predict.targets import TargetParameters

_SLOWER, _SPILLS = "no case more than", "register spills and local memory"
SPEED = (_SLOWER, _SPILLS)  # how the names of those begin that say nothing of correctness
LIMITS = Guardrails()  # the thresholds where the settings name no others


def timing(measurement: Measurement, limits: Guardrails = LIMITS) -> Guardrail:
    """No timing case slower than the threshold: the end-to-end gate of KernelOPT (arXiv 2609.30059), case by case."""
    name = f"{_SLOWER} {100 * (limits.case - 1):g} % slower"
    for case in measurement.cases:
        if case.high < 1 / limits.case:
            times = approximate(1 / case.ratio) if measurement.predicted else f"{1 / case.ratio:.2f}"
            return Guardrail(name, "failed", f"case {case.case} takes {times}× the original's time")
    worst = min((case.ratio for case in measurement.cases), default=measurement.ratio)
    shown = approximate(worst) if measurement.predicted else f"{worst:.2f}"
    return Guardrail(name, "passed", f"smallest speedup {shown}×")


def spills(
    original: Sequence[Resources], candidate: Sequence[Resources], measurement: Measurement, limits: Guardrails = LIMITS
) -> Guardrail:
    """Register spills and local memory not grown, unless measured time paid for it."""
    name = _SPILLS
    before = sum(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes for r in original)
    after = sum(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes for r in candidate)
    if after <= before:
        return Guardrail(name, "passed", f"{after} bytes, {before} before")
    if measurement.predicted:
        return Guardrail(name, "failed", f"{after} bytes, {before} before, and no measured speedup justifies it")
    if measurement.low < limits.spills:
        return Guardrail(
            name,
            "failed",
            f"{after} bytes, {before} before, and a speedup of {measurement.low:.2f}× does not justify it",
        )
    return Guardrail(name, "passed", f"{after} bytes, {before} before, justified by the measured speedup")


def numeric(*, screened: bool = False) -> Guardrail:
    """Said of what passed its checks: an error beyond the gate ends a candidate before it comes to guardrails."""
    where = (
        "on the CPU, on check shapes and fresh inputs"
        if screened
        else "on check and timing shapes, fresh inputs, in a second process"
    )
    return Guardrail("numeric error within the tolerance", "passed", where)


def repeatable(argument: str | None, case: str, *, wanted: bool) -> Guardrail:
    """Output the same from run to run where the original's is."""
    name = "repeatable output"
    if not wanted:
        return Guardrail(name, "passed", "the spec declares deterministic = false")
    if argument is not None:
        return Guardrail(name, "failed", f"'{argument}' differs between runs in case {case}; the original's does not")
    return Guardrail(name, "passed", "bitwise equal from run to run")


def sanitizers(
    candidate: Sequence[Sanitized], original: Sequence[Sanitized], limits: Guardrails = LIMITS
) -> tuple[Guardrail, ...]:
    """No report of compute-sanitizer. A run that fails under a tool that has a verdict on the original fails too."""
    judged = {s.tool for s in original if s.errors is not None}
    found = []
    for s in candidate:
        if s.errors is None and s.lost and s.tool in judged:
            found.append(
                Guardrail(s.tool, "failed", f"no verdict on the candidate, but one on the original: {s.first}")
            )
        elif s.errors is None:
            found.append(Guardrail(s.tool, "not checked", s.first))
        else:
            found.append(Guardrail(s.tool, "failed" if s.errors else "passed", s.first))
    run = {s.tool for s in candidate}
    for tool in TOOLS:
        if tool not in run:
            why = "compute-sanitizer was not found" if tool in limits.sanitizers else "disabled in the settings"
            found.append(Guardrail(tool, "not checked", why))
    return tuple(found)


def fits(
    resources: Sequence[Resources], launches: Sequence[Sequence[LaunchConfig]], figures: TargetParameters
) -> Guardrail:
    """Threads, registers and shared memory of every launch within a target's limits: one block at least can run."""
    arch = figures.target.arch
    name = f"threads and shared memory within the limits of {arch}"
    fewest = 1 << 30
    for case in launches:
        for used, launch in zip(resources, case, strict=True):
            found = occupancy(used, launch, figures)
            if found.blocks == 0:
                return Guardrail(
                    name, "failed", f"no block of {launch.threads} threads with {used.shared_bytes + launch.shared_bytes} bytes of "
                    f"shared memory and {used.registers} registers each fits: limited by {found.limit}",
                )  # fmt: skip
            fewest = min(fewest, found.blocks)
    return Guardrail(name, "passed", f"at least {fewest} block{'s' if fewest > 1 else ''} per SM")


def scope(reason: str | None) -> Guardrail:
    """The patch changes only device code and launch arguments; `reason` is what `engine.verify.screen` says against it."""
    name = "changes only device code and launch arguments"
    return Guardrail(name, "failed", reason) if reason else Guardrail(name, "passed")


def compiles(arch: str, problem: str | None, original_problem: str | None = None) -> Guardrail:
    """Compiles for another declared target, where the original does."""
    name = f"compiles for {arch}"
    if original_problem is not None:
        return Guardrail(name, "not checked", f"neither does the original: {original_problem}")
    return Guardrail(name, "passed") if problem is None else Guardrail(name, "failed", problem)


def broken(evaluation: Evaluation) -> Guardrail | None:
    """The first guardrail that failed."""
    return next((g for g in evaluation.guardrails if g.verdict == "failed"), None)


def predicted_costs(evaluation: Evaluation) -> tuple[Guardrail, ...]:
    """Those that failed by the predicted speed alone."""
    predicted = evaluation.measurement is not None and evaluation.measurement.predicted
    return tuple(g for g in evaluation.guardrails if predicted and g.verdict == "failed" and g.name.startswith(SPEED))


def applied(evaluation: Evaluation) -> Evaluation:
    """The evaluation, ended by the first of its guardrails that failed, if one did."""
    failed = broken(evaluation)
    if failed is None:
        return evaluation
    return replace(evaluation, outcome=Outcome.GUARDRAIL, failure=Failure(f"{failed.name}: {failed.detail}"))


def stopped(kernel: str, refused: Sequence[Refusal], tried: str) -> str:
    """The sentence on faster versions that are not suggested: the speedup that a guardrail stopped, else why the first of them was
    not confirmed; "" where there is none."""
    for refusal in refused:
        failed, held = broken(refusal.evaluation), refusal.evaluation.measurement
        if failed is not None and held is not None:
            how = "predicted" if held.predicted else f"95 % interval {held.low:.2f} to {held.high:.2f}"
            ratio = approximate(held.ratio) if held.predicted else f"{held.ratio:.2f}"
            return (
                f"No suggestion for {kernel}: a version {ratio}× as fast ({how}) fails the guardrail "
                f"'{failed.name}': {failed.detail} ({tried})."
            )
    reasons = [refusal.evaluation.failure.reason for refusal in refused if refusal.evaluation.failure is not None]
    if not reasons:
        return ""
    count = "a faster version was" if len(reasons) == 1 else f"{len(reasons)} faster versions were"
    first = "" if len(reasons) == 1 else " (the first)"
    return f"No suggestion for {kernel}: {count} not confirmed{first}: {reasons[0]} ({tried})."
