"""Which jobs race detection has time for."""

from __future__ import annotations

from engine.cpu import CpuJob
from engine.cpu.cpu_machine import _watched
from tests.engine.cpu.conftest import launch


def jobs(threads: int, *blocks: int) -> list[CpuJob]:
    return [CpuJob((launch(count, threads),), {}, {}) for count in blocks]


def test_jobs_of_small_blocks_are_all_looked_at() -> None:
    given = jobs(256, 1, 9, 24, 21)
    assert _watched(given, 2) == given


def test_of_large_blocks_the_jobs_with_the_most() -> None:
    given = jobs(1024, 1, 5, 8, 6)
    assert _watched(given, 2) == [given[2], given[3]]
    assert _watched(given, 8) == given


def test_one_core_still_looks_at_two() -> None:
    assert len(_watched(jobs(1024, 2, 2, 2), 1)) == 2


def test_launches_of_several_blocks_that_are_seen_whole_come_first() -> None:
    """The block that merges what the others found is the last one, and of a launch that is seen in part it never runs."""
    given = jobs(256, 9, 2, 24, 21)
    assert given[1] in _watched(given, 1)
