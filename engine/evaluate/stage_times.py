"""Seconds by stage of one evaluation."""

from __future__ import annotations

import time


class Laps:
    """Adds the seconds since the last call to a stage."""

    def __init__(self, stages: dict[str, float]) -> None:
        self._stages, self._since = stages, time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._since
        self._since = now
