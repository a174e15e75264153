"""Blocks that no host launches: what an edit does there counts only where the original gives its own results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.cpu.jobs import CpuJob, CpuRun
from engine.evaluate.known_runs import KnownRun
from engine.evaluate.suggestion_runs import ComparedJob, SuggestionRuns
from engine.model import LaunchConfig

LAUNCH = LaunchConfig((4, 1, 1), (256, 1, 1), 1024)
KNOWN = KnownRun(0, "declared", {"x": np.ones(4)}, {}, {"y": np.ones(4)}, None)


class _Binary:
    """Gives its result, and another one where blocks are of some sizes; counts runs that were counted for its conditions."""

    def __init__(self, wrong: Sequence[int] = ()) -> None:
        self.wrong, self.ran, self.seen = wrong, list[LaunchConfig](), 0

    def saw(self, run: CpuRun) -> None:
        self.seen += 1


def _run_many(binary: _Binary, jobs: Sequence[CpuJob], *, deadline_s: float) -> list[CpuRun]:
    binary.ran += [job.launches[0] for job in jobs]
    return [CpuRun({"y": np.full(4, 1.0 + (job.launches[0].threads in binary.wrong))}, (), None, 0.0) for job in jobs]


def _tried(original: _Binary, candidate: _Binary, launch: LaunchConfig = LAUNCH) -> None:
    def differs(item: KnownRun, outputs: Any) -> Any:
        return None if np.array_equal(item.original["y"], outputs["y"]) else "differs"

    def built(binary: _Binary, used: LaunchConfig) -> Any:
        return SimpleNamespace(extra=binary, launches=[(used,)])

    machine, nothing = SimpleNamespace(run_many=_run_many), None
    runs = SuggestionRuns(nothing, machine, built(original, LAUNCH), None, nothing, differs)  # type: ignore[arg-type]
    runs.other_blocks(built(candidate, launch), [KNOWN])


def test_blocks_are_smaller_larger_and_deeper_with_shared_memory_for_their_threads() -> None:
    original, candidate = _Binary(), _Binary()
    _tried(original, candidate)
    assert candidate.seen == len(candidate.ran) > 8
    assert {16, 32, 128, 512} <= {each.threads for each in candidate.ran}
    assert any(each.block[2] == 2 for each in candidate.ran)
    assert all(each.threads <= 1024 and each.threads != 256 for each in candidate.ran)
    assert all(each.shared_bytes >= 4 * each.threads for each in candidate.ran if each.threads <= 512)


@pytest.mark.parametrize("wrong", [(16, 32), (512,)])
def test_only_runs_in_which_both_are_right_count(wrong: tuple[int, ...]) -> None:
    original, candidate = _Binary(wrong), _Binary()
    _tried(original, candidate)
    assert not any(each.threads in wrong for each in candidate.ran)
    original, candidate = _Binary(), _Binary(wrong)
    _tried(original, candidate)
    assert candidate.seen == sum(each.threads not in wrong for each in candidate.ran)


def test_an_edit_with_another_launch_is_not_run_in_other_blocks() -> None:
    original, candidate = _Binary(), _Binary()
    _tried(original, candidate, LaunchConfig((2, 1, 1), (512, 1, 1), 1024))
    assert not candidate.ran


@pytest.mark.parametrize(("compared", "counted"), [(None, True), (frozenset({"y"}), False)])
def test_moved_runs_that_count_by_their_results_alone_meet_no_condition(
    compared: frozenset[str] | None, counted: bool
) -> None:
    """An input and an output in one buffer, as no caller has them, were held against pointers that the original restricts."""
    candidate = _Binary()
    spec = SimpleNamespace(arguments=[SimpleNamespace(name="x", role="in"), SimpleNamespace(name="y", role="out")])
    machine, nothing = SimpleNamespace(run_many=_run_many), None
    runs = SuggestionRuns(spec, machine, nothing, None, nothing, lambda item, outputs: None)  # type: ignore[arg-type]
    job = CpuJob((LAUNCH,), KNOWN.buffers, {})
    assert (
        runs.moved(SimpleNamespace(extra=candidate), [ComparedJob(replace(KNOWN, compared=compared), job, job)]) is None
    )  # type: ignore[arg-type]
    assert len(candidate.ran) == 3
    assert bool(candidate.seen) is counted
