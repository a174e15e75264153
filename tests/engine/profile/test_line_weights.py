"""Shares of work by source line, from a profiler's counters and from counted accesses."""

from engine.model import LaunchConfig
from engine.predict.counts import KernelCounts, SiteCounts
from engine.profile.line_weights import LineWeight, counted_lines, predicted_lines
from engine.profile.source_lines import source_lines
from tests.engine.profile.test_source_lines import LISTING, STEP


def test_shares_are_of_all_steps_and_of_what_lies_elsewhere_too() -> None:
    step = source_lines(STEP, LISTING, "src/k.cu")
    assert counted_lines([step]) == (
        LineWeight(10, 0.25, 0.0),
        LineWeight(12, 0.25, 0.254),
        LineWeight(14, 0.25, 0.0317),  # the fourth instruction is of a header
    )
    assert counted_lines([step, step]) == counted_lines([step])
    assert counted_lines([]) == ()
    assert counted_lines([source_lines(STEP, "", "src/k.cu")]) == ()


def test_accesses_counted_on_the_cpu_have_sectors_alone() -> None:
    def site(line: int, passes: float, space: str = "global") -> SiteCounts:
        return SiteCounts(line, space, "load", 4, 1.0, 32.0, passes)  # type: ignore[arg-type]

    launch = LaunchConfig((1, 1, 1), (32, 1, 1))
    sites = (site(7, 30), site(7, 30), site(9, 20), site(0, 20), site(11, 500, "shared"), site(12, 0.1))
    assert predicted_lines([KernelCounts(launch, sites, 0.0, 0.0)]) == (
        LineWeight(7, None, 0.5994),
        LineWeight(9, None, 0.1998),
    )
    assert predicted_lines([]) == ()
