"""Asks a model where the search selected a question: in the background, so that the search never waits for an answer."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from engine.errors import OptimlError
from engine.llm.approaches import APPROACHES, asking_for
from engine.llm.chat import Fault
from engine.llm.judge import MOST_JUDGED, Judge
from engine.llm.node_context import Diagnosed, make_context
from engine.llm.proposer import REPAIRABLE, LlmProposer, Proposed, propose_label, repair_label
from engine.llm.review import review
from engine.model import Target
from engine.search.question import (
    ANSWERED,
    ASK,
    CORRECT,
    DEFERRED,
    FAILED,
    MODEL,
    OPEN,
    Answer,
    Asked,
    Question,
    question,
)
from engine.search.reward import failed
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec

# A batch of profiles takes some five seconds, and waits for the one under way: of source lines that may be ten. An answer to half a
# question costs more than this, but a profiler that hangs must not hold it up.
DIAGNOSIS_S = 30.0
_TICK_S = 0.25
_WRITTEN_S = 3.0  # what questions need that were told to wait no longer
_HOPELESS = 4  # exchanges in a row that failed for the server's sake, or the token limit's: then it is left alone
# Answers in a row without an edit that is new: a model that may be asked for ever must not be. Ours.
_FRUITLESS = 20
_EXCHANGE = frozenset({
    Fault.CONNECTION, Fault.TIMED_OUT, Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.REJECTED, Fault.TOO_LARGE, Fault.INVALID_BODY,
    Fault.CUT_SHORT,
})  # fmt: skip
_FINAL = frozenset({Fault.BUDGET, Fault.TOO_LONG})


@dataclass(frozen=True)
class FeedReport:
    """What asking the model came to. `known`: edits whose programs were known. `reasons`: of each fault what was wrong most often.

    `stopped` says why nothing more was asked, or "".
    """

    requests: int
    questions: int
    proposals: int
    known: int
    faults: Mapping[Fault, int]
    reasons: Mapping[Fault, str]
    stopped: str


@dataclass(frozen=True)
class _Job:
    node: Node
    question: Question
    ask: Callable[[], Proposed | None]


@dataclass(frozen=True)
class Background:
    """What a question says of a node besides its evaluation: which counters, what `diagnose` gives of it within so many seconds, and
    what `recall` gives of others. Both are called from the feed's threads."""

    diagnose: Callable[[Node, float], Diagnosed] = lambda node, wait_s: Diagnosed()
    recall: Callable[[Node], Sequence[str]] = lambda node: ()
    counters: Sequence[str] = ()


@dataclass(frozen=True)
class Answering:
    """How answers come. `holds` says whether the answer to a label is at hand and costs nothing: it is given at once.

    `workers` requests run at once, in threads that end with the process: no answer holds up its end. With `deferring`, answers come
    in another run: at most `workers` questions wait for them, and a resumed run asks its questions again.
    """

    holds: Callable[[str], bool] = lambda label: False
    workers: int = 2
    deferring: bool = False


_NO_BACKGROUND, _AT_ONCE = Background(), Answering()


class LlmFeed:
    """Follows `engine.search.participants.Feed`. `judge` scores what was proposed and the best of what the rules have."""

    def __init__(
        self,
        proposer: LlmProposer,
        spec: KernelSpec,
        target: Target,
        background: Background = _NO_BACKGROUND,
        answering: Answering = _AT_ONCE,
        judge: Judge | None = None,
    ) -> None:
        self._proposer, self._spec, self._target, self._background = proposer, spec, target, background
        self._holds, self._workers, self._deferring = answering.holds, answering.workers, answering.deferring
        self._judge = judge
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._arrived: list[tuple[_Job, Proposed]] = []
        self._coming: Future[None] = Future()
        self._under_way = self._requests = self._proposals = self._in_a_row = 0
        self._asked = self._awaited = self._deferred = self._known = self._fruitless = 0
        self._sent_back: set[int] = set()
        self._earlier: set[tuple[int, str, int, int | None]] = set()  # questions of an earlier part of a batch's run
        self._stopped = ""
        self._closed = False
        self._hurry = False  # no question waits for its diagnosis any more
        for i in range(self._workers):
            threading.Thread(target=self._work, name=f"llm-{i}", daemon=True).start()

    # ---- what the search calls, from one thread

    def booked(self, node: Node) -> None:
        """A node is in the journal: what put a failed edit right is told with the next failure."""
        self._proposer.booked(node)

    def questions(self, node: Node) -> list[tuple[Node, Question]]:
        """The model may be asked at every program that may be built upon, and about its own edits that failed."""
        if _made_by_model(node):
            self._fruitless = 0
        if node.evaluation is None or not failed(node.evaluation.outcome):
            return [(node, question())]
        return self._correction(node)

    def ask(self, node: Node, question: Question) -> None:
        """Ask in the background; at once where the answer is at hand."""
        self._asked += 1
        self._awaited += 1
        original, ask = node.path()[0].program, partial(self._correct, node, question)
        if question.about is None:
            held = self._holds(propose_label(original, node.program, question.round))
            ask = partial(self._edits, node, question, held)
        else:
            candidate = next((child for child in node.children if child.id == question.about), None)
            held = candidate is not None and self._holds(repair_label(original, node.program, candidate.program))
        job = _Job(node, question, ask)
        with self._changed:
            self._under_way += 1
        if held:
            self._do(job)  # takes some milliseconds, and the search goes on from it
        else:
            self._jobs.put(job)

    def go_on(self, asked: Asked, node: Node) -> tuple[bool, list[tuple[Node, Question]]]:
        """A batch has the answer or is asked again; else a question without an answer is posed again, and its next round otherwise."""
        if asked.about is not None:
            self._sent_back.add(asked.about)
        if self._deferring:
            self._earlier.add(_name(node, asked.question))
            return True, []
        if asked.ending == OPEN:
            return False, [(node, asked.question)] if asked.rule == ASK else []
        return False, self._next_round(node, asked.question)

    def arrivals(self, known: Callable[[str], bool] = lambda digest: False) -> list[Answer]:
        """Answers that came since the last call."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            if arrived:
                self._coming = Future()
        self._awaited -= len(arrived)
        return [self._answer(job, proposed, known) for job, proposed in arrived]

    def _answer(self, job: _Job, proposed: Proposed, known: Callable[[str], bool]) -> Answer:
        node, question = job.node, job.question
        fresh = tuple(p for p in proposed.proposals if p.makes is None or not known(p.makes))
        old = tuple(p for p in proposed.proposals if p not in fresh)
        self._known += len(old)
        for edit in old:
            self._proposer.drop(node.program, edit.summary, "it gives a program that was tried")
        # What was judged beside them may have been tried meanwhile.
        waiting = {id(p.edits) for p in node.untried or ()}
        judged = tuple(p for p in proposed.judged if id(p.edits) in waiting)
        deferred, unrecorded = (fault in proposed.faults for fault in (Fault.DEFERRED, Fault.NOT_RECORDED))
        again = _name(node, question) in self._earlier  # its edits may have been tried since
        ending = DEFERRED if deferred or unrecorded else ANSWERED if fresh or again else FAILED
        self._deferred += deferred and self._deferring
        self._fruitless = 0 if ending != FAILED else self._fruitless + 1
        if self._fruitless >= _FRUITLESS:
            self._stop(f"the model was stopped after {_FRUITLESS} consecutive answers without a new edit")
        # A batch takes questions for other approaches at once; a recording may have one and lack another.
        further = [] if unrecorded and question.round > len(APPROACHES) else self._next_round(node, question)
        # In a resumed run an edit may have failed before the conversation that led to it was read again.
        further += [more for child in node.children for more in self._correction(child)]
        return Answer(node, question, ending, fresh, judged, tuple(further), old)

    def _next_round(self, node: Node, asked: Question) -> list[tuple[Node, Question]]:
        following = question(ASK, asked.round + 1)
        return [(node, following)] if asked.rule == ASK and _name(node, following) not in self._earlier else []

    def _correction(self, candidate: Node) -> list[tuple[Node, Question]]:
        """The question to correct a failed edit of the model's, once, where the conversation that led to it is known."""
        parent, evaluation = candidate.parent, candidate.evaluation
        if (
            parent is None
            or evaluation is None
            or evaluation.outcome not in REPAIRABLE
            or not _made_by_model(candidate)
        ):
            return []
        if candidate.id in self._sent_back or not self._proposer.repairable(parent.program, candidate.program):
            return []
        self._sent_back.add(candidate.id)
        return [(parent, question(CORRECT, about=candidate.id))]

    @property
    def room(self) -> int:
        """How many more questions the server, or the batch, takes now."""
        return 0 if self._stopped or self._closed else max(0, self._workers - self._awaited - self._deferred)

    @property
    def awaited(self) -> int:
        """Questions whose answers `arrivals` did not give yet."""
        return self._awaited

    @property
    def coming(self) -> Future[None]:
        """Done once `arrivals` has something to give."""
        with self._changed:
            return self._coming

    @property
    def stopped(self) -> str:
        """Why nothing more is asked, or ""."""
        return self._stopped

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is under way, the last of it without a diagnosis; whether that is so."""
        if self._idle(timeout_s):
            return True
        self._hurry = True
        return self._idle(_WRITTEN_S)

    def _idle(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._under_way and time.monotonic() < deadline:
                self._changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))
            return not self._under_way

    def close(self) -> None:
        """Ask nothing more. What is under way is left behind."""
        self._closed = True

    @property
    def report(self) -> FeedReport:
        """What it came to so far."""
        with self._changed:
            faults, reasons = self._proposer.faults, self._proposer.reasons
            return FeedReport(self._requests, self._asked, self._proposals, self._known, faults, reasons, self._stopped)

    # ---- asking, on a thread of the feed's

    def _edits(self, node: Node, question: Question, held: bool) -> Proposed | None:
        round = question.round
        diagnosed = self._background.diagnose(node, 0.0) if held else self._waited_for(node)
        if self._closed:
            return None
        try:
            context = make_context(
                node, self._spec, self._target,
                counters=self._background.counters, diagnosed=diagnosed, memory=self._background.recall(node),
            )  # fmt: skip
        except (OptimlError, LookupError):
            return None
        context = asking_for(context, node, round)
        if self._judge is not None and not self._judge.calibration.off:
            reviewed = review(node, context.diagnosed.codes)
            context = replace(context, review=reviewed.sentence if reviewed is not None else "")
        proposed = self._proposer.propose(context, round=round)
        if self._judge is None or not proposed.proposals:
            return proposed
        # The search's thread changes this list meanwhile; a copy that is a moment old does.
        others = list(node.untried or ())[: -MOST_JUDGED - 1 : -1]
        known = {id(p.edits) for p in proposed.proposals}
        scored = self._judge.scored(context, [*proposed.proposals, *others], round)
        ours = tuple(p for p in scored if id(p.edits) in known)
        return replace(proposed, proposals=ours, judged=tuple(p for p in scored if id(p.edits) not in known))

    def _waited_for(self, node: Node) -> Diagnosed:
        """The diagnosis of a node that a question is about: profiling takes longer than evaluating."""
        deadline = time.monotonic() + DIAGNOSIS_S
        diagnosed = Diagnosed(pending=True)
        while diagnosed.pending and not self._hurry and not self._closed and time.monotonic() < deadline:
            diagnosed = self._background.diagnose(node, _TICK_S)
        return diagnosed

    def _correct(self, node: Node, question: Question) -> Proposed | None:
        candidate = next((child for child in node.children if child.id == question.about), None)
        if candidate is None or candidate.evaluation is None:
            return None
        return self._proposer.repair(node.program, candidate.program, candidate.evaluation)

    def _work(self) -> None:
        while True:
            self._do(self._jobs.get())

    def _do(self, job: _Job) -> None:
        proposed: Proposed | None = None
        try:
            if not self._stopped and not self._closed:
                proposed = job.ask()
        except Exception as error:  # a defect of ours must not leave the search waiting for ever
            self._stop(f"asking the model failed: {type(error).__name__}: {error}")
        with self._changed:
            self._under_way -= 1
            self._took(job, proposed or Proposed())
            self._changed.notify_all()

    def _took(self, job: _Job, proposed: Proposed) -> None:
        self._requests += proposed.requests
        self._proposals += len(proposed.proposals)
        if any(fault in _EXCHANGE for fault in proposed.faults) and not proposed.proposals:
            self._in_a_row += 1
        else:
            self._in_a_row = 0
        if self._in_a_row >= _HOPELESS:
            self._stop(f"the model was stopped after {_HOPELESS} consecutive failures: {proposed.what}")
        if any(fault in _FINAL for fault in proposed.faults):
            self._stop(proposed.what)
        self._arrived.append((job, proposed))
        if not self._coming.done():
            self._coming.set_result(None)

    def _stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason


def _name(node: Node, question: Question) -> tuple[int, str, int, int | None]:
    return node.id, question.rule, question.round, question.about


def _made_by_model(node: Node) -> bool:
    return node.proposal is not None and node.proposal.proposer == MODEL
