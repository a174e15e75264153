"""Dispatch code by compute capability, built by nvcc and run on the GPU: which kernel a launch takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.compile.nvcc import find_nvcc
from engine.run.device_dispatch import Variant, write_dispatch
from engine.run.machine import make_machine
from engine.spec.reader import specs_in

from ..engine.run.test_device_dispatch import KERNEL, RUN, SPEC, edited, program

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")]

TEXT = "#include <cstdio>\n" + SPEC + KERNEL + RUN
MAIN = """
int main() {
    float *x, *y;
    if (cudaMallocManaged(&x, 4) != cudaSuccess || cudaMallocManaged(&y, 4) != cudaSuccess) {
        return 1;
    }
    *x = 1.0f;
    run(x, y, 1);
    cudaError_t ended = cudaDeviceSynchronize();
    printf("%s %g\\n", cudaGetErrorString(ended), *y);
}
"""
ORIGINAL, VARIANT = "no error 2", "no error 3"


@pytest.fixture(scope="module")
def arch() -> str:
    machine = make_machine(device="gpu")
    machine.close()
    return machine.arch.rstrip("a")


def printed(folder: Path, built: list[str], variant: str, guarded: tuple[int, ...] = ()) -> str:
    """What the program prints: the original's kernel doubles, the variant's triples."""
    original = program(TEXT)
    suggested = Variant("here", variant, edited(TEXT, [("2.0f * x[i]", "3.0f * x[i]")]))
    written = write_dispatch(original, specs_in(original, None)[0], [suggested], guarded)
    (folder / "k.cu").write_bytes(written.program.data + MAIN.encode())
    subprocess.run([str(find_nvcc()), *built, "k.cu", "-o", "k"], cwd=folder, check=True)
    return subprocess.run([folder / "k"], capture_output=True, text=True, check=True).stdout.strip()


def test_the_kernel_of_this_device_runs(tmp_path: Path, arch: str) -> None:
    assert printed(tmp_path, [f"-arch={arch}"], arch) == VARIANT


def test_the_original_runs_where_the_variant_is_for_another_device(tmp_path: Path, arch: str) -> None:
    assert printed(tmp_path, [f"-arch={arch}"], "sm_75") == ORIGINAL


def test_a_guarded_kernel_runs_only_where_it_was_compiled_for_this_device(tmp_path: Path, arch: str) -> None:
    guarded = (int(arch.removeprefix("sm_")),)
    assert printed(tmp_path, [f"-arch={arch}"], arch, guarded) == VARIANT
    older = ["-gencode", "arch=compute_80,code=compute_80"]  # this device compiles it when it is loaded
    assert printed(tmp_path, older, arch) == VARIANT
    assert printed(tmp_path, older, arch, guarded) == ORIGINAL
