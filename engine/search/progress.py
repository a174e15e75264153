"""What a search may spend, what it has come to, and the names of what its time goes into."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.model import PASSED, Evaluation, Outcome

# Stages of the search's own work: asking the tree (and a strategy) what to try next, writing its text, booking what came of it.
SELECT, READ, EDIT, BOOK, JOURNAL = "select", "read", "edit", "book", "journal"
# Why a search ended. After an interrupt nothing was confirmed.
INTERRUPTED = "it was interrupted"
NOTHING_LEFT = "nothing is left to try"
# Candidates in flight. With 18 of 100 in flight tree search finds up to 2 doublings less on simulated kernels than with 5
# (benchmarks/landscapes.py --in-flight 18). Ours.
_AHEAD_SHARE, _LEAST_AHEAD = 20, 4
# Candidates or points at the device at once, where time is what ends the search: one runs, and the next need not be waited for. Where
# speeds are predicted one takes a second, and those that wait would be begun when the time is over. Ours.
ON_DEVICE = {"measured": 3, "predicted": 1}
SPARE = 2  # builds that wait for a compiler, so that none of them waits for a build


@dataclass(frozen=True)
class Budget:
    """Seconds or candidates, whichever ends first; None: no such limit."""

    seconds: float | None = None
    candidates: int | None = None

    def spent(self, elapsed_s: float, candidates: int) -> bool:
        """Whether a limit is reached by so much."""
        if self.seconds is not None and elapsed_s >= self.seconds:
            return True
        return self.candidates is not None and candidates >= self.candidates

    def left_s(self, elapsed_s: float) -> float | None:
        """The seconds that are left after so many; None: no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - elapsed_s)


def in_flight(jobs: int, budget: Budget) -> int:
    """How many candidates to build ahead with so many compilers: enough that the GPU never waits, and of a budget of candidates at
    most a twentieth, because what is in flight was chosen without what it brings."""
    most = jobs + SPARE
    return most if budget.candidates is None else min(most, max(_LEAST_AHEAD, budget.candidates // _AHEAD_SHARE))


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

    def count(self, evaluation: Evaluation, elapsed_s: float, candidates: int = 1) -> None:
        """Take in an evaluation, which may stand for several candidates, so many seconds after the start."""
        self.evaluated += candidates
        self.elapsed_s = elapsed_s
        self.outcomes[evaluation.outcome] = self.outcomes.get(evaluation.outcome, 0) + 1
        self.verified += evaluation.outcome in PASSED
        for stage, seconds in evaluation.stage_s.items():
            self.spend(stage, seconds)

    def spend(self, stage: str, seconds: float) -> None:
        """Add time to a stage."""
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def by_outcome(self) -> dict[str, int]:
        """Candidates by the outcome's name."""
        return {outcome.value: n for outcome, n in sorted(self.outcomes.items())}
