"""Which places of a kernel move much more than they ask for, by counted accesses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.predict.counts import SiteCounts

_SECTOR, _BANK = 32, 4  # bytes
LEAST_SHARE = 0.1  # of all that a kernel moves in a space; a line that moves less is not worth a sentence. Ours
_MUCH = 1.5  # times the ideal from which on it is worth saying. Ours


@dataclass(frozen=True)
class Waste:
    """`passes` for each request (sectors of global memory, wavefronts of shared memory) where `ideal` would do."""

    kind: Literal["coalescing", "bank-conflicts"]
    passes: float
    ideal: float

    @property
    def factor(self) -> float:
        return self.passes / self.ideal


def waste(site: SiteCounts) -> Waste | None:
    """What a place moves beyond what it asks for; None where that is little. Atomics are made for their addresses."""
    if site.kind == "atomic" or site.requests <= 0:
        return None
    passes = site.passes / site.requests
    if site.space == "global":
        ideal = max(1.0, site.bytes_asked / site.requests / _SECTOR)
        return Waste("coalescing", passes, ideal) if passes > _MUCH * ideal and passes > 2 else None
    ideal = max(1.0, site.width_bytes / _BANK)
    return Waste("bank-conflicts", passes, ideal) if passes > _MUCH * ideal else None


def share_of_line(site: SiteCounts, sites: Sequence[SiteCounts]) -> float:
    """What the accesses of a site's line and kind move, of all that a kernel moves in that space."""
    moved = sum(other.passes for other in sites if other.space == site.space)
    same = sum(
        other.passes for other in sites if (other.space, other.line, other.kind) == (site.space, site.line, site.kind)
    )
    return same / moved if moved else 0.0
