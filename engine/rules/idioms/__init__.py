"""Forms of code that several rules look for. What most of them need comes from here, the rest from its module.

- threads: `thread_map`, `ThreadMap`, `Index`, `AXES`, `Axis`, `global_axis`, `thread_uses_outside`
- blocks: `WARP`, `one_dimensional`, `is_thread`, `is_block`, `is_barrier`, `SHUFFLED`, `doubles`, `halves`
- between barriers: `segments_of`, `BarrierSegment`, `NoSegments`, `fewer_threads`, `looped`
- launches: `covers`, `covered`, `fits_bounds`, `only_bound`, `independent`; `Grids` that the host computes
- values: `definition` of a local, `in_parameters` of the kernel
- loops: `stride_loop`, `inclusive_loop`, `StrideLoop`, `runs`, `with_pragma`, `changed_names`
- vectors: `packs`, `pack_bytes`, `aligned`, `widths`, `element_size`, `size_of`, `scalar_pointers`
"""

from engine.rules.idioms.blocks import SHUFFLED, WARP, doubles, halves, is_barrier, is_block, is_thread, one_dimensional
from engine.rules.idioms.coverage import Grids, covered, covers, fits_bounds, independent, only_bound
from engine.rules.idioms.known_values import definition, in_parameters
from engine.rules.idioms.packs import aligned, element_size, pack_bytes, packs, scalar_pointers, size_of, widths
from engine.rules.idioms.segments import BarrierSegment, NoSegments, fewer_threads, looped, segments_of
from engine.rules.idioms.strided_loop import StrideLoop, changed_names, inclusive_loop, runs, stride_loop, with_pragma
from engine.rules.idioms.thread_index import AXES, Axis, Index, ThreadMap, global_axis, thread_map, thread_uses_outside

__all__ = [
    "AXES", "SHUFFLED", "WARP", "Axis", "BarrierSegment", "Grids", "Index", "NoSegments", "StrideLoop",
    "ThreadMap", "aligned", "changed_names", "covered", "covers", "definition", "doubles", "element_size", "fewer_threads",
    "fits_bounds", "global_axis", "halves", "in_parameters", "inclusive_loop", "independent", "is_barrier",
    "is_block", "is_thread", "looped", "one_dimensional", "only_bound", "pack_bytes", "packs", "runs",
    "scalar_pointers", "segments_of", "size_of", "stride_loop", "thread_map", "thread_uses_outside", "widths",
    "with_pragma",
]  # fmt: skip
