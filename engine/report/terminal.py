"""What a person sees in the terminal: progress while searching, then verdict, trajectory and where the patch is."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.tree import Tree

from engine.model import Evaluation, Outcome
from engine.report.console import Console
from engine.report.read import Node
from engine.report.text import clean, cleaned, said_throughout, short
from engine.result import OptimizationResult
from engine.search.progress import Budget, Progress

_REFRESH_S = 0.2
_SENTENCES, _COUNTERS = 2, 3  # of a diagnosis and of a step: the rest is in result.json
_ONE_LINE = Column(
    no_wrap=True, overflow="ellipsis", ratio=1
)  # of a progress line: what is too long for the window is cut


class Live:
    """Progress on standard error with the best so far, in a terminal; nothing elsewhere, nothing when quiet.

    Colours follow `NO_COLOR` and `TERM`, as rich does. `FORCE_COLOR` makes no terminal of a file.
    """

    def __init__(self, budget: Budget, *, quiet: bool = False) -> None:
        self._budget = budget
        console = Console(stderr=True, highlight=False)
        self._shown = not quiet and sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
        self._bars = Bars(
            SpinnerColumn(), BarColumn(bar_width=12), TextColumn("{task.description}", markup=False, table_column=_ONE_LINE),
            console=console, transient=True, expand=True,
        )  # fmt: skip
        self._task = self._bars.add_task("setting up and validating the spec", total=None)
        self._last = 0.0

    def __enter__(self) -> Live:
        if self._shown:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars.live.is_started:
            self._bars.stop()

    def update(self, progress: Progress) -> None:
        """Show the state, but not more often than a person can read."""
        now = time.monotonic()
        if not self._shown or now - self._last < _REFRESH_S:
            return
        self._last = now
        self._bars.start()
        done, total = progress.elapsed_s, self._budget.seconds
        if total is None and self._budget.candidates is not None:
            done, total = float(progress.evaluated), float(self._budget.candidates)
        text = progress_line(progress, self._budget)
        self._bars.update(self._task, completed=min(done, total or done), total=total, description=text)


def progress_line(progress: Progress, budget: Budget) -> str:
    """Candidates tried, verified, time left, best speedup so far."""
    left = ""
    if budget.seconds is not None:
        left = f", {max(0.0, budget.seconds - progress.elapsed_s):.0f} s left"
    elif budget.candidates is not None:
        left = f", {max(0, budget.candidates - progress.evaluated)} to go"
    predicted = " predicted" if Outcome.SCREENED in progress.outcomes else ""
    best = f"best so far {progress.best_ratio:.2f}×{predicted}"
    if progress.best_summary:
        best += f" ({short(clean(progress.best_summary), 60)})"
    return f"{progress.evaluated} tried, {progress.verified} passed{left}, {best}"


def how_to_take(patch: Path, root: Path | None) -> str:
    """The command that applies a patch whose paths begin at `root` (None: not known), as it works where the person is.

    In a folder below the root or beside it `git apply` passes over what lies outside, in silence and with exit code 0.
    """
    path = shlex.quote(clean(str(patch)))
    if root is None:
        return f"Take it, at the root of the repository, with: git apply {path}"
    if root.resolve() == Path.cwd():
        return f"Take it with: git apply {path}"
    return f"Take it with: git -C {shlex.quote(clean(str(root)))} apply {shlex.quote(clean(str(patch.resolve())))}"


def print_result(result: OptimizationResult, out: Path, root: Path | None = None) -> None:
    """Verdict, trajectory, timing cases, notes, and the patch's place. `root`: of the repository, where it is known."""
    console = Console(highlight=False)
    result = cleaned(result)  # a stranger's text must not steer the terminal
    console.print(result.verdict, style="bold", markup=False)
    predicted = result.mode == "predicted"
    if predicted:
        arch = result.signals.get("device", {}).get("arch", "")
        console.print(f"Speeds are predicted for {arch}, not measured.", markup=False)
    if result.best is not None:
        console.print(_trajectory(result, predicted))
        _evidence(console, result)
        console.print(_cases(result.best.evaluation, predicted))
        for guardrail in result.best.evaluation.guardrails:
            detail = f" ({guardrail.detail})" if guardrail.detail else ""
            console.print(f"{guardrail.verdict}: {guardrail.name}{detail}", markup=False)
    elif result.diagnosis:
        console.print(f"The original: {result.diagnosis[0]}", markup=False)
    for refusal in result.refused:
        reason = refusal.evaluation.failure.reason if refusal.evaluation.failure else refusal.evaluation.outcome.value
        console.print(f"Not confirmed: {refusal.summary}: {reason}", markup=False)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False)
    if len(result.proposers) > 1:
        console.print(
            f"Who found what{' (predicted)' if predicted else ''}: {found_by(result.proposers)}", markup=False
        )
    console.print(f"{result.elapsed_s:.0f} s; the search ended because {result.stopped}.", markup=False)
    if result.best is not None:
        patch = out / result.best.patch
        console.print(f"Patch: {patch}", markup=False, soft_wrap=True)
        console.print(how_to_take(patch, root), markup=False, soft_wrap=True)
    console.print(f"Everything else: {out}", markup=False, soft_wrap=True)


def found_by(proposers: Mapping[str, Any]) -> str:
    """What each proposer brought: doublings of the speed, candidates, and money where it cost any."""
    parts = []
    for name, share in sorted(proposers.items(), key=lambda pair: -pair[1]["gain"]):
        cost = f", {share['usd']:.2f} USD" if share["usd"] else ""
        tried = f"{share['candidates']} candidate{'' if share['candidates'] == 1 else 's'}"
        parts.append(f"{name} {2 ** share['gain']:.2f}× in {tried}{cost}")
    return "; ".join(parts)


def _evidence(console: Console, result: OptimizationResult) -> None:
    """What the profiler says of the original and after each step, and which counters moved; of the last step in more words."""
    if result.diagnosis:
        console.print(f"The original: {'; '.join(result.diagnosis[:_SENTENCES])}", markup=False)
    always = said_throughout(result.diagnosis, result.trajectory)
    for number, step in enumerate(result.trajectory, 1):
        own = [sentence for sentence in step.diagnosis if sentence not in always]
        sentences = own[: _SENTENCES if number == len(result.trajectory) else 1]
        moved = [f"moved: {', '.join(step.moved[:_COUNTERS])}"] if step.moved else []
        if sentences or moved:
            console.print(f"After step {number}: {'; '.join([*sentences, *moved])}", markup=False)


def _trajectory(result: OptimizationResult, predicted: bool) -> Table:
    table = Table(title="From the original to the best")
    table.add_column("step", justify="right")
    table.add_column("edit")
    table.add_column("predicted speedup" if predicted else "speedup (95 %)", justify="right")
    table.add_column("registers", justify="right")
    table.add_column("shared B", justify="right")
    table.add_row("0", "the original", "1.00", *_resources(result.original))
    for i, step in enumerate(result.trajectory, 1):
        table.add_row(str(i), escape(step.summary), _speedup(step.evaluation), *_resources(step.evaluation))
    return table


def _cases(evaluation: Evaluation, predicted: bool) -> Table:
    table = Table(title="Predicted times" if predicted else "Confirmed on fresh inputs in a second process")
    for column in ("case", "before µs", "after µs", "speedup"):
        table.add_column(column, justify="left" if column == "case" else "right")
    measurement = evaluation.measurement
    for case in measurement.cases if measurement else ():
        speedup = f"{case.ratio:.2f}" if predicted else f"{case.ratio:.2f} ({case.low:.2f} to {case.high:.2f})"
        table.add_row(escape(case.case), f"{case.original_us:.1f}", f"{case.candidate_us:.1f}", speedup)
    return table


def _speedup(evaluation: Evaluation) -> str:
    measurement = evaluation.measurement
    if measurement is None:
        return evaluation.outcome.value
    if measurement.predicted:
        return f"{measurement.ratio:.2f}"
    return f"{measurement.ratio:.2f} ({measurement.low:.2f} to {measurement.high:.2f})"


def _resources(evaluation: Evaluation) -> tuple[str, str]:
    if not evaluation.resources:
        return "", ""
    return (
        str(max(r.registers for r in evaluation.resources)),
        str(max(r.shared_bytes for r in evaluation.resources)),
    )


def print_tree(nodes: Sequence[Node]) -> None:
    """Every candidate below the one it was made from."""
    console = Console(highlight=False)
    branches: dict[int, Any] = {}
    root: Tree | None = None
    for node in map(cleaned, nodes):
        label = f"{node.id} {node.summary}: "
        if node.ratio is not None and node.outcome != Outcome.DUPLICATE:
            label += f"{node.ratio:.2f}× predicted " if node.outcome == Outcome.SCREENED else f"{node.ratio:.2f}× "
        label += node.outcome + (f" ({node.reason[:100]})" if node.reason else "")
        if node.parent is None:
            root = branches[node.id] = Tree(escape(f"{node.id} {node.summary}"))
        elif node.parent in branches:
            branches[node.id] = branches[node.parent].add(escape(label))
    if root is not None:
        console.print(root)
    sys.stdout.flush()
