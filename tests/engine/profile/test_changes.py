import pytest

from engine.profile.changes import CounterChange, _figure, moved
from engine.profile.counters import DRAM_BYTES
from tests.engine.profile.samples import profile, step


def told(before, after, **options):
    return [str(change) for change in moved(profile(before), profile(after), **options)]


def test_the_counters_that_moved_in_the_order_of_how_much():
    before = step(DURATION=400_000, DRAM_BYTES=1.28e9, LOAD_SECTORS=32e6, long_scoreboard=70)
    assert told(before, step()) == [
        "time 400 µs → 40 µs",
        "device memory traffic 1.28 GB → 128 MB",
        "sectors per load 32 → 4",
        "warps waiting for global or local memory (long scoreboard) 70 % → 5 %",
    ]


def test_noise_is_not_told():
    assert told(step(DURATION=41_000, DRAM_PCT=72, INSTRUCTIONS=4.2e6), step()) == []


def test_a_counter_that_one_side_lacks_is_left_out():
    assert told(step(DURATION=80_000, DRAM_BYTES=1e9), step(missing=(DRAM_BYTES,))) == ["time 80 µs → 40 µs"]


def test_no_more_than_asked():
    before = step(DURATION=400_000, DRAM_BYTES=1.28e9, LOAD_SECTORS=32e6, long_scoreboard=70)
    assert told(before, step(), most=2) == ["time 400 µs → 40 µs", "device memory traffic 1.28 GB → 128 MB"]


def test_one_step_against_two():
    """A candidate may have another number of launches than its parent: quantities add up, percentages weigh by time."""
    halves = [step(DURATION=20_000, DRAM_BYTES=64e6, barrier=65), step(DURATION=20_000, DRAM_BYTES=64e6)]
    changes = {c.what: c for c in moved(profile(step()), profile(*halves), most=99)}
    assert "time" not in changes
    assert "device memory traffic" not in changes
    assert changes["warps waiting at a barrier"].after == pytest.approx(35)
    assert changes["warp instructions"].after == 8e6


def test_from_nothing_to_something_counts_much():
    assert CounterChange("x", 0.0, 5.0, "").weight == 10.0
    assert CounterChange("x", 0.0, 0.0, "").weight == 1.0


def test_counts_are_written_without_powers() -> None:
    """`bank conflict cycles 30.6 million → 6.04e+05` stood in a report."""
    figures = [_figure(value, "") for value in (0.25, 16, 999, 603_812, 30.6e6, 1.24e9)]
    assert figures == ["0.25", "16", "999", "603,812", "30.6 million", "1.24 billion"]
