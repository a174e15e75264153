"""What a person sees in the terminal: progress while searching, then verdict, trajectory and where the patch is."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from engine.model import Evaluation, Outcome
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.run_folder import StoredNode
from engine.report.safe_text import clean, cleaned, said_throughout, short
from engine.run.result import OptimizationResult
from engine.search.progress import SEARCHING, Budget, Progress

_NO_LIMIT = Budget()
_EVERY_S = 10.0  # between two lines where standard error is no terminal
_LOOK_S = 0.25  # between two looks for an interrupt there
_SENTENCES, _COUNTERS = 2, 3  # of a diagnosis and of a step: the rest is in result.json
# Of a progress line: what is too long for the window is cut
_ONE_LINE = Column(no_wrap=True, overflow="ellipsis", ratio=1)


class Live:
    """Progress on standard error: a line that is redrawn in a terminal, a line every ten seconds elsewhere, nothing when quiet.

    Until the first report it names the phase of the set-up. What it shows is worked out when it is drawn, so that the time left goes
    on while nothing is reported. Colours follow `NO_COLOR` and `TERM`, as rich does. `FORCE_COLOR` makes no terminal of a file.

    `beside`: another program writes to the terminal, so phases are lines of their own, and no line is redrawn.
    """

    def __init__(
        self, budget: Budget = _NO_LIMIT, phase: str = "setting up", *, quiet: bool = False, every_s: float = _EVERY_S,
        beside: bool = False,
    ) -> None:  # fmt: skip
        self._budget, self._phase, self._every_s = budget, phase, every_s
        console = Console(stderr=True, highlight=False)
        terminal = sys.stderr.isatty()
        self._shown = not quiet and not beside and terminal and console.is_terminal and not console.is_dumb_terminal
        self._told = not quiet and not self._shown and not (beside and terminal)
        self._beside = beside and not quiet
        self._counted: tuple[int, int] | None = None  # how much of the phase is done, of how much
        spinner = SpinnerColumn("line" if console.options.ascii_only else "dots")
        bar = BarColumn(bar_width=12)
        self._bars = Bars(spinner, bar, _Now(self), console=console, transient=True, expand=True)
        self._task = self._bars.add_task("", total=None)
        self._progress: Progress | None = None
        self._since = self._begin = time.monotonic()
        self._said = 0  # sentences of the progress that were printed
        self._ended = threading.Event()
        self._teller: threading.Thread | None = None

    def __enter__(self) -> Live:
        if self._shown:
            self._bars.start()
        elif self._told:
            self._teller = threading.Thread(target=self._tell, name="progress", daemon=True)
            self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bars.live.is_started:
            self._bars.stop()
        if self._teller is not None:
            self._teller.join()

    def begin(self, budget: Budget, phase: str) -> None:
        """Go on with another search, which is set up now."""
        self._budget = budget
        self._bars.update(self._task, completed=0, total=None)
        self.phase(phase)

    def phase(self, text: str) -> None:
        """Name what goes on before the first report."""
        self._phase, self._begin, self._progress, self._counted = text, time.monotonic(), None, None
        if self._beside:
            print(text, file=sys.stderr, flush=True)

    def count(self, done: int, of: int, what: str) -> None:
        """Name how much is done; the time left follows from the rate since the phase began."""
        self._counted, self._phase, self._since = (done, of), what, time.monotonic()
        if self._shown:
            self._bars.update(self._task, completed=done, total=of)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to somebody else, such as a question."""
        shown = self._bars.live.is_started
        self._bars.stop()
        try:
            yield
        finally:
            if shown:
                self._bars.start()

    def update(self, progress: Progress) -> None:
        """Take in the state; it is drawn when its time comes."""
        self._progress, self._since = progress, time.monotonic()
        for sentence in progress.said[self._said :]:
            self._said += 1
            if self._shown or self._told:
                self._bars.console.print(clean(sentence), markup=False, highlight=False)
        if not self._shown:
            return
        self._bars.start()
        done, total = progress.elapsed_s, self._budget.seconds
        if total is None and self._budget.candidates is not None:
            done, total = float(progress.recorded), float(self._budget.candidates)
        self._bars.update(self._task, completed=min(done, total or done), total=total)

    def line(self) -> str:
        """What there is to say now."""
        now = time.monotonic()
        if self._progress is None and self._counted is not None:
            done, of = self._counted
            rest_s = (self._since - self._begin) / done * (of - done) - (now - self._since) if done else None
            left = "" if rest_s is None else f", about {max(0.0, rest_s):.0f} s left"
            return f"{self._phase}: {done} of {of}{left}"
        if self._progress is None:
            return f"{self._phase}, {now - self._begin:.0f} s"
        return progress_line(self._progress, self._budget, now - self._since)

    def _tell(self) -> None:
        next_s, interrupted = time.monotonic() + self._every_s, False
        while not self._ended.wait(min(_LOOK_S, self._every_s)):
            asked = self._budget.interrupt.asked
            if time.monotonic() >= next_s or asked != interrupted:
                next_s, interrupted = time.monotonic() + self._every_s, asked
                print(self.line(), file=sys.stderr, flush=True)


class _Now(ProgressColumn):
    """The line of a `Live`, as it is when the column is drawn."""

    def __init__(self, live: Live) -> None:
        super().__init__(_ONE_LINE)
        self._live = live

    def render(self, task: Task) -> Text:
        """The line, cut to the window by its column."""
        return Text(self._live.line(), no_wrap=True, overflow="ellipsis")


def progress_line(progress: Progress, budget: Budget, since_s: float = 0.0) -> str:
    """Phase, candidates tried and passed, time left so many seconds after the report, best speedup so far."""
    left = ""
    if budget.seconds is not None:
        left = f", {max(0.0, budget.seconds - progress.elapsed_s - since_s):.0f} s left"
    elif budget.candidates is not None:
        left = f", {max(0, budget.candidates - progress.recorded)} to go"
    if progress.phase != SEARCHING:
        left = f", {progress.phase}"
    if budget.interrupt.asked:
        doing = "ending the search" if progress.phase == SEARCHING else progress.phase
        return f"interrupted, {doing}; Ctrl-C again stops immediately ({progress.recorded} tried)"
    predicted = " predicted" if Outcome.SCREENED in progress.outcomes else ""
    ratio = approximate(progress.best_ratio) if predicted else f"{progress.best_ratio:.2f}"
    best = f"best so far {ratio}×{predicted}"
    if progress.best_summary:
        best += f" ({short(clean(progress.best_summary), 60)})"
    # What passed and is not in the journal yet is not counted as tried either.
    passed = min(progress.verified, progress.recorded)
    return f"{progress.recorded} tried, {passed} passed{left}, {best}"


def how_to_take(patch: Path, root: Path | None) -> str:
    """The command that applies a patch whose paths begin at `root` (None: not known), as it works where the person is.

    In a folder below the root or beside it `git apply` passes over what lies outside, in silence and with exit code 0.
    """
    path = shlex.quote(clean(str(patch)))
    if root is None:
        return f"Apply it at the root of the repository with: git apply {path}"
    if root.resolve() == Path.cwd():
        return f"Apply it with: git apply {path}"
    return f"Apply it with: git -C {shlex.quote(clean(str(root)))} apply {shlex.quote(clean(str(patch.resolve())))}"


def print_result(result: OptimizationResult, out: Path, root: Path | None = None) -> None:
    """Trajectory, timing cases and notes, then the verdict and how to apply the patch: a small window ends with what counts.

    `root`: of the repository, where it is known.
    """
    console = Console(highlight=False)
    result = cleaned(result)  # a stranger's text must not steer the terminal
    predicted = result.mode == "predicted"
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
        if note in result.stopped:
            continue  # the last sentences say it
        console.print(f"Note: {note}", markup=False)
    if len(result.proposers) > 1:
        console.print(
            f"Gain by proposer{' (predicted)' if predicted else ''}: {found_by(result.proposers)}", markup=False
        )
    if result.model is not None:
        console.print(f"Model: {answers_of(result.model)}.", markup=False)
        if result.model.get("judge"):
            console.print(f"Judge: {record_of(result.model['judge'])}.", markup=False)
    console.print(f"{result.elapsed_s:.0f} s; the search ended because {result.stopped}.", markup=False)
    console.print(f"Output folder: {out}\n", markup=False, soft_wrap=True)
    print_verdict(console, result.verdict, result.signals if predicted else {})
    if result.best is not None:
        patch = out / result.best.patch
        console.print(f"Patch: {patch}", markup=False, soft_wrap=True)
        console.print(how_to_take(patch, root), markup=False, soft_wrap=True)


def print_verdict(console: Console, verdict: str, predicted_with: Mapping[str, Any]) -> None:
    """What was found, in bold; with the signals of a prediction also that nothing was measured."""
    console.print(verdict, style="bold", markup=False)
    if predicted_with:
        arch = predicted_with.get("device", {}).get("arch", "")
        console.print(f"Speeds are predicted for {arch}, not measured.", markup=False)


def found_by(proposers: Mapping[str, Any]) -> str:
    """What each proposer brought: doublings of the speed, candidates, and money where it cost any."""
    parts = []
    for name, share in sorted(proposers.items(), key=lambda pair: -pair[1]["gain"]):
        cost = f", {share['usd']:.2f} USD" if share["usd"] else ""
        tried = f"{share['candidates']} candidate{'' if share['candidates'] == 1 else 's'}"
        also = share.get("also", 0.0)
        common = f", {2**also:.2f}× of it first tried by another proposer" if also else ""
        parts.append(f"{name} {2 ** share['gain']:.2f}× in {tried}{common}{cost}")
    return "; ".join(parts)


def answers_of(model: Mapping[str, Any]) -> str:
    """What became of a model's answers: questions, edits that could be used, why others could not, and how those that were tried ended.

    Of the most frequent fault it names the most frequent reason.
    """
    asked, edits = model.get("questions", model["requests"]), model["proposals"]
    parts = [f"{asked} question{'' if asked == 1 else 's'}, {edits} usable edit{'' if edits == 1 else 's'}"]
    lost = {**model["faults"], **({"duplicate": model["known"]} if model.get("known") else {})}
    if waiting := lost.pop("deferred", 0):
        parts.append(f"{waiting} waiting for {'its answer' if waiting == 1 else 'their answers'}")
    if lost:
        first = max(lost, key=lambda name: lost[name])
        reason = model.get("reasons", {}).get(first)
        counts = (
            f"{count} {name.replace('_', ' ')}{f' ({reason})' if reason and name == first else ''}"
            for name, count in lost.items()
        )
        parts.append("not used: " + ", ".join(counts))
    ends = Counter(str(edit["outcome"]) for edit in model["edits"])
    if ends:
        parts.append(
            "outcomes: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ends.most_common())
        )
    return "; ".join(parts)


def record_of(judge: Mapping[str, Any]) -> str:
    """How a judge's scores compare with what was measured, and what follows for its weight."""
    measured = judge["measured"]
    parts = [f"{measured} of {judge['scored']} scored edits {'predicted' if judge.get('predicted') else 'measured'}"]
    if judge["rank_correlation"] is not None:
        parts.append(f"rank correlation {judge['rank_correlation']:.2f}")
    if judge.get("error_doublings") is not None:
        parts.append(f"speedups off by {2 ** judge['error_doublings']:.2f}× on average")
    if judge.get("bounds"):
        parts.append(f"bottleneck as expected in {judge['bounds_right']} of {judge['bounds']}")
    parts.append(
        "disabled, as its scores did not predict the results" if judge.get("off") else f"weight {judge['weight']:.2f}"
    )
    return ", ".join(parts)


def _evidence(console: Console, result: OptimizationResult) -> None:
    """What the profiler says of the original and after each step, and which counters moved; of the last step in more words."""
    if result.diagnosis:
        console.print(f"The original: {'; '.join(result.diagnosis[:_SENTENCES])}", markup=False)
    always = said_throughout(result.diagnosis, result.trajectory)
    for number, step in enumerate(result.trajectory, 1):
        own = [sentence for sentence in step.diagnosis if sentence not in always]
        sentences = own[: _SENTENCES if number == len(result.trajectory) else 1]
        moved = [f"changed: {', '.join(step.moved[:_COUNTERS])}"] if step.moved else []
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
        speedup = approximate(case.ratio) if predicted else f"{case.ratio:.2f} ({case.low:.2f} to {case.high:.2f})"
        times = [approximate(us) if predicted else f"{us:.1f}" for us in (case.original_us, case.candidate_us)]
        table.add_row(escape(case.case), *times, speedup)
    return table


def _speedup(evaluation: Evaluation) -> str:
    measurement = evaluation.measurement
    if measurement is None:
        return evaluation.outcome.value
    if measurement.predicted:
        return approximate(measurement.ratio)
    return f"{measurement.ratio:.2f} ({measurement.low:.2f} to {measurement.high:.2f})"


def _resources(evaluation: Evaluation) -> tuple[str, str]:
    if not evaluation.resources:
        return "", ""
    return (str(max(r.registers for r in evaluation.resources)), str(max(r.shared_bytes for r in evaluation.resources)))


def print_tree(nodes: Sequence[StoredNode]) -> None:
    """Every candidate below the one it was made from."""
    console = Console(highlight=False)
    branches: dict[int, Any] = {}
    root: Tree | None = None
    for node in map(cleaned, nodes):
        label = f"{node.id} {node.summary}: "
        if node.ratio is not None and node.outcome != Outcome.DUPLICATE:
            label += (
                f"{approximate(node.ratio)}× predicted " if node.outcome == Outcome.SCREENED else f"{node.ratio:.2f}× "
            )
        label += node.outcome + (f" ({node.reason[:100]})" if node.reason else "")
        if node.parent is None:
            root = branches[node.id] = Tree(escape(f"{node.id} {node.summary}"))
        elif node.parent in branches:
            branches[node.id] = branches[node.parent].add(escape(label))
    if root is not None:
        console.print(root)
    sys.stdout.flush()
