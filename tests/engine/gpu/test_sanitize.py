"""Verdicts from logs of compute-sanitizer: attributed by name, and only where the kernel ran under the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import MachineError
from engine.gpu.sanitize import Sanitized, own_kernels, read_log, verdict

TEXT = "__global__ void scale(const __half* x, __half* y, int n) { }"
HEAD = "========= COMPUTE-SANITIZER\n"


def _memcheck(frame: str, count: int = 1) -> str:
    return (
        f"{HEAD}========= Invalid __global__ write of size 4 bytes\n=========     at {frame}\n"
        "=========     by thread (0,0,0) in block (0,0,0)\n=========     Address 0x7f4a63600000 is out of bounds\n"
        "=========     and is 1 bytes after the nearest allocation at 0x7f4a63600000 of size 2 bytes\n"
        "=========     Saved host backtrace up to driver entry point at kernel launch time\n"
        "=========     Host Frame:  [0x2f1e4d] in libcuda.so.1\n"
        "=========     Host Frame: main in /tmp/worker [0x1f]\n=========\n"
        '========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to '
        f"cuStreamSynchronize.\n=========     Host Frame:  [0x3a] in libcuda.so.1\n"
        f"========= ERROR SUMMARY: {count} error{'s' * (count > 1)}\n"
    )


RACE = (
    f"{HEAD}========= Error: Race reported between Write access at void sum<float>(const T1 *, T1 *, int)+0x1a0 in k.cu:14\n"
    "=========     and Read access at void sum<float>(const T1 *, T1 *, int)+0x210 in k.cu:15 [124 hazards]\n=========\n"
    "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
)
INIT = (
    f"{HEAD}========= Uninitialized __global__ memory read of size 2 bytes\n=========     at 0x90 in k.cu:7:scale(__half *)\n"
    "=========     by thread (1,0,0) in block (0,0,0)\n=========     Address 0x7f10e2000002\n=========\n"
    "========= ERROR SUMMARY: 1 error\n"
)
SYNC = (
    f"{HEAD}========= Barrier error detected. Divergent thread(s) in block.\n=========     at scale(__half *)+0x50 in k.cu:9\n"
    "=========     by thread (31,0,0) in block (0,0,0)\n=========\n========= ERROR SUMMARY: 32 errors\n"
)
HELPER = (
    f"{HEAD}========= Invalid __shared__ read of size 2 bytes\n=========     at helper(int)+0x20 in k.cu:3\n"
    "=========     by thread (0,0,0) in block (0,0,0)\n=========     Address 0x400 is out of bounds\n"
    "=========     Device Frame: (anonymous namespace)::scale(__half *)+0x90 in k.cu:9\n========= ERROR SUMMARY: 1 error\n"
)
CLEAN = f"{HEAD}========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACE = f"{HEAD}========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def _verdict(tmp_path: Path, log: str, problem: str = "", text: str = TEXT) -> Sanitized:
    (tmp_path / "log").write_text(log)
    return verdict("memcheck", read_log(tmp_path / "log"), problem, text)


@pytest.mark.parametrize(
    ("log", "functions", "count", "first"),
    [
        (_memcheck("scale(__half *)+0x70"), ("scale",), 2, "Invalid __global__ write of size 4 bytes at scale(__half *)+0x70"),
        (_memcheck("0x70 in scale(__half *)"), ("scale",), 2, "Invalid __global__ write of size 4 bytes at 0x70 in scale"),
        (RACE, ("sum",), 1, "Error: Race reported between Write access at void sum<float>"),
        (INIT, ("scale",), 1, "Uninitialized __global__ memory read of size 2 bytes at 0x90 in k.cu:7:scale"),
        (SYNC, ("scale",), 32, "Barrier error detected. Divergent thread(s) in block. at scale(__half *)+0x50 in k.cu:9"),
        (HELPER, ("helper", "scale"), 1, "Invalid __shared__ read of size 2 bytes at helper(int)+0x20 in k.cu:3"),
    ],
)  # fmt: skip
def test_a_report_counts_against_the_program_with_its_place(
    tmp_path: Path, log: str, functions: tuple[str, ...], count: int, first: str
) -> None:
    found = _verdict(tmp_path, log, "the GPU worker ended")
    assert found.errors == count
    assert found.first.startswith(first)
    assert read_log(tmp_path / "log").reports[0].functions == functions


@pytest.mark.parametrize(
    "frame", ["fill_words+0x70", "0x70 in fill_words", "draw_float16+0x1f0", "cupy_copy__float32_float32+0x90"]
)
def test_a_report_in_a_kernel_of_ours_is_an_internal_error(tmp_path: Path, frame: str) -> None:
    """It counted against candidate and original alike, and so excused whatever the candidate did."""
    with pytest.raises(MachineError, match=r"Invalid __global__ write.*please report this"):
        _verdict(tmp_path, _memcheck(frame), "the GPU worker ended")


def test_a_program_that_takes_the_name_of_a_kernel_of_ours_is_judged_itself(tmp_path: Path) -> None:
    text = TEXT + "__device__ void fill_words(float* x) { }"
    assert _verdict(tmp_path, _memcheck("fill_words(float *)+0x70"), text=text).errors == 2


def test_a_report_of_the_program_outweighs_one_of_ours(tmp_path: Path) -> None:
    log = _memcheck("scale(__half *)+0x70") + _memcheck("fill_words+0x70", 2)
    assert _verdict(tmp_path, log).first.endswith("at scale(__half *)+0x70")


@pytest.mark.parametrize("log", [CLEAN, CLEAN_RACE])
def test_no_report_is_a_pass_only_where_the_kernel_ran(tmp_path: Path, log: str) -> None:
    """A worker that had died before the kernel ran counted as: passed."""
    assert _verdict(tmp_path, log) == Sanitized("memcheck", 0)
    found = _verdict(tmp_path, log, "the GPU worker ended: ImportError")
    assert (found.errors, found.lost) == (None, True)
    assert "did not finish" in found.first


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("", "no summary"),
        (f"{HEAD}========= Target application returned an error\n", "no summary"),
        (f"{HEAD}========= Error: Target application terminated before first instrumented API call\n", "before first"),
        (f"{HEAD}========= Warning: Device 0 is not supported\n{CLEAN}", "not supported"),
        (f"{HEAD}========= Error: No attachable process found. compute-sanitizer timed-out.\n", "No attachable"),
    ],
)
def test_a_tool_that_could_not_look_gives_no_verdict(tmp_path: Path, log: str, says: str) -> None:
    found = _verdict(tmp_path, log)
    assert found.errors is None
    assert says in found.first


def test_a_missing_log_is_an_empty_one(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none").errors is None


def test_errors_without_a_report_that_can_be_parsed_count(tmp_path: Path) -> None:
    assert _verdict(tmp_path, f"{HEAD}========= Something new\n========= ERROR SUMMARY: 4 errors\n").errors == 4


def test_every_kernel_of_the_worker_has_its_name_known() -> None:
    names = own_kernels()
    assert {"fill_words", "hash_bytes", "check_guards", "perturb", "draw_permutation", "draw_csr_offsets"} <= names
    assert {"draw_float16", "compare_bfloat16", "widen_int8"} <= names
