"""The confirmation of what a run would suggest: one reserve of the budget, one threshold and one order for every kind of run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.compile.built import Built, NotBuilt
from engine.evaluate import guardrails
from engine.evaluate.evaluator import ALIKE, Evaluator
from engine.model import Evaluation, Failure, Measurement, Outcome, Program, Refusal
from engine.process.fair_lock import WAITED
from engine.run.suggestion_gate import Gate
from engine.search.progress import Progress

# Less is not worth a person's time; a prediction cannot tell less apart at all. Ours.
LEAST = {"measured": 1.02, "predicted": 1.2}
# The share of a time budget kept back for confirming what would be suggested, within these bounds in seconds. Ours.
_RESERVE, _RESERVE_LEAST_S, _RESERVE_MOST_S = 0.2, 2.0, 8.0
# At most so many of the best are confirmed, in order, until one holds, and so many that begin with the same edit. Ours: a model's edit had
# a fault that only the inputs of a confirmation show; three tries went to it and what was built upon it, none to what the rules had found.
_CONFIRMED, _OF_A_BRANCH = 5, 2
_DISTURBED = frozenset({Outcome.UNSTABLE, Outcome.SLOWER, Outcome.NO_DIFFERENCE})  # no fault of the edits

T = TypeVar("T")


def search_limit_s(seconds: float, profiling_s: float = 0.0) -> float:
    """When the search of a run of so many seconds ends: the rest confirms, and may profile, what was found."""
    reserve = min(_RESERVE_MOST_S, max(_RESERVE_LEAST_S, _RESERVE * seconds))
    return seconds - min(reserve + profiling_s, seconds / 2)


@dataclass(frozen=True)
class Contender(Generic[T]):
    """A candidate that may be suggested. Contenders of one `branch` begin with the same edit; `build` raises NotBuilt.

    `measured` is what the search found.
    """

    candidate: T
    id: int
    summary: str
    branch: Hashable
    build: Callable[[], Built]
    measured: Measurement | None = None


class Expected:
    """The candidate that a run will likely suggest, whose checks begin beside the search.

    A better one takes its place only where it is better beyond noise: its checks would begin anew, and near the end the run would wait for
    them. Otherwise it is next, where the checks refute the first.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._builds: list[Callable[[], Built]] = []  # of the candidate, and of the latest that is as fast
        self._ratio = 0.0
        self.digest: Hashable = None  # of its program

    def better(self, digest: Hashable, ratio: float, build: Callable[[], Built]) -> None:
        """Take in what became the best of a search."""
        if ratio <= self._ratio * ALIKE:
            self._builds[1:] = [build]
            return
        self.digest, self._ratio, self._builds = digest, ratio, [build]
        self._evaluator.begin_confirming(_InTurn(self._builds))


class _InTurn:
    """Builds the first of some candidates, and from the second call on the last."""

    def __init__(self, builds: list[Callable[[], Built]]) -> None:
        self._builds, self._at = builds, 0

    def __call__(self) -> Built:
        build, self._at = self._builds[self._at], -1
        return build()


@dataclass(frozen=True)
class Confirmed(Generic[T]):
    """The candidate that a run suggests, as it was confirmed."""

    candidate: T
    evaluation: Evaluation
    program: Program


@dataclass(frozen=True)
class Confirmation:
    """What the suggestions of one run must pass: a second evaluation, the gate, and the least speedup."""

    evaluator: Evaluator
    gate: Gate
    original: Program
    progress: Progress

    @property
    def least(self) -> float:
        """The speedup below which nothing is suggested."""
        return LEAST[self.evaluator.signals.mode]

    def best(self, contenders: Iterable[Contender[T]]) -> tuple[Confirmed[T] | None, list[Refusal]]:
        """The first of the contenders, the best first, that is confirmed, and those that were refused before it."""
        refused: list[Refusal] = []
        branches: Counter[Hashable] = Counter()  # refused, by the first edit
        for one in contenders:
            if len(refused) == _CONFIRMED:
                break
            if branches[one.branch] == _OF_A_BRANCH:
                continue
            try:
                built = one.build()
            except NotBuilt as error:  # it was built once; what became of the compiler since must not cost the others
                evaluation = error.evaluation or Evaluation(Outcome.COMPILE_ERROR, failure=Failure(error.what))
            else:
                evaluation = self.judge(built, one.measured)
                if self.holds(evaluation):
                    return Confirmed(one.candidate, evaluation, built.program), refused
            refused.append(Refusal(one.id, one.summary, evaluation))
            branches[one.branch] += evaluation.outcome not in _DISTURBED
        return None, refused

    def judge(self, built: Built, measured: Measurement | None = None) -> Evaluation:
        """The second evaluation of a candidate, with the gate's verdicts if it holds so far."""
        if (known := self.gate.known(self.original, built)) is not None:
            return guardrails.applied(Evaluation(Outcome.GUARDRAIL, measured, guardrails=(known,)))
        self.gate.begin(self.original, built)
        with self.progress.stage("confirm"):
            evaluation = self.evaluator.confirm(built)
        self.progress.spend("confirm", -evaluation.stage_s.get(WAITED, 0.0))  # a stage of its own
        if self.holds(evaluation):
            with self.progress.stage("guardrails"):
                evaluation = self.gate.judge(evaluation, self.original, built)
        return evaluation

    def holds(self, evaluation: Evaluation) -> bool:
        """Whether an evaluation of the confirmation supports a suggestion."""
        measured = evaluation.measurement
        passed = evaluation.outcome in (Outcome.ACCEPTED, Outcome.SCREENED)
        return passed and measured is not None and measured.ratio >= self.least
