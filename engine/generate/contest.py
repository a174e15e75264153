"""The contest of right kernels: which one is the yardstick, how fast the others are beside it, and what a search makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.compile.built import Built, NotBuilt
from engine.cuda.edit import edit_program
from engine.errors import MachineError, NotPredictedError, OptimlError, RefusedError
from engine.evaluate.evaluator import Evaluator
from engine.generate.author import StrategyDraft, propose_kernel, workplace
from engine.generate.trial import Trial
from engine.llm.answers import EditError
from engine.model import Evaluation, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.run.confirmation import Confirmation
from engine.run.machine import Machine
from engine.run.optimization import Options, optimize
from engine.run.result import OptimizationResult
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.search.journal import Journal
from engine.search.progress import Progress
from engine.spec.kernel_spec import KernelSpec

_TIMED = (Outcome.ACCEPTED, Outcome.SCREENED, Outcome.SLOWER, Outcome.NO_DIFFERENCE, Outcome.UNSTABLE)


@dataclass(frozen=True)
class Candidate:
    """A right kernel on the yardstick's file: verified and timed against it."""

    draft: StrategyDraft
    program: Program
    proposal: Proposal | None  # None: the yardstick
    built: Built
    evaluation: Evaluation

    @property
    def ratio(self) -> float:
        measurement = self.evaluation.measurement
        return measurement.ratio if measurement is not None and self.proposal is not None else 1.0


class Contest:
    """Right kernels of one task against each other. `options` are those of the search that may follow.

    `notes` gets a sentence for each right kernel that could not be compared or did not hold.
    """

    def __init__(
        self, options: Options, spec: KernelSpec, root: Path, machine: Machine, trial: Trial, notes: list[str]
    ) -> None:
        self._options, self._spec, self._root, self._machine = options, spec, root, machine
        self._trial, self._notes = trial, notes
        self.device: dict[str, Any] = {"arch": machine.arch}

    def yardstick(self, right: Sequence[StrategyDraft]) -> tuple[Evaluator, Candidate]:
        """The simplest right kernel as the original of an evaluator.

        Raises NotPredictedError where a GPU would have to measure them, RefusedError where none can be one.
        """
        refusal: OptimlError | None = None
        for draft in simplest(right):
            assert draft.written is not None
            self._trial.close()  # one process on the GPU at a time
            self._options.path.write_bytes(draft.written.program.data)
            evaluator = self._machine.evaluator(self._spec, self._root, None, limits=self._options.guardrails)
            try:
                built, evaluation = evaluator.open(draft.written.program)
            except MachineError:
                evaluator.close()
                raise
            except OptimlError as error:
                evaluator.close()
                refusal = refusal if isinstance(refusal, NotPredictedError) else error
                continue
            self.device = dict(evaluator.signals.device)
            return evaluator, Candidate(draft, draft.written.program, None, built, evaluation)
        assert refusal is not None
        if isinstance(refusal, NotPredictedError):
            raise refusal
        raise RefusedError(
            f"no correct kernel can be the baseline: {refusal.what}", refusal.where, "describe the task in other words"
        )

    def candidate(self, evaluator: Evaluator, yardstick: Candidate, draft: StrategyDraft) -> Candidate | None:
        """A right kernel on the yardstick's file, verified and timed; None where it cannot stand there (a note says why)."""
        assert draft.written is not None
        place = workplace(yardstick.program, self._spec, self._machine.target, yardstick.program)
        name = draft.strategy.name
        try:
            proposal = dataclasses.replace(
                propose_kernel(draft.written.suggestion, place), proposer="generate", rule=name,
                summary=draft.idea or draft.strategy.title,
            )  # fmt: skip
            program = edit_program(yardstick.program, proposal.edits)
            built = evaluator.build(program, by_rules=False)
            evaluation, _ = evaluator.evaluate(built, None)
        except EditError as error:
            self._notes.append(f"{name}: correct, but not compared: {error.what}")
            return None
        except NotBuilt as error:
            self._notes.append(f"{name}: correct, but not compared: {error.what}")
            return None
        return Candidate(draft, program, proposal, built, evaluation)

    def confirmed(self, evaluator: Evaluator, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Those that hold under a second look and pass every guardrail, the fastest first; the yardstick is not among them."""
        found = []
        gate = Gate(
            self._machine,
            self._spec,
            self._root,
            None,
            SuggestionConditions(self._options.guardrails, self._options.targets),
        )
        original = next(c.program for c in ranked if c.proposal is None)
        confirmation = Confirmation(evaluator, gate, original, Progress())
        for candidate in ranked:
            if candidate.proposal is None:
                break  # what follows is slower
            if candidate.ratio < confirmation.least:
                continue
            evaluation = confirmation.judge(candidate.built)
            if confirmation.holds(evaluation):
                found.append(dataclasses.replace(candidate, evaluation=evaluation))
            else:
                low = f"below the threshold of {confirmation.least:g}×"
                why = evaluation.failure.reason if evaluation.failure else low
                self._notes.append(f"{candidate.draft.strategy.name}: not confirmed: {why}")
        return found

    def confirmed_anew(self, yardstick: Candidate, ranked: Sequence[Candidate]) -> list[Candidate]:
        """As `confirmed`, with an evaluator of its own. Raises as `Evaluator.open`."""
        evaluator = self._machine.evaluator(self._spec, self._root, None, limits=self._options.guardrails)
        try:
            evaluator.open(yardstick.program)
            return self.confirmed(evaluator, ranked)
        finally:
            evaluator.close()

    def search(
        self, yardstick: Candidate, ranked: Sequence[Candidate], seeds: int, on_progress: Callable[[Progress], None]
    ) -> tuple[OptimizationResult, Program | None]:
        """The tree of OptiML-X over the yardstick, with the best kernels of different strategies as its first children.

        Its result, and the best program of it. Raises as `engine.run.optimization.optimize`.
        """
        first = tuple(c.proposal for c in ranked if c.proposal is not None)[:seeds]
        options = dataclasses.replace(self._options, seeds=first)
        result, out = optimize(options, self._machine, on_progress)
        if result.best is None:
            return result, None
        if options.notes:
            _mark(out / result.best.patch, options.notes[0])
        settings = {"kernel": self._spec.kernel, "arch": self._machine.arch, "mode": self._machine.mode}
        journal = Journal(out / "journal.sqlite", yardstick.program, settings, resume=True)
        try:
            files = next(e.files for e in journal.entries() if e.id == result.best.id)
        finally:
            journal.close()
        return result, yardstick.program.replace(files)


def _length(draft: StrategyDraft) -> int:
    assert draft.written is not None
    return len(" ".join(draft.written.suggestion.kernel.split()))


def simplest(right: Sequence[StrategyDraft]) -> list[StrategyDraft]:
    """Right kernels, those first that make better yardsticks: one that can be widened to float64, then the shortest."""
    return sorted(right, key=lambda d: (not (d.tried and d.tried.widens), _length(d)))


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By falling speed; of kernels with the same machine code and launch the first one, and none that failed."""
    kept: dict[object, Candidate] = {}
    for candidate in candidates:
        if candidate.proposal is None or (candidate.evaluation.outcome in _TIMED and candidate.evaluation.measurement):
            kept.setdefault(candidate.built.identity, candidate)
    return sorted(kept.values(), key=lambda c: -c.ratio)


def stem(result: OptimizationResult, ranked: Sequence[Candidate]) -> Candidate | None:
    """The strategy's kernel that the best program of a search came from."""
    for step in result.trajectory:
        if step.proposer == "generate":
            return next((c for c in ranked if c.draft.strategy.name == step.rule), None)
    return None


def _mark(patch: Path, note: str) -> None:
    """Say at a patch's head that nobody confirmed the reference; git passes over what stands before the first file."""
    with contextlib.suppress(OSError):
        patch.write_bytes(f"UNCONFIRMED: {note}\n\n".encode() + patch.read_bytes())
