"""The hard conditions that a candidate must pass to be suggested, each with its threshold and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.model import Evaluation, Guardrail, Measurement, Resources

if TYPE_CHECKING:
    from engine.gpu.sanitize import Sanitized

# No timing case may lose more than this, however much the others win (the end-to-end gate of KernelOPT, arXiv 2609.30059).
MOST_LOSS = 1.03


def timing(measurement: Measurement) -> Guardrail:
    """No timing case slower than 1.03 times the original."""
    name = f"no timing case slower than {MOST_LOSS}×"
    for case in measurement.cases:
        if case.high < 1 / MOST_LOSS:
            return Guardrail(name, "failed", f"case {case.case} became {1 / case.ratio:.2f} times slower")
    worst = min((case.ratio for case in measurement.cases), default=measurement.ratio)
    return Guardrail(name, "passed", f"the least speedup is {worst:.2f}×")


def spills(original: Sequence[Resources], candidate: Sequence[Resources], measurement: Measurement) -> Guardrail:
    """Register spills and local memory not grown, unless measured time paid for it."""
    name = "register spills and local memory"
    before = sum(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes for r in original)
    after = sum(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes for r in candidate)
    if after <= before:
        return Guardrail(name, "passed", f"{after} bytes, {before} before")
    if measurement.predicted:
        return Guardrail(name, "failed", f"{after} bytes, {before} before, and no measured time pays for it")
    return Guardrail(name, "passed", f"{after} bytes, {before} before, paid for by measured time")


def repeatable(argument: str | None, case: str, *, wanted: bool) -> Guardrail:
    """Output the same from run to run where the original's is."""
    name = "repeatable output"
    if not wanted:
        return Guardrail(name, "passed", "the original's own output is declared not to repeat")
    if argument is not None:
        return Guardrail(
            name, "failed", f"'{argument}' differs from run to run in case {case}, the original's does not"
        )
    return Guardrail(name, "passed", "equal to the last bit from run to run")


def sanitizers(candidate: Sequence[Sanitized], original: Sequence[Sanitized]) -> tuple[Guardrail, ...]:
    """compute-sanitizer's tools clean; what the original itself is guilty of is not held against a candidate."""
    guilty = {s.tool: s for s in original if s.errors}
    found = []
    for s in candidate:
        if s.errors is None:
            found.append(Guardrail(s.tool, "not checked", s.first))
        elif s.errors == 0:
            found.append(Guardrail(s.tool, "passed", ""))
        elif s.tool in guilty:
            found.append(
                Guardrail(s.tool, "passed", f"the original has the same kind of report: {guilty[s.tool].first}")
            )
        else:
            found.append(Guardrail(s.tool, "failed", s.first))
    return tuple(found)


def broken(evaluation: Evaluation) -> Guardrail | None:
    """The first guardrail that failed."""
    return next((g for g in evaluation.guardrails if g.verdict == "failed"), None)
