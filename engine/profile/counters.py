"""What is asked of the profiler and what it answers: requests, metric sets, counters with units, declared failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.model import Binary, LaunchConfig
from engine.predict.footprint import Footprint
from engine.predict.pipe_times import FP32, TENSOR

# To microseconds and to bytes. Nsight Compute changed "nsecond" to "ns" in 2024 and prefixes units unless told not to.
_TIME_US = {
    "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6,
}  # fmt: skip
_BYTES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}


@dataclass(frozen=True)
class MetricSet:
    """Counters that are collected together. With `instances` the value of each instruction comes along."""

    name: str
    metrics: tuple[str, ...]
    instances: bool = False

    def without(self, dropped: frozenset[str]) -> MetricSet:
        """The set without metrics that this profiler or chip does not have."""
        return MetricSet(self.name, tuple(m for m in self.metrics if m not in dropped), self.instances)


DURATION = "gpu__time_duration.sum"
DRAM_BYTES = "dram__bytes.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
DRAM_PCT = "dram__bytes.sum.pct_of_peak_sustained_elapsed"
# The profiler's own throughputs (sm__throughput, gpu__compute_memory_throughput) are maxima over dozens of counters and take nine
# and six passes. These are the ones among them that bind the kernels we met; a maximum over them stands for the whole.
L2_PCT = "lts__t_tag_requests.avg.pct_of_peak_sustained_elapsed"
LSU_PCT = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
CROSSBAR_PCT = "l1tex__m_l1tex2xbar_req_cycles_active.avg.pct_of_peak_sustained_elapsed"
FMA_PCT = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"
TENSOR_PCT = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
CACHES = (L2_PCT, LSU_PCT, CROSSBAR_PCT)
PIPES = (FMA_PCT, TENSOR_PCT)
OCCUPANCY_PCT = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUE_PCT = "smsp__issue_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
WAVES = "launch__waves_per_multiprocessor"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
L1_HIT_PCT = "l1tex__t_sector_hit_rate.pct"
BANK_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
ACTIVE_LANES = "smsp__thread_inst_executed_per_inst_executed.ratio"
SITE_SECTORS = "memory_l2_theoretical_sectors_global"
SITE_IDEAL = "memory_l2_theoretical_sectors_global_ideal"
SITE_EXECUTED = "inst_executed"

# Why a warp could not issue, in the words of Nsight Compute's Kernel Profiling Guide, "Warp Stall Reasons".
STALLS: Mapping[str, str] = {
    "long_scoreboard": "waiting for global or local memory (long scoreboard)",
    "short_scoreboard": "waiting for shared memory or special functions (short scoreboard)",
    "barrier": "waiting at a barrier",
    "mio_throttle": "waiting for the queue to shared memory and special functions (MIO throttle)",
    "lg_throttle": "waiting for the queue to global and local memory (LG throttle)",
    "math_pipe_throttle": "waiting for an arithmetic pipe (math pipe throttle)",
    "wait": "waiting for the fixed latency of an earlier instruction (wait)",
    "no_instruction": "waiting for the next instruction (no instruction)",
}


def stall_metric(reason: str) -> str:
    """The counter of one stall reason: percent of the active warps' cycles."""
    return f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"


OCCUPANCY_LIMITS: Mapping[str, str] = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "blocks",
}

# What fits one pass over the kernel on an H200 (25 ms each; a counter more makes it three passes and 115 ms): for every
# candidate that passed its checks. `benchmarks/profile_rate.py --probe` says what each counter costs.
CHEAP = MetricSet(
    "cheap", (DURATION, DRAM_BYTES, INSTRUCTIONS, DRAM_PCT, OCCUPANCY_PCT, ISSUE_PCT, ACTIVE_LANES, L1_HIT_PCT)
)

# For what is about to be built upon, and for the steps of the trajectory: six or seven passes. Hits in L2 would take more.
FULL = MetricSet(
    "full",
    (
        *CHEAP.metrics, *CACHES, *PIPES, REGISTERS, WAVES, *OCCUPANCY_LIMITS,
        LOAD_SECTORS, LOAD_REQUESTS, STORE_SECTORS, STORE_REQUESTS, BANK_CONFLICTS,
        *(stall_metric(reason) for reason in STALLS),
    ),
)  # fmt: skip

# Which instruction asks for more than it needs: the code is instrumented for it, so for the trajectory alone.
LINES = MetricSet("lines", (SITE_EXECUTED, SITE_SECTORS, SITE_IDEAL), instances=True)


@dataclass(frozen=True)
class ProfileRequest:
    """One candidate on one case. `launches` has one entry per step; `case` indexes the check cases, then the timing cases."""

    key: str
    binary: Binary
    launches: tuple[LaunchConfig, ...]
    case: int


@dataclass(frozen=True)
class Counter:
    """One counter as the profiler gave it. `instances` maps the address of an instruction to its share."""

    value: float
    unit: str
    instances: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepProfile:
    """One launch: the entry's lowered name, its counters by name, what was asked for and did not come, passes over the kernel."""

    kernel: str
    launch: LaunchConfig
    counters: Mapping[str, Counter]
    missing: tuple[str, ...] = ()
    passes: int = 0

    def get(self, name: str) -> float | None:
        """A counter's value as given, None where it is missing."""
        counter = self.counters.get(name)
        return None if counter is None else counter.value

    def most(self, names: Sequence[str]) -> float | None:
        """The largest of some percentages, None where all are missing."""
        return max((v for v in map(self.get, names) if v is not None), default=None)

    @property
    def duration_us(self) -> float | None:
        """The kernel's time under the profiler, in microseconds: caches flushed, clocks as they were."""
        return _scaled(self.counters.get(DURATION), _TIME_US)

    @property
    def dram_bytes(self) -> float | None:
        """Bytes between L2 and device memory, both ways."""
        return _scaled(self.counters.get(DRAM_BYTES), _BYTES)


@dataclass(frozen=True)
class Profile:
    """What the profiler said of one candidate, one entry per step. `version` is the profiler's own, `predicted` what a
    prediction is made of where no profiler counted."""

    key: str
    metrics: str
    case: int
    steps: tuple[StepProfile, ...]
    version: str = ""
    notes: tuple[str, ...] = ()
    predicted: Footprint | None = None

    @property
    def pipes_us(self) -> Mapping[str, float]:
        """For how long the program keeps each arithmetic pipe busy, in microseconds: less than that it cannot take as it is written."""
        if self.predicted is not None:
            return self.predicted.pipes_us
        found: dict[str, float] = {}
        for pipe, metric in ((FP32, FMA_PCT), (TENSOR, TENSOR_PCT)):
            for step in self.steps:
                busy, time_us = step.get(metric), step.duration_us
                if busy is not None and time_us is not None:
                    found[pipe] = found.get(pipe, 0.0) + busy / 100 * time_us
        return found

    @property
    def duration_us(self) -> float | None:
        """All steps' time in microseconds; None where one is missing."""
        return _sum([step.duration_us for step in self.steps])

    @property
    def dram_bytes(self) -> float | None:
        """All steps' bytes to and from device memory; None where one is missing."""
        return _sum([step.dram_bytes for step in self.steps])

    @property
    def instructions(self) -> float | None:
        """All steps' executed warp instructions; None where one is missing."""
        return _sum([step.get(INSTRUCTIONS) for step in self.steps])

    @property
    def stalled(self) -> float | None:
        """The share of their cycles that warps spend on the reason they wait for most, the steps weighted by their times."""
        total = weights = 0.0
        for step in self.steps:
            worst = [v for v in (step.get(stall_metric(reason)) for reason in STALLS) if v is not None]
            if not worst or step.duration_us is None:
                return None
            total += max(worst) / 100 * step.duration_us
            weights += step.duration_us
        return total / weights if weights else None

    @property
    def asked(self) -> list[dict[str, tuple[float, str]]]:
        """The counters of the metric set, by step: name to value and unit."""
        asked = {"cheap": CHEAP, "full": FULL}[self.metrics].metrics
        return [{n: (c.value, c.unit) for n, c in step.counters.items() if n in asked} for step in self.steps]


FailureKind = Literal["no profiler", "permission", "busy", "launch", "missing", "lost", "timeout", "closed", "budget"]


@dataclass(frozen=True)
class ProfileFailure:
    """Why there is no profile, for the result: it costs the search a signal and nothing else."""

    key: str
    kind: FailureKind
    reason: str


def _scaled(counter: Counter | None, units: Mapping[str, float]) -> float | None:
    if counter is None:
        return None
    factor = units.get(counter.unit.strip().lower())
    value = None if factor is None else counter.value * factor
    return value if value is not None and math.isfinite(value) else None


def _sum(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None
