"""Profiles with counters as tests need them; the values are made up, the names and units are the profiler's."""

from engine.model import LaunchConfig, Resources
from engine.predict.occupancy import occupancy
from engine.predict.targets import figures_for
from engine.profile import counters as model
from engine.profile.counters import (
    ACTIVE_LANES,
    BANK_CONFLICTS,
    DRAM_BYTES,
    DRAM_PCT,
    DURATION,
    FMA_PCT,
    INSTRUCTIONS,
    ISSUE_PCT,
    L1_HIT_PCT,
    L2_PCT,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    OCCUPANCY_PCT,
    STALLS,
    STORE_REQUESTS,
    STORE_SECTORS,
    Counter,
    Profile,
    StepProfile,
    stall_metric,
)  # fmt: skip
from engine.profile.diagnosis import Evidence

LAUNCH = LaunchConfig((4096, 1, 1), (256, 1, 1))
BANDWIDTH = 4.0e12

# A kernel with nothing wrong: a copy of 2 x 64 MB in 40 µs, 80 % of the copy bandwidth, without a finding.
_CALM = {
    DURATION: (40_000.0, "ns"), DRAM_BYTES: (128e6, "byte"), INSTRUCTIONS: (4e6, "inst"), DRAM_PCT: (75.0, "%"),
    FMA_PCT: (20.0, "%"), L2_PCT: (75.0, "%"), OCCUPANCY_PCT: (90.0, "%"), ISSUE_PCT: (15.0, "%"),
    LOAD_SECTORS: (4e6, "sector"), LOAD_REQUESTS: (1e6, "request"), STORE_SECTORS: (4e6, "sector"),
    STORE_REQUESTS: (1e6, "request"), L1_HIT_PCT: (60.0, "%"), BANK_CONFLICTS: (0.0, ""), ACTIVE_LANES: (32.0, ""),
    **{stall_metric(reason): (5.0, "%") for reason in STALLS},
}  # fmt: skip


def step(kernel: str = "k", missing: tuple[str, ...] = (), **changed: float) -> StepProfile:
    """A step's profile; keyword arguments are names of this module's metric constants with other values."""
    counters = {name: Counter(value, unit) for name, (value, unit) in _CALM.items() if name not in missing}
    for name, value in changed.items():
        metric = stall_metric(name) if name in STALLS else getattr(model, name)
        counters[metric] = Counter(value, _CALM.get(metric, (0.0, ""))[1])
    return StepProfile(kernel, LAUNCH, counters, missing)


def profile(*steps: StepProfile) -> Profile:
    """A profile of these steps."""
    return Profile("p", "full", 1, steps or (step(),))


def evidence(
    registers: int = 32,
    shared: int = 0,
    spills: int = 0,
    stack: int = 0,
    launch: LaunchConfig = LAUNCH,
    width: float | None = 4.0,
) -> Evidence:
    """What is known of a step beside its counters, on sm_90."""
    resources = Resources(registers, shared, stack, spills, spills)
    return Evidence(resources, launch, occupancy(resources, launch, figures_for("sm_90")), width, width)
