"""The time of a launch, predicted from machine code, occupancy and counted accesses: a few terms that overlap in part.

Every term is the time one part of the GPU would need alone. They are joined by a p-norm, between their maximum (all
overlap) and their sum (none does), in the spirit of the roofline model (Williams, Waterman, Patterson 2009) and of the
MWP-CWP model (Hong, Kim 2009). The constants are ours; each stands here once with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import RefusedError
from engine.model import Binary, LaunchConfig, Resources
from engine.predict.counts import AccessCounts, KernelCounts, Kind, Space
from engine.predict.occupancy import Occupancy, occupancy
from engine.predict.sass import CodeLoop, KernelCode
from engine.predict.targets import TargetParameters
from engine.predicted_number import approximate

Bound = Literal[
    "memory", "cache", "load/store units", "shared memory", "compute", "atomics", "latency", "block starts", "launch"
]  # fmt: skip

_LAUNCH_US = 2.0  # the shortest kernel that events can see on current GPUs takes about this long
_UNKNOWN_TRIPS = 8.0  # of a loop without a memory access to count by: a shuffle or a shared-memory tree has 5 to 10
_SECTORS_PER_CLOCK = 4.0  # L1 delivers 128 bytes per clock
_DEPENDENT_CLOCKS = 4.0  # a warp's next arithmetic instruction waits so long for the last one
_L2_LATENCY_S, _L1_LATENCY_S = 0.15e-6, 0.023e-6  # 262 and 41 clocks on an H100 (Luo et al. 2024)
_SHARED_LATENCY_S = 0.017e-6  # 29 clocks, the same source
_BARRIER_S = 0.02e-6  # a barrier of a block costs its last warp about this
L2_SLICES = 96  # places where atomics on different cache lines go on side by side
_L2_SHARE = 0.5  # of L2 holds different data at full use: the halves of an A100's or H100's keep copies of each other's
_TAIL = 0.5  # share of the last wave's idle time that is felt: blocks do not end all at once


@dataclass(frozen=True)
class Fitted:
    """The constants that were set by looking at measured kernels. benchmarks/predict_correlation.py tries each against
    kernels that had no part in it.
    """

    norm: float = (
        3.0  # between 1 (terms add up) and infinity (terms overlap); measured kernels overlap most of their parts
    )
    # L1 looks one cache line up per clock, and takes slightly more than a clock for a request of one line: naive 2048³
    # products on an H200 take 3.06 clocks for two requests of three lines, 2.39 for two requests of two.
    request_clocks: float = 1.2
    line_clocks: float = 1.0
    chain_clocks: float = 2.0  # between two instructions of one warp: every other one waits for the last
    # A warp's life beyond its instructions: being placed, its first fetches, its last stores. Kernels of one element per
    # thread (stencil, GELU on an H200) take 0.9 to 1.3 µs for each filling of the GPU; one memory access of it is 0.4.
    warp_start_s: float = 0.45e-6
    # A multiprocessor starts a block in about 160 clocks, with 64 (stencil) and with 128 threads (GELU) on an H200.
    block_start_s: float = 0.08e-6
    # L2 merges a store that covers a part of a sector: it costs as much as so many more sectors (column-wise writes of a
    # transposition on an H200: 512 µs with a quarter of each sector, 960 to 1,130 µs with an eighth).
    partial_store: float = 5.0
    # Atomics in one cache line go one after the other: 2.1 ns each for 262,144 additions to one float, 2.7 ns for 67 M to
    # 256 bins in eight lines (dot product and histogram on an H200).
    atomic_s: float = 2.4e-9
    # A slice of L2 takes a lane of an atomic in this time where all go to different lines: 33.6 M additions to rows of 64 floats take
    # 141 µs on an H200, as a quarter as many additions of four floats 66 µs (message passing).
    atomic_lane_s: float = 0.33e-9


@dataclass(frozen=True)
class Prediction:
    """A predicted time in microseconds, never measured. `bound` names the largest of `terms` (each in microseconds)."""

    time_us: float
    bound: Bound
    terms: Mapping[Bound, float]
    sentences: tuple[str, ...]
    occupancy: tuple[Occupancy, ...]
    arch: str


def predict(
    binary: Binary,
    launches: Sequence[LaunchConfig],
    counts: AccessCounts,
    figures: TargetParameters,
    code: Mapping[str, KernelCode],
    fitted: Fitted = Fitted(),
) -> Prediction:
    """The time of all steps of a spec in order; `counts` are those of these launches, see `engine.predict.scale`.

    `code` is `parse_sass` of the binary's disassembly. Raises RefusedError where a launch cannot run.
    """
    if not len(binary.entries) == len(launches) == len(counts.kernels):
        raise RefusedError("a prediction needs one launch and one set of counts per kernel")
    terms: dict[Bound, float] = {}
    sentences: list[str] = []
    found: list[Occupancy] = []
    total = 0.0
    for entry, resources, launch, counted in zip(
        binary.entries, binary.resources, launches, counts.kernels, strict=True
    ):
        if entry not in code:
            raise RefusedError(f"the machine code of '{entry[:200]}' could not be read")
        occupied = occupancy(resources, launch, figures)
        if occupied.blocks == 0:
            raise RefusedError(
                f"no block of {launch.threads} threads fits {figures.target.arch}: limited by {occupied.limit}"
            )
        step = _terms(_Launched(code[entry], resources, launch, counted, occupied), figures, fitted)
        total += _join(step, occupied, fitted.norm)
        for name, value in step.items():
            terms[name] = terms.get(name, 0.0) + value
        found.append(occupied)
        sentences += _sentences(step, resources, counted, occupied)
    bound = max(terms, key=lambda name: terms[name])
    return Prediction(total, bound, terms, tuple(sentences), tuple(found), figures.target.arch)


def _join(terms: Mapping[Bound, float], occupied: Occupancy, norm: float) -> float:
    work = math.pow(sum(math.pow(value, norm) for name, value in terms.items() if name != "launch"), 1 / norm)
    waves = occupied.waves
    tail = 1 + _TAIL * (math.ceil(waves) / waves - 1) if waves > 1 else 1.0
    return work * tail + terms.get("launch", 0.0)


def executions(code: KernelCode, counted: KernelCounts, launch: LaunchConfig) -> tuple[float, ...]:
    """How often warps go through each loop's own code, in the order of `code.loops`.

    The straight code: once per warp. A loop: so often that its accesses move the bytes counted at their source lines
    (at all lines, where the code has none); where loops share a line (an unrolled loop and its rest) the widest takes
    it all. A loop whose accesses stand at lines that no thread came to: never. A loop without accesses: as often as its counter
    says, else a fixed number of trips each time its parent runs, fewer where the compiler unrolled it. No loop has more trips
    than its counter allows.
    """
    warps = float(launch.blocks * -(-launch.threads // 32))
    asked: dict[tuple[int, Space, Kind], float] = {}
    for site in counted.sites:
        for line in {site.line, 0}:
            key = (line, site.space, site.kind)
            asked[key] = asked.get(key, 0.0) + site.requests * site.width_bytes
    lines = {(access.line, access.space, access.kind) for loop in code.loops for access in loop.memory}
    # Kinds of accesses whose counted lines are all in the code: another line of theirs was never visited.
    known = [(site.line, site.space, site.kind) for site in counted.sites]
    placed = {(space, kind) for _, space, kind in known} - {key[1:] for key in known if key not in lines}
    # Bytes per lane and trip of each loop, by source line where the counts know that line.
    moved: list[dict[tuple[int, Space, Kind], float]] = []
    idle: list[bool] = []
    for loop in code.loops:
        skipped = False
        own: dict[tuple[int, Space, Kind], float] = {}
        for access in loop.memory:
            key = (access.line, access.space, access.kind)
            if key not in asked:
                if (access.space, access.kind) in placed:
                    skipped = True
                    continue
                key = (0, access.space, access.kind)
            own[key] = own.get(key, 0.0) + access.width_bytes
        moved.append(own)
        idle.append(skipped and not own)
    runs = [warps]
    for index, loop in enumerate(code.loops[1:], 1):
        parent = runs[loop.parent]
        estimates = []
        for key, width in moved[index].items():
            rivals = [other.get(key, 0.0) for other in moved[1:]]
            straight = moved[0].get(key, 0.0) * warps
            if key in asked and width >= max(rivals):
                sharing = sum(1 for rival in rivals if rival == width)
                estimates.append(max(asked[key] - straight, 0.0) / width / sharing)
        if estimates:
            runs.append(min(max(estimates), parent * loop.trips) if loop.trips else max(estimates))
        elif idle[index]:
            runs.append(0.0)
        elif moved[index]:
            runs.append(parent)  # the rest of an unrolled loop
        else:
            runs.append(parent * (loop.trips or _unknown_trips(code, index)))
    return tuple(runs)


def _unknown_trips(code: KernelCode, index: int) -> float:
    """The trips of a loop that nothing counts. One that the compiler unrolled, with loops for the rest beside it, does the same
    work as before: in so many fewer trips as its body is larger than the smallest, and the rest has none.
    """
    loop = code.loops[index]
    same = [
        other
        for other in code.loops[1:]
        if (other.parent, other.line) == (loop.parent, loop.line) and not other.memory and not other.trips
    ]
    if len(same) < 2 or not loop.line:
        return _UNKNOWN_TRIPS
    if loop is not max(same, key=lambda each: each.instructions):
        return 0.0
    return _UNKNOWN_TRIPS * min(_work(each) for each in same) / _work(loop)


def _work(loop: CodeLoop) -> int:
    """The instructions of a loop that are repeated when it is unrolled, as far as they can be told from its own."""
    return loop.fp32 + loop.fp64 + loop.mufu + loop.tensor + loop.shuffles or loop.instructions


def merged(code: KernelCode, counted: KernelCounts, launch: LaunchConfig) -> KernelCounts:
    """The counts with fewer, wider accesses where the compiler joined what the source asks for one by one.

    The accesses of a line move the same bytes either way, so their number shrinks with the mean width of the
    instructions at that line (at all lines, where the code has none). Loads at a line without a loop cannot be more than the code has
    instructions there, for each warp: a value that is loaded once and kept is counted once. What they touch shrinks
    with them.
    """
    found: dict[tuple[int, Space, Kind], list[int]] = {}
    for access in (access for loop in code.loops for access in loop.memory):
        for line in {access.line, 0}:
            found.setdefault((line, access.space, access.kind), []).append(access.width_bytes)
    looped = {access.line for loop in code.loops[1:] for access in loop.memory}
    warps = launch.blocks * -(-launch.threads // 32)
    asked: dict[int, float] = {}
    for site in counted.sites:
        if (site.space, site.kind) == ("global", "load"):
            asked[site.line] = asked.get(site.line, 0.0) + site.requests
    sites = []
    for site in counted.sites:
        widths = found.get((site.line, site.space, site.kind)) or found.get((0, site.space, site.kind), [])
        share = min(1.0, site.width_bytes * len(widths) / sum(widths)) if widths and site.kind != "atomic" else 1.0
        kept = 1.0
        at_line = found.get((site.line, "global", "load"), [])
        if (site.space, site.kind) == ("global", "load") and at_line and site.line not in looped:
            kept = min(1.0, len(at_line) * warps / max(asked[site.line] * share, 1.0))
        passes = site.passes * share if site.space == "shared" else site.passes * kept
        # `lanes` stays: it stands for the bytes that were asked for.
        sites.append(
            replace(site, requests=site.requests * share * kept, passes=passes, cache_lines=site.cache_lines * kept)
        )
    return replace(counted, sites=tuple(sites))


@dataclass(frozen=True)
class _Launched:
    """One kernel of the program, as it is launched."""

    code: KernelCode
    resources: Resources
    launch: LaunchConfig
    counted: KernelCounts
    occupied: Occupancy


def _terms(step: _Launched, figures: TargetParameters, fitted: Fitted) -> dict[Bound, float]:
    code, launch, counted, occupied = step.code, step.launch, step.counted, step.occupied
    clock, target = figures.clock_hz, figures.target
    processors = max(1.0, target.multiprocessors * occupied.active)
    resident = max(1.0, min(occupied.warps * processors, launch.blocks * -(-launch.threads // 32)))
    runs = executions(code, counted, launch)
    issued = merged(code, counted, launch)

    def executed(name: str) -> float:
        return sum(float(getattr(loop, name)) * run for loop, run in zip(code.loops, runs, strict=True))

    _, sectors, _ = issued.total("global", "load", "store")
    dram_bytes, l2_bytes = _traffic(step, figures, fitted.partial_store)
    local_bytes = executed("local") * 32 * 4
    memory = (dram_bytes / figures.dram_bytes_s) * 1e6
    cache = ((l2_bytes + local_bytes) / figures.l2_bytes_s) * 1e6

    request_clocks = executed("local") * fitted.request_clocks + sum(
        max(s.requests * fitted.request_clocks, s.cache_lines * fitted.line_clocks, s.passes / _SECTORS_PER_CLOCK)
        for s in issued.sites
        if s.space == "global"
    )
    units = request_clocks / processors / clock * 1e6

    _, shared_passes, _ = issued.total("shared")
    collisions = sum(site.same_address for site in counted.sites if site.space == "shared")
    shared = (shared_passes + collisions + executed("shuffles")) / processors / clock * 1e6

    per_scheduler = max(1 / figures.schedulers, _DEPENDENT_CLOCKS / max(1, occupied.warps))
    clocks = max(
        executed("instructions") * per_scheduler,
        executed("fp32") * 32 / figures.fp32_lanes,
        executed("fp64") * 32 / figures.fp64_lanes,
        executed("mufu") * 32 / figures.mufu_lanes,
        executed("products") * figures.product_clocks / figures.schedulers,
    )
    compute = clocks / processors / clock * 1e6

    atomics = _atomics_s(counted, fitted) * 1e6

    wanted = max(sectors * 32, 1.0)
    from_dram = min(1.0, dram_bytes / wanted)
    from_l2 = min(1.0 - from_dram, max(0.0, l2_bytes - dram_bytes) / wanted)
    wait = from_dram * figures.dram_latency_s + from_l2 * _L2_LATENCY_S + (1 - from_dram - from_l2) * _L1_LATENCY_S
    chain = executed("load_batches") * wait + executed("shared_batches") * _SHARED_LATENCY_S
    chain += (counted.barriers or executed("barriers")) * _BARRIER_S
    chain += (
        launch.blocks * -(-launch.threads // 32) * fitted.warp_start_s
        + executed("instructions") * fitted.chain_clocks / clock
    )
    starts = launch.blocks / processors * fitted.block_start_s * 1e6
    # The warp with the longest chain cannot end sooner, however little the others do (uneven rows, few threads).
    overlapping = max(1.0, executed("loads") / max(executed("load_batches"), 1.0))
    longest = counted.max_warp_loads / overlapping * wait
    latency = max(chain / resident, longest) * 1e6
    return {
        "memory": memory, "cache": cache, "load/store units": units, "shared memory": shared, "compute": compute,
        "atomics": atomics, "latency": latency, "block starts": starts, "launch": _LAUNCH_US,
    }  # fmt: skip


def _atomics_s(counted: KernelCounts, fitted: Fitted) -> float:
    """Seconds that L2 takes for atomics: those of one cache line go one after the other, and each slice takes the lanes in turn.

    A vector atomic is one lane, so it is cheaper than its elements one by one.
    """
    sites = [site for site in counted.sites if site.space == "global" and site.kind == "atomic"]
    # A request takes one turn for each sector, and the lanes of one address one each.
    turns = sum(site.passes + max(site.same_address - site.requests, 0.0) for site in sites)
    lines = max(1.0, counted.unique_store_bytes / 128)
    return max(turns / lines * fitted.atomic_s, sum(site.lanes for site in sites) / L2_SLICES * fitted.atomic_lane_s)


def _traffic(step: _Launched, figures: TargetParameters, partial_store: float) -> tuple[float, float]:
    """Bytes from and to DRAM, and bytes between L2 and the multiprocessors.

    A block's sectors come from L2 once for each place that loads them, if they stay in L1 between the warps and trips
    that share them, and once in all, if L1 holds everything that the resident blocks load. From DRAM comes what is
    touched, and again what is asked for again if the resident blocks touch more of its array than L2 holds.
    """
    resources, launch, counted, occupied = step.resources, step.launch, step.counted, step.occupied
    unique = counted.unique_load_bytes + counted.unique_store_bytes
    processors = figures.target.multiprocessors
    resident = min(1.0, occupied.blocks * processors / max(1, launch.blocks))
    l1 = max(figures.target.shared_per_sm - occupied.blocks * (resources.shared_bytes + launch.shared_bytes), 16 << 10)
    loads = [s for s in counted.sites if s.space == "global" and s.kind == "load" and s.requests > 0]
    # Neighbouring bytes of a sector serve later requests if the lines in flight stay in L1 for so long.
    window = sum(occupied.warps * (s.cache_lines * 128.0 or s.passes * 32.0) / s.requests for s in loads)
    near = min(1.0, l1 / max(window, 1.0))
    every_time = sum(s.passes for s in loads) * 32.0
    least = max(min(counted.block_load_bytes, every_time), counted.unique_load_bytes)
    fits_l1 = min(1.0, l1 / max(least / max(1, launch.blocks) * occupied.blocks, 1.0))

    by_array: dict[str, float] = {}
    for site in loads:
        every = site.passes * 32.0
        once = min(every, site.bytes_asked, site.block_bytes or every)
        by_array[site.array] = by_array.get(site.array, 0.0) + near * once + (1 - near) * every
    streamed = sum(by_array.values())
    loaded = max(least, fits_l1 * least + (1 - fits_l1) * streamed)

    again = 0.0
    lost = 1 - min(1.0, figures.l2_bytes * _L2_SHARE / max(unique * resident, 1.0))
    for array, moved in by_array.items():
        size = min(counted.array_bytes.get(array, counted.unique_load_bytes), counted.unique_load_bytes)
        missed = lost * min(1.0, size / figures.l2_bytes)  # what is small is used again before it is lost
        again += max(0.0, moved * loaded / max(streamed, 1.0) - size) * missed
    stored = 0.0
    for site in counted.sites:
        if site.space == "global" and site.kind == "store":
            # Stores pass L1 by, request for request: a sector written in eight parts goes to L2 eight times.
            partial = 1 - min(1.0, site.bytes_asked / max(site.passes * 32.0, 1.0))
            stored += site.passes * 32.0 * (1 + partial_store * partial)
    return unique + again, max(unique + again, loaded + stored)


def _sentences(
    terms: Mapping[Bound, float], resources: Resources, counted: KernelCounts, occupied: Occupancy
) -> list[str]:
    """What the terms say, for a person and for a proposer; lines are of the kernel's file."""
    said = []
    bound = max(terms, key=lambda name: terms[name])
    others = sorted((value for name, value in terms.items() if name != bound), reverse=True)
    said.append(f"Predicted bottleneck: {bound} ({approximate(terms[bound])} µs; next: {approximate(others[0])} µs).")
    for site in counted.sites:
        if site.requests <= 0 or site.kind == "atomic":
            continue
        per_request = site.passes / site.requests
        if site.space == "global":
            ideal = max(1.0, site.bytes_asked / site.requests / 32)
            if per_request > 1.5 * ideal and per_request > 2:
                said.append(
                    f"Line {site.line}: {per_request:.1f} sectors per {site.kind} request (ideal: {ideal:.1f})."
                )
        elif per_request > 1.5 * max(1.0, site.width_bytes / 4):
            said.append(f"Line {site.line}: shared-memory bank conflicts, {per_request:.1f} passes per {site.kind}.")
    if occupied.fraction < 0.5:
        said.append(f"Occupancy {occupied.fraction:.0%}, limited by {occupied.limit}.")
    if occupied.active < 1:
        said.append(f"Only {occupied.active:.0%} of the SMs get a block.")
    if resources.spill_load_bytes or resources.spill_store_bytes:
        said.append(f"{resources.spill_store_bytes + resources.spill_load_bytes} bytes of register spills.")
    return said
