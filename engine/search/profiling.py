"""What the profiler says of programs while a search runs: counters for the reward, diagnoses that reweigh proposals, and the
trajectory's evidence."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from engine.compile.built import Built
from engine.errors import OptimlError
from engine.model import Binary, Evaluation, Program, Target
from engine.process.fair_lock import WAITED
from engine.profile.changes import moved
from engine.profile.counters import CHEAP, FULL, LINES, Profile, ProfileFailure
from engine.profile.diagnosis import CaseFacts, Diagnosis, diagnose, diagnose_static
from engine.profile.evidence import array_bytes, evidence_for, heaviest_case, request_for
from engine.profile.line_weights import LineWeight, counted_lines
from engine.profile.priors import reweighted
from engine.profile.service import BATCH, Answer, Priority, ProfileService
from engine.profile.source_lines import SourceLines, source_lines
from engine.rewrite.proposal import Proposal
from engine.search.participants import Observation
from engine.search.progress import SELECT
from engine.search.reward import Proxies
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec

Known = tuple[Diagnosis, Profile]
Path = Sequence[tuple[Built, Evaluation]]  # programs from the original on
Lined = tuple[Binary, str]  # machine code with line information, and its listing
_LINES_S = 12.0  # a profiler's start, a launch of a second, and its report
_LINES_US = 10_000.0  # the code is instrumented, and runs a hundred times as long
PATIENCE_S = 40.0  # starting ncu takes some four seconds, a kernel half a second; beyond this something is wrong
# Names of stages in the result: what the profiler cost.
HELD = "profiler held the GPU"
COUNTED = "waited for counters"
_FORESEEN_S = 10.0  # for building a few programs once more
_REMEMBERED = 512  # built programs, of some 20 KB each, that may still be expanded
_BEHIND = 2 * BATCH  # candidates without counters that a search which waits for them leaves behind at most


@dataclass(frozen=True)
class StepEvidence:
    """One program of the trajectory: the diagnosis in sentences, the counters that changed since the one before, and the shares of its
    work by source line, where they were counted."""

    diagnosis: tuple[str, ...]
    moved: tuple[str, ...] = ()
    copy_share: float | None = None
    lines: tuple[LineWeight, ...] = ()


class Insight(Protocol):
    """What the search asks of a profiler; every answer may be that there is none."""

    @property
    def unusable(self) -> str:
        """Why there will be no counters, once that is known; else ""."""
        ...

    def look(self, built: Built, evaluation: Evaluation) -> None:
        """A program worth building upon: have it diagnosed beside the search."""
        ...

    def passed(self, node: Node, built: Built) -> None:
        """A candidate passed its checks: have its cheap counters taken beside the search, for the reward."""
        ...

    def arrivals(self) -> Sequence[Observation]:
        """Counters that came since the last call."""
        ...

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        """The proposals with priors by the program's diagnosis, most promising first; None while there is none."""
        ...

    def want(self, digest: str) -> None:
        """Have the program with this digest diagnosed, if it passed its checks."""
        ...

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None:
        """What is known of the program with this digest; None while there is nothing."""
        ...

    def require(self, node: Node, build: Callable[[Program], Built]) -> Future[Known | None]:
        """What can be known of an evaluated node, asked for ahead of all candidates and whether or not the share of the time is
        spent; None where nothing can. Called from any thread; `build` is for a node of an earlier part of the run."""
        ...

    def foresee(self, path: Callable[[], Path]) -> None:
        """The search is about to end, perhaps with this path, which is made on another thread: begin nothing but what its end needs."""
        ...

    def prepare(self, path: Path) -> None:
        """The search has ended, perhaps with this path: ask for what its trajectory needs and is not known."""
        ...

    def trajectory(self, path: Path, patience_s: float = PATIENCE_S) -> list[StepEvidence]:
        """The evidence of each program on a path, from the original on; without what takes longer than so many seconds from now."""
        ...

    def stages(self) -> Mapping[str, float]:
        """Seconds to add to the search's stages: the GPU was held for it, timing waited for it. What a stage of the search waited is
        taken from that stage."""
        ...

    def close(self) -> tuple[str, ...]:
        """End it; what it could not see, in sentences."""
        ...


@dataclass(frozen=True)
class Waiting:
    """How long timing has waited for the profiler, and whether the search waits for it.

    With `every` nothing is built upon before its diagnosis, and no candidate that passed is left without counters. The service
    should then have no bound on its share.
    """

    waited_s: Callable[[], float] = lambda: 0.0
    every: bool = False


_NO_WAITING = Waiting()


class ProfilerInsight:
    """Insight from a profile service on a GPU, with what can be said without counters where it has none."""

    def __init__(
        self, service: ProfileService, spec: KernelSpec, target: Target, bandwidth: float, waiting: Waiting = _NO_WAITING,
        lined: Callable[[Built], Lined] | None = None,
    ) -> None:  # fmt: skip
        self._lined, self._every = lined, waiting.every
        self._counting: set[Future[None]] = set()  # with `every` alone, as the next two
        self._diagnosing: dict[str, Future[None]] = {}
        self._counted_s = self._selecting_s = 0.0
        self._lines: dict[str, tuple[SourceLines, ...]] = {}
        self._line_futures: dict[str, Future[Answer]] = {}
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="lines")
        self._foreseen: Future[None] | None = None
        self._required: dict[str, Future[Answer]] = {}
        self._lines_missing = ""
        self._service, self._spec, self._target, self._bandwidth = service, spec, target, bandwidth
        self._waited_s = waiting.waited_s
        self._case = heaviest_case(spec)
        self._known: dict[str, tuple[Diagnosis, Profile]] = {}
        self._asked: set[str] = set()  # for the full set
        self._looked: dict[str, Future[Answer]] = {}
        self._built: OrderedDict[str, tuple[Built, Evaluation]] = OrderedDict()
        self._nodes: dict[str, int] = {}
        self._arrived: deque[Observation] = deque()
        self._lock = threading.Lock()
        self._failures: dict[str, None] = {}
        self._seen: set[int] = set()
        self._passed = 0

    @property
    def unusable(self) -> str:
        return self._service.unusable

    def look(self, built: Built, evaluation: Evaluation) -> None:
        digest = built.program.digest
        with self._lock:
            if digest in self._asked:
                return
            self._asked.add(digest)
        future = self._service.submit(
            request_for(built, self._spec, self._case), FULL, Priority.EXPANSION, _worth(evaluation)
        )
        self._looked[digest] = future
        booked = _then(future, lambda done: self._book_in_full(built, evaluation, done))
        if self._every:
            self._diagnosing[digest] = booked

    def _book_in_full(self, built: Built, evaluation: Evaluation, done: Future[Answer]) -> None:
        answer = None if done.cancelled() else done.result()
        if isinstance(answer, Profile):
            diagnosis = self._diagnosed(built, evaluation, answer)
            with self._lock:
                self._known[built.program.digest] = diagnosis, answer
            self._observe(built, answer)

    def passed(self, node: Node, built: Built) -> None:
        assert node.evaluation is not None
        digest = built.program.digest
        with self._lock:
            self._nodes[digest] = node.id
            self._built[digest] = built, node.evaluation
            while len(self._built) > _REMEMBERED:
                self._built.popitem(last=False)
            self._passed += 1
        if node.id == 0:  # the original is looked at in full, by whoever starts the search
            self._ask_for_lines([(built, node.evaluation)], Priority.EXPANSION)
            return
        future = self._service.submit(
            request_for(built, self._spec, self._case), CHEAP, Priority.BACKGROUND, _worth(node.evaluation)
        )

        def book(done: Future[Answer]) -> None:
            answer = None if done.cancelled() else done.result()
            if isinstance(answer, Profile):
                self._observe(built, answer)

        booked = _then(future, book)
        if self._every:
            self._counting.add(booked)
            self._counted_s += self._catch_up(_BEHIND)

    def _catch_up(self, most: int) -> float:
        """Wait until at most so many candidates are without counters, or something is wrong; the seconds that took."""
        begin = time.monotonic()
        self._counting = {future for future in self._counting if not future.done()}
        while len(self._counting) > most:
            done, self._counting = concurrent.futures.wait(
                self._counting, timeout=PATIENCE_S, return_when=concurrent.futures.FIRST_COMPLETED
            )
            if not done:
                break
        return time.monotonic() - begin

    def foresee(self, path: Callable[[], Path]) -> None:
        if not self.unusable:
            if not self._every:
                self._service.conclude()
            self._foreseen = self._aside.submit(lambda: self._ask_for(path()))

    def prepare(self, path: Path) -> None:
        if self.unusable:
            return
        if self._foreseen is not None:  # what went wrong with it is met again below, if it matters
            concurrent.futures.wait([self._foreseen], timeout=_FORESEEN_S)
        if self._every:
            self._counted_s += self._catch_up(0)
        self._service.settle()
        self._ask_for(path)

    def _ask_for(self, path: Path) -> None:
        with self._service.together():
            for built, evaluation in path:
                self._ask_in_full(built, evaluation)
        self._ask_for_lines([path[0], path[-1]] if path else [], Priority.REQUIRED)

    def _ask_in_full(self, built: Built, evaluation: Evaluation) -> Future[Answer]:
        """The full profile of a program of the trajectory: what is known already, or asked for once."""
        digest = built.program.digest
        known = self.known(digest)
        future = self._required.get(digest)
        if future is None or (future.done() and known is not None):
            looked = self._looked.get(digest)
            if known is None and looked is not None and not looked.cancel() and not looked.done():
                future = looked  # on its way already
            elif known is None:
                future = self._service.submit(request_for(built, self._spec, self._case), FULL, Priority.REQUIRED)
                future.add_done_callback(lambda done: self._book_in_full(built, evaluation, done))
            else:
                future = Future()
                future.set_result(known[1])
            self._required[digest] = future
        return future

    def _ask_for_lines(self, programs: Sequence[tuple[Built, Evaluation]], priority: Priority) -> None:
        """Have single instructions counted, of the same machine code built once more with its lines, where that can be.

        Building and disassembling take half a second, so both happen on a thread of their own.
        """
        wanted: list[tuple[Built, Evaluation, Future[Answer]]] = []
        for built, evaluation in programs:
            digest, asked = built.program.digest, self._line_futures.get(built.program.digest)
            if self._lined is None or self._lines_missing or self.unusable:
                break
            if digest in self._lines or (asked is not None and not asked.done()):
                continue
            time_us = self._time_us(evaluation)
            if time_us is not None and time_us > _LINES_US:
                self._lines_missing = (
                    f"a launch of {time_us / 1e3:.0f} ms is too long to count its instructions one by one"
                )
                break
            future = self._line_futures[digest] = Future()
            wanted.append((built, evaluation, future))
        if wanted:
            self._aside.submit(self._count_lines, wanted, priority)

    def _count_lines(self, wanted: Sequence[tuple[Built, Evaluation, Future[Answer]]], priority: Priority) -> None:
        asks: list[tuple[Callable[[], Future[Answer]], Callable[[Future[Answer]], None]]] = []
        for built, evaluation, future in wanted:
            try:
                binary, listing = self._with_lines(built)
            except Exception as error:  # a defect here costs the diagnosis its lines, never the search its end
                self._lines_missing = error.what if isinstance(error, OptimlError) else f"they cannot be built: {error}"
                future.set_result(ProfileFailure(built.binary.code_hash, "no profiler", self._lines_missing))
                continue
            request = replace(request_for(built, self._spec, self._case), binary=binary)
            book = partial(self._book_lines, built, evaluation, listing, future)
            asks.append((partial(self._service.submit, request, LINES, priority), book))
        with self._service.together():
            for ask, then in asks:
                ask().add_done_callback(then)

    def _with_lines(self, built: Built) -> Lined:
        """A program built with its lines, and its listing. Raises OptimlError."""
        assert self._lined is not None
        binary, listing = self._lined(built)
        if binary.code_hash != built.binary.code_hash:
            raise OptimlError("line information changes the compiler's code")
        return binary, listing

    def _book_lines(
        self, built: Built, evaluation: Evaluation, listing: str, future: Future[Answer], done: Future[Answer]
    ) -> None:
        closed = ProfileFailure(built.binary.code_hash, "closed", "the search has ended")
        answer = closed if done.cancelled() else done.result()
        if isinstance(answer, Profile):
            found = tuple(source_lines(step, listing, self._spec.file) for step in answer.steps)
            digest = built.program.digest
            with self._lock:
                self._lines[digest] = found
                known = self._known.get(digest)
            if known is not None:
                diagnosis = self._diagnosed(built, evaluation, known[1])
                with self._lock:
                    self._known[digest] = diagnosis, known[1]
        elif answer.kind != "closed":
            self._lines_missing = answer.reason
        future.set_result(answer)

    def _observe(self, built: Built, profile: Profile) -> None:
        """Counters for the reward. The occupancy is what the resources allow, for every program alike; stalls need the full set."""
        proxies = Proxies(
            profile.dram_bytes, profile.instructions, occupancy(built, self._spec, self._case), profile.stalled
        )
        with self._lock:
            node = self._nodes.get(built.program.digest)
            if node is not None:
                self._seen.add(node)
                self._arrived.append(Observation(node, profile.metrics, profile.asked, proxies))

    def arrivals(self) -> Sequence[Observation]:
        with self._lock:
            came, self._arrived = list(self._arrived), deque()
        return came

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        known = self.known(digest)
        if known is not None:
            return reweighted(proposals, known[0])
        self.want(digest)  # it is about to be built upon
        diagnosing = self._diagnosing.get(digest)
        if diagnosing is None or diagnosing.done():
            return None
        begin = time.monotonic()
        concurrent.futures.wait([diagnosing], timeout=PATIENCE_S)
        self._selecting_s += time.monotonic() - begin
        known = self.known(digest)
        return None if known is None else reweighted(proposals, known[0])

    def want(self, digest: str) -> None:
        """Have a program diagnosed that passed its checks; nothing where it was already, or is not known."""
        with self._lock:
            found = self._built.get(digest)
        if found is not None:
            self.look(*found)

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None:
        with self._lock:
            return self._known.get(digest)

    def require(self, node: Node, build: Callable[[Program], Built]) -> Future[Known | None]:
        digest, evaluation = node.program.digest, node.evaluation
        assert evaluation is not None
        with self._lock:
            self._asked.add(digest)
            found = self._built.get(digest)
        built = found[0] if found is not None else build(node.program)
        known: Future[Known | None] = Future()

        def tell(done: Future[Answer]) -> None:
            answer = None if done.cancelled() else done.result()
            held = self._diagnosed(built, evaluation, answer) if isinstance(answer, Profile) else None
            known.set_result((held, answer) if held is not None and isinstance(answer, Profile) else None)

        self._ask_in_full(built, evaluation).add_done_callback(tell)
        return known

    def trajectory(self, path: Path, patience_s: float = PATIENCE_S) -> list[StepEvidence]:
        until = time.monotonic() + patience_s
        self.prepare(path)
        # For all steps together: a profiler that hangs must not be waited for at each.
        concurrent.futures.wait(
            list(self._line_futures.values()), timeout=min(_LINES_S, max(0.0, until - time.monotonic()))
        )
        futures = [self._ask_in_full(*step) for step in path]
        found: list[StepEvidence] = []
        before: Profile | None = None
        for (built, evaluation), future in zip(path, futures, strict=True):
            try:
                answer: Answer | None = future.result(timeout=max(0.0, until - time.monotonic()))
            except FutureTimeout:
                answer = None
            if isinstance(answer, Profile):
                diagnosis = self._diagnosed(built, evaluation, answer)
                changes = tuple(str(change) for change in moved(before, answer)) if before is not None else ()
                before = answer
            else:
                why = answer.reason if answer is not None else "the profiler did not answer in time"
                self._failures[why] = None
                changes, before = (), None
                diagnosis = self._undiagnosed(built, evaluation, why)
            lines = counted_lines(self._lines.get(built.program.digest, ()))
            found.append(StepEvidence(diagnosis.sentences(), changes, diagnosis.copy_share, lines))
        return found

    def stages(self) -> Mapping[str, float]:
        found = {HELD: self._service.held_s, WAITED: self._waited_s()}
        if self._every:
            found |= {COUNTED: self._counted_s + self._selecting_s, SELECT: -self._selecting_s}
        return found

    def close(self) -> tuple[str, ...]:
        self._service.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        reasons = [self.unusable] if self.unusable else list(self._failures)
        notes = [f"no counters for some programs: {why}" for why in reasons[:2]]
        if not self.unusable and len(self._seen) < self._passed:
            notes.append(
                f"Nsight Compute counted {len(self._seen)} of {self._passed} programs that passed: the profiler's share of the "
                "time was spent"
            )
        if self._lines_missing and not self.unusable:
            notes.append(f"no source lines in the diagnosis: {self._lines_missing}")
        return tuple(notes)

    def _time_us(self, evaluation: Evaluation) -> float | None:
        if evaluation.measurement is None or not evaluation.measurement.cases:
            return None
        return evaluation.measurement.cases[self._case - len(self._spec.check)].candidate_us

    def _diagnosed(self, built: Built, evaluation: Evaluation, profile: Profile) -> Diagnosis:
        return diagnose(
            profile,
            evidence_for(built, self._spec, self._case),
            self._facts(evaluation),
            lines=self._lines.get(built.program.digest, ()),
        )

    def _undiagnosed(self, built: Built, evaluation: Evaluation, why: str) -> Diagnosis:
        return diagnose_static(evidence_for(built, self._spec, self._case), self._facts(evaluation), why=why)

    def _facts(self, evaluation: Evaluation) -> CaseFacts:
        return CaseFacts(self._target, self._bandwidth, self._time_us(evaluation), array_bytes(self._spec, self._case))


def _then(future: Future[Answer], book: Callable[[Future[Answer]], None]) -> Future[None]:
    """Ends when an answer has been booked; whoever waits for the answer itself may be faster than its booking."""
    booked: Future[None] = Future()

    def done(answered: Future[Answer]) -> None:
        try:
            book(answered)
        finally:
            booked.set_result(None)

    future.add_done_callback(done)
    return booked


def _worth(evaluation: Evaluation) -> float:
    return evaluation.measurement.ratio if evaluation.measurement is not None else 0.0


def occupancy(built: Built, spec: KernelSpec, case: int) -> float | None:
    """The share of the possible warps that a program's resources allow, of the step with the fewest."""
    known = [e.occupancy.fraction for e in evidence_for(built, spec, case) if e.occupancy is not None]
    return min(known, default=None)
