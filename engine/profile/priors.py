"""Which rules a diagnosis calls for: factors on a rule's own prior, each with its reason. All of them are ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from engine.profile.diagnosis import Diagnosis
from engine.rewrite.proposal import Proposal

# Findings multiply, within these bounds: a diagnosis may be wrong, and nothing is excluded by one.
_LEAST, _MOST = 0.25, 3.0


@dataclass(frozen=True)
class Influence:
    """A finding's factor on one rule: above 1 it is tried earlier, below 1 later."""

    code: str
    rule: str
    factor: float
    reason: str


INFLUENCES: tuple[Influence, ...] = (
    # Accesses that waste sectors: change which lane touches what.
    Influence("uncoalesced", "row_parallel", 2.5, "lanes of one warp then walk along a row"),
    Influence("uncoalesced", "transpose_tile", 2.5, "a tile turns the strided side into one along rows"),
    Influence("uncoalesced", "block_size", 1.3, "another block shape may put neighbours into one warp"),
    Influence("uncoalesced", "matmul_tile", 1.5, "tiles are loaded along rows"),
    Influence("uncoalesced", "stencil_tile", 1.3, "a tile is loaded by whole warps along rows"),
    Influence("uncoalesced", "vectorize", 0.5, "wider accesses do not fix a stride"),
    Influence("uncoalesced", "fast_math", 0.4, "arithmetic is not the bottleneck"),
    Influence("uncoalesced_loads", "row_parallel", 2.5, "lanes of one warp then walk along a row"),
    Influence("uncoalesced_loads", "transpose_tile", 2.0, "a tile turns the strided loads into ones along rows"),
    Influence("uncoalesced_loads", "matmul_tile", 1.5, "tiles are loaded along rows"),
    Influence("uncoalesced_loads", "block_size", 1.3, "another block shape may put neighbours into one warp"),
    Influence("uncoalesced_loads", "fast_math", 0.4, "arithmetic is not the bottleneck"),
    Influence("uncoalesced_stores", "transpose_tile", 2.5, "a tile turns the strided stores into ones along rows"),
    Influence("uncoalesced_stores", "row_parallel", 2.0, "lanes of one warp then store along a row"),
    Influence("uncoalesced_stores", "register_accumulate", 1.5, "sums kept in registers are stored once"),
    Influence("uncoalesced", "swap_axes", 2.5, "neighbouring lanes then touch neighbouring elements"),
    Influence("uncoalesced_loads", "swap_axes", 2.5, "neighbouring lanes then load neighbouring elements"),
    Influence("uncoalesced_stores", "swap_axes", 2.5, "neighbouring lanes then store neighbouring elements"),
    Influence("excess_traffic", "swap_axes", 1.5, "half-used sectors are fetched again"),
    # More bytes than the arrays hold: reuse what was loaded.
    Influence("excess_traffic", "matmul_tile", 2.5, "a tile is loaded once and used by the whole block"),
    Influence("excess_traffic", "conv_tile", 2.5, "pixels and filters are loaded once and used by the whole block"),
    Influence("excess_traffic", "stencil_tile", 1.8, "each element is fetched once for all its neighbours"),
    Influence("excess_traffic", "register_accumulate", 2.0, "sums in global memory are read and written in every step"),
    Influence("excess_traffic", "row_parallel", 1.5, "strided rows fetch whole sectors for single elements"),
    Influence("excess_traffic", "one_pass", 1.8, "each row is then read one time fewer"),
    Influence("excess_traffic", "row_keep", 2.0, "each row is then read only once"),
    Influence("excess_traffic", "transpose_tile", 1.5, "half-used sectors are fetched again"),
    Influence("excess_traffic", "restrict", 1.3, "values may then stay in registers over a store"),
    # Device memory is full: only the width of accesses and the number of passes are left.
    Influence("dram_saturated", "vectorize", 1.3, "fewer requests for the same bytes give the last few per cent"),
    Influence("dram_saturated", "row_vectorize", 1.3, "fewer requests for the same bytes give the last few per cent"),
    Influence("dram_saturated", "segment_vectorize", 1.3, "fewer requests for the same bytes give the last few per cent"),
    Influence("dram_saturated", "one_pass", 1.6, "each row is then read one time fewer"),
    Influence("dram_saturated", "row_keep", 1.8, "each row is then read only once"),
    Influence("dram_saturated", "fast_math", 0.3, "arithmetic hides behind memory"),
    Influence("dram_saturated", "unroll", 0.6, "more loads in flight do not help a saturated path"),
    # Warps wait for memory: more loads in flight, or fewer.
    Influence("memory_stalls", "vectorize", 1.6, "each request moves more bytes"),
    Influence("memory_stalls", "row_vectorize", 1.6, "each request moves more bytes"),
    Influence("memory_stalls", "segment_vectorize", 1.6, "each request moves more bytes"),
    Influence("memory_stalls", "one_pass", 1.4, "one wait for a row instead of two"),
    Influence("memory_stalls", "row_keep", 1.8, "all loads of a row are in flight together, and waited for once"),
    Influence("memory_stalls", "unroll", 1.5, "independent loads are issued before the first is waited for"),
    Influence("memory_stalls", "coarsen", 1.4, "a thread has several loads in flight"),
    Influence("memory_stalls", "batch_loads", 1.5, "a thread has several loads in flight"),
    Influence("memory_stalls", "block_rows", 1.4, "a thread has several loads in flight"),
    Influence("memory_stalls", "restrict", 1.4, "loads may move before stores"),
    Influence("memory_stalls", "register_accumulate", 1.4, "every step waits for a sum in memory"),
    Influence("memory_stalls", "fast_math", 0.5, "arithmetic is not the bottleneck"),
    Influence("memory_queue_stalls", "vectorize", 1.8, "fewer requests enter the queue"),
    Influence("memory_queue_stalls", "row_vectorize", 1.8, "fewer requests enter the queue"),
    Influence("memory_queue_stalls", "segment_vectorize", 1.8, "fewer requests enter the queue"),
    Influence("memory_queue_stalls", "conv_tile", 1.5, "shared memory takes the requests"),
    Influence("memory_queue_stalls", "matmul_tile", 1.5, "shared memory takes the requests"),
    Influence("memory_queue_stalls", "stencil_tile", 1.4, "shared memory takes the requests"),
    Influence("memory_queue_stalls", "stencil_pack", 1.8, "a load serves several results, and moves four elements"),
    Influence("excess_traffic", "stencil_pack", 1.5, "each element is fetched once for several results"),
    Influence("memory_stalls", "stencil_pack", 1.6, "a thread has the loads of several rows in flight"),
    Influence("uncoalesced_loads", "topk_filter", 2.0, "a warp reads each of its rows together"),
    Influence("memory_stalls", "topk_filter", 1.4, "a thread has the loads of several rows in flight"),
    Influence("issue_bound", "topk_filter", 1.8, "few elements of a row are inserted"),
    Influence("memory_queue_stalls", "atomic_aggregate", 1.6, "one atomic replaces a block's"),
    Influence("memory_queue_stalls", "atomic_vectorize", 1.6, "one atomic replaces four"),
    Influence("memory_stalls", "unroll_jam", 1.6, "a load serves several results, and their chains are independent"),
    Influence("memory_queue_stalls", "unroll_jam", 1.8, "a load serves several results"),
    Influence("l1_misses", "unroll_jam", 1.4, "each loaded value is used for several results"),
    Influence("l1_misses", "matmul_tile", 1.4, "shared memory keeps what L1 drops"),
    Influence("l1_misses", "row_keep", 1.4, "data that is read again stays in registers"),
    Influence("l1_misses", "stencil_tile", 1.6, "shared memory keeps what L1 drops"),
    Influence("l1_misses", "block_size", 1.2, "another block shape accesses other cache lines together"),
    Influence("memory_stalls", "read_only", 1.2, "loads may move before stores"),
    Influence("l1_misses", "read_only", 1.2, "inputs are kept apart from what is written"),
    # Shared memory and barriers.
    Influence("shared_stalls", "atomic_aggregate", 1.2, "combining in registers first saves shared-memory accesses"),
    Influence("shared_stalls", "unroll", 1.3, "independent work between a load from shared memory and its use"),
    Influence("shared_queue_stalls", "fast_math", 1.2, "special functions share that queue"),
    Influence("bank_conflicts", "transpose_tile", 1.2, "its tile is padded"),
    Influence("bank_conflicts", "matmul_tile", 1.2, "its tiles are laid out without conflicts"),
    Influence("barrier_stalls", "block_size", 1.5, "smaller blocks wait for fewer warps"),
    Influence("barrier_stalls", "row_parallel", 1.3, "a warp for each row needs no barrier"),
    Influence("barrier_stalls", "one_pass", 1.2, "threads synchronise after one loop instead of two"),
    Influence("barrier_stalls", "coarsen", 1.2, "more work between two barriers"),
    Influence("bank_conflicts", "shared_padding", 3.0, "a column then spreads over the banks"),
    Influence("shared_queue_stalls", "shared_padding", 1.8, "each conflict is another pass through that queue"),
    Influence("shared_stalls", "shared_padding", 1.5, "each conflict is another pass"),
    Influence("barrier_stalls", "warp_reduce", 2.0, "shuffles need two barriers where a tree has one at each level"),
    Influence("shared_stalls", "warp_reduce", 1.6, "partial sums stay in registers"),
    Influence("barrier_stalls", "block_rows", 1.6, "fewer warps synchronise, with more work between two barriers"),
    Influence("barrier_stalls", "cascade", 2.0, "one reduction tree with its barriers serves more elements"),
    Influence("barrier_stalls", "warp_scan", 2.0, "shuffles need three barriers where the scan has two at each level"),
    Influence("shared_stalls", "warp_scan", 1.6, "partial sums stay in registers"),
    Influence("barrier_stalls", "scan_items", 2.0, "fewer threads synchronise at fewer barriers"),
    Influence("memory_stalls", "scan_items", 1.6, "each thread has several loads in flight"),
    Influence("barrier_stalls", "scan_rounds", 2.0, "fewer rounds synchronise"),
    Influence("memory_stalls", "scan_rounds", 1.8, "a round's loads are in flight together"),
    Influence("barrier_stalls", "warp_exchange", 2.0, "stages within a warp need no barrier"),
    Influence("shared_stalls", "warp_exchange", 1.6, "elements stay in registers"),
    Influence("divergence", "warp_exchange", 1.4, "both threads of a pair work on it"),
    Influence("divergence", "warp_reduce", 1.3, "a tree leaves more lanes idle at each level"),
    # Occupancy and registers.
    Influence("low_occupancy", "block_size", 1.6, "another size may use the SM better"),
    Influence("low_occupancy", "launch_bounds", 1.6, "the compiler may then use fewer registers"),
    Influence("low_occupancy", "unroll", 0.7, "unrolling takes registers"),
    Influence("low_occupancy", "coarsen", 0.7, "coarsening takes registers and threads"),
    Influence("low_occupancy", "unroll_jam", 0.7, "several results take registers and threads"),
    Influence("many_registers", "launch_bounds", 1.6, "the compiler may then use fewer registers"),
    Influence("many_registers", "unroll", 0.6, "unrolling takes more"),
    Influence("many_registers", "batch_loads", 0.6, "values of several iterations take more"),
    Influence("many_registers", "coarsen", 0.6, "coarsening takes more"),
    Influence("many_registers", "unroll_jam", 0.6, "several results take more"),
    Influence("many_registers", "row_keep", 0.6, "a row in registers takes more"),
    Influence("spills", "launch_bounds", 1.5, "a bound that fits gives the registers back"),
    Influence("spills", "unroll", 0.5, "unrolling takes more registers"),
    Influence("spills", "coarsen", 0.5, "coarsening takes more registers"),
    Influence("spills", "unroll_jam", 0.5, "several results take more registers"),
    Influence("spills", "row_keep", 0.5, "a row in registers takes more"),
    Influence("local_memory", "unroll", 1.5, "an array with constant indices goes to registers"),
    # The grid.
    Influence("small_grid", "row_parallel", 2.0, "a warp or block for each row gives many times more threads"),
    Influence("small_grid", "block_size", 1.5, "smaller blocks give more of them"),
    Influence("small_grid", "unroll_jam", 0.4, "even fewer threads remain"),
    Influence("small_grid", "coarsen", 0.4, "coarsening leaves even fewer blocks"),
    Influence("tail", "block_size", 1.4, "smaller blocks leave a shorter last wave"),
    Influence("tail", "coarsen", 1.2, "another number of blocks may fill whole waves"),
    Influence("partial_warps", "block_size", 1.5, "whole warps leave no lane idle"),
    Influence("divergence", "row_parallel", 1.4, "the lanes of a warp then have the same trip count"),
    # Arithmetic and issue slots.
    Influence("issue_bound", "fast_math", 1.8, "fewer instructions for each function"),
    Influence("issue_bound", "unroll", 1.4, "less counting and branching"),
    Influence("issue_bound", "vectorize", 1.4, "fewer address and load instructions"),
    Influence("issue_bound", "coarsen", 1.3, "index arithmetic is shared by several elements"),
    Influence("issue_bound", "matmul_tile", 1.5, "more multiply-adds for each load"),
    Influence("issue_bound", "stencil_tile", 0.7, "filling the tile takes instructions"),
    Influence("issue_bound", "unroll_jam", 1.8, "loads, addresses and loop counting are shared by several results"),
    Influence("issue_bound", "interior", 1.6, "no tests between the loads of neighbours"),
    Influence("issue_bound", "invariant_division", 2.0, "an integer division takes 20 to 100 instructions"),
    Influence("math_stalls", "invariant_division", 1.5, "fewer instructions on the busy pipe"),
    Influence("dram_saturated", "invariant_division", 0.5, "index arithmetic hides behind memory"),
    Influence("math_stalls", "fast_math", 2.0, "cheaper instructions on the busy pipe"),
    Influence("dependency_stalls", "unroll", 1.5, "independent chains side by side"),
    Influence("dependency_stalls", "unroll_jam", 1.5, "the sums of several results are independent"),
    Influence("dependency_stalls", "coarsen", 1.4, "independent elements side by side"),
    Influence("fetch_stalls", "unroll", 0.5, "longer code misses the instruction cache more"),
    # The bound itself.
    Influence("compute_bound", "fast_math", 1.5, "arithmetic is the bottleneck"),
    Influence("compute_bound", "matmul_tile", 1.3, "registers feed the arithmetic pipes"),
    Influence("memory_bound", "fast_math", 0.5, "arithmetic hides behind memory"),
    Influence("compute_bound", "interior", 1.3, "tests of neighbours are arithmetic too"),
    Influence("latency_bound", "coarsen", 1.3, "more independent work for each thread"),
    Influence("latency_bound", "block_rows", 1.3, "more independent work for each thread"),
    Influence("latency_bound", "cascade", 1.3, "more independent work for each thread"),
    Influence("latency_bound", "unroll", 1.3, "more independent work for each thread"),
    Influence("launch_bound", "coarsen", 1.2, "fewer blocks start faster"),
    Influence("issue_bound", "cascade", 1.4, "a reduction tree's instructions serve more elements"),
    Influence("launch_bound", "unroll", 0.6, "the loop is not the bottleneck"),
)  # fmt: skip


def _table() -> Mapping[str, Mapping[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for influence in INFLUENCES:
        table.setdefault(influence.code, {})[influence.rule] = influence.factor
    return MappingProxyType({code: MappingProxyType(factors) for code, factors in table.items()})


PRIORS: Mapping[str, Mapping[str, float]] = _table()


def factor(diagnosis: Diagnosis, rule: str) -> float:
    """How much more (above 1) or less a rule is called for after this diagnosis; grave findings count in full, slight ones less."""
    product = 1.0
    severities = {f.code: f.severity for f in diagnosis.findings}
    for code in diagnosis.codes:
        product *= PRIORS.get(code, {}).get(rule, 1.0) ** severities.get(code, 1.0)
    return min(_MOST, max(_LEAST, product))


def reweighted(proposals: Sequence[Proposal], diagnosis: Diagnosis) -> list[Proposal]:
    """The proposals with priors by the diagnosis, most promising first. A rule that is not in the table keeps its own.

    The factor multiplies the odds, so that priors stay below 1 and variants of one rule keep their order.
    """
    changed = [replace(p, prior=_odds(p.prior, factor(diagnosis, p.rule))) for p in proposals]
    return sorted(changed, key=lambda p: -p.prior)


def _odds(prior: float, by: float) -> float:
    return prior * by / (1 - prior + prior * by)
