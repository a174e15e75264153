"""What counted accesses say of a kernel's lines."""

from __future__ import annotations

from dataclasses import replace

from engine.model import LaunchConfig
from engine.predict.counts import KernelCounts, SiteCounts
from engine.profile.access_findings import access_findings

ROWS = SiteCounts(12, "global", "load", 4, 100.0, 3200.0, 3200.0, "x")  # every lane a sector of its own
LINED = SiteCounts(14, "global", "store", 4, 100.0, 3200.0, 400.0, "y")  # neighbours side by side
BANKS = SiteCounts(20, "shared", "load", 4, 50.0, 1600.0, 1600.0, "tile")


def findings(*sites: SiteCounts) -> list[tuple[str, int | None, str]]:
    counted = KernelCounts(LaunchConfig((1, 1, 1), (32, 1, 1)), sites, 0.0, 0.0)
    return [(f.code, f.line, f.text) for f in access_findings(counted)]


def test_lines_that_waste_are_named() -> None:
    each = "32 sectors per request (ideal: 4)"
    banks = "32 passes per request (ideal: 1)"
    assert findings(ROWS, LINED, BANKS) == [
        ("bank_conflicts", 20, f"bank conflicts, load of `tile`: {banks}, line 20 (counted on the CPU)"),
        ("uncoalesced", 12, f"uncoalesced load of `x`: {each}, line 12 (counted on the CPU)"),
    ]


def test_what_is_as_it_should_be_or_little_or_of_no_known_line_is_not() -> None:
    wide = replace(LINED, width_bytes=16, passes=1600.0)
    little = replace(ROWS, line=13, requests=1.0, lanes=32.0, passes=32.0)
    atomic = replace(ROWS, kind="atomic")
    assert findings(LINED, wide, little, replace(ROWS, line=0), atomic) == []
    assert findings() == []


def test_one_line_is_named_once_for_each_kind_of_access() -> None:
    assert [line for _, line, _ in findings(ROWS, replace(ROWS, array="w"), replace(ROWS, line=9), replace(ROWS, kind="store"))] == [
        12, 9, 12,
    ]  # fmt: skip
