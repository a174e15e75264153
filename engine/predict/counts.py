"""What a CPU run counts of a kernel's memory accesses, in the units in which a GPU pays for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.model import LaunchConfig

Space = Literal["global", "shared"]
Kind = Literal["load", "store", "atomic"]


@dataclass(frozen=True)
class SiteCounts:
    """Accesses of one place in the source, over the whole launch.

    A request is what one warp issues at once: one visit of the site by the active lanes of a warp. `passes` is the
    sum over requests of what the memory pipe needs for one of them: for global memory the number of distinct 32-byte
    sectors touched, for shared memory the number of wavefronts (the largest number of distinct 4-byte words that one
    of the 32 banks must deliver; 1 without a conflict), for atomics the number of distinct addresses' sectors.
    """

    line: int  # 1-based in the kernel's file; 0 where not known
    space: Space
    kind: Kind
    width_bytes: int  # per lane: 1, 2, 4, 8 or 16
    requests: float
    lanes: float  # active lanes, summed over the requests
    passes: float
    array: str = ""  # argument or shared array, where known
    same_address: float = 0.0  # atomics: the sum over requests of the largest number of lanes that hit one address
    cache_lines: float = (
        0.0  # global: the sum over requests of the distinct 128-byte cache lines touched; 0 where not counted
    )
    # Global loads: the sum over blocks of the distinct sectors that each loads here, in bytes; 0 where not counted.
    block_bytes: float = 0.0

    @property
    def bytes_asked(self) -> float:
        """Bytes that the lanes asked for."""
        return self.lanes * self.width_bytes


@dataclass(frozen=True)
class KernelCounts:
    """Counts of one launch of one kernel. `unique_*` are the distinct 32-byte sectors of global memory, in bytes."""

    launch: LaunchConfig
    sites: tuple[SiteCounts, ...]
    unique_load_bytes: float
    unique_store_bytes: float
    barriers: float = 0.0  # block-wide barriers, summed over the warps that waited
    # Longest number of global load requests that one warp issued: the depth of the chain when nothing overlaps.
    max_warp_loads: float = 0.0
    # The sum over blocks of the distinct sectors that each loads, in bytes; 0 where not counted. What neighbouring blocks
    # share is in it several times: they run on different multiprocessors, and only L2 can serve them from one copy.
    block_load_bytes: float = 0.0
    array_bytes: Mapping[str, int] = field(default_factory=dict)  # the sizes of the arrays that sites name, where known

    def total(self, space: Space, *kinds: Kind) -> tuple[float, float, float]:
        """(requests, passes, bytes asked) over the sites of a space, of the given kinds (all kinds when none given)."""
        chosen = [s for s in self.sites if s.space == space and (not kinds or s.kind in kinds)]
        return (
            float(sum(s.requests for s in chosen)),
            float(sum(s.passes for s in chosen)),
            float(sum(s.bytes_asked for s in chosen)),
        )


@dataclass(frozen=True)
class AccessCounts:
    """Counts of one run of a spec: one `KernelCounts` per step, in order."""

    kernels: tuple[KernelCounts, ...]
