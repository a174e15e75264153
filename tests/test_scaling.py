"""The simulation of one search over several devices, and that the loop keeps them at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import parallel_strategies, scaling, tuner_landscapes


def test_eight_devices_evaluate_nearly_eight_times_as_much() -> None:
    """In virtual time; what is slow on this machine is left out but for the parent's own work, so a wide margin."""
    one = scaling.search(1, 3.0, 0, scaling.CORES, scaling.EVALUATION_S)
    eight = scaling.search(8, 3.0, 0, 8 * scaling.CORES, scaling.EVALUATION_S)
    assert eight.evaluations > 5 * one.evaluations
    assert eight.busy > 0.7


def test_the_clock_goes_by_what_is_waited_for() -> None:
    clock = scaling.Clock()
    compilers = scaling.Compilers(clock, 1)
    begin = clock.monotonic()
    answers = [compilers.submit(lambda: 7) for _ in range(3)]
    assert not answers[0].done()
    clock.wait(answers[2:], None)
    assert [answer.result(0) for answer in answers] == [7, 7, 7]
    assert clock.monotonic() - begin == pytest.approx(3 * scaling.BUILD_S, abs=0.1)
    clock.wait([], 5.0)  # nothing to wait for, and nothing comes


def test_a_batch_ends_with_its_last_point() -> None:
    points = [(n,) for n in range(5)]
    takes = [parallel_strategies.takes_s(point) for point in points]
    assert parallel_strategies.batched_s([points], 1) == pytest.approx(sum(takes))
    assert parallel_strategies.batched_s([points], 5) == pytest.approx(max(takes))
    assert parallel_strategies.batched_s([[point] for point in points], 5) == pytest.approx(sum(takes))


def test_a_strategy_of_ours_gains_from_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = tuner_landscapes.landscape("transpose", 0)
    alone, share = parallel_strategies.ours(where, "random", 0, 20, 1)
    four, again = parallel_strategies.ours(where, "random", 0, 20, 4)
    assert alone > 3 * four
    assert share == again  # a random order does not heed results
    record = tmp_path / "record.json"
    given = ["--kernels", "transpose", "--seeds", "1", "--most", "6", "--record", str(record)]
    assert parallel_strategies.main(given) == 0
    assert "| optiml model |" in capsys.readouterr().out
    assert json.loads(record.read_text())["rows"]["transpose"]["evaluations"] == 6
