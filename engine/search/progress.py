"""What a search may spend, what it has come to, and the names of what its time goes into."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from engine.model import PASSED, Evaluation, Outcome
from engine.process.interrupt import NEVER, Interrupt

# Stages of the search's own work: asking the tree (and a strategy) what to try next, writing its text, booking what came of it.
SELECT, READ, EDIT, BOOK, JOURNAL = "select", "read", "edit", "book", "journal"
INTERRUPTED, SPENT = "it was interrupted", "the budget is spent"  # why a search ended
SEARCHING, CONFIRMING, EXPLAINING = "searching", "confirming the best", "profiling the steps"  # phases of a run
_LOOK_S = 0.2  # how soon a wait notices an interrupt
NOTHING_LEFT = "nothing is left to try"
FLAT = "the later half of its candidates gained less than 0.5 %"
# On eight kernels of the suite: 3.4 times less time, 1.0 % less in the geometric mean (docs/search.md). Ours.
_LEAST_TRIED, _GAIN = 200, 1.005
# The share of its candidates behind which a plateau counts as near: a search of 200 evaluates the rest in some 3 s, as long as profiling
# what it will likely suggest takes. Ours.
_NEAR = 0.75
# Candidates in flight. With 18 of 100 in flight tree search finds up to 2 doublings less on simulated kernels than with 5
# (benchmarks/landscapes.py --in-flight 18). Ours.
_AHEAD_SHARE, _LEAST_AHEAD, _MOST_AHEAD = 20, 4, 18
# Candidates or points at each device at once, where time is what ends the search: one runs, and the next need not be waited for. Where
# speeds are predicted one takes a second, and those that wait would be begun when the time is over. Ours.
ON_DEVICE = {"measured": 3, "predicted": 1}
SPARE = 2  # builds that wait for a compiler, so that none of them waits for a build


class Plateau:
    """When what a search may still gain is worth less than what finding it costs.

    That is where the later half of its candidates made the best faster by less than `_GAIN`: the same gain again, at best, for as
    many more.
    """

    def __init__(self, candidates: int, ratio: float) -> None:
        self._begin = candidates
        self._improved = [(candidates, ratio)]

    def note(self, candidates: int, ratio: float) -> None:
        """Take in a new best, found after so many candidates."""
        self._improved.append((candidates, ratio))

    def reached(self, candidates: int) -> bool:
        """Whether the search may end after so many candidates."""
        tried = candidates - self._begin
        if tried < _LEAST_TRIED:
            return False
        half = self._begin + tried / 2
        at_half = max(ratio for count, ratio in self._improved if count <= half)
        return self._improved[-1][1] < at_half * _GAIN

    def near(self, candidates: int) -> bool:
        """Whether it will be reached soon after so many candidates, if none of those that come gains enough."""
        return self.reached(self._begin + int((candidates - self._begin) / _NEAR))


@dataclass(frozen=True)
class Budget:
    """Seconds or candidates, whichever ends first; None: no such limit. An interrupt ends it as well.

    A search for so many seconds ends at a `Plateau` too, unless it shall `exhaust` them.
    """

    seconds: float | None = None
    candidates: int | None = None
    exhaust: bool = False
    interrupt: Interrupt = field(default=NEVER, compare=False, repr=False)

    def spent(self, elapsed_s: float, candidates: int) -> bool:
        """Whether a limit is reached by so much, or the user asked to end."""
        if self.interrupt.asked:
            return True
        if self.seconds is not None and elapsed_s >= self.seconds:
            return True
        return self.candidates is not None and candidates >= self.candidates

    def left_s(self, elapsed_s: float) -> float | None:
        """The seconds that are left after so many; None: no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - elapsed_s)

    @property
    def ended_by(self) -> str:
        """Why a search ends that is `spent`."""
        return INTERRUPTED if self.interrupt.asked else SPENT

    def wait(self, some: Iterable[Future[Any]], elapsed_s: float) -> set[Future[Any]]:
        """Wait for one of these for as long as the budget lasts after so many seconds; those that are done."""
        some, left = list(some), self.left_s(elapsed_s)
        end = None if left is None else time.monotonic() + left
        while True:
            slice_s = _LOOK_S if end is None else min(_LOOK_S, max(0.0, end - time.monotonic()))
            done, _ = wait(some, timeout=slice_s, return_when=FIRST_COMPLETED)
            if done or not some or self.interrupt.asked or (end is not None and time.monotonic() >= end):
                return done


def on_devices(mode: str, devices: int, *, counted: bool) -> int:
    """How many candidates may be on so many devices at once; one on each where candidates are counted."""
    return devices * (1 if counted else ON_DEVICE[mode])


def in_flight(jobs: int, budget: Budget, devices: int = 1) -> int:
    """How many candidates to build ahead with so many compilers: enough that no device waits, and of a budget of candidates a
    twentieth, because what is in flight was chosen without what it brings; that does not depend on the compilers, so that every
    machine tries the same. For each device beside the first come those that are on it and one that is built for it."""
    beside = devices - 1
    if budget.candidates is None:
        return jobs + SPARE + beside * (max(ON_DEVICE.values()) + 1)
    return min(_MOST_AHEAD, max(_LEAST_AHEAD, budget.candidates // _AHEAD_SHARE)) + 2 * beside


@dataclass
class Progress:
    """What a progress line shows."""

    evaluated: int = 0
    verified: int = 0
    best_ratio: float = 1.0
    best_summary: str = ""
    elapsed_s: float = 0.0
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    stage_s: dict[str, float] = field(default_factory=dict)
    stopped: str = ""  # why the search ended
    unwritten: int = 0  # of those evaluated, the candidates whose rows are not in the journal yet
    phase: str = SEARCHING  # what the run does now
    said: list[str] = field(default_factory=list)  # sentences for whoever watches, in order

    def count(self, evaluation: Evaluation, elapsed_s: float, candidates: int = 1) -> None:
        """Take in an evaluation, which may stand for several candidates, so many seconds after the start."""
        self.evaluated += candidates
        self.elapsed_s = elapsed_s
        self.outcomes[evaluation.outcome] = self.outcomes.get(evaluation.outcome, 0) + 1
        self.verified += evaluation.outcome in PASSED
        for stage, seconds in evaluation.stage_s.items():
            self.spend(stage, seconds)

    @property
    def recorded(self) -> int:
        """Candidates whose rows are in the journal: what a person is told of."""
        return self.evaluated - self.unwritten

    def spend(self, stage: str, seconds: float) -> None:
        """Add time to a stage."""
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time within to a stage."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spend(name, time.monotonic() - begin)

    def by_outcome(self) -> dict[str, int]:
        """Candidates by the outcome's name."""
        return {outcome.value: n for outcome, n in sorted(self.outcomes.items())}
