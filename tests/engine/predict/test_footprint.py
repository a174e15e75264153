"""Bytes and instructions of a program, from counts and loops that are written down here."""

import pytest

from engine.model import Binary, LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
from engine.predict.footprint import Footprint, footprint
from engine.predict.sass import CodeLoop, KernelCode
from engine.predict.targets import figures_for

LAUNCH = LaunchConfig((10, 1, 1), (64, 1, 1))  # 20 warps


def loop(instructions: int, parent: int = -1, fp32: int = 0) -> CodeLoop:
    return CodeLoop(
        parent=parent, depth=parent + 1, instructions=instructions, fp32=fp32, fp64=0, mufu=0, shuffles=0, barriers=0, local=0,
        tensor=0, memory=(), loads=0, load_batches=0, shared_batches=0,
    )  # fmt: skip


def test_sectors_and_instructions_add_up_over_steps() -> None:
    sites = (
        SiteCounts(3, "global", "load", 4, 20, 640, 160),
        SiteCounts(4, "global", "store", 4, 20, 640, 80),
        SiteCounts(5, "shared", "load", 4, 20, 640, 999),  # stays on the multiprocessor
    )
    counts = KernelCounts(LAUNCH, sites, 2560.0, 2560.0)
    binary = Binary(b"", "sm_90", ("a", "b"), (), "h")
    code = {"a": KernelCode("a", (loop(30, fp32=4),)), "b": KernelCode("b", (loop(5, fp32=2),))}
    found = footprint(binary, (LAUNCH, LAUNCH), AccessCounts((counts, counts)), code, figures_for("sm_90"))
    moved, instructions = found.moved_bytes, found.instructions
    assert moved == 2 * 240 * 32
    assert instructions == pytest.approx(20 * 30 + 20 * 5)
    figures = figures_for("sm_90")
    lanes_s = figures.fp32_lanes * figures.target.multiprocessors * figures.clock_hz
    assert found.pipes_us["fp32 pipe"] == pytest.approx(20 * 32 * (4 + 2) / lanes_s * 1e6)


def test_code_that_could_not_be_read_counts_for_nothing() -> None:
    counts = KernelCounts(LAUNCH, (), 0.0, 0.0)
    binary = Binary(b"", "sm_90", ("a",), (), "h")
    assert footprint(binary, (LAUNCH,), AccessCounts((counts,)), {}, figures_for("sm_90")) == Footprint(
        0.0, 0.0, AccessCounts((counts,))
    )
