"""Whether a build that is begun now still comes in time for an evaluation: seconds of builds and of evaluations, as they come."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from engine.search.progress import Budget
from engine.tune.space import Point


class BuildPace:
    """What the last build and the last evaluation took. Builds are noted from any thread."""

    def __init__(self) -> None:
        self.answer_s = 0.0  # from when the last build was asked for until it was there
        self._build_s = 0.0  # its work alone
        self._evaluation_s = 0.0  # of the last evaluation, or between the last two of several devices
        self._answered_at = 0.0

    def built(self, asked_at: float, begun_at: float) -> None:
        """A build has ended."""
        now = time.monotonic()
        self.answer_s, self._build_s = now - asked_at, now - begun_at

    def evaluated(self, asked_at: float, answer: Future[Any]) -> None:
        """An evaluation has ended."""
        now = time.monotonic()
        self._evaluation_s, self._answered_at = now - max(asked_at, self._answered_at), now

    def in_time(self, points: Sequence[Point], underway: Sequence[Point], budget: Budget, left: int) -> Sequence[Point]:
        """These, but no more new ones than the `left` that can be evaluated, where one begun now would come after all `underway`.

        A build that nobody takes keeps a compiler from what is wanted next. Where no time is to be saved, because evaluations are
        counted and not seconds, the clock decides nothing.
        """
        if budget.seconds is None or left * self._evaluation_s > self._build_s > 0.0:
            return points
        room, kept = max(0, left - len(underway)), []
        for point in points:
            if point in underway or room > 0:
                kept.append(point)
                room -= point not in underway
        return [*kept, *(point for point in underway if point not in kept)]
