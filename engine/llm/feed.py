"""Brings a model's proposals into a running search: asked in the background, so that the search never waits for an answer."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import OptimlError
from engine.llm.chat import Fault
from engine.llm.judge import MOST_JUDGED, Judge
from engine.llm.node_context import Diagnosed, make_context
from engine.llm.proposer import LlmProposer, Proposed, propose_label, repair_label
from engine.model import Evaluation, Outcome, Target
from engine.process.interrupt import NEVER, Interrupt
from engine.rewrite.proposal import Proposal
from engine.search.reward import failed
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec

# A node is worth asking about when it beats the best so far by this; as the search's own noise. Ours.
_BETTER = 1.02
_ROUNDS = 3  # requests for one node, at most
# A batch of profiles takes some five seconds, and waits for the one under way: of source lines that may be ten. An answer to half a
# question costs more than this, but a profiler that hangs must not hold it up.
_DIAGNOSIS_S = 30.0
_TICK_S = 0.25
_WRITTEN_S = 3.0  # what questions need that were told to wait no longer
_PATIENCE = 12  # candidates without a better one, after which the best node is asked about again
_HOPELESS = 4  # exchanges in a row that failed for the server's sake: then it is left alone
_EXCHANGE = frozenset({
    Fault.CONNECTION, Fault.TIMED_OUT, Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.REJECTED, Fault.TOO_LARGE, Fault.INVALID_BODY,
})  # fmt: skip
_FINAL = frozenset({Fault.BUDGET, Fault.TOO_LONG})


@dataclass(frozen=True)
class FeedReport:
    """What asking the model came to. `stopped` says why nothing more was asked, or ""."""

    requests: int
    proposals: int
    faults: Mapping[Fault, int]
    stopped: str


@dataclass(frozen=True)
class _Job:
    node: Node
    ask: Callable[[], Proposed | None]


class LlmFeed:
    """Follows `engine.search.participants.Feed`. `diagnose` gives what is known of a node, waiting so many seconds at most, and
    `recall` what was learnt from others; both are called from the feed's threads. `holds` says whether the answer to a label is
    at hand and costs nothing: such a node is always asked about, since a repeated run does not measure quite the same. `pays`
    says whether more questions are worth their price, and `judge` scores what was proposed and the best of what the rules have.

    `workers` requests run at once, in threads that end with the process: no answer holds up its end.
    """

    def __init__(
        self,
        proposer: LlmProposer,
        spec: KernelSpec,
        target: Target,
        *,
        counters: Sequence[str] = (),
        diagnose: Callable[[Node, float], Diagnosed] = lambda node, wait_s: Diagnosed(),
        recall: Callable[[Node], Sequence[str]] = lambda node: (),
        holds: Callable[[str], bool] = lambda label: False,
        pays: Callable[[], bool] = lambda: True,
        judge: Judge | None = None,
        workers: int = 2,
    ) -> None:
        self._proposer, self._spec, self._target = proposer, spec, target
        self._counters, self._diagnose, self._recall, self._holds = tuple(counters), diagnose, recall, holds
        self._pays, self._judge = pays, judge
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._arrived: list[tuple[Node, Proposed]] = []
        self._awaited = self._requests = self._proposals = self._in_a_row = 0
        self._rounds: Counter[int] = Counter()
        self._sent_back: set[int] = set()
        self._deferred: set[int] = set()  # nodes with a question that waits for another day
        self._best: Node | None = None
        self._since_better = 0
        self._stopped = ""
        self._closed = False
        self._hurry = False  # no question waits for its diagnosis any more
        for i in range(workers):
            threading.Thread(target=self._work, name=f"llm-{i}", daemon=True).start()

    # ---- what the search calls, from one thread

    def booked(self, node: Node) -> None:
        """A node was evaluated: ask about it if it is a better one, send it back if it is the model's and failed."""
        evaluation = node.evaluation
        if evaluation is None:
            return
        if node.parent is None:
            self._best = self._best or node
            self._ask(node)
            return
        if _failed_edit(node):
            self._send_back(node)
            return
        if _ratio(evaluation) > _BETTER * (
            _ratio(self._best.evaluation) if self._best and self._best.evaluation else 1.0
        ):
            self._best, self._since_better = node, 0
            self._ask(node)
            return
        if self._holds(self._label(node)):
            self._ask(node)
        self._since_better += 1
        if self._since_better >= _PATIENCE and not self._awaited:
            self._since_better = 0
            self._ask_again()

    def arrivals(self) -> list[tuple[Node, tuple[Proposal, ...]]]:
        """Proposals that came since the last call, with the nodes they are for."""
        found: list[tuple[Node, tuple[Proposal, ...]]] = []
        while True:
            with self._changed:
                arrived, self._arrived = self._arrived, []
            if not arrived:
                return found
            for node, proposed in arrived:
                # What was judged beside them may have been tried meanwhile.
                waiting = {id(p.edits) for p in node.untried or ()}
                found.append((node, (*proposed.proposals, *(p for p in proposed.judged if id(p.edits) in waiting))))
                # In a resumed run an edit may have failed before the conversation that led to it was read again.
                for child in node.children:
                    if _failed_edit(child):
                        self._send_back(child)
                if self._holds(self._label(node)):
                    self._ask(node)

    def wait(self, timeout_s: float | None, interrupt: Interrupt = NEVER) -> bool:
        """Wait for proposals while the search has nothing else to do; whether any are there. Asks again where it pays."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._arrived:
                    return True
                awaited = self._awaited
                if awaited:
                    left = None if deadline is None else deadline - time.monotonic()
                    # An interrupt is only seen between waits.
                    if interrupt.asked or (left is not None and left <= 0):
                        return False
                    self._changed.wait(0.5 if left is None else min(0.5, left))
            if not awaited and not self._ask_again():
                return False

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is under way, the last of it without a diagnosis; whether that is so."""
        if self._idle(timeout_s):
            return True
        self._hurry = True
        return self._idle(_WRITTEN_S)

    def _idle(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._awaited and time.monotonic() < deadline:
                self._changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))
            return not self._awaited

    def close(self) -> None:
        """Ask nothing more. What is under way is left behind."""
        self._closed = True

    @property
    def report(self) -> FeedReport:
        """What it came to so far."""
        with self._changed:
            faults = self._proposer.faults
            return FeedReport(self._requests, self._proposals, faults, self._stopped)

    # ---- asking

    def _ask_again(self) -> bool:
        return self._best is not None and self._ask(self._best)

    def _ask(self, node: Node) -> bool:
        round = self._rounds[node.id]
        if self._stopped or round >= _ROUNDS or node.id in self._deferred:
            return False
        held = self._holds(self._label(node))
        if node.parent is not None and not held and not self._pays():
            return False
        self._rounds[node.id] += 1
        self._submit(node, lambda: self._proposed(node, round, held), held)
        return True

    def _label(self, node: Node) -> str:
        return propose_label(node.path()[0].program, node.program, self._rounds[node.id])

    def _send_back(self, candidate: Node) -> None:
        """Have a failed edit repaired, once, as soon as the conversation that led to it is known."""
        parent, evaluation = candidate.parent, candidate.evaluation
        if parent is None or evaluation is None or candidate.id in self._sent_back:
            return
        if self._proposer.knows(parent.program, candidate.program):
            self._sent_back.add(candidate.id)
            held = self._holds(repair_label(parent.path()[0].program, parent.program, candidate.program))
            self._submit(parent, lambda: self._repaired(parent, candidate, evaluation, held), held)

    def _submit(self, node: Node, ask: Callable[[], Proposed | None], held: bool) -> None:
        if self._stopped or self._closed:
            return
        with self._changed:
            self._awaited += 1
        if held:
            self._do(_Job(node, ask))  # takes some milliseconds, and the search goes on from it
        else:
            self._jobs.put(_Job(node, ask))

    def _proposed(self, node: Node, round: int, held: bool) -> Proposed | None:
        diagnosed = self._diagnose(node, 0.0) if held else self._waited_for(node)
        if self._closed:
            return None
        try:
            context = make_context(
                node, self._spec, self._target,
                counters=self._counters, diagnosed=diagnosed, memory=self._recall(node),
            )  # fmt: skip
        except (OptimlError, LookupError):
            return None
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
        deadline = time.monotonic() + _DIAGNOSIS_S
        diagnosed = Diagnosed(pending=True)
        while diagnosed.pending and not self._hurry and not self._closed and time.monotonic() < deadline:
            diagnosed = self._diagnose(node, _TICK_S)
        return diagnosed

    def _repaired(self, parent: Node, candidate: Node, evaluation: Evaluation, held: bool) -> Proposed | None:
        diagnosed = self._diagnose(parent, 0.0) if held else self._waited_for(parent)
        if self._closed:
            return None
        return self._proposer.repair(parent.program, candidate.program, evaluation, diagnosed)

    def _work(self) -> None:
        while True:
            self._do(self._jobs.get())

    def _do(self, job: _Job) -> None:
        proposed: Proposed | None = None
        try:
            if not self._stopped and not self._closed:
                proposed = job.ask()
        except Exception as error:  # a defect of ours must not leave the search waiting for ever
            self._stopped = f"asking the model failed: {type(error).__name__}: {error}"
        with self._changed:
            self._awaited -= 1
            if proposed is not None:
                self._took(job.node, proposed)
            self._changed.notify_all()

    def _took(self, node: Node, proposed: Proposed) -> None:
        self._requests += proposed.requests
        self._proposals += len(proposed.proposals)
        if proposed.proposals:
            self._arrived.append((node, proposed))
        if Fault.DEFERRED in proposed.faults:
            self._deferred.add(node.id)
        if any(fault in _EXCHANGE for fault in proposed.faults) and not proposed.proposals:
            self._in_a_row += 1
        else:
            self._in_a_row = 0
        if self._in_a_row >= _HOPELESS:
            self._stopped = (
                self._stopped or f"the model was given up after {_HOPELESS} failures in a row: {proposed.what}"
            )
        if any(fault in _FINAL for fault in proposed.faults):
            self._stopped = self._stopped or proposed.what


def _failed_edit(node: Node) -> bool:
    """Whether a node is an edit of the model's that failed."""
    made = node.proposal is not None and node.proposal.proposer == "llm"
    return made and node.evaluation is not None and failed(node.evaluation.outcome)


def _ratio(evaluation: Evaluation) -> float:
    if evaluation.measurement is None or evaluation.outcome not in (Outcome.ACCEPTED, Outcome.SCREENED):
        return 1.0
    return max(1.0, evaluation.measurement.ratio)
