"""The data of a batch of runs: what several have in common is written once, and each finds its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.cpu.job_files import write_jobs
from engine.cpu.jobs import CpuBinary, CpuJob
from engine.model import LaunchConfig
from engine.spec.kernel_spec import Argument, KernelSpec, Step

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("x", "y")),), (Argument("x", "float", "in", ""), Argument("y", "float", "out", "")), (), ()
)
LAUNCH = (LaunchConfig((1, 1, 1), (32, 1, 1)),)


def test_an_array_that_several_jobs_have_is_written_once(tmp_path: Path) -> None:
    common, apart = np.arange(3000, dtype=np.float32), np.arange(6000, dtype=np.float32)[::2]
    own = [np.full(5, k, np.float32) for k in range(2)]
    jobs = [CpuJob(LAUNCH, {"x": common, "y": each}) for each in own] + [CpuJob(LAUNCH, {"x": apart, "y": own[1]})]
    binary = CpuBinary(tmp_path / "kernel.so", SPEC, "k.cu")
    files = write_jobs(tmp_path, [(binary, job) for job in jobs], ["output 1"] * 3)
    data = (tmp_path / "data").read_bytes()
    places = []
    for file, job in zip(files, jobs, strict=True):
        rows = [line.split() for line in file.read_text().splitlines()]
        assert ["output", "1"] in rows
        for row, array in zip([row for row in rows if row[0] == "buffer"], job.buffers.values(), strict=True):
            size, at = int(row[1]), int(row[4])
            assert data[at : at + size] == array.tobytes()
            places.append(at)
    assert places[0] == places[2] != places[4]
    assert len(set(places)) == 4
    assert len(data) < 3 * common.nbytes


def test_an_output_in_the_buffer_of_an_input_begins_with_what_that_holds_and_both_pointers_lead_there(
    tmp_path: Path,
) -> None:
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(8, np.float32)}
    job = CpuJob(LAUNCH, arrays, shared={"y": "x"})
    (file,) = write_jobs(tmp_path, [(CpuBinary(tmp_path / "kernel.so", SPEC, "k.cu"), job)], [""])
    rows = [line.split() for line in file.read_text().splitlines() if line]
    first, second = [row for row in rows if row[0] == "buffer"]
    assert first[4] == second[4]
    assert (first[3], second[3]) == ("1", "0")  # read only, and read and written
    (launch,) = [row for row in rows if row[0] == "launch"]
    assert [word.rpartition(":")[2] for word in launch[-2:]] == ["1", "1"]
