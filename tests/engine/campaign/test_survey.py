"""`optiml list`: which kernels there are, what each lacks, and how quickly the second look goes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.campaign import survey
from engine.cli import main
from tests.runtime import with_runtime

SCALE = """\
__global__ void scale(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
void run(const float *x, float *y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
COLUMNS = """\
__global__ void columns(const float *x, float *y, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows) { float s = 0; for (int c = 0; c < cols; ++c) s += x[r * cols + c]; y[r] = s; }
}
void all(const float *x, float *y, int rows, int cols) { columns<<<(rows + 255) / 256, 256>>>(x, y, rows, cols); }
"""
UNSEEN = "__global__ void mix(const float *x, float *y, int n) {\n    y[threadIdx.x % n] = x[threadIdx.x % n];\n}\n"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("survey") / "work"
    (base / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    (base / "src" / "scale.cu").write_text(SCALE)
    (base / "src" / "columns.cu").write_text(COLUMNS)
    (base / "src" / "mix.cu").write_text(UNSEEN)
    (base / "host.cpp").write_text("int main() {}\n")
    return base


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIML_CACHE", str(cache))


def listed(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, object]]:
    assert main(["list", str(root), "--device", "cpu", "--format", "json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "optiml.list/1"
    return {kernel["kernel"]: kernel for kernel in found["kernels"]}


def test_nothing_is_run_in_no_time_and_that_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listed(root, capsys, "--limit", "0")
    assert {kernel["spec"] for kernel in found.values()} == {"unknown"}
    monkeypatch.setattr(survey.Surveyor, "_one", lambda surveyor, kernel, deadline: kernel)
    found = listed(root, capsys, "--limit", "600")
    assert {name: kernel["spec"] for name, kernel in found.items()} == {
        "scale": "drafted",
        "columns": "drafted",
        "mix": "unknown",
    }
    assert {kernel["tried"] for kernel in found.values()} == {False}
    assert main(["list", str(root), "--device", "cpu", "--limit", "0"]) == 0
    assert "3 kernels were analysed but not run within the time limit" in " ".join(capsys.readouterr().out.split())


def test_kernels_are_ranked_by_headroom_and_say_what_is_missing(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):  # on a busy machine a kernel's run may end before its prediction; the next call goes on
        found = listed(root, capsys, "--limit", "600")
        if found["columns"]["headroom"] is not None and found["scale"]["headroom"] is not None:
            break
    assert list(found) == ["columns", "scale", "mix"]
    assert found["columns"]["spec"] == "drafted"
    assert float(str(found["columns"]["headroom"])) > float(str(found["scale"]["headroom"])) >= 1
    assert found["mix"]["spec"] == "open"
    assert "launch" in str(found["mix"]["missing"])
    # The second look asks nothing anew.
    monkeypatch.setattr(survey.Surveyor, "_look", lambda *_: pytest.fail("looked again"))
    assert listed(root, capsys) == found
    assert main(["list", str(root), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "no run was recorded, so the order is by headroom only" in " ".join(out.split())


def test_a_changed_kernel_alone_is_looked_at_anew(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listed(root, capsys, "--limit", "600")
    looked: list[str] = []
    original = survey.Surveyor._looked

    def watched(surveyor: survey.Surveyor, kernel: survey.SurveyedKernel, *, static: bool) -> survey.SurveyedKernel:
        looked.append(kernel.kernel)
        return original(surveyor, kernel, static=static)

    monkeypatch.setattr(survey.Surveyor, "_looked", watched)
    (root / "src" / "mix.cu").write_text(UNSEEN.replace("x[threadIdx.x % n];", "2 * x[threadIdx.x % n];"))
    after = listed(root, capsys, "--limit", "600")
    assert set(looked) == {"mix"}
    assert after["scale"] == before["scale"]
