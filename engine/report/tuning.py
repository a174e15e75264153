"""What a person sees of a tuning run in the terminal: verdict, the best per shape, the set, where the patch is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from engine.model import Guardrail
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.safe_text import cleaned
from engine.report.terminal import print_verdict
from engine.tune.tuning_result import Branch, TuneResult

_TOTALS = ("configurations", "evaluations", "verified")  # of the counts; the others are outcomes


def print_tuning(result: TuneResult, out: Path) -> None:
    """How the points were chosen, the table per shape, dispatch code and notes, then the verdict and how to apply the patch."""
    console = Console(highlight=False)
    result = cleaned(result)  # a stranger's text must not steer the terminal
    space = result.space
    console.print(
        f"{result.template.summary}: {space.combinations} combinations, {space.feasible} feasible. "
        f"Strategy: {result.strategy} ({result.strategy_reason}).", markup=False,
    )  # fmt: skip
    for excluded in space.excluded:
        console.print(f"  '{excluded.condition}' excludes {excluded.points}", markup=False)
    for condition, points in space.by_compiler.items():
        them = "them" if points > 1 else "it"
        console.print(f"  '{condition}' excludes {points} more, found by compiling {them}", markup=False)
    if result.shapes:
        console.print(_shapes(result))
    if result.dispatch is not None:
        d = result.dispatch
        ratio = (
            f"{approximate(d.ratio)}×"
            if result.mode == "predicted"
            else f"{d.ratio:.2f}× ({d.low:.2f} to {d.high:.2f})"
        )
        reason = f" Not suggested: {d.refused}." if d.refused else ""
        console.print(f"Dispatch by {d.key}: {ratio} over the original, over all shapes.{reason}", markup=False)
        for branch in d.branches:
            console.print(f"  {branch.text}: {said(branch.values)}", markup=False)
    for guardrail in result.best.evaluation.guardrails if result.best is not None else ():
        console.print(_judged(guardrail), markup=False)
    if result.dispatch is not None:
        for branch, evaluation in zip(result.dispatch.branches, result.dispatch.evaluations, strict=False):
            for line in _branch(branch, evaluation.guardrails):
                console.print(line, markup=False)
        for guardrail in result.dispatch.guardrails:
            console.print(_judged(guardrail, ", of the dispatch code"), markup=False)
    for refusal in result.refused:
        reason = refusal.evaluation.failure.reason if refusal.evaluation.failure else refusal.evaluation.outcome.value
        console.print(f"Not confirmed: {refusal.summary}: {reason}", markup=False)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False)
    outcomes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in result.counts.items() if name not in _TOTALS)
    tried = result.counts.get("configurations", 0)
    console.print(f"{tried} configuration{'s' * (tried != 1)}{f': {outcomes}' if outcomes else ''}.", markup=False)
    console.print(
        f"{result.elapsed_s:.0f} s; {result.rates.get('configurations_per_s', 0.0):.1f} configurations per second while "
        f"searching; the search ended because {result.stopped}.", markup=False,
    )  # fmt: skip
    if result.constants is not None:
        names = ", ".join(f"{name} as {constant}" for name, constant in result.constants.names.items())
        console.print(f"To tune again: {result.constants.patch} contains {names}.", markup=False)
    console.print(f"Output folder: {out}\n", markup=False, soft_wrap=True)
    print_verdict(console, result.verdict, result.signals if result.mode == "predicted" else {})
    patches = [p.patch for p in (result.best, result.dispatch, result.constants) if p is not None and p.patch]
    for patch in patches:
        console.print(f"Patch: {out / patch}", markup=False, soft_wrap=True)
    if patches:
        which = "it" if len(patches) == 1 else "one of them"
        console.print(
            f"Apply {which} at the root of the repository with: git apply {out / patches[0]}",
            markup=False,
            soft_wrap=True,
        )


def _branch(branch: Branch, guardrails: Sequence[Guardrail]) -> list[str]:
    """The conditions that a branch of the dispatch code had to pass: those that it passed in one line, the others singly."""
    of = f", of the branch {branch.text}"
    passed = [g.name for g in guardrails if g.verdict == "passed"]
    lines = [f"passed: {'; '.join(passed)}{of}"] if passed else []
    return lines + [_judged(g, of) for g in guardrails if g.verdict != "passed"]


def _judged(guardrail: Guardrail, of: str = "") -> str:
    detail = f" ({guardrail.detail})" if guardrail.detail else ""
    return f"{guardrail.verdict}: {guardrail.name}{of}{detail}"


def _shapes(result: TuneResult) -> Table:
    predicted = result.mode == "predicted"
    table = Table(title="The best for each shape" + (" (predicted)" if predicted else ""))
    for column in ("case", "values", "µs", "over the original", "over the general one"):
        table.add_column(column, justify="left" if column in ("case", "values") else "right")
    for shape in result.shapes:
        speedup = f"{shape.ratio:.2f}" + ("" if predicted else f" ({shape.low:.2f} to {shape.high:.2f})")
        gain = f"{shape.gain:.2f}" if shape.gain > 1 else "the same"
        table.add_row(escape(shape.case), escape(said(shape.values)), f"{shape.time_us:.1f}", speedup, gain)
    return table


def said(values: Mapping[str, int]) -> str:
    """A point as a person writes it."""
    return ", ".join(f"{n} = {v}" for n, v in values.items())
