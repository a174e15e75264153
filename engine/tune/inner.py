"""The tuner as a proposer in the tree search: a template is one node, and its worth is that of its best point."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from engine.compile.built import Built
from engine.errors import RefusedError
from engine.evaluate.devices import OneDevice
from engine.evaluate.evaluator import Evaluator, Twin
from engine.model import Evaluation, Failure, Outcome, Program, Target
from engine.rewrite.proposal import Proposal
from engine.search.build_queue import Rank, lane_of
from engine.search.participants import Builds
from engine.search.progress import EDIT, SELECT, Budget
from engine.tune.evaluated_point import WRONG, Tried
from engine.tune.feasible import Feasible
from engine.tune.offers import Offer
from engine.tune.strategy import EXHAUSTIVE_MOST, Start
from engine.tune.strategy_choice import choose
from engine.tune.template import Template, program_at
from engine.tune.tuner import Reports, TemplateSearch, Tuner

POINTS = (
    16  # of one template: what a person would try by hand, twice over; the tree goes on with the best of them. Ours
)
_IDLE = (
    6  # points that lie far from each other: where none of them is new, the compiler does not heed these figures. Ours
)
_FEW_POINTS = 8  # where speeds are predicted: a point costs a second there


@dataclass(frozen=True)
class TemplateProposal(Proposal):
    """A proposal that stands for a template; its edits are those of one point of it, until the inner search has chosen."""

    template: Template | None = None
    feasible: Feasible | None = None


@dataclass(frozen=True)
class InnerResult:
    """What became of a template: the best point as a proposal, its program and evaluation, how many points that took; none where the
    budget ended before the first, which says nothing of the template.

    `stage_s` are the seconds by stage that all points took together.
    """

    proposal: Proposal
    program: Program
    built: Built | None
    evaluation: Evaluation
    against: float | None
    points: int
    stage_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TunerPace:
    """How many points are built at once, and how they are chosen: candidates are `counted` where their number ends the search;
    else its time does. So many `devices` evaluate."""

    in_flight: int
    seed: int
    counted: bool = True
    devices: int = 1


class TunerPart:
    """Proposes templates for programs and searches the one that the tree chose."""

    def __init__(
        self, offers: Callable[[Program], Sequence[Offer]], target: Target, evaluator: Evaluator, pace: TunerPace,
        foresee: Callable[[Program], None] = lambda program: None,
    ) -> None:  # fmt: skip
        """`offers` gives a program's templates. `foresee` is told of programs that a search within a template may end with."""
        self._offers, self._foresee, self._target = offers, foresee, target
        self._evaluator, self._pace = evaluator, pace
        self._begun: dict[tuple[str, str], Future[Tuner]] = {}  # searches within templates that the tree has chosen
        self._done: dict[str, set[str]] = {}  # templates that a program is the tuned best of, by its digest

    def wrap(self, source: Callable[[Program], list[Proposal]]) -> Callable[[Program], list[Proposal]]:
        """`source` with the templates of each program beside its own proposals."""
        return lambda program: [*source(program), *self.proposals(program)]

    def proposals(self, program: Program) -> list[Proposal]:
        """One proposal for each template that the program declares or a rule can write for it."""
        done = self._done.get(program.digest, ())
        return [
            TemplateProposal(
                "tuner", offer.template.name, f"Tune: {offer.template.summary}", offer.first.edits, offer.first.parameters,
                offer.prior, self._most(offer.points), template=offer.template, feasible=offer.points,
            )
            for offer in self._offers(program)
            if offer.template.name not in done
        ]  # fmt: skip

    def search(
        self, program: Program, proposal: Proposal, champion: Built | None, left: Budget, builds: Builds,
        known: Mapping[tuple[object, ...], Twin],
    ) -> Generator[Sequence[Future[Built]], None, InnerResult]:  # fmt: skip
        """Try some points of the proposal's template, at most what is left of the budget; the best of them stands for it.

        Gives the builds of which one is wanted before it can go on. Each of the devices evaluates one point at a time.
        """
        begin = time.monotonic()
        tuner = self._begun_or_new(program, proposal, builds.executor)
        devices = builds.devices or OneDevice(self._evaluator)
        tuner.enter(champion, known)
        template, most = tuner.template, self._most(tuner.feasible)
        limit = min(most, left.candidates or most)
        tuner.progress.spend(SELECT, time.monotonic() - begin)
        outcome, reason = Outcome.SCREENED_OUT, ""
        try:
            yield from tuner.steps(replace(left, candidates=limit), devices, _IDLE)
        except RefusedError as error:
            # What does not reproduce the original, or cannot be built, is no template: none of its points is worth a node.
            wrong = any(tried.evaluation.outcome in WRONG for tried in tuner.tried)
            outcome, reason = (Outcome.WRONG_RESULT if wrong else outcome), error.what
            tuner.tried = []
        cut_off = not (tuner.tried or reason) and tuner.progress.stopped == left.ended_by
        tried = 0 if cut_off else max(1, tuner.progress.evaluated)
        best = tuner.best(1)
        if not best:
            failure = Failure(reason or _nothing_new(tuner.tried))
            evaluation = Evaluation(outcome, failure=failure, notes=(note(tried),))
            return InnerResult(_plain(proposal), program, None, evaluation, None, tried, dict(tuner.progress.stage_s))
        chosen = best[0]
        begin = time.monotonic()
        made = tuner.proposal_of(chosen.point)
        summary = f"{made.summary} (the best of {tried} points)"
        evaluation = replace(chosen.evaluation, notes=(*chosen.evaluation.notes, note(tried)))
        built = tuner.built_of(chosen)
        if built is None:
            built = self._evaluator.build(program_at(program, template, chosen.point), by_rules=True)
        self.taken_over(built.program, template.name)
        tuner.progress.spend(EDIT, time.monotonic() - begin)
        taken = Proposal("tuner", template.name, summary, made.edits, made.parameters, proposal.prior)
        # Without a point that beat the champion side by side the template has none to offer in its place.
        against = None if champion is None else tuner.against or 1.0
        return InnerResult(taken, built.program, built, evaluation, against, tried, dict(tuner.progress.stage_s))

    def _most(self, points: Feasible) -> int:
        """How many points of a template are tried."""
        few, there = self._evaluator.signals.mode == "predicted", len(points.points)
        if not (self._pace.counted or few) and there <= EXHAUSTIVE_MOST:
            return there  # to choose among so few takes as long as to try the others
        return min(_FEW_POINTS if few else POINTS, there)

    def ready(self, program: Program, proposal: Proposal, executor: Executor) -> None:
        """Have the points of the proposal's template built that will be tried first: else the device would wait for them."""
        if isinstance(proposal, TemplateProposal):
            lane = lane_of(executor, Rank.WAITING)
            self._begun[_key(program, proposal)] = lane.submit(self._begin, program, proposal, lane)

    def _begun_or_new(self, program: Program, proposal: Proposal, executor: Executor) -> Tuner:
        """The search within a template, begun ahead where it was foreseen."""
        assert isinstance(proposal, TemplateProposal)
        begun = self._begun.pop(_key(program, proposal), None)
        if begun is None or begun.cancel():  # nobody had the time for it
            return self._begin(program, proposal, lane_of(executor, Rank.WITHIN))
        return begun.result()

    def _begin(self, program: Program, proposal: TemplateProposal, executor: Executor) -> Tuner:
        template, points = proposal.template, proposal.feasible
        assert template is not None
        assert points is not None
        most = self._most(points)
        start = Start(points.points, self._pace.seed, most, self._pace.devices)
        tuner = Tuner(
            program,
            TemplateSearch(template, points, choose(None, start)[0]),
            self._evaluator,
            self._target,
            Builds(executor, in_flight=self._pace.in_flight),
            Reports(on_best=lambda program, ratio: self._foresee(program)),
        )
        if template.default is not None:
            tuner.strategy.tell(template.default, 0.0)  # that is the program itself
        tuner.begin(min(most, self._pace.in_flight // 2))  # not all: others may be waited for sooner
        return tuner

    def taken_over(self, program: Program, template: str) -> None:
        """An earlier part of this run found this program to be the best of that template."""
        self._done.setdefault(program.digest, set()).add(template)

    @staticmethod
    def points_of(notes: Sequence[str]) -> int:
        """The number of points that a booked node stands for."""
        for text in (_NOTE, _EARLIER_NOTE):
            for said in notes:
                if said.startswith(text):
                    return int(said.removeprefix(text))
        return 1


def _key(program: Program, proposal: TemplateProposal) -> tuple[str, str]:
    assert proposal.template is not None
    return program.digest, proposal.template.name


_NOTE = "the best of the template points tried: "
_EARLIER_NOTE = "the best of so many points of its template: "  # in journals of earlier versions


def note(points: int) -> str:
    """What a node of a template says of how it was chosen, for whoever resumes the run."""
    return f"{_NOTE}{points}"


def _nothing_new(tried: Sequence[Tried]) -> str:
    """Why a search within a template has no point to offer, in a sentence."""
    failures = [t.evaluation.failure for t in tried if t.evaluation.outcome is not Outcome.DUPLICATE]
    known = len(tried) - len(failures)
    if known and not failures:
        return f"all {known} points tried were duplicates (same SASS and launch)"
    such = next((failure.reason for failure in failures if failure is not None), "")
    if known:
        said = f"of {len(tried)} points tried, {known} were duplicates (same SASS and launch), the others failed"
        return f"{said}, such as: {such}" if such else said
    return "no point of the template could be evaluated" + (f": {such}" if such else "")


def _plain(proposal: Proposal) -> Proposal:
    return Proposal(
        proposal.proposer, proposal.rule, proposal.summary, proposal.edits, proposal.parameters, proposal.prior
    )
