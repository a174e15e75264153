"""What a search has come to: its nodes and their rows in the journal, the machine code that is known, the best so far."""

import time
from collections import deque
from collections.abc import Callable

from engine.compile.built import Built
from engine.evaluate.evaluator import WIN, Twin
from engine.model import PASSED, Evaluation, Failure, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.search.asking import Asking
from engine.search.journal import Entry
from engine.search.journal_writer import Scribe
from engine.search.participants import Participants
from engine.search.pending import Booked
from engine.search.progress import BOOK, JOURNAL, Plateau, Progress
from engine.search.tree import TUNER, Node, Tree


class Books:
    """The bookkeeping of one search. `told` is called after each candidate that is in the journal."""

    def __init__(
        self, tree: Tree, scribe: Scribe, asking: Asking, participants: Participants, told: Callable[[Progress], None]
    ) -> None:
        self.tree, self.scribe, self._asking, self._told = tree, scribe, asking, told
        self._feed, self._watch, self._inner = participants.feed, participants.watch, participants.inner
        self._on_incumbent = participants.on_incumbent
        self.progress = Progress()
        self.incumbent: Node | None = None
        self.built: dict[int, Built] = {}
        self.codes: dict[tuple[object, ...], Twin] = {}  # by machine code and launches
        self._dropped: set[tuple[object, ...]] = set()  # edits that an earlier part of this run could not apply
        self._fresh: deque[Booked] = deque()  # in the tree, and who counts was not told yet
        self.plateau: Plateau | None = None
        self.next_id = 1
        self._earlier_s, self._begin = 0.0, time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """The time of the run, its earlier parts included."""
        return self._earlier_s + time.monotonic() - self._begin

    def begin(self, before_s: float = 0.0) -> None:
        """The search begins now, or so many seconds ago."""
        self._begin = time.monotonic() - before_s

    def spent_s(self, seconds: float) -> None:
        """Count time that went before the search."""
        self._begin -= seconds

    def take_over(self, entry: Entry) -> None:
        """Book what an earlier part of this run evaluated."""
        self._earlier_s = max(self._earlier_s, entry.elapsed_s)
        self.next_id = max(self.next_id, entry.id + 1)
        if entry.parent is None:
            return
        parent = self.tree.nodes[entry.parent]
        program = self.tree.root.program.replace(entry.files)
        proposal = Proposal(entry.proposer, entry.rule, entry.summary, {}, entry.parameters, entry.prior)
        node = self.tree.add(entry.id, parent, proposal, program, entry.evaluation)
        self._asking.pose(node)
        if program.digest == parent.program.digest:
            self._dropped.add(_mark(parent, proposal))
        if entry.evaluation.code_hash:
            self.codes.setdefault((entry.evaluation.code_hash, entry.launches), (node.id, entry.evaluation))
        if self._inner is not None and proposal.proposer == TUNER:
            self._inner.taken_over(program, proposal.rule)
        self._count(node)
        if self._wins(entry.evaluation, entry.against):
            self._follow(node)
        if self._feed is not None:
            self._feed.booked(node)

    def was_dropped(self, parent: Node, proposal: Proposal) -> bool:
        """Whether an earlier part of this run could not apply the edit."""
        return _mark(parent, proposal) in self._dropped

    @property
    def champion(self) -> Built | None:
        """What candidates are measured against; None: the original."""
        return self.built.get(self.incumbent.id) if self.incumbent else None

    def enter(
        self, parent: Node, proposal: Proposal, program: Program, evaluation: Evaluation, built: Built | None,
        against: float | None,
    ) -> Node:  # fmt: skip
        """Book an evaluated candidate as a node, which is the incumbent then if it is the best."""
        with self.progress.stage(BOOK):
            self.tree.settle(parent)
            node, entry = self._book(parent, proposal, program, evaluation, built, against)
            first = built if evaluation.outcome is not Outcome.DUPLICATE else None
            best = False
            if first is not None:
                self.codes.setdefault(first.identity, (node.id, evaluation))
                best = self._crown(node, first, against)
            self._keep(Booked(node, entry, first, best))
            twin = self.codes.get(built.identity) if built is not None and first is None else None
            if twin is not None:
                self.tree.found_again(proposal.proposer, self.tree.nodes[twin[0]], tried=True)
        return node

    def drop(self, parent: Node, proposal: Proposal, reason: str) -> None:
        """Book an edit that cannot be applied."""
        with self.progress.stage(BOOK):
            self.tree.settle(parent)
            evaluation = Evaluation(Outcome.SCREENED_OUT, failure=Failure(reason))
            self._keep(Booked(*self._book(parent, proposal, parent.program, evaluation, None)))

    def _keep(self, booked: Booked) -> None:
        self.progress.unwritten += self._stands_for(booked.node)
        self.scribe.book(booked)
        self._fresh.append(booked)

    def write_up(self, *, all: bool = False) -> None:
        """What is left to do for candidates that are in the tree: nothing that the next evaluation has to wait for."""
        while self._fresh:
            booked = self._fresh.popleft()
            built, evaluation = booked.built, booked.entry.evaluation
            if built is not None and self._watch is not None and evaluation.outcome in PASSED:
                self._watch.passed(booked.node, built)  # which may wait for counters
            if built is not None and booked.best:
                with self.progress.stage(BOOK):
                    self._on_incumbent(built, evaluation)
        for booked, seconds in self.scribe.written(all=all):
            self.progress.spend(JOURNAL, seconds)
            with self.progress.stage(BOOK):
                # Last: what it asks of the profiler about the node must find it known there.
                if self._feed is not None:
                    self._feed.booked(booked.node)
                self.progress.unwritten -= self._stands_for(booked.node)
                self._told(self.progress)

    def _book(
        self, parent: Node, proposal: Proposal, program: Program, evaluation: Evaluation, built: Built | None,
        against: float | None = None,
    ) -> tuple[Node, Entry]:  # fmt: skip
        node = self.tree.add(self.next_id, parent, proposal, program, evaluation)
        self._asking.pose(node)
        self.next_id += 1
        original = self.tree.root.program
        changed = {k: v for k, v in program.files.items() if original.files.get(k) != v}
        self._count(node)
        return node, Entry(
            node.id, parent.id, proposal.proposer, proposal.rule, dict(proposal.parameters), proposal.summary,
            program.digest, built.launches if built else (), evaluation, changed, self.elapsed_s, proposal.prior, against,
        )  # fmt: skip

    def _crown(self, node: Node, built: Built, against: float | None) -> bool:
        """Whether a candidate is the best so far, now."""
        if node.evaluation is None or not self._wins(node.evaluation, against):
            return False
        if self.incumbent is not None and self.incumbent.id != 0:
            self.built.pop(self.incumbent.id, None)
        self._follow(node)
        self.built[node.id] = built
        return True

    def _wins(self, evaluation: Evaluation, against: float | None) -> bool:
        """Whether a candidate takes the incumbent's place: side by side where it was measured so, else by both ratios."""
        measurement = evaluation.measurement
        if (
            evaluation.outcome not in (Outcome.ACCEPTED, Outcome.SCREENED)
            or measurement is None
            or measurement.ratio <= 1.0
        ):
            return False
        if self.incumbent is None:
            return True
        if against is not None:
            return against > WIN
        held = self.incumbent.evaluation.measurement if self.incumbent.evaluation else None
        return held is None or measurement.ratio > held.ratio * WIN

    def _follow(self, node: Node) -> None:
        self.incumbent = node
        if node.evaluation is not None and node.evaluation.measurement is not None:
            self.progress.best_ratio = node.evaluation.measurement.ratio
            if self.plateau is not None:
                self.plateau.note(self.progress.evaluated, self.progress.best_ratio)
        self.progress.best_summary = node.proposal.summary if node.proposal else ""

    def _count(self, node: Node) -> None:
        assert node.evaluation is not None
        self.progress.count(node.evaluation, self.elapsed_s, self._stands_for(node))

    def _stands_for(self, node: Node) -> int:
        """How many candidates a node is: of a template, the points that were tried."""
        tuned = self._inner is not None and node.proposal is not None and node.proposal.proposer == TUNER
        return self._inner.points_of(node.evaluation.notes) if tuned and self._inner and node.evaluation else 1


def _mark(parent: Node, proposal: Proposal) -> tuple[object, ...]:
    """What an edit is known by across processes."""
    return parent.id, *proposal.identity
