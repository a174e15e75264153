"""What a person sees of a generation: the reference, a line for each strategy as it ends, then the table and where the file is."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from engine.generate.generation_result import GenerationResult, StrategyResult
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.safe_text import clean, cleaned
from engine.report.terminal import Live
from engine.search.progress import Budget, Progress

if TYPE_CHECKING:
    from engine.generate.author import StrategyDraft
    from engine.generate.oracle import Reference

_MOST_LINES = 60  # of a drafted reference on the terminal; the whole stands in the work folder


class Screen:
    """Tells on standard error what goes on; nothing when quiet."""

    def __init__(self, budget: Budget, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._live = Live(budget, quiet=quiet)
        self._lock = threading.Lock()

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def step(self, text: str) -> None:
        """What begins now."""
        self._live.phase(text)
        with self._lock:
            self._console.print(f"{text} …", markup=False)

    def draft(self, draft: StrategyDraft) -> None:
        """How one strategy ended."""
        repaired = f" after {draft.repairs} repair{'s' if draft.repairs > 1 else ''}" if draft.repairs else ""
        text = "right" if draft.right else f"{draft.ending.replace('_', ' ')}: {clean(draft.reason)}"
        with self._lock:
            self._console.print(f"  {draft.strategy.name}: {text}{repaired}", markup=False)

    def reference(self, reference: Reference, asked: int) -> None:
        """Show a drafted reference: nobody has confirmed it yet."""
        if reference.confirmed:
            return
        lines = clean(reference.source.decode("utf-8", "replace")).splitlines()
        with self._lock:
            self._console.print(
                f"The reference, drafted by the model; {asked} independent drafts agree, and no person has confirmed it:",
                markup=False, style="bold",
            )  # fmt: skip
            for line in lines[:_MOST_LINES]:
                self._console.print(f"    {line}", markup=False, soft_wrap=True)
            if len(lines) > _MOST_LINES:
                self._console.print(f"    ({len(lines) - _MOST_LINES} more lines)", markup=False)

    def progress(self, progress: Progress) -> None:
        """The search's progress line."""
        self._live.update(progress)


def print_generation(result: GenerationResult, work: Path) -> None:
    """Table of strategies and notes, then the verdict and where the kernel is."""
    console = Console(highlight=False)
    result = cleaned(result)  # a stranger's text must not steer the terminal
    console.print(_table(result))
    if result.optimized is not None:
        console.print(f"The search: {result.optimized['verdict']}", markup=False)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False)
    spent = result.model["spent"]
    money = f", {spent['usd']:.2f} USD" if spent["usd"] is not None else ""
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    console.print(
        f"{result.elapsed_s:.0f} s, {result.model['requests']} requests, {tokens} tokens{money}.", markup=False
    )
    console.print(f"Output folder: {work}\n", markup=False, soft_wrap=True)
    console.print(result.verdict, style="bold", markup=False)
    if result.written:
        console.print(f"Kernel: {result.written}", markup=False, soft_wrap=True)
        where = "with" if result.ratio is not None else "on a machine with a GPU"
        console.print(f"Continue {where}: optiml optimize {result.written}", markup=False, soft_wrap=True)


def _table(result: GenerationResult) -> Table:
    predicted = result.mode != "measured"
    table = Table(box=None, pad_edge=False)
    for heading in ("strategy", "outcome", "speed (predicted)" if predicted else "speed", "time", "idea"):
        table.add_column(heading)
    for s in result.strategies:
        times = ", ".join(f"{t:.1f} µs" for t in s.time_us.values())
        table.add_row(
            s.name,
            escape(_became(s, searched=result.optimized is not None)),
            "" if s.ratio is None else f"{approximate(s.ratio) if predicted else f'{s.ratio:.2f}'}×",
            times,
            escape(s.idea),
        )
    return table


def _became(s: StrategyResult, *, searched: bool) -> str:
    if s.right:
        # After a search the best strategy need not be the fastest one: the search went further from it.
        best = "correct, basis of the result" if searched else "correct, the fastest"
        role = {"twin": "correct, same SASS as another", "yardstick": "correct, the baseline", "best": best}
        told = role.get(s.role, "right")
        if s.ending in ("wrong_result", "memory_error", "race", "guardrail", "timed_out", "crashed"):
            told = f"{s.ending.replace('_', ' ')} against the baseline: {s.reason[:120]}"
    else:
        told = f"{s.ending.replace('_', ' ')}: {s.reason[:160]}"
    return told + (f" ({s.repairs} repaired)" if s.repairs else "")
