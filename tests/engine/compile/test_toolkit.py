"""CUDA 12 beside CUDA 13: which one compiles, and that both do."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compile import nvcc, toolkit
from engine.compile.compiler import Translation
from engine.compile.cubin import Cubin
from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import CompileError, MachineError, UsageError
from engine.process.sandbox import NoSandbox, Sandbox

HALF = """#include <cuda_fp16.h>
template <typename T> __global__ void scale(const T* x, T* y, int n) {
    __shared__ T s[256];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if ((int)threadIdx.x < n) y[threadIdx.x] = __hadd(s[255 - threadIdx.x], s[threadIdx.x]);
}
"""


@pytest.mark.parametrize("major", [12, 13])
def test_both_compilers_compile(
    box: Sandbox | NoSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, major: int
) -> None:
    if toolkit.installed(major) is None:
        pytest.skip(f"NVRTC {major} is not installed")
    monkeypatch.setenv(toolkit.SWITCH, str(major))
    with NvrtcCompiler("sm_80", cache=tmp_path, sandbox=box, jobs=1, timeout_s=100.0) as compiler:
        assert f" {major}." in compiler.version
        binary = compiler.compile(Translation(HALF, "h.cu", ("scale<__half>",)))
        assert binary.resources[0].shared_bytes == 512
        assert binary.resources[0].barriers == 1
        assert Cubin(binary.cubin).entries == binary.entries
        assert compiler.compile(Translation(HALF, "h.cu", ("scale<__half>",))).cached
        with pytest.raises(CompileError, match='identifier "missing" is undefined') as caught:
            compiler.compile(Translation("__global__ void k(int* x) {\n *x = missing; }", "h.cu", ("k",)))
    assert caught.value.where == "h.cu:2"


def _only(monkeypatch: pytest.MonkeyPatch, driver: int, *majors: int) -> None:
    there = {m: toolkit.Toolkit(m, Path(f"libnvrtc.so.{m}"), (), "") for m in majors}
    monkeypatch.delenv(toolkit.SWITCH, raising=False)
    monkeypatch.setattr(toolkit, "installed", there.get)
    monkeypatch.setattr(toolkit, "driver_cuda", lambda: driver)


@pytest.mark.parametrize(
    ("driver", "there", "major"),
    [
        (0, (12, 13), 13),
        (0, (12,), 12),
        (12040, (12, 13), 12),
        (12040, (13,), 13),
        (13000, (12, 13), 13),
        (13010, (12,), 12),
    ],
)
def test_the_driver_chooses(monkeypatch: pytest.MonkeyPatch, driver: int, there: tuple[int, ...], major: int) -> None:
    _only(monkeypatch, driver, *there)
    assert toolkit.toolkit().major == major


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, 12040)
    with pytest.raises(MachineError) as caught:
        toolkit.toolkit()
    assert caught.value.do == "pip install 'optiml-cuda[cuda12]'"
    monkeypatch.setenv(toolkit.SWITCH, "11")
    with pytest.raises(UsageError, match="invalid CUDA version '11'"):
        toolkit.toolkit()


def test_nvcc_of_a_later_version_than_the_driver_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its machine code would not load."""
    header = tmp_path / "include" / "cuda.h"
    header.parent.mkdir()
    monkeypatch.setattr(nvcc, "find_tool", lambda name: tmp_path / "bin" / name)
    for version, driver, found in ((13000, 12040, False), (12090, 12040, True), (13000, 13000, True), (13000, 0, True)):
        header.write_text(f"#define CUDA_VERSION {version}\n")
        monkeypatch.setattr(nvcc, "driver_cuda", lambda driver=driver: driver)
        assert (nvcc.find_nvcc() is not None) == found, (version, driver)
