"""The least time of a kernel's arithmetic, pipe by pipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.campaign.headroom import pipes_us
from engine.predict.sass import CodeLoop, KernelCode
from engine.predict.targets import figures_for


def test_special_functions_are_a_floor_of_their_own() -> None:
    figures = figures_for("sm_90")
    loop = CodeLoop(
        parent=-1, depth=0, instructions=100, fp32=8, fp64=0, mufu=4, shuffles=0, barriers=0, local=0, tensor=0,
        memory=(), loads=0, load_batches=0, shared_batches=0,
    )  # fmt: skip
    warps = 1e6
    wanted = 4 * 32 * warps / figures.mufu_lanes / figures.target.multiprocessors / figures.clock_hz * 1e6
    assert pipes_us(KernelCode("k", (loop,)), [warps], figures) == pytest.approx(wanted)
    less = replace(loop, mufu=0)
    assert pipes_us(KernelCode("k", (less,)), [warps], figures) == pytest.approx(wanted / 4)
