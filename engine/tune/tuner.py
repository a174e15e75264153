"""The tuner's loop: points are compiled ahead in parallel, each is verified and timed once, clear losers stop early."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from engine.compile.built import Built, NotBuilt
from engine.cuda.edit import edit_program
from engine.errors import OptimlError
from engine.evaluate.devices import Devices, Job, OneDevice, first_done
from engine.evaluate.evaluator import WIN, Evaluator, Twin, duplicate, unbuilt
from engine.model import PASSED, Evaluation, Failure, Outcome, Program, Target
from engine.rewrite.proposal import Proposal
from engine.search.build_queue import first
from engine.search.journal import Entry, Journal
from engine.search.participants import Builds
from engine.search.progress import JOURNAL, SELECT, Budget, Progress, on_devices
from engine.tune.build_pace import BuildPace
from engine.tune.evaluated_point import WRONG, Mark, RunningPoint, Tried, entry_of, original_us, value_of
from engine.tune.feasible import Feasible, fits
from engine.tune.point_features import figures_of, of_code, of_launch
from engine.tune.space import Point
from engine.tune.strategy import Strategy
from engine.tune.template import Template, UnusableTemplate

_CHECKED = 3  # points, the first ones evaluated, at which a template has to reproduce the original: by chance. Ours
_MOST_AHEAD = 256  # compiled points that wait; each holds some tens of kilobytes
_PATIENCE_S = 0.02  # how long the device waits for the most wanted point before it takes the next
_COUNTED_PATIENCE_S = 5.0  # the same where evaluations are limited and time is not: compilers take tenths of a second
_AHEAD_OF_EACH = 4  # points compiled for each that may still be evaluated: what the compiler says of them ranks them


@dataclass(frozen=True)
class TemplateSearch:
    """A template, the points of it that can run, and the strategy that orders them."""

    template: Template
    feasible: Feasible
    strategy: Strategy


@dataclass(frozen=True)
class Reports:
    """Where a tuner's results go: evaluated points to the journal, counts to `on_progress`, each best program to `on_best`."""

    journal: Journal | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_best: Callable[[Program, float], None] = lambda program, ratio: None


_NO_REPORTS = Reports()


class Tuner:
    """Searches one template. Use `start`, `run`, then `best`."""

    def __init__(
        self, original: Program, searched: TemplateSearch, evaluator: Evaluator, target: Target, builds: Builds,
        reports: Reports = _NO_REPORTS,
    ) -> None:  # fmt: skip
        self._original, self.template, self.feasible = original, searched.template, searched.feasible
        self.strategy, self._evaluator, self._target = searched.strategy, evaluator, target
        self._executor, self._in_flight = builds.executor, builds.in_flight
        self._journal, self._on_progress, self.progress = reports.journal, reports.on_progress, Progress()
        self.tried: list[Tried] = []
        self.trace: list[Mark] = []
        self.evaluations = 0  # that ran on the device: without duplicates and what did not compile
        self.impossible: dict[str, int] = {}  # limits that only compiled code told of, and how many points they took
        self.checked: list[Point] = []
        self.built: dict[Point, Built] = {}  # the incumbent's
        self._fastest: tuple[float, Built] | None = None  # of all that passed, the incumbent or not, with its value
        self._on_best = reports.on_best
        self._figures = figures_of(target.arch)
        self._rival: Built | None = None  # the incumbent of a search around this one
        self.against: float | None = None  # the best point's speedup over the rival
        self._pending: dict[Point, Future[Built]] = {}
        self._building: set[Point] = set()  # those of them that were not there at the last look
        self._arrived: deque[Point] = deque()  # those that have come since, from any thread
        self._asked: dict[Point, float] = {}  # when they were
        # Written once: for a rule's template that takes as long as reading the program.
        self.proposal_of: Callable[[Point], Proposal] = cache(self.template.proposal)
        self._pace = BuildPace()
        self._running: list[RunningPoint] = []  # the oldest first
        self._unwritten: deque[tuple[Tried, Built | None]] = deque()
        self._codes: dict[tuple[object, ...], Twin] = {}  # by machine code and launches
        self._known: Mapping[tuple[object, ...], Twin] = {}  # likewise, to a search around this one
        self._incumbent: Tried | None = None
        self._original_us, self._earlier_s = 0.0, 0.0
        self._next_id = 1
        self._chosen: Sequence[Point] = ()  # what was to be tried next when that was last asked
        self._begin = time.monotonic()
        for point in self.feasible.points:
            if launches := self.template.launches(point):
                self.strategy.describe(point, of_launch(launches[-1][0]))

    # ---- start

    def start(self, built: Built, evaluation: Evaluation) -> None:
        """Take the original as point of comparison, and what the journal holds as evaluated."""
        self._original_us = original_us(evaluation)
        default = self.template.default
        self._codes[built.identity] = (0, evaluation)
        if default is not None and default in self.feasible.points:
            self.strategy.tell(default, 0.0)
            self._chosen = ()  # it may be among what was asked for before
        earlier = list(self._journal.entries()) if self._journal is not None else []
        for entry in earlier:
            self._take_over(entry)
        if self._journal is not None and not earlier:
            told = "the original", self._original.digest, built.launches, evaluation
            self._journal.book(Entry(0, None, "", "", {}, *told, {}, 0.0))
        self._begin = time.monotonic()

    def begin(self, count: int) -> None:
        """Have so many of the points built that will be wanted first."""
        self._chosen = self.strategy.ask(count)
        self._submit(self._chosen)

    def enter(self, rival: Built | None, known: Mapping[tuple[object, ...], Twin]) -> None:
        """Go on as a part of another search, from now on: points have to beat its incumbent, and it knows some of them."""
        self._rival, self._known, self._begin = rival, known, time.monotonic()
        first(self._executor)

    def spent_s(self, seconds: float) -> None:
        """Count time that went before the search against its budget."""
        self._begin -= seconds

    def _take_over(self, entry: Entry) -> None:
        self._earlier_s = max(self._earlier_s, entry.elapsed_s)
        self._next_id = max(self._next_id, entry.id + 1)
        if entry.parent is None:
            return
        names = self.template.space.names
        point = tuple(int(entry.parameters[n]) for n in names)
        tried = Tried(entry.id, point, entry.evaluation, value_of(entry.evaluation))
        self._note(tried, ran=entry.evaluation.outcome is not Outcome.DUPLICATE)
        if entry.evaluation.code_hash:
            self._codes.setdefault((entry.evaluation.code_hash, entry.launches), (entry.id, entry.evaluation))
        self._crown(tried, None, None)

    # ---- run

    @property
    def elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._begin

    def run(self, budget: Budget, devices: Devices | None = None) -> None:
        """Evaluate points until the budget is spent or none is left. An interrupt leaves everything booked.

        Raises RefusedError where the template does not reproduce the original at one of the first points.
        """
        devices = devices or OneDevice(self._evaluator)
        try:
            for wanted in self.steps(budget, devices):
                begin = time.monotonic()
                budget.wait(wanted, self.elapsed_s)
                self.progress.spend("wait", time.monotonic() - begin)
        finally:
            devices.stop()  # an interrupt does not wait for a point

    def steps(self, budget: Budget, devices: Devices, idle: int | None = None) -> Iterator[Sequence[Future[Built]]]:
        """As `run`, for who has something else to do meanwhile: gives the builds of which one is wanted before it can go on.

        Each of the `devices` evaluates one point at a time, and is free then. It ends as well where `idle` points were decided and not
        one of them was new machine code.
        """
        try:
            yield from self._steps(budget, idle, devices)
        except OptimlError:
            # Who goes on without this template has the device to himself.
            wait([running.answer for running in self._running if not running.answer.cancel()])
            raise
        finally:
            for running in self._running:
                running.answer.cancel()
            for future in self._pending.values():
                future.cancel()
            self._write()

    def _steps(self, budget: Budget, idle: int | None, devices: Devices) -> Iterator[Sequence[Future[Built]]]:
        # The next point is chosen beside an evaluation, which takes milliseconds among thousands of points, unless evaluations are
        # counted and each has to tell what it can.
        beside = budget.seconds is not None or not self.strategy.patient
        most = on_devices(self._evaluator.signals.mode, devices.count, counted=not beside)

        def more() -> bool:
            return beside and not self._ended(budget, idle)

        while True:
            # What the last choice left; the next one is made beside that
            while len(self._running) < devices.count and more():
                underway = self._underway()
                rest = [point for point in self._chosen if point not in underway]
                point = self._for_device(self._there(rest), rest, more)
                if point is None:
                    break
                self._evaluate(point, devices, devices.count)
            points: Sequence[Point] = ()
            if not (ended := self._ended(budget, idle)):
                points = self._choose(budget)
                ended = "" if points else "every point was tried"
            if ended and not self._running:
                self.progress.stopped = ended
                return
            point = self._next(points, budget) if points else None
            waits = point is None
            point = self._for_device(point, points, more)
            if point is not None:
                self._evaluate(point, devices, most)
            elif waits and not self._running:
                yield [self._pending[p] for p in points if p in self._pending]
            if waits or (not beside and len(self._running) >= most):
                self._complete()
            self._write()

    def _for_device(self, point: Point | None, points: Sequence[Point], more: Callable[[], bool]) -> Point | None:
        """This one or the first of these that the device has to tell of; those before it are booked, as long as there is `more`.

        To choose anew after each takes as long as many need on the device, which has nothing to do meanwhile.
        """
        while point is not None and self._settled(point):
            points = [other for other in points if other != point]
            point = self._there(points) if more() else None
        return point

    def _choose(self, budget: Budget) -> Sequence[Point]:
        """What to try next, most wanted first, and have it built."""
        begin = time.monotonic()
        self._look_ahead()
        underway = self._underway()
        points: Sequence[Point] = [p for p in self.strategy.ask(self._ahead(budget)) if p not in underway]
        if budget.candidates is not None and self.strategy.patient:
            built = [point for point in self._pending if point not in underway]
            points = self._pace.in_time(points, built, budget, budget.candidates - self._begun)
        self._submit(points)
        self._chosen = points
        self.progress.spend(SELECT, time.monotonic() - begin)
        return points

    def _ended(self, budget: Budget, idle: int | None) -> str:
        """Why no point more is to be tried, as far as is known; else ""."""
        if budget.spent(self.elapsed_s, self._begun):
            return budget.ended_by
        if idle is not None and not self.evaluations and not self._running and self.progress.evaluated >= idle:
            return "all further points are duplicates (same SASS and launch)"
        return ""

    def _underway(self) -> set[Point]:
        return {running.point for running in self._running}

    @property
    def _begun(self) -> int:
        """How many points were evaluated or are on the device."""
        return self.progress.evaluated + len(self._running)

    def _ahead(self, budget: Budget) -> int:
        """How many points to ask for: enough to keep every compiler busy beside what is compiled and waits."""
        waiting = len(self._pending) - len(self._building)
        ahead = min(_MOST_AHEAD, self._in_flight + waiting)
        if budget.candidates is not None:
            left = budget.candidates - self._begun
            ahead = min(ahead, _AHEAD_OF_EACH * left + 4 if self.strategy.patient else left)
        return max(1, ahead)

    def _submit(self, points: Sequence[Point]) -> None:
        for point in points:
            if len(self._building) >= self._in_flight:
                break
            if point not in self._pending:
                self._have_built(point)

    def _have_built(self, point: Point) -> None:
        self._asked[point] = time.monotonic()
        self._building.add(point)
        self._pending[point] = future = self._executor.submit(self._build, point)
        future.add_done_callback(lambda _: self._arrived.append(point))  # to ask each anew took longer than to choose

    def _build(self, point: Point) -> Built:
        begin = time.monotonic()
        program = edit_program(self._original, self.proposal_of(point).edits)
        built = self._evaluator.build(program, by_rules=self.template.by_rules)
        self._pace.built(self._asked[point], begin)
        reason = fits(built.binary.resources, built.launches, self._target)
        if reason:
            raise _Impossible(reason)
        return built

    def _next(self, points: Sequence[Point], budget: Budget) -> Point | None:
        """The point to evaluate next; None where none of them is built."""
        for point in points:
            if point not in self._pending:
                self._have_built(point)
                break
        mine = {self._pending[p]: p for p in points if p in self._pending}
        first = next(iter(mine))
        if self._running:  # till the device is free, waiting costs nothing
            either: list[Future[Any]] = [first, *(running.answer for running in self._running)]
            budget.wait(either, self.elapsed_s)
        if not first.done() and (patience := self._patience(mine[first], budget.left_s(self.elapsed_s))):
            begin = time.monotonic()
            wait([first], timeout=patience)
            self.progress.spend("wait", time.monotonic() - begin)
        return self._there(points)

    def _there(self, points: Sequence[Point]) -> Point | None:
        """The first of these that is built."""
        return next((p for p in points if p in self._pending and self._pending[p].done()), None)

    def _patience(self, point: Point, left: float | None) -> float:
        """How long the most wanted point is waited for, in seconds, where so many are left."""
        if self._journal is not None and self._begun < _CHECKED:
            # What compiles fast is no test of the rest. A search around this one has no time for that.
            return min(_COUNTED_PATIENCE_S, math.inf if left is None else left)
        if not self.strategy.patient:
            return 0.0
        if left is None:
            return _COUNTED_PATIENCE_S
        takes_s = self._asked[point] + self._pace.answer_s - time.monotonic()  # as long as the last that was built
        return min(_PATIENCE_S, left) if abs(takes_s) < _PATIENCE_S else 0.0

    def _look_ahead(self) -> None:
        """Tell the strategy what the compiler said of points that wait, so that it ranks them by that too."""
        while self._arrived:
            self._look_at(self._arrived.popleft())

    def _look_at(self, point: Point) -> None:
        if point not in self._building:
            return  # who wanted it did not wait for its turn
        self._building.remove(point)
        error = self._pending[point].exception()
        if isinstance(error, _Impossible):
            self._rule_out(point, error)
        elif error is None and self._figures is not None:
            built = self._pending[point].result()
            if built.binary.resources:
                found = of_code(built.binary.resources[0], built.launches[-1][0], self._figures)
                self.strategy.describe(point, found)

    def _rule_out(self, point: Point, error: _Impossible) -> None:
        """Take a point away. That is no failure of it: what the compiler used showed that it is not feasible."""
        self.impossible[error.what] = self.impossible.get(error.what, 0) + 1
        del self._pending[point]
        self.strategy.tell(point, None)

    def _settled(self, point: Point) -> bool:
        """Book a compiled point where nothing is left to evaluate: that need not wait for the device."""
        self._look_ahead()
        self._look_at(point)
        if point not in self._pending:
            return True  # the compiler ruled it out
        try:
            built = self._pending[point].result()
        except NotBuilt as error:
            self._book(point, unbuilt(error))
            return True
        except OptimlError as error:
            self._book(point, Evaluation(Outcome.SCREENED_OUT, failure=Failure(error.what)))
            return True
        twin = self._codes.get(built.identity) or self._known.get(built.identity)
        if twin is not None:
            self._book(point, duplicate(built, twin), built)
            return True
        return False

    def _evaluate(self, point: Point, devices: Devices, most: int) -> None:
        """Have a compiled point evaluated, with so many on the devices at most, unless one there turns out to be the same machine code."""
        built = self._pending[point].result()
        while len(self._running) >= most or any(running.built.identity == built.identity for running in self._running):
            self._complete()
            if self._settled(point):
                return
        champion = self._champion
        answer = devices.submit(Job(built, champion, brief=True))
        answer.add_done_callback(partial(self._pace.evaluated, time.monotonic()))
        self._running.append(RunningPoint(point, built, champion, answer))

    def _complete(self) -> None:
        """Book the point that has been evaluated, the oldest of several; waits for one."""
        if not self._running:
            return
        running = first_done(self._running)
        try:
            evaluation, against = running.answer.result()
        except NotBuilt as error:  # by the device, which adds what it needs
            self._book(running.point, unbuilt(error))
            return
        beside = running.champion is self._champion  # else one is the best by now that it was not measured beside
        self._book(running.point, evaluation, running.built, against if beside else None, ran=True)

    @property
    def _champion(self) -> Built | None:
        """What points are measured beside; None: the original."""
        return self.built.get(self._incumbent.point) if self._incumbent is not None else self._rival

    def _book(
        self, point: Point, evaluation: Evaluation, built: Built | None = None, against: float | None = None, *,
        ran: bool = False,
    ) -> None:  # fmt: skip
        """Tell the strategy of an evaluated point, and make it the best if it is."""
        tried = Tried(self._next_id, point, evaluation, value_of(evaluation))
        self._next_id += 1
        del self._pending[point]
        self._unwritten.append((tried, built))
        self._note(tried, ran=ran)
        if built is not None and tried.value is not None and evaluation.outcome in PASSED:
            self._keep(tried.value, built)
        if ran and built is not None:
            self._codes.setdefault(built.identity, (tried.id, tried.evaluation))
            self._crown(tried, built, against)
        self._check(tried)

    def _keep(self, value: float, built: Built) -> None:
        if self._fastest is None or value > self._fastest[0]:
            self._fastest = value, built
            self._on_best(built.program, 2**value)

    def _check(self, tried: Tried) -> None:
        """Refuse a template that does not reproduce the original at its first points."""
        if len(self.checked) >= _CHECKED:
            return
        outcome, point = tried.evaluation.outcome, self.template.space.named(tried.point)
        others = len(self.feasible.points) - (self.template.default in self.feasible.points)
        at = ", ".join(f"{n} = {v}" for n, v in point.items())
        reason = tried.evaluation.failure.reason if tried.evaluation.failure else outcome.value
        if outcome in WRONG:
            what = f"the template does not reproduce the original at {at}: {reason}"
            do = f"omit the rule {self.template.name}, and please report it"
            if self.template.name == "constants":
                do = "exclude such points with a where condition, or fix the code"
            raise UnusableTemplate(what, do=do, point=point, evaluation=tried.evaluation)
        if tried.value is not None or outcome is Outcome.GUARDRAIL:
            self.checked.append(tried.point)
        elif not self.checked and len(self.tried) >= min(2 * _CHECKED, others):
            what = f"no point of the template could be built and run; the last, {at}: {reason}"
            do = "fix the code or the conditions"
            raise UnusableTemplate(what, do=do, point=point, evaluation=tried.evaluation)

    # ---- booking

    def _write(self) -> None:
        """Put into the journal what was evaluated and is not there yet, and tell of it."""
        written = bool(self._unwritten)
        while self._unwritten:
            tried, built = self._unwritten[0]
            begin = time.monotonic()
            if self._journal is not None:
                self._journal.book(entry_of(tried, self.template, self._original, built, self.elapsed_s))
            self._unwritten.popleft()
            self.progress.spend(JOURNAL, time.monotonic() - begin)
        if written and self.trace:
            self._on_progress(self.progress)

    def _note(self, tried: Tried, *, ran: bool) -> None:
        """Count an evaluated point and tell the strategy of it."""
        self.tried.append(tried)
        self.progress.count(tried.evaluation, self.elapsed_s)
        self.evaluations += ran
        begin = time.monotonic()
        self.strategy.tell(tried.point, tried.value)
        self.progress.spend(SELECT, time.monotonic() - begin)

    def _crown(self, tried: Tried, built: Built | None, against: float | None) -> None:
        """Make a point the best if it beat the best side by side."""
        value, held = tried.value, self._incumbent
        # What is slower than the original is no yardstick: the original is.
        better = value is not None and value > 0 and tried.evaluation.outcome in PASSED
        if better and held is not None and held.value is not None:
            better = against > WIN if against is not None else (value or 0.0) > held.value + math.log2(WIN)
        elif better and self._rival is not None and against is not None:
            better = against > WIN
        if better:
            self._incumbent = tried
            if self._rival is not None and (against is not None or held is not None):
                # Each best beat the one before it, the first the rival.
                step = against if against is not None else 2 ** ((value or 0.0) - (held.value or 0.0 if held else 0.0))
                self.against = (self.against or 1.0) * step
            if built is not None:
                self.built = {tried.point: built}
            values = self.template.space.named(tried.point)
            self.progress.best_ratio = 2 ** (value or 0.0)
            self.progress.best_summary = ", ".join(f"{n} = {v}" for n, v in values.items())
        ratio = max(1.0, 2 ** (self._incumbent.value or 0.0)) if self._incumbent is not None else 1.0
        best_us = self._original_us / ratio
        self.trace.append(Mark(self.evaluations, self.progress.evaluated, self.elapsed_s, ratio, best_us))

    # ---- what came out

    def built_of(self, tried: Tried) -> Built | None:
        """The machine code of the first of `best`; None where it was not kept."""
        if self._incumbent is not None:
            return self.built.get(tried.point)
        return self._fastest[1] if self._fastest is not None and self._fastest[0] == tried.value else None

    def best(self, count: int) -> list[Tried]:
        """The fastest points that passed, each once, the incumbent first."""
        passed = {t.point: t for t in self.tried if t.value is not None and t.evaluation.outcome in PASSED}
        ordered = sorted(passed.values(), key=lambda t: -(t.value or 0.0))
        if self._incumbent is not None:
            ordered = [self._incumbent, *(t for t in ordered if t.point != self._incumbent.point)]
        return ordered[:count]


class _Impossible(OptimlError):
    """What a point's compiled code uses does not fit the target."""
