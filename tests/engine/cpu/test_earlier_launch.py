"""Launches that come before another in one module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.engine.cpu.conftest import Make, launch

TICKETS = """__device__ unsigned int g_done = 0;
__global__ void count(float* y, int set_back) {
    if (threadIdx.x == 0) {
        unsigned int ticket = atomicAdd(&g_done, 1u);
        y[blockIdx.x] += ticket;
        if (set_back && ticket == gridDim.x - 1) g_done = 0;
    }
}"""


def test_what_a_launch_leaves_in_the_module_is_there_for_the_next_and_its_buffers_begin_anew(make: Make) -> None:
    arguments = [("y", "inout", np.full(4, 10.0, np.float32)), ("set_back", "scalar", np.int32(0))]
    kernel = make(TICKETS, "count", launch(4, 32), arguments)
    job = kernel.job()
    found = {}
    for back in (0, 1):
        last = replace(job, scalars={"set_back": np.int32(back)})
        earlier = replace(last, launches=[launch(3, 32)])
        (run,) = kernel.machine.run_many(kernel.binary, [replace(last, before=earlier)])
        assert not run.findings
        found[back] = run.outputs["y"].tolist()
    assert found == {0: [13.0, 14.0, 15.0, 16.0], 1: [10.0, 11.0, 12.0, 13.0]}
