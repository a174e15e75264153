"""Which places of a kernel move much more than they ask for, by counted accesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.predict.counts import SiteCounts

_SECTOR, _BANK = 32, 4  # bytes
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
