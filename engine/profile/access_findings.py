"""A diagnosis by lines without counters: from the accesses that were counted on the CPU."""

from collections import defaultdict
from collections.abc import Sequence

from engine.predict.counts import KernelCounts, SiteCounts
from engine.predict.wasted_sectors import LEAST_SHARE, share_of_line, waste
from engine.profile.diagnosis import Finding

_MOST = 3  # sentences. Ours
_CODES = {"coalescing": "uncoalesced", "bank-conflicts": "bank_conflicts"}


def access_findings(counted: KernelCounts) -> list[Finding]:
    """The lines that move much more than they ask for, the worst first. What is counted is exact, for the case it was scaled to."""
    lines: dict[tuple[int, str, str], list[SiteCounts]] = defaultdict(list)
    for site in counted.sites:
        if site.line:
            lines[site.line, site.space, site.kind].append(site)
    found = [_finding(sites, share_of_line(sites[0], counted.sites)) for sites in lines.values()]
    return sorted((f for f in found if f is not None), key=lambda f: -f.severity)[:_MOST]


def _finding(sites: Sequence[SiteCounts], share: float) -> Finding | None:
    """Of one line's accesses of one kind, by the one that moves most."""
    worst = max(sites, key=lambda site: site.passes)
    wasted = waste(worst)
    if wasted is None or share < LEAST_SHARE:
        return None
    array = f" {'to' if worst.kind == 'store' else 'of'} `{worst.array}`" if worst.array else ""
    if wasted.kind == "coalescing":
        each = f"{wasted.passes:.0f} sectors per request (ideal: {wasted.ideal:.0f})"
        text = f"uncoalesced {worst.kind}{array}: {each}, line {worst.line} (counted on the CPU)"
    else:
        each = f"{wasted.passes:.0f} passes per request (ideal: {wasted.ideal:.0f})"
        text = f"bank conflicts, {worst.kind}{array}: {each}, line {worst.line} (counted on the CPU)"
    severity = min(1.0, (1 - 1 / wasted.factor + 0.1) * share)  # as for counters, by its share of what is moved
    figures = {"sectors_per_request" if wasted.kind == "coalescing" else "passes_per_request": wasted.passes}
    return Finding(_CODES[wasted.kind], text, severity, {**figures, "ideal": wasted.ideal}, worst.line)
