"""The seam between the search and the machine: building a candidate, and evaluating what was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.compile.built import Built, NotBuilt
from engine.model import Evaluation, Failure, Outcome, Program


@dataclass(frozen=True)
class Signals:
    """What the evaluator can and cannot see on this machine. `missing` are sentences for the result."""

    mode: str  # "measured" or "predicted"
    device: Mapping[str, Any]
    missing: tuple[str, ...] = ()


def nothing() -> None:
    """Do nothing."""


class Evaluator(Protocol):
    """Builds and evaluates candidates of one spec against its original. `build` is thread-safe, the rest is not."""

    @property
    def signals(self) -> Signals: ...

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        """Build and validate the original. Raises RefusedError when the spec proves nothing, CompileError, SourceError.

        `ready` is called as soon as candidates can be built, before the original is validated.
        """
        ...

    def build(self, program: Program, *, by_rules: bool) -> Built:
        """Slice, launch configurations and machine code of a candidate; `by_rules` as of `Built`. Raises NotBuilt."""
        ...

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        """Verify and time (or screen and predict). With an incumbent, also the speedup over it in the same run.

        What does not beat the incumbent is verified on the check shapes alone, with `brief` with the declared inputs alone; what does
        is timed to 0.4 %, with `brief` to 0.8 %.
        """
        ...

    def retime(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        """Time what passed `evaluate` once more, as long as it takes to tell half a per cent apart.

        It is verified on the real shapes first. Where speeds are predicted this is `evaluate`.
        """
        ...

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Begin, beside the search, with what of the confirmation of a likely suggestion needs no device.

        `build` may be called on another thread, and may raise NotBuilt. Where what it gave is refuted it is called once more: what it
        gives then, if that is another program, is next.
        """
        ...

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        """Evaluate what would be suggested once more: fresh seeds, a second process, more effort.

        With `any_speed` the guardrails judge it although it is not faster: those of timing say what is too slow.
        """
        ...

    def close(self) -> None: ...


# An incumbent is replaced only by what beats it side by side, by more than the noise of a close look. Ours.
WIN = 1.003
# Speedups this near each other are alike: a look at a candidate is good to about one per cent. Ours.
ALIKE = 1.01

Twin = tuple[int, Evaluation]  # the number of a candidate, and what became of it


def duplicate(built: Built, twin: Twin, notes: tuple[str, ...] = ()) -> Evaluation:
    """The evaluation of what compiled to the machine code of an earlier candidate, and is launched like that."""
    return Evaluation(
        Outcome.DUPLICATE,
        measurement=twin[1].measurement,
        failure=Failure(f"same machine code and launch as candidate {twin[0]}"),
        resources=built.binary.resources,
        code_hash=built.binary.code_hash,
        stage_s=built.stage_s,
        notes=notes,
    )


def unbuilt(error: NotBuilt) -> Evaluation:
    """The evaluation of a candidate that could not be built."""
    return error.evaluation or Evaluation(Outcome.SCREENED_OUT, failure=Failure(str(error)))
