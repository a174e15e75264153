"""The stub driver, a program that launches through it, and a way to record it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.capture import recording
from engine.capture.library import Cupti, cuda_include, find_cupti
from engine.capture.recording import CaptureEnd, CaptureRequest, record

_STUB = Path(__file__).parent / "stub"

SOURCE = """
__global__ void scale(const float* x, float* y, int n, float f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = f * x[i];
}
void launch(const float* x, float* y, int n, float f) { scale<<<(n + 255) / 256, 256>>>(x, y, n, f); }
struct Pair { float* data; int n; };
__global__ void clear(Pair p) { if (threadIdx.x < p.n) p.data[threadIdx.x] = 0; }
__global__ void gather(float** rows, int n) {}
"""

Recorder = Callable[..., CaptureEnd]


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub driver, as libcuda.so.1 and as CUPTI, and the program."""
    cupti = find_cupti()
    assert cupti is not None, "the extra 'capture' has CUPTI's headers"
    cuda = cuda_include(cupti)
    assert cuda is not None
    folder = tmp_path_factory.mktemp("stub")
    flags = ["-std=c++17", "-O1", f"-I{cupti.include}", f"-I{cuda}"]
    library = folder / "libcuda.so.1"
    shared = ["-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", str(_STUB / "driver.cpp"), "-o", str(library), "-ldl"]
    subprocess.run(["g++", *flags, *shared], check=True)
    linked = [str(_STUB / "program.cpp"), "-o", str(folder / "program"), str(library), f"-Wl,-rpath,{folder}"]
    subprocess.run(["g++", *flags, *linked], check=True)
    return folder


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "scale.cu").write_text(SOURCE)
    return tmp_path / "repo"


@pytest.fixture
def stub_cupti(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_cupti()
    assert found is not None
    fake: Cupti = replace(found, library=stub / "libcuda.so.1")
    monkeypatch.setattr(recording, "require_cupti", lambda: fake)


@pytest.fixture
def recorder(stub: Path, build_cache: Path, repository: Path, stub_cupti: None) -> Recorder:
    def run(*arguments: str, **options: object) -> CaptureEnd:
        folder = repository / ".optiml" / "capture"
        command = (str(stub / "program"), *arguments)
        return record(CaptureRequest(command, repository, folder, build_cache, **options))  # type: ignore[arg-type]

    return run
