"""A diagnosis by lines without counters: from the accesses that were counted on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.predict.accesses import waste
from engine.predict.counts import KernelCounts, SiteCounts
from engine.profile.diagnosis import Finding

# Of all that a kernel moves in a space: what a place moves less is not worth a sentence; and how many sentences there are. Ours.
_SHARE, _MOST = 0.1, 3
_CODES = {"coalescing": "uncoalesced", "bank-conflicts": "bank_conflicts"}


def access_findings(counted: KernelCounts) -> list[Finding]:
    """The lines that move much more than they ask for, the worst first. What is counted is exact, for the case it was scaled to."""
    moved: dict[str, float] = defaultdict(float)
    lines: dict[tuple[int, str, str], list[SiteCounts]] = defaultdict(list)
    for site in counted.sites:
        moved[site.space] += site.passes
        if site.line:
            lines[site.line, site.space, site.kind].append(site)
    found = [_finding(sites, moved[space]) for (_, space, _), sites in lines.items()]
    return sorted((f for f in found if f is not None), key=lambda f: -f.severity)[:_MOST]


def _finding(sites: Sequence[SiteCounts], moved: float) -> Finding | None:
    """Of one line's accesses of one kind, by the one that moves most."""
    worst = max(sites, key=lambda site: site.passes)
    wasted, share = waste(worst), sum(site.passes for site in sites) / moved if moved else 0.0
    if wasted is None or share < _SHARE:
        return None
    array = f" of '{worst.array}'" if worst.array else ""
    if wasted.kind == "coalescing":
        each = f"{wasted.passes:.0f} sectors per request where {wasted.ideal:.0f} would do"
        text = f"line {worst.line} asks in its {worst.kind}s{array} for {each} (counted on the CPU)"
    else:
        each = f"{wasted.passes:.0f} passes per request where {wasted.ideal:.0f} would do"
        text = f"line {worst.line} has bank conflicts in its {worst.kind}s{array}: {each} (counted on the CPU)"
    severity = min(1.0, (1 - 1 / wasted.factor + 0.1) * share)  # as for counters, by its share of what is moved
    figures = {"sectors_per_request" if wasted.kind == "coalescing" else "passes_per_request": wasted.passes}
    return Finding(_CODES[wasted.kind], text, severity, {**figures, "ideal": wasted.ideal}, worst.line)
