"""Runs of the twin in double precision: what the original's dynamic shared memory holds fits as doubles."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cpu.jobs import CpuJob
from engine.evaluate.twin_jobs import twin_job
from engine.model import LaunchConfig
from engine.spec.kernel_spec import Argument, Case, KernelSpec, Step

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("x", "n")),), (Argument("x", "half", "inout", "n"), Argument("n", "int", "scalar")),
    (Case("c", {"n": 4}),), (Case("t", {"n": 4}),),
)  # fmt: skip


@pytest.mark.parametrize(("own", "least"), [(0, 0), (1024, 4096), (200_000, 200_000), (232_448, 232_448)])
def test_shared_memory_grows_as_far_as_a_block_has_it(own: int, least: int) -> None:
    """A kernel with dynamic shared memory had no reference: its twin read beyond what the launch gave it."""
    job = CpuJob((LaunchConfig((2, 1, 1), (64, 1, 1), own),), {"x": np.ones(4, np.float16)}, {"n": np.int32(4)})
    twin = twin_job(SPEC, job)
    assert least <= twin.launches[0].shared_bytes <= 232_448
    assert (twin.launches[0].grid, twin.launches[0].block) == ((2, 1, 1), (64, 1, 1))
    assert twin.buffers["x"].dtype == np.float64
