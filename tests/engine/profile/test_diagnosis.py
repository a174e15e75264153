import pytest

from engine.model import LaunchConfig
from engine.predict.targets import target_for
from engine.profile.diagnosis import CaseFacts, Diagnosis, diagnose, diagnose_static
from engine.profile.source_lines import SourceLines, SourceSite
from tests.engine.profile.samples import BANDWIDTH, evidence, profile, step

TARGET = target_for("sm_90")


def of(*steps, known=None, lines=(), **facts) -> Diagnosis:
    steps = steps or (step(),)
    known = known or [evidence() for _ in steps]
    return diagnose(profile(*steps), known, CaseFacts(TARGET, BANDWIDTH, **facts), lines=lines)


def finding(diagnosis: Diagnosis, code: str):
    found = [f for f in diagnosis.findings if f.code == code]
    assert len(found) == 1, diagnosis.sentences()
    return found[0]


def test_a_good_copy_is_memory_bound_and_has_no_findings():
    diagnosis = of()
    assert diagnosis.bound == "memory"
    assert diagnosis.copy_share == pytest.approx(0.8)
    assert diagnosis.text == ("memory-bound: 3.20 TB/s to and from device memory, 80 % of copy (4.00 TB/s)")
    assert diagnosis.findings == ()
    assert diagnosis.codes == ("memory_bound",)


def test_the_measured_time_goes_before_the_profilers_own():
    assert of(time_us=64.0).copy_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("counters", "bound", "words"),
    [
        ({"DRAM_PCT": 10, "L2_PCT": 30, "FMA_PCT": 85, "DRAM_BYTES": 4e6}, "compute", "at 85 % of peak"),
        ({"DRAM_PCT": 10, "L2_PCT": 90, "FMA_PCT": 30, "DRAM_BYTES": 4e6}, "memory", "in the caches"),
        (
            {"DRAM_PCT": 10, "L2_PCT": 20, "FMA_PCT": 15, "DRAM_BYTES": 4e6, "long_scoreboard": 70},
            "latency",
            "warps spend 70 % of their cycles waiting for global or local memory (long scoreboard)",
        ),
        ({"DURATION": 3000.0}, "launch", "3.0 µs"),
    ],
)
def test_what_binds_it(counters, bound, words):
    """A kernel bound by waiting was said to wait for the same thing twice."""
    diagnosis = of(step(**counters))
    assert diagnosis.bound == bound
    assert words in diagnosis.text
    assert "; ".join(diagnosis.sentences()).count(words) == 1


@pytest.mark.parametrize(
    ("code", "fires", "rests", "words"),
    [
        ("dram_saturated", {"DRAM_PCT": 81}, {"DRAM_PCT": 80}, "81 % of peak"),
        ("low_occupancy", {"OCCUPANCY_PCT": 49}, {"OCCUPANCY_PCT": 50}, "achieved occupancy 49 %"),
        ("memory_stalls", {"long_scoreboard": 41}, {"long_scoreboard": 40}, "41 % of their cycles waiting for global"),
        ("shared_stalls", {"short_scoreboard": 41}, {"short_scoreboard": 40}, "waiting for shared memory"),
        ("math_stalls", {"math_pipe_throttle": 41}, {"math_pipe_throttle": 40}, "arithmetic pipe"),
        ("dependency_stalls", {"wait": 41}, {"wait": 40}, "fixed latency"),
        ("barrier_stalls", {"barrier": 31}, {"barrier": 30}, "31 % of their cycles waiting at a barrier"),
        ("l1_misses", {"L1_HIT_PCT": 29, "long_scoreboard": 50}, {"L1_HIT_PCT": 29}, "L1 hit rate 29 %"),
        (
            "uncoalesced_loads",
            {"LOAD_SECTORS": 32e6},
            {"LOAD_SECTORS": 4.8e6},
            "32.0 sectors per request (ideal: 4)",
        ),
        ("uncoalesced_stores", {"STORE_SECTORS": 8e6}, {"STORE_SECTORS": 4.8e6}, "uncoalesced stores: 8.0 sectors"),
        ("divergence", {"ACTIVE_LANES": 12.5}, {"ACTIVE_LANES": 24}, "12.5 of 32 lanes"),
        ("issue_bound", {"ISSUE_PCT": 61}, {"ISSUE_PCT": 60}, "issue slots 61 % busy"),
    ],
)
def test_counters_that_call_for_a_finding_and_those_that_just_do_not(code, fires, rests, words):
    assert words in finding(of(step(**fires)), code).text
    assert code not in of(step(**rests)).codes


def test_bank_conflicts_count_only_where_shared_memory_is_used():
    conflicted = step(BANK_CONFLICTS=2e6)
    found = finding(of(conflicted, known=[evidence(shared=4096)]), "bank_conflicts")
    assert "50 per 100 warp instructions" in found.text
    assert "bank_conflicts" not in of(conflicted).codes
    assert "bank_conflicts" not in of(step(BANK_CONFLICTS=1e5), known=[evidence(shared=4096)]).codes


def test_wide_accesses_are_not_called_uncoalesced():
    wide = step(LOAD_SECTORS=16e6)
    assert "uncoalesced_loads" not in of(wide, known=[evidence(width=None)]).codes
    assert "uncoalesced_loads" not in of(wide, known=[evidence(width=16.0)]).codes
    assert "uncoalesced_loads" in of(wide, known=[evidence(width=4.0)]).codes
    found = finding(of(step(LOAD_SECTORS=32e6), known=[evidence(width=None)]), "uncoalesced_loads")
    assert "(ideal: 4 to 16)" in found.text


def test_the_line_where_counters_were_mapped():
    found = finding(of(step(LOAD_SECTORS=32e6), lines=[SourceLines(SourceSite(17, 32e6, 4e6, 1e6))]), "uncoalesced")
    assert found.text == "uncoalesced access: 32 sectors per request (ideal: 4), line 17"
    assert found.line == 17
    assert "uncoalesced" not in of(step(LOAD_SECTORS=4e6), lines=[SourceLines(SourceSite(17, 4e6, 4e6, 1e6))]).codes


def test_counted_ideals_go_before_guessed_ones():
    exact = step(LOAD_SECTORS=16e6, SITE_SECTORS=16e6, SITE_IDEAL=16e6)
    assert of(exact).findings == ()


def test_the_line_that_executes_most_is_named():
    hot = of(lines=[SourceLines(None, 12, 0.61)])
    assert hot.text.endswith("; line 12 executes 61 % of the instructions")
    assert "line 12" not in of(lines=[SourceLines(None, 12, 0.2)]).text
    first, second = step("a", DURATION=10_000), step("b", DURATION=90_000)
    several = of(first, second, lines=[SourceLines(SourceSite(3, 32e6, 4e6, 1e6), 3, 0.9), SourceLines(None, 8, 0.5)])
    assert several.text.endswith("; line 8 executes 50 % of the instructions")  # of the longer step
    assert [f.line for f in several.findings if f.code == "uncoalesced"] == [3]  # said of its own step alone


def test_more_bytes_than_the_arrays_hold():
    found = finding(of(array_bytes=32e6), "excess_traffic")
    assert "device memory traffic 128 MB for 32 MB of arrays: 4.0× the minimum" in found.text
    assert "excess_traffic" not in of(array_bytes=100e6).codes


def test_findings_from_resources_and_launch():
    small = LaunchConfig((12, 1, 1), (100, 1, 1))
    diagnosis = of(known=[evidence(registers=128, spills=64, launch=small)])
    assert "only 12 blocks: 120 of 132 SMs idle" in finding(diagnosis, "small_grid").text
    assert "4 active lanes" in finding(diagnosis, "partial_warps").text
    assert "128 registers" in finding(diagnosis, "many_registers").text
    assert "64 bytes stored and 64 bytes loaded" in finding(diagnosis, "spills").text
    assert "local_memory" in of(known=[evidence(stack=256)]).codes
    assert "many_registers" not in of(known=[evidence(registers=96)]).codes


def test_the_last_wave():
    resident = 132 * 8  # blocks of 256 threads
    tail = LaunchConfig((resident + 10, 1, 1), (256, 1, 1))
    assert "the grid takes 1.0 waves" in finding(of(known=[evidence(launch=tail)]), "tail").text
    whole = LaunchConfig((resident * 4, 1, 1), (256, 1, 1))
    assert "tail" not in of(known=[evidence(launch=whole)]).codes


def test_steps_count_by_their_time_and_are_named():
    slow, quick = step("slow", DURATION=90_000, DRAM_PCT=95), step("quick", DURATION=10_000, barrier=90)
    diagnosis = of(slow, quick)
    assert diagnosis.findings[0].text.startswith("slow: device memory at 95 %")
    assert diagnosis.findings[-1].severity < 0.1
    assert diagnosis.copy_share == pytest.approx(2 * 128e6 / 100e-6 / BANDWIDTH)


def test_missing_counters_are_named_and_nothing_is_made_up():
    from engine.profile.counters import DRAM_BYTES, DRAM_PCT, L2_PCT

    diagnosis = of(step(missing=(DRAM_BYTES, DRAM_PCT, L2_PCT)))
    assert diagnosis.copy_share is None
    assert diagnosis.bound == "unknown"
    assert DRAM_PCT in diagnosis.sentences()[-1]


def test_the_cheap_set_alone_tells_memory_bound():
    from engine.profile.counters import CHEAP
    from tests.engine.profile.samples import _CALM

    others = tuple(name for name in _CALM if name not in CHEAP.metrics)
    assert of(step(missing=others)).bound == "memory"
    slow = of(step(missing=others, DURATION=400_000, DRAM_PCT=7.5))
    assert slow.bound == "latency"
    assert "8 % of copy" in slow.text


def test_without_counters_it_says_so():
    diagnosis = diagnose_static(
        [evidence(registers=200, launch=LaunchConfig((4096, 1, 1), (256, 1, 1)))], CaseFacts(TARGET, BANDWIDTH, 100.0, 128e6),
        why="Nsight Compute is not installed here",
    )  # fmt: skip
    assert diagnosis.bound == "unknown"
    assert "32 % of copy" in diagnosis.text
    assert diagnosis.missing == (
        "no counters: Nsight Compute is not installed here; based on times, occupancy and resource usage",
    )
    assert "limited by registers" in finding(diagnosis, "low_occupancy").text


def test_without_counters_speed_and_shortness_still_show():
    def static(time_us):
        return diagnose_static([evidence()], CaseFacts(TARGET, BANDWIDTH, time_us, 128e6))

    assert static(40.0).bound == "memory"
    assert static(3.0).bound == "launch"
    assert static(None).bound == "unknown"
