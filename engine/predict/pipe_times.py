"""How long a kernel's instructions keep each arithmetic pipe of the SMs busy: floors beside that of memory (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.predict.sass import KernelCode
from engine.predict.targets import TargetParameters

FP32, FP64, SPECIAL, TENSOR = "fp32 pipe", "fp64 pipe", "special-function units", "tensor cores"


def pipe_times_us(code: KernelCode, runs: Sequence[float], figures: TargetParameters) -> Mapping[str, float]:
    """Microseconds by pipe, with all SMs at work; `runs` is how often warps go through each loop of `code`."""
    executed = list(zip(code.loops, runs, strict=True))
    clocks = {
        FP32: sum(loop.fp32 * run for loop, run in executed) * 32 / figures.fp32_lanes,
        FP64: sum(loop.fp64 * run for loop, run in executed) * 32 / figures.fp64_lanes,
        SPECIAL: sum(loop.mufu * run for loop, run in executed) * 32 / figures.mufu_lanes,
        TENSOR: sum(loop.products * run for loop, run in executed) * figures.product_clocks / figures.schedulers,
    }
    return {name: each / figures.target.multiprocessors / figures.clock_hz * 1e6 for name, each in clocks.items()}
