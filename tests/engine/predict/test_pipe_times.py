"""The least time of a kernel's arithmetic, pipe by pipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.predict.pipe_times import FP32, SPECIAL, TENSOR, pipe_times_us
from engine.predict.sass import CodeLoop, KernelCode
from engine.predict.targets import figures_for

LOOP = CodeLoop(
    parent=-1, depth=0, instructions=100, fp32=8, fp64=0, mufu=4, shuffles=0, barriers=0, local=0, tensor=0,
    memory=(), loads=0, load_batches=0, shared_batches=0,

)  # fmt: skip


def test_special_functions_are_a_floor_of_their_own() -> None:
    figures = figures_for("sm_90")
    loop = LOOP
    warps = 1e6
    wanted = 4 * 32 * warps / figures.mufu_lanes / figures.target.multiprocessors / figures.clock_hz * 1e6
    found = pipe_times_us(KernelCode("k", (loop,)), [warps], figures)
    assert found[SPECIAL] == max(found.values()) == pytest.approx(wanted)
    assert found[FP32] == pytest.approx(wanted / 4)


def test_products_keep_the_tensor_cores_busy() -> None:
    figures = figures_for("sm_90")
    products = replace(LOOP, products=16.0)
    found = pipe_times_us(KernelCode("k", (products,)), [1e6], figures)
    flops = 16e6 * 2 * 16 * 8 * 8
    peak = (
        2 * 16 * 8 * 8 / figures.product_clocks * figures.schedulers * figures.target.multiprocessors * figures.clock_hz
    )
    assert found[TENSOR] == max(found.values()) == pytest.approx(flops / peak * 1e6)
