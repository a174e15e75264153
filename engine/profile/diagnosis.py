"""From counters to sentences with figures: what holds a kernel back, and where.

A language model makes less of raw counters than of no counters, and more of such sentences than of either (KernelPro,
arXiv 2606.26453); the thresholds marked [K] are that paper's, [N] those of Nsight Compute's own speed-of-light rule (Kernel
Profiling Guide, "Speed of Light"), [O] ours, with the reason beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.model import LaunchConfig, Resources, Target
from engine.predict.occupancy import Occupancy
from engine.profile import counters
from engine.profile.source_lines import SourceLines, SourceSite

Bound = Literal["memory", "compute", "latency", "launch", "unknown"]

_BUSY_PCT = 60.0  # [N] below this in arithmetic and memory alike, latency is what holds a kernel back
_SATURATED_PCT = 80.0  # [K] of the peak of device memory
_OCCUPANCY_PCT = 50.0  # [K]
_REGISTERS = 96  # [K]
_STALL_PCT = 40.0  # [K] of the active warps' cycles, for one reason
_BARRIER_PCT = 30.0  # [K]
_L1_HIT_PCT = 30.0  # [K] with stalls on memory
_OVER_IDEAL = 1.2  # [K] sectors asked for over sectors needed
_OVER_ARRAYS = 1.5  # [O] below it, write-allocation and padding explain the difference
_CONFLICTS = (
    0.05  # [O] cycles lost to bank conflicts for each warp instruction: at 4 issue slots a clock, a fifth of the time
)
_LANES = 24.0  # [O] of 32: a guard at the edge of a grid costs less
_WAVE_USE = 0.8  # [O] share of the multiprocessors' time that whole waves fill; the last wave's tail is the rest
_HOT = 0.3  # [O] share of the instructions from which on a single line is worth naming
_LAUNCH_US = 4.0  # [O] twice what an empty kernel takes between two events: launching is then half of it
_SECTOR = 32
_WIDEST = 16.0  # bytes that one lane can load at once


@dataclass(frozen=True)
class Finding:
    """One thing that holds a kernel back. `code` is stable, `text` is for a person, `severity` in (0, 1] orders findings.

    `line` is of the kernel's file, 1-based, where counters could be mapped to it.
    """

    code: str
    text: str
    severity: float
    figures: Mapping[str, float] = field(default_factory=dict)
    line: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What binds a program, in a sentence, and the findings, gravest first.

    `copy_share` is the achieved share of the measured copy bandwidth (1.0: as fast as a copy of the same bytes), None where
    bytes or time are unknown. `missing` are sentences on what could not be seen.
    """

    bound: Bound
    text: str
    findings: tuple[Finding, ...]
    copy_share: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the bound and of all findings, each once: the signature that rules and memory go by."""
        return tuple(dict.fromkeys((f"{self.bound}_bound", *(f.code for f in self.findings))))

    def sentences(self) -> tuple[str, ...]:
        """The whole diagnosis for a person, who need not read twice what its first sentence says."""
        return (self.text, *(f.text for f in self.findings if f.text not in self.text), *self.missing)


@dataclass(frozen=True)
class Evidence:
    """What is known of one step beside its counters. `load_width` and `store_width` are bytes for each lane, where known."""

    resources: Resources
    launch: LaunchConfig
    occupancy: Occupancy | None = None
    load_width: float | None = None
    store_width: float | None = None


@dataclass(frozen=True)
class CaseFacts:
    """What is known of the case whose launches are diagnosed.

    `bandwidth` is the measured copy bandwidth in bytes per second (read plus written), `time_us` the measured time of the
    case, `array_bytes` the size of all arrays that must be read or written.
    """

    target: Target
    bandwidth: float
    time_us: float | None = None
    array_bytes: float | None = None

    def copy_share(self, moved: float | None, time_us: float | None) -> float | None:
        """The share of the copy bandwidth at which so many bytes move in that time; None where one is not known."""
        return (
            moved / (time_us * 1e-6) / self.bandwidth if moved is not None and time_us and self.bandwidth > 0 else None
        )


def diagnose(
    profile: counters.Profile, evidence: Sequence[Evidence], case: CaseFacts, *, lines: Sequence[SourceLines] = ()
) -> Diagnosis:
    """Diagnose a program from its counters, `evidence` being that of the same steps in order.

    Where the case has no time, the profiler's own counts. `lines` is what counters of single instructions say of the source
    lines, for the same steps, where they were taken.
    """
    steps = list(zip(profile.steps, evidence, strict=True))
    lines = lines or [SourceLines() for _ in steps]
    several = len(steps) > 1
    findings: list[Finding] = []
    total = profile.duration_us
    for (step, known), seen in zip(steps, lines, strict=True):
        share = 1.0
        if several and total and step.duration_us is not None:
            share = step.duration_us / total
        name = f"{step.kernel}: " if several else ""
        found = [*_counted(step, known, seen.worst), *_static(known, case.target)]
        findings += [_scaled(f, share, name) for f in _merged(found)]
    time = case.time_us if case.time_us is not None else total
    moved = profile.dram_bytes
    array_bytes = case.array_bytes
    if moved and array_bytes and moved > _OVER_ARRAYS * array_bytes:
        findings.append(
            Finding(
                "excess_traffic",
                f"device memory traffic {_bytes(moved)} for {_bytes(array_bytes)} of arrays: "
                f"{moved / array_bytes:.1f}× the minimum",
                min(1.0, 0.4 + 0.1 * moved / array_bytes), {"dram_bytes": moved, "array_bytes": array_bytes},
            )
        )  # fmt: skip
    copy_share = case.copy_share(moved, time)
    longest = max(range(len(steps)), key=lambda i: steps[i][0].duration_us or 0.0)
    bound, text = _bound(*steps[longest], time, moved, copy_share, case.bandwidth)
    hot = lines[longest]
    if hot.hottest is not None and hot.share >= _HOT and bound != "launch":
        text += f"; line {hot.hottest} executes {100 * hot.share:.0f} % of the instructions"
    missing = sorted({m for step in profile.steps for m in step.missing})
    said = (f"missing counters: {', '.join(missing)}",) if missing else ()
    return Diagnosis(bound, text, _ordered(findings), copy_share, said)


def diagnose_static(
    evidence: Sequence[Evidence], case: CaseFacts, *, why: str = "", accesses: Sequence[Sequence[Finding]] = ()
) -> Diagnosis:
    """Diagnose without counters, from time, occupancy and resource use; `why` says why there are none.

    `accesses` are findings of each step from accesses that were counted without a GPU; empty where none were.
    """
    several = len(evidence) > 1
    findings: list[Finding] = []
    for index, known in enumerate(evidence):
        name = f"step {index + 1}: " if several else ""
        counted = accesses[index] if accesses else ()
        findings += [_scaled(f, 1.0, name) for f in (*_static(known, case.target), *counted)]
    time_us, bandwidth = case.time_us, case.bandwidth
    share = case.copy_share(case.array_bytes or None, time_us)
    judged = "accesses, occupancy and resource usage" if accesses else "occupancy and resource usage"
    missing = (f"no counters: {why or 'the profiler was not used'}; based on times, {judged}",)
    bound: Bound = "unknown"
    text = "counters are needed to name the bottleneck"
    if time_us is not None and time_us < _LAUNCH_US:
        bound, text = "launch", _launch_text(time_us)
    elif share is not None:
        percent = 100 * share
        if percent >= _BUSY_PCT:
            bound = "memory"
            text = f"memory-bound: effective bandwidth {percent:.0f} % of copy ({_rate(bandwidth)})"
        else:
            text = f"effective bandwidth {percent:.0f} % of copy ({_rate(bandwidth)}); counters are needed to name the bottleneck"
    return Diagnosis(bound, text, _ordered(findings), share, missing)


# ---- what binds it


def _bound(
    step: counters.StepProfile,
    known: Evidence,
    time_us: float | None,
    moved: float | None,
    share: float | None,
    bandwidth: float,
) -> tuple[Bound, str]:
    """The roofline's answer: what is used most, or latency where nothing is used much."""
    if time_us is not None and time_us < _LAUNCH_US:
        return "launch", _launch_text(time_us)
    copy = "" if share is None or moved is None or not time_us else (
        f"{_rate(moved / (time_us * 1e-6))} to and from device memory, {100 * share:.0f} % of copy "
        f"({_rate(bandwidth)})"
    )  # fmt: skip
    dram = step.get(counters.DRAM_PCT)
    caches = step.most(counters.CACHES)
    memory = [v for v in (dram, caches, None if share is None else 100 * share) if v is not None]
    compute = [v for v in (step.most(counters.PIPES), step.get(counters.ISSUE_PCT)) if v is not None]
    if memory and max(memory) >= max(compute, default=0.0) and max(memory) >= _BUSY_PCT:
        outside = max(v for v in (dram, None if share is None else 100 * share, 0.0) if v is not None)
        if outside >= _BUSY_PCT or caches is None:
            return "memory", f"memory-bound: {copy or f'device memory at {outside:.0f} % of peak'}"
        return "memory", (f"memory-bound in the caches: L1 and L2 bandwidth at {caches:.0f} % of peak" + _and(copy))
    if compute and max(compute) >= _BUSY_PCT:
        return "compute", f"compute-bound: SMs at {max(compute):.0f} % of peak" + _and(copy)
    if memory and compute:
        reason = _worst_stall(step)
        said = "" if reason is None else f"; warps spend {reason[1]:.0f} % of their cycles {counters.STALLS[reason[0]]}"
        return "latency", (
            f"latency-bound: memory at {max(memory):.0f} % and arithmetic at {max(compute):.0f} % of peak"
            + said + _and(copy)
        )  # fmt: skip
    if share is not None and 100 * share >= _BUSY_PCT:
        return "memory", f"memory-bound: {copy}"
    return ("unknown", f"not memory-bound: {copy}" if copy else "these counters do not name the bottleneck")


def _and(copy: str) -> str:
    return f"; {copy}" if copy else ""


def _launch_text(time_us: float) -> str:
    return f"launch-bound: the kernel takes {time_us:.1f} µs, about 2 µs of which is launch overhead"


def _worst_stall(step: counters.StepProfile) -> tuple[str, float] | None:
    known = [(reason, step.get(counters.stall_metric(reason))) for reason in counters.STALLS]
    return max(((r, v) for r, v in known if v is not None), key=lambda pair: pair[1], default=None)


# ---- findings from counters


def _counted(step: counters.StepProfile, known: Evidence, site: SourceSite | None) -> list[Finding]:
    found: list[Finding] = []
    dram = step.get(counters.DRAM_PCT)
    if dram is not None and dram > _SATURATED_PCT:
        found.append(
            Finding(
                "dram_saturated",
                f"device memory at {dram:.0f} % of peak: only less traffic or more reuse makes this faster",
                dram / 100, {"dram_pct": dram},
            )
        )  # fmt: skip
    achieved = step.get(counters.OCCUPANCY_PCT)
    if achieved is not None and achieved < _OCCUPANCY_PCT:
        limit = known.occupancy
        why = "" if limit is None else f", limited by {_LIMITS[limit.limit]} to {100 * limit.fraction:.0f} %"
        found.append(
            Finding(
                "low_occupancy", f"achieved occupancy {achieved:.0f} %{why}", 0.8 - achieved / 100,
                {"occupancy_pct": achieved},
            )
        )  # fmt: skip
    found += _stalls(step)
    found += _access(step, known, site)
    conflicts, instructions = step.get(counters.BANK_CONFLICTS), step.get(counters.INSTRUCTIONS)
    shared = known.resources.shared_bytes + known.launch.shared_bytes
    if shared and conflicts and instructions and conflicts > _CONFLICTS * instructions:
        found.append(
            Finding(
                "bank_conflicts",
                f"{conflicts:.3g} cycles lost to bank conflicts, {100 * conflicts / instructions:.0f} per 100 warp "
                "instructions",
                min(1.0, 0.3 + conflicts / instructions), {"conflicts": conflicts, "instructions": instructions},
            )
        )  # fmt: skip
    lanes = step.get(counters.ACTIVE_LANES)
    if lanes is not None and 0 < lanes < _LANES:
        found.append(
            Finding(
                "divergence", f"on average {lanes:.1f} of 32 lanes of a warp active: divergent branches or idle threads",
                min(1.0, 1 - lanes / 32), {"active_lanes": lanes},
            )
        )  # fmt: skip
    issue = step.get(counters.ISSUE_PCT)
    if issue is not None and issue > _BUSY_PCT:
        found.append(
            Finding(
                "issue_bound", f"issue slots {issue:.0f} % busy: fewer instructions help",
                issue / 100, {"issue_pct": issue},
            )
        )  # fmt: skip
    return found


_CODES = {
    "long_scoreboard": "memory_stalls", "lg_throttle": "memory_queue_stalls", "short_scoreboard": "shared_stalls",
    "mio_throttle": "shared_queue_stalls", "math_pipe_throttle": "math_stalls", "wait": "dependency_stalls",
    "no_instruction": "fetch_stalls",
}  # fmt: skip


def _stalls(step: counters.StepProfile) -> list[Finding]:
    found = []
    for reason, meaning in counters.STALLS.items():
        percent = step.get(counters.stall_metric(reason))
        if percent is None:
            continue
        if percent > (_BARRIER_PCT if reason == "barrier" else _STALL_PCT):
            code = _CODES.get(reason, "barrier_stalls")
            text = f"warps spend {percent:.0f} % of their cycles {meaning}"
            hit = step.get(counters.L1_HIT_PCT)
            if reason == "long_scoreboard" and hit is not None and hit < _L1_HIT_PCT:
                found.append(
                    Finding(
                        "l1_misses", f"L1 hit rate {hit:.0f} %, and warps wait for the misses",
                        0.5 * percent / 100, {"l1_hit_pct": hit},
                    )
                )  # fmt: skip
            found.append(Finding(code, text, min(1.0, percent / 100), {"stall_pct": percent}))
    return found


def _access(step: counters.StepProfile, known: Evidence, site: SourceSite | None) -> list[Finding]:
    """Sectors asked for beyond those needed: exact where instructions were counted, else from the width of an access."""
    if site is not None and site.ideal > 0 and site.sectors > _OVER_IDEAL * site.ideal:
        each = f"{site.sectors / site.executed:.0f} sectors per request (ideal: {max(1.0, site.ideal / site.executed):.0f})" \
            if site.executed else f"{site.sectors:.3g} sectors (ideal: {site.ideal:.3g})"  # fmt: skip
        return [
            Finding(
                "uncoalesced", f"uncoalesced access: {each}, line {site.line}", _waste(site.sectors / site.ideal),
                {"sectors": site.sectors, "ideal": site.ideal}, site.line,
            )
        ]  # fmt: skip
    sectors, ideal = step.get(counters.SITE_SECTORS), step.get(counters.SITE_IDEAL)
    if sectors is not None and ideal:
        if sectors <= _OVER_IDEAL * ideal:
            return []
        return [
            Finding(
                "uncoalesced", f"uncoalesced global accesses: {sectors / ideal:.1f}× the ideal number of sectors",
                _waste(sectors / ideal), {"sectors": sectors, "ideal": ideal},
            )
        ]  # fmt: skip
    found = []
    for what, code, total, requests, width in (
        (
            "loads",
            "uncoalesced_loads",
            step.get(counters.LOAD_SECTORS),
            step.get(counters.LOAD_REQUESTS),
            known.load_width,
        ),
        (
            "stores",
            "uncoalesced_stores",
            step.get(counters.STORE_SECTORS),
            step.get(counters.STORE_REQUESTS),
            known.store_width,
        ),
    ):
        if not total or not requests:
            continue
        # Lanes side by side need as many sectors as their bytes fill; of unknown width, the widest access is assumed.
        enough = max(1.0, 32 * (width or _WIDEST) / _SECTOR)
        ratio = total / requests
        if ratio > _OVER_IDEAL * enough:
            least = f"{enough:.0f}" if width else "4 to 16"
            found.append(
                Finding(
                    code, f"uncoalesced {what}: {ratio:.1f} sectors per request (ideal: {least})", _waste(ratio / enough),
                    {"sectors_per_request": ratio, "ideal": enough},
                )
            )  # fmt: skip
    return found


def _waste(factor: float) -> float:
    return min(1.0, 1 - 1 / factor + 0.1)


# ---- findings without counters

_LIMITS: Mapping[str, str] = {
    "registers": "registers", "shared memory": "shared memory", "threads": "block size", "blocks": "blocks per "
    "SM", "grid": "grid size", "does not fit": "a block that does not fit",
}  # fmt: skip


def _static(known: Evidence, target: Target) -> list[Finding]:
    found: list[Finding] = []
    resources, launch, limit = known.resources, known.launch, known.occupancy
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    if spilled:
        found.append(
            Finding(
                "spills", f"register spills: {resources.spill_store_bytes} bytes stored and {resources.spill_load_bytes} bytes loaded "
                "per thread", min(1.0, 0.4 + spilled / 512), {"spill_bytes": float(spilled)},
            )
        )  # fmt: skip
    elif resources.stack_bytes:
        found.append(
            Finding(
                "local_memory", f"{resources.stack_bytes} bytes of local memory per thread: an array that does not "
                "fit in registers", 0.3, {"stack_bytes": float(resources.stack_bytes)},
            )
        )  # fmt: skip
    if resources.registers > _REGISTERS:
        found.append(
            Finding(
                "many_registers", f"{resources.registers} registers per thread", 0.3,
                {"registers": float(resources.registers)},
            )
        )  # fmt: skip
    if limit is not None and limit.limit != "grid" and 0 < 100 * limit.fraction < _OCCUPANCY_PCT:
        found.append(
            Finding(
                "low_occupancy",
                f"theoretical occupancy {100 * limit.fraction:.0f} %, limited by {_LIMITS[limit.limit]}",
                0.7 - limit.fraction, {"occupancy_pct": 100 * limit.fraction},
            )
        )  # fmt: skip
    if launch.blocks < target.multiprocessors:
        found.append(
            Finding(
                "small_grid", f"only {launch.blocks} blocks: {target.multiprocessors - launch.blocks} of "
                f"{target.multiprocessors} SMs idle", 1 - launch.blocks / target.multiprocessors,
                {"blocks": float(launch.blocks), "multiprocessors": float(target.multiprocessors)},
            )
        )  # fmt: skip
    elif limit is not None and limit.waves > 1:
        whole = -(-limit.waves // 1)
        if limit.waves / whole < _WAVE_USE:
            found.append(
                Finding(
                    "tail", f"the grid takes {limit.waves:.1f} waves: the last, partial one leaves "
                    f"{100 * (1 - limit.waves / whole):.0f} % of the GPU's time unused", 0.8 * (1 - limit.waves / whole),
                    {"waves": limit.waves},
                )
            )  # fmt: skip
    if launch.threads % target.warp:
        found.append(
            Finding(
                "partial_warps", f"blocks of {launch.threads} threads end in a warp with {launch.threads % target.warp} active lanes", 0.2,
                {"threads": float(launch.threads)},
            )
        )  # fmt: skip
    return found


# ---- putting together


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Each code once: what was counted goes before what was only derived."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.code, finding)
    return list(kept.values())


def _scaled(finding: Finding, share: float, name: str) -> Finding:
    severity = min(1.0, max(0.01, finding.severity * share))
    return Finding(finding.code, name + finding.text, severity, finding.figures, finding.line)


def _ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (-f.severity, f.code)))


def _bytes(count: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f} bytes"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.2f} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.0f} GB/s"
