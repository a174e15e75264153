"""Figures of the targets that speed is predicted for, one table, each with its source.

Sources: [TG] CUDA C++ Programming Guide, "Compute Capabilities", technical specifications per compute capability;
[H] NVIDIA H100 Tensor Core GPU Architecture whitepaper and H200 data sheet; [A] NVIDIA A100 Tensor Core GPU
Architecture whitepaper; [G] NVIDIA Ampere GA102 GPU Architecture whitepaper; [L] NVIDIA Ada GPU
Architecture whitepaper; [M] our own measurement, recorded with the results; [O] our choice, reason beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import UsageError
from engine.model import Target


@dataclass(frozen=True)
class TargetParameters:
    """One GPU's figures beyond `Target`: rates per second or per clock, sizes in bytes."""

    name: str
    target: Target
    clock_hz: float  # of the multiprocessors under load
    dram_bytes_s: float  # what a copy reaches, not the pins' figure
    l2_bytes: int
    l2_bytes_s: float  # L2 to all multiprocessors
    fp32_lanes: int  # multiply-adds per clock and multiprocessor [TG: arithmetic throughput]
    fp64_lanes: int
    mufu_lanes: int = 16  # special functions per clock and multiprocessor [TG]
    int_lanes: int = 64  # integer operations per clock and multiprocessor [TG]
    schedulers: int = 4  # warp instructions issued per clock and multiprocessor [TG]
    l1_bytes_clock: int = 128  # L1 and shared memory, per clock and multiprocessor [H, A, G, L]
    register_unit: int = 256  # registers are given to a warp in these units [TG, cuda_occupancy.h]
    shared_unit: int = 128  # bytes; shared memory is given to a block in these units [cuda_occupancy.h]
    registers_per_thread: int = 255  # [TG]
    # Of a scheduler, for a warp's product of 16 x 8 x 8 elements in TF32 [G, L: dense peak].
    product_clocks: float = 32.0
    dram_latency_s: float = 0.40e-6  # [M] column sums on an H200, one load in flight per thread: 0.39 to 0.41 µs


# What a copy reaches of the pins' bandwidth: 4.17 of 4.8 TB/s on an H200 [M]; the same share for the others [O].
_SHARE = 0.87

_TABLE = {
    # H200 SXM: 132 multiprocessors, 1.98 GHz [H]; 60 MB of L2, as the driver says [M]; a copy reaches 4.17 TB/s [M]; L2 at 5,300 bytes a
    # clock, slightly above the A100's [O]; a product in TF32 by `mma.sync` takes a scheduler 7.3 clocks [M].
    "sm_90": TargetParameters(
        "H200", Target("sm_90", multiprocessors=132, shared_per_sm=233472), 1.98e9, 4.17e12, 60 << 20, 10.5e12, 128, 64,
        product_clocks=7.3,
    ),
    # A100 SXM 80 GB: 108 multiprocessors, 2.04 TB/s, 40 MB of L2, 1.41 GHz [A]; L2 5120 bytes per clock [A]; TF32 at its dense peak [A].
    "sm_80": TargetParameters(
        "A100", Target("sm_80", multiprocessors=108, shared_per_sm=167936), 1.41e9, 2.04e12 * _SHARE, 40 << 20, 7.2e12,
        64, 32, product_clocks=8.0,
    ),
    # RTX 3090: 82 multiprocessors, 936 GB/s, 6 MB of L2, 1.70 GHz [G].
    "sm_86": TargetParameters(
        "RTX 3090",
        Target("sm_86", max_threads_per_sm=1536, max_blocks_per_sm=16, multiprocessors=82, shared_per_sm=102400),
        1.695e9, 0.936e12 * _SHARE, 6 << 20, 2.0e12, 128, 2,
    ),
    # RTX 4090: 128 multiprocessors, 1.008 TB/s, 72 MB of L2, 2.52 GHz [L].
    "sm_89": TargetParameters(
        "RTX 4090",
        Target("sm_89", max_threads_per_sm=1536, max_blocks_per_sm=24, multiprocessors=128, shared_per_sm=102400),
        2.52e9, 1.008e12 * _SHARE, 72 << 20, 5.0e12, 128, 2,
    ),
}  # fmt: skip


def known_targets() -> tuple[str, ...]:
    """The architectures that speed can be predicted for."""
    return tuple(_TABLE)


def figures_for(arch: str) -> TargetParameters:
    """The figures of an architecture ("sm_90", "sm_90a"). Raises UsageError where there are none."""
    found = _TABLE.get(re.sub(r"[af]\Z", "", arch))
    if found is None:
        raise UsageError(f"no performance model for '{arch[:40]}'", "--arch", f"use one of {', '.join(_TABLE)}")
    return found


def target_for(arch: str) -> Target:
    """The limits of an architecture that rules and launches are held to.

    For an architecture that is not in the table those of the closest older one: every limit only grew.
    """
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if match is None:
        raise UsageError(f"invalid architecture '{arch[:40]}'", "--arch", "expected e.g. sm_90")
    wanted = int(match[1])
    # 10.x and newer datacenter parts have the limits of 9.0; 7.x has those of 8.6 but for fewer registers of L1.
    older = [name for name in _TABLE if int(name[3:]) <= wanted] or ["sm_86"]
    best = max(older, key=lambda name: int(name[3:]))
    target = _TABLE[best].target
    return target if best == arch else Target(**{**vars(target), "arch": arch})
