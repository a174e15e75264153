"""Seconds by stage of one evaluation."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from engine.process.fair_lock import WAITED


class Laps:
    """Adds the seconds since the last call to a stage."""

    def __init__(self, stages: dict[str, float]) -> None:
        self._stages, self._since = stages, time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._since
        self._since = now


@contextmanager
def turn(gpu: AbstractContextManager[object], lap: Laps) -> Iterator[None]:
    """A turn at the GPU; what it took to get it is a stage of its own, for it counts as the profiler's time already."""
    with gpu:
        lap(WAITED)
        yield
