"""The search: keeps several candidates in flight so that compiling never waits for the device, books each at once."""

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from engine.compile.built import Built, NotBuilt
from engine.cuda.edit import edit_program
from engine.evaluate.devices import Job, OneDevice, first_done
from engine.evaluate.evaluator import Evaluator, duplicate, unbuilt
from engine.model import Evaluation, Program
from engine.process.cores import attentive
from engine.rewrite.proposal import Proposal
from engine.search.asking import Asking
from engine.search.books import Books
from engine.search.journal import Credit, Entry, Journal
from engine.search.journal_writer import Scribe
from engine.search.participants import Builds, Participants
from engine.search.pending import Running, Within
from engine.search.progress import (
    BOOK,
    EDIT,
    FLAT,
    READ,
    SELECT,
    SPARE,
    Budget,
    Plateau,
    Progress,
    on_devices,
)
from engine.search.question import Question
from engine.search.read_ahead import ReadAhead
from engine.search.tree import TUNER, Node, NotYet, Tree

# Templates that are searched at once. With two the device waits less for the compilers and runs up to twice the candidates, but on the
# suite these find nothing better, and choosing among them takes longer (docs/search.md). Ours.
_WITHIN = 1
_NOBODY = Participants()

_Pending = dict[Future[Built], tuple[Node, Proposal, Program]]  # candidates that are built, or wait for the device


class Search:
    """One run over one kernel. Use `run`, then `engine.search.best`."""

    def __init__(
        self,
        tree: Tree,
        evaluator: Evaluator,
        journal: Journal,
        builds: Builds,
        participants: Participants = _NOBODY,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._feed, self._watch, self._inner = participants.feed, participants.watch, participants.inner
        self.tree, self.evaluator, self.journal = tree, evaluator, journal
        self._builds, self._executor, self._in_flight = builds, builds.executor, builds.in_flight
        self._on_progress = on_progress
        self._ahead = ReadAhead(builds.prefetch, builds.readers or builds.executor)
        self._scribe = Scribe(journal)
        self._asking = Asking(tree, self._feed, self._scribe)
        self._books = Books(
            tree, self._scribe, self._asking, participants, lambda progress: self._on_progress(progress)
        )
        self._on_incumbent = participants.on_incumbent
        tree.known = self._known
        self._running: list[Running] = []  # the oldest first
        self._pending: _Pending = {}
        self._open: Counter[str] = Counter()  # digests of what is built or evaluated
        self._queued: deque[tuple[Node, Proposal]] = deque()  # templates whose turn comes
        self._within: list[Within] = []
        self._coming: list[Future[Any]] = []  # what the tree waits for before it can say what to try next
        self._awaited_with = 0  # nodes, when it said so
        self._ordered = False  # candidates are booked in the order of their selection
        self._selected: bool | None = None  # whether nothing more was there at the selection after the last booking

    @property
    def progress(self) -> Progress:
        return self._books.progress

    @property
    def incumbent(self) -> Node | None:
        """The best candidate so far, if one is better than the original."""
        return self._books.incumbent

    @property
    def built(self) -> dict[int, Built]:
        """The machine code of the original and of the incumbent, by their numbers."""
        return self._books.built

    @property
    def _plateau(self) -> Plateau | None:
        return self._books.plateau

    # ---- start

    def start(self, built: Built, evaluation: Evaluation) -> None:
        """Book the original as node 0, or take over what the journal already holds."""
        root = self.tree.root
        root.evaluation = evaluation
        self.built[0] = built
        self._books.codes[built.identity] = root.id, evaluation
        entries = list(self.journal.entries())
        if not entries:
            self.journal.book(
                Entry(0, None, "", "", {}, "the original", root.program.digest, built.launches, evaluation, {}, 0.0)
            )
        if self._watch is not None:
            self._watch.passed(root, built)
        if self._feed is not None:
            self._feed.booked(root)
        self.tree.reward.resources = evaluation.resources
        questions = self._asking.read(self.journal)
        self._asking.pose(root)
        credits: defaultdict[int, list[Credit]] = defaultdict(list)
        for credit in self.journal.credits():
            credits[credit.after].append(credit)
        for entry in entries:
            self._books.take_over(entry)
            for credit in credits[entry.id]:
                self.tree.found_again(credit.proposer, self.tree.nodes.get(credit.candidate), tried=credit.tried)
        self.tree.credited = lambda twin, proposer, tried: self._scribe.book_credit(
            Credit(self._books.next_id - 1, twin.id, proposer, tried)
        )
        for row in questions:
            self._asking.go_on(row)
        for id, proxies in self.journal.proxies().items():
            self.tree.observe(self.tree.nodes[id], proxies)
        if self.incumbent is not None and self.incumbent.evaluation is not None:
            with contextlib.suppress(NotBuilt):  # then candidates are held against the original until one is better
                best = self.built[self.incumbent.id] = self.evaluator.build(
                    self.incumbent.program, by_rules=self.incumbent.by_rules
                )
                self._on_incumbent(best, self.incumbent.evaluation)
        self._books.begin()

    def spent_s(self, seconds: float) -> None:
        """Count time that went before the search (setting up and validating) against its budget."""
        self._books.spent_s(seconds)

    def enter(self, phase: str) -> None:
        """Report that a phase of the run begins."""
        self.progress.phase, self.progress.elapsed_s = phase, self.elapsed_s
        self._on_progress(self.progress)

    # ---- run

    @property
    def elapsed_s(self) -> float:
        return self._books.elapsed_s

    def run(self, budget: Budget, *, nearly: Budget | None = None, then: Callable[[], None] = lambda: None) -> None:
        """Search until the budget is spent or nothing is left to try. An interrupt leaves everything booked.

        Each device evaluates one candidate at a time: what is to be written of the one before, and what to try next, is done beside
        that. `then` is called once, on this thread, when the smaller budget `nearly` is spent, or a plateau is near.
        """
        self._devices = self._builds.devices or OneDevice(self.evaluator)
        self._mode = self.evaluator.signals.mode  # what else they say of many devices takes long to put together
        # Where candidates are counted the clock must not decide which: each is selected with the same results whatever takes how long.
        self._ordered, self._selected = budget.candidates is not None and self._devices.count == 1, None
        # A model may have what rules have not: a search with one has the whole budget.
        flat = budget.candidates is None and not budget.exhaust and self._feed is None
        self._books.plateau = Plateau(self.progress.evaluated, self.progress.best_ratio) if flat else None
        self._scribe.open()
        try:
            with attentive():
                self._run(budget, nearly, then)
                self._complete_all()
                for within in list(self._within):  # it ends with what it has
                    self._advance(within, budget)
                self._books.write_up(all=True)
        finally:
            for within in self._within:
                within.steps.close()
            for parent in [*(within.parent for within in self._within), *(parent for parent, _ in self._queued)]:
                self.tree.settle(parent)
            self._within, self._queued = [], deque()
            self._devices.stop()  # an interrupt does not wait for a candidate
            self._scribe.close()

    def _run(self, budget: Budget, nearly: Budget | None, then: Callable[[], None]) -> None:
        try:
            while True:
                if nearly is not None and (self._spent(nearly) or self._nearly_flat):
                    nearly = None
                    then()
                exhausted = self._fill(budget)
                idle = not (self._pending or self._running or self._within)
                if idle and exhausted and self._asking.coming:
                    self._books.write_up(all=True)
                    with self.progress.stage("waited for answers"):
                        budget.wait(self._asking.coming, self.elapsed_s)
                    if not self._spent(budget):
                        continue
                    exhausted = False
                if idle and not self._coming:
                    self.progress.stopped = self._asking.nothing_left if exhausted else budget.ended_by
                    return
                done = self._await(budget)
                while self._may_book and any(running.answer in done for running in self._running):
                    self._complete()
                self._occupy(budget)
                if self._spent(budget):
                    self.progress.stopped = FLAT if self._flat else budget.ended_by
                    return
                self._books.write_up()
        finally:
            for future, (parent, _, program) in self._pending.items():
                future.cancel()
                self.tree.settle(parent)
                self._open[program.digest] -= 1
            self._pending = {}

    def _await(self, budget: Budget) -> set[Future[Any]]:
        """Wait for something to go on with."""
        running: list[Future[Any]] = [running.answer for running in self._running if self._may_book]
        wanted = [future for within in self._within for future in within.wanted]
        building_now = [future for future in self._pending if not future.done()]
        answers = self._asking.coming
        some = [*running, *building_now, *self._built_now(), *wanted, *self._coming, *self._scribe.last, *answers]
        building = sum(not future.done() for future in (*self._pending, *wanted))
        waiting = time.monotonic()
        done = budget.wait(some, self.elapsed_s)
        if not running:
            # Where the tree could say nothing and compilers had nothing to do for that, it is no time of theirs.
            idle = building < max(1, self._in_flight - SPARE)
            self.progress.spend(READ if self._coming and idle else "wait", time.monotonic() - waiting)
        return done

    def _occupy(self, budget: Budget) -> None:
        """Give the device what is ready for it; what else is to be done is done beside the candidate that is on it then, if any."""
        for within in [within for within in self._within if within.ready]:
            if self._spent(budget):
                return
            self._free_device()
            self._advance(within, budget)
        self._begin_within(budget)
        for future in self._built_now():
            if self._spent(budget):
                return
            parent, proposal, program = self._pending.pop(future)
            self._open[program.digest] -= 1
            self._finish(future, parent, proposal, program, budget)
            if len(self._running) == self._most(budget):
                return

    def _built_now(self) -> list[Future[Built]]:
        """Builds to go on with now: with several devices the twin of what is evaluated waits for that, and holds up no other."""
        if self._ordered:
            first = next(iter(self._pending), None)
            ready = first is not None and first.done() and not self._running
            return [first] if first is not None and ready and (self._may_book or self._is_new(first)) else []
        done = [future for future in self._pending if future.done()]
        if not self._running or self._devices.count == 1:
            return done
        running = [each.built.identity for each in self._running]
        return [f for f in done if f.exception() is not None or f.result().identity not in running]

    @property
    def _may_book(self) -> bool:
        """Whether the next selection is one that the next result comes in time for."""
        return not self._ordered or self._selected is not None

    def _is_new(self, building: Future[Built]) -> bool:
        """Whether what was built is for the device, and books nothing before the next selection."""
        template = self._inner is not None and self._pending[building][1].proposer == TUNER
        return not template and building.exception() is None and building.result().identity not in self._books.codes

    def _is_running(self, built: Built) -> bool:
        return any(running.built.identity == built.identity for running in self._running)

    def _spent(self, budget: Budget) -> bool:
        return self._flat or budget.spent(self.elapsed_s, self.progress.evaluated)

    @property
    def _flat(self) -> bool:
        return self._plateau is not None and self._plateau.reached(self.progress.evaluated)

    @property
    def _nearly_flat(self) -> bool:
        return self._plateau is not None and self._plateau.near(self.progress.evaluated)

    def _fill(self, budget: Budget) -> bool:
        """Start builds until enough are in flight; True when the tree has nothing more to offer now."""
        with self.progress.stage(BOOK):
            if self._asking.collect(self._known):
                self._coming, self._selected = [], None
            self.observe()
        if not self._ordered or self._selected is None:
            self._selected = self._select_more(budget)
        return bool(self._selected)

    def _select_more(self, budget: Budget) -> bool | None:
        """As `_fill`; None where the tree cannot tell yet."""
        if self._coming and not self._coming[0].done() and self._awaited_with == len(self.tree.nodes):
            return None  # it would say so again
        self._coming = []
        running = len(self._running) + len(self._within) + len(self._queued)
        while len(self._pending) + running < self._in_flight:
            if (
                budget.candidates is not None
                and self.progress.evaluated + len(self._pending) + running >= budget.candidates
            ):
                return False
            if budget.candidates is None and self._waited_for():
                return False  # the rest is chosen beside it
            try:
                few = not self._ordered and len(self._pending) + running < self._in_flight // 2
                with self.progress.stage(SELECT):
                    chosen = self.tree.select(asking=self._asking.possible, eager=few)
            except NotYet as awaited:  # what is built already can be evaluated meanwhile
                self._coming, self._awaited_with = [awaited.coming], len(self.tree.nodes)
                return None
            if chosen is None:
                return True
            parent, proposal = chosen
            if isinstance(proposal, Question):
                self._asking.ask(parent, proposal)
                continue
            try:
                with self.progress.stage(EDIT):
                    program = edit_program(parent.program, proposal.edits)
            except Exception as error:
                if self._books.was_dropped(parent, proposal):
                    self.tree.settle(parent)
                else:
                    self._books.drop(parent, proposal, f"the edit cannot be applied: {error}")
                    self._selected = None
                continue
            if self._inner is not None and proposal.proposer == TUNER:
                # Its first point may be known by another way: the others are not.
                self._inner.ready(parent.program, proposal, self._executor)
            elif self._known(program.digest):
                self.tree.settle(parent)  # the same text by another way: already known, costs nothing
                self.tree.found_again(proposal.proposer, self.tree.digests.get(program.digest))
                continue
            by_rules = parent.by_rules and proposal.by_rules
            building = self._builds.begun(program) if by_rules else None
            if building is None:
                building = Future()
                self._executor.submit(self._build, program, by_rules, building)
            self._await_build(building, parent, proposal, program)
        return False

    def _await_build(self, building: Future[Built], parent: Node, proposal: Proposal, program: Program) -> None:
        self._pending[building] = (parent, proposal, program)
        self._open[program.digest] += 1

    def _waited_for(self) -> bool:
        """Whether a device has nothing to do although something is there for it."""
        if self._running and len(self._running) >= self._devices.count:
            return False
        return bool(self._built_now()) or any(within.ready for within in self._within)

    def _known(self, digest: str) -> bool:
        """Whether the program with this digest is in the tree, or is built or evaluated."""
        return digest in self.tree.digests or self._open[digest] > 0

    def observe(self) -> None:
        """Book what was counted beside the search, and let it count."""
        for seen in self._watch.arrivals() if self._watch is not None else ():
            self.tree.observe(self.tree.nodes[seen.node], seen.proxies)
            self._scribe.book_profile(seen)

    def _build(self, program: Program, by_rules: bool, building: Future[Built]) -> None:
        if not building.set_running_or_notify_cancel():
            return
        try:
            building.set_result(self.evaluator.build(program, by_rules=by_rules))
        except BaseException as error:
            building.set_exception(error)

    def _finish(
        self, future: Future[Built], parent: Node, proposal: Proposal, program: Program, budget: Budget
    ) -> None:
        """Have what was built evaluated, or book it where nothing is left to evaluate."""
        if self._inner is not None and proposal.proposer == TUNER:
            self._queued.append((parent, proposal))
            self._begin_within(budget)
            return
        try:
            built = future.result()
        except NotBuilt as error:
            self._enter(parent, proposal, program, unbuilt(error), None, None)
            return
        twin = self._books.codes.get(built.identity)  # what is known need not wait for the device
        while twin is None and (len(self._running) >= self._most(budget) or self._is_running(built)):
            if self._devices.count > 1 and self._is_running(built):
                self._await_build(future, parent, proposal, program)
                return
            self._complete()
            twin = self._books.codes.get(built.identity)
        if twin is not None:
            self._enter(parent, proposal, program, duplicate(built, twin), built, None)
            return
        champion = self._books.champion
        answer = self._devices.submit(Job(built, champion))
        self._running.append(Running(parent, proposal, program, built, champion, answer))
        self._open[program.digest] += 1

    def _begin_within(self, budget: Budget) -> None:
        """Begin to search within the templates whose turn has come."""
        while self._inner is not None and self._queued and len(self._within) < _WITHIN:
            self._free_device()  # it is theirs as long as they can go on
            parent, proposal = self._queued.popleft()
            champion, candidates = self._books.champion, budget.candidates
            left = replace(
                budget,
                seconds=budget.left_s(self.elapsed_s),
                candidates=None if candidates is None else candidates - self.progress.evaluated,
            )
            steps = self._inner.search(
                parent.program,
                proposal,
                champion,
                left,
                replace(self._builds, devices=self._devices),
                self._books.codes,
            )
            self._within.append(Within(parent, champion, steps))
            self._advance(self._within[-1], budget)

    def _advance(self, within: Within, budget: Budget) -> None:
        """Go on with a search within a template until it waits for builds; to its end where the budget's has come.

        Where evaluations are counted each is chosen with all before it, so nothing is evaluated while it waits.
        """
        found = within.advance()
        while found is None and (budget.candidates is not None or self._spent(budget)):
            with self.progress.stage("wait"):
                budget.wait(within.wanted, self.elapsed_s)
            found = within.advance()
        if found is None:
            return
        self._within.remove(within)
        if not found.points:  # it is tried when the run is resumed
            self.tree.settle(within.parent)
            return
        evaluation = found.evaluation
        if found.built is not None and found.built.identity in self._books.codes:
            evaluation = duplicate(found.built, self._books.codes[found.built.identity], evaluation.notes)
        for stage, spent in found.stage_s.items():
            self.progress.spend(stage, spent - evaluation.stage_s.get(stage, 0.0))  # which is booked with its node
        against = found.against if within.champion is self._books.champion else None  # measured beside another
        built = found.built and replace(found.built, by_rules=found.built.by_rules and within.parent.by_rules)
        self._enter(within.parent, found.proposal, found.program, evaluation, built, against)

    def _complete(self) -> None:
        """Book the candidate that has been evaluated, the oldest of several; waits for one."""
        running = first_done(self._running)
        parent, proposal, program, built = running.parent, running.proposal, running.program, running.built
        self._open[program.digest] -= 1
        try:
            evaluation, against = running.answer.result()
        except NotBuilt as error:  # by the device, which adds what it needs
            self._enter(parent, proposal, program, unbuilt(error), None, None)
            return
        except BaseException:
            self.tree.settle(parent)
            raise
        # Else one is the best by now that it was not measured against
        beside = running.champion is self._books.champion
        self._enter(parent, proposal, program, evaluation, built, against if beside else None)

    def _enter(
        self, parent: Node, proposal: Proposal, program: Program, evaluation: Evaluation, built: Built | None,
        against: float | None,
    ) -> None:  # fmt: skip
        self._ahead.booked(self._books.enter(parent, proposal, program, evaluation, built, against))
        self._selected = None

    def _complete_all(self) -> None:
        """Book what is on the devices, so that they are free."""
        while self._running:
            self._complete()

    def _free_device(self) -> None:
        """Book what is on the device where there is only one."""
        if self._devices.count == 1:
            self._complete_all()

    def _most(self, budget: Budget) -> int:
        """How many candidates may be on the devices at once."""
        return on_devices(self._mode, self._devices.count, counted=budget.candidates is not None)
