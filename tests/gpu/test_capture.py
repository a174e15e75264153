"""`optiml capture` on an NVIDIA GPU: four kinds of programs, made here, and what the first run costs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.capture.library import find_cupti, injection_library
from engine.capture.manifest import BLOBS, Manifest, RecordedKernel, load_manifest, read_blob
from engine.capture.recorded_spec import recorded_spec
from tests.engine.capture.example_programs import NAMES, bare_copy, hand_written, program_text, shapes
from tests.engine.capture.test_recorded_spec import assert_equal_specs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_cupti() is None, reason="CUPTI 13 is not here: neither packages nor toolkit"),
]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")

_KERNEL = """
__global__ void axpy(const float* x, float* y, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

_TORCH = """
import torch
from torch.utils.cpp_extension import load_inline
launcher = '''
void run(torch::Tensor x, torch::Tensor y, double a) {
    int n = x.numel();
    axpy<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, (float)a);
}
'''
module = load_inline("axpy_extension", "void run(torch::Tensor x, torch::Tensor y, double a);",
                     open("axpy.cu").read() + launcher, functions=["run"], build_directory="build")
for n in (1000, 1 << 20):
    x, y = torch.arange(n, dtype=torch.float32, device="cuda"), torch.ones(n, device="cuda")
    for _ in range(5):
        module.run(x, y, 0.5)
torch.softmax(x.reshape(1024, -1), 1).sum().item()
"""

_CUPY = """
import cupy
kernel = cupy.RawKernel('extern "C" ' + open("axpy.cu").read().strip(), "axpy")
for n in (1000, 1 << 20):
    x, y = cupy.arange(n, dtype=cupy.float32), cupy.ones(n, dtype=cupy.float32)
    for _ in range(5):
        kernel(((n + 255) // 256,), (256,), (x, y, cupy.int32(n), cupy.float32(0.5)))
print(float(y.sum()))
"""

# argv: elements, launches, "graph" or "stream". Prints the seconds that the launches took.
_STATIC = """
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "axpy.cu"
static void fill(float* p, int n) {
    std::vector<float> v(n);
    for (int i = 0; i < n; i++) v[i] = float(i);
    cudaMemcpy(p, v.data(), n * 4, cudaMemcpyHostToDevice);
}
int main(int argc, char** argv) {
    int times = atoi(argv[2]);
    bool graphed = !strcmp(argv[3], "graph");
    for (int n : {1000, atoi(argv[1])}) {
        float *x, *y;
        cudaMalloc(&x, n * 4), cudaMalloc(&y, n * 4);
        fill(x, n), cudaMemset(y, 0, n * 4);
        cudaStream_t stream;
        cudaStreamCreate(&stream);
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        if (graphed) {
            cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
            axpy<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n, 0.5f);
            cudaStreamEndCapture(stream, &graph);
            cudaGraphInstantiate(&ready, graph, 0);
        }
        cudaDeviceSynchronize();
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < times; i++) {
            if (graphed) cudaGraphLaunch(ready, stream);
            else axpy<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n, 0.5f);
        }
        cudaStreamSynchronize(stream);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        float last;
        cudaMemcpy(&last, y + n - 1, 4, cudaMemcpyDeviceToHost);
        if (last != times * 0.5f * (n - 1) && times < 100) return printf("wrong: %g\\n", last), 1;
        printf("%.9f\\n", took.count());
    }
    return cudaGetLastError() != cudaSuccess;
}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "axpy.cu").write_text(_KERNEL)
    (tmp_path / "with_torch.py").write_text(_TORCH)
    (tmp_path / "with_cupy.py").write_text(_CUPY)
    (tmp_path / "build" / "program.cu").write_text(_STATIC.replace("axpy.cu", "../axpy.cu"))
    return tmp_path


@pytest.fixture
def program(repository: Path) -> str:
    subprocess.run(["nvcc", "-arch=native", "-o", "program", "build/program.cu"], cwd=repository, check=True)
    return "./program"


def _capture(repository: Path, *command: str, options: tuple[str, ...] = ()) -> tuple[Manifest, str]:
    """Run `optiml capture` in the repository; the manifest and what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    argv = [
        sys.executable,
        "-c",
        "import sys; from engine.cli import main; sys.exit(main())",
        "capture",
        *options,
        "--",
        *command,
    ]
    done = subprocess.run(argv, cwd=repository, env=environment, capture_output=True, text=True, timeout=500)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    found = load_manifest(repository / ".optiml" / "capture")
    assert found is not None
    return found, done.stdout


def _axpy(manifest: Manifest) -> RecordedKernel:
    (found,) = (k for k in manifest.kernels if k.kernel == "axpy")
    assert (found.file, found.line) == ("axpy.cu", 2)
    return found


def _assert_recorded(repository: Path, kernel: RecordedKernel, large: int, *, times: int) -> None:
    """Both launches have their scalars, and buffers whose contents before and after are those of one axpy."""
    assert sorted(s.count for s in kernel.shapes) == [times, times]
    blobs = repository / ".optiml" / "capture" / BLOBS
    for launch, n in zip(sorted(kernel.launches, key=lambda r: r.grid), (1000, large), strict=True):
        assert (launch.grid, launch.block, launch.contents) == ((-(-n // 256), 1, 1), (256, 1, 1), "")
        x, y, count, factor = launch.arguments
        assert struct.unpack("<i", bytes.fromhex(count.data)) == (n,)
        assert struct.unpack("<f", bytes.fromhex(factor.data)) == (0.5,)
        assert min(b.room for b in (*x.buffers, *y.buffers)) >= 4 * n
        before, after, read = (
            np.frombuffer(read_blob(blobs, name), np.float32)[:n]
            for name in (y.buffers[0].before, y.buffers[0].after, x.buffers[0].before)
        )
        assert np.array_equal(read, np.arange(n, dtype=np.float32))
        np.testing.assert_allclose(after, before + np.float32(0.5) * read, rtol=1e-6)
        assert (before != after).sum() >= n - 1


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch here")
@needs_nvcc
def test_a_pytorch_extension(repository: Path) -> None:
    manifest, out = _capture(repository, sys.executable, "with_torch.py", options=("--kernel", "axpy"))
    _assert_recorded(repository, _axpy(manifest), 1 << 20, times=5)
    assert any("softmax" in k.demangled.lower() for k in manifest.kernels), out


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="no CuPy here")
def test_a_cupy_raw_kernel(repository: Path) -> None:
    manifest, _ = _capture(repository, sys.executable, "with_cupy.py", options=("--kernel", "axpy"))
    _assert_recorded(repository, _axpy(manifest), 1 << 20, times=5)


@needs_nvcc
def test_a_statically_linked_program(repository: Path, program: str) -> None:
    manifest, out = _capture(repository, program, str(1 << 20), "7", "stream")
    _assert_recorded(repository, _axpy(manifest), 1 << 20, times=7)
    assert "axpy.cu:2" in out
    x = _axpy(manifest).launches[0].arguments[0].buffers[0]
    assert (x.memory, x.offset) == ("device", 0)
    print("allocations:", {b.allocation for r in _axpy(manifest).launches for a in r.arguments for b in a.buffers})


@needs_nvcc
def test_a_program_of_cuda_graphs(repository: Path, program: str) -> None:
    manifest, _ = _capture(repository, program, str(1 << 20), "7", "graph")
    axpy = _axpy(manifest)
    assert [(s.count, s.in_graphs) for s in axpy.shapes] == [(7, 7), (7, 7)]
    if not axpy.launches:
        assert any("CUDA graphs, which hide arguments" in note for note in manifest.notes)
        return
    assert {r.contents for r in axpy.launches} == {"graph"}
    numbers = {struct.unpack("<i", bytes.fromhex(r.arguments[2].data))[0] for r in axpy.launches}
    assert numbers == {1000, 1 << 20}


@needs_nvcc
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_spec_equals_the_hand_written_one(tmp_path: Path, name: str) -> None:
    bare_copy(name, tmp_path)
    (tmp_path / "program.cu").write_text(program_text(name))
    subprocess.run(["nvcc", "-arch=native", "-o", "program", "program.cu"], cwd=tmp_path, check=True)
    (tmp_path / "program.cu").unlink()
    _, wanted = hand_written(name)
    _capture(tmp_path, "./program", options=("--kernel", wanted.kernel))
    made = recorded_spec(tmp_path, wanted.kernel)
    assert made is not None
    print(made.text)
    assert made.missing == ()
    assert_equal_specs(made.spec, wanted)
    assert sorted(list(c.sizes.items()) for c in made.spec.time) == sorted(
        list(c.sizes.items()) for c in shapes(wanted)
    )


@needs_nvcc
@pytest.mark.parametrize(("elements", "launches"), [(1 << 25, 20_000), (1 << 22, 50_000)])
def test_the_first_run_costs_at_most_a_twentieth(
    repository: Path, program: str, tmp_path: Path, elements: int, launches: int
) -> None:
    """Launches of some 100 and some 10 µs, one after the other: the program's own clock around them, with and without."""
    cupti = find_cupti()
    assert cupti is not None
    library = injection_library(tmp_path / "cache", cupti)
    folder = tmp_path / "times"
    folder.mkdir()
    injected = {
        "CUDA_INJECTION64_PATH": str(library), "OPTIML_CAPTURE_CUPTI": str(cupti.library), "OPTIML_CAPTURE_DIR": str(folder),
    }  # fmt: skip
    command = [program, str(elements), str(launches), "stream"]

    def seconds(more: dict[str, str]) -> float:
        run = subprocess.run(
            command, cwd=repository, env={**os.environ, **more}, check=True, capture_output=True, text=True, timeout=300
        )
        return float(run.stdout.split()[1])

    seconds({})
    pairs = [(seconds({}), seconds(injected)) for _ in range(5)]
    overhead = statistics.median(b / a for a, b in pairs) - 1
    per_launch_us = statistics.median(b - a for a, b in pairs) / launches * 1e6
    kernel_us = statistics.median(a for a, _ in pairs) / launches * 1e6
    print(json.dumps({"kernel_us": kernel_us, "overhead": overhead, "per_launch_us": per_launch_us}))
    assert overhead <= 0.05
