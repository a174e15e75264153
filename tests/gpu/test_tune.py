"""The tuner on a GPU: points verified and timed, a template that is wrong refused, dispatch code confirmed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.compile.compiler import Translation
from engine.compile.nvcc import find_nvcc
from engine.errors import RefusedError
from engine.model import Evaluation, LaunchConfig, Measurement, Outcome
from engine.run.dispatch_confirmation import Confirming
from engine.run.machine import Machine, make_machine
from engine.run.template_run import tune
from engine.search.progress import Budget
from engine.settings.config import Guardrails
from engine.tune.feasible import fits
from engine.tune.template import ConstantTemplate
from engine.tune.tune_options import TuneOptions

from ..engine.tune.kernels import HELD, SAXPY, template
from ..engine.tune.test_dispatch import shapes

pytestmark = pytest.mark.gpu
_MAX_THREADS_PER_BLOCK = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
TUNING = Path(__file__).resolve().parents[2] / "benchmarks" / "tuning"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = make_machine(device="gpu")
    yield found
    found.close()


@pytest.mark.parametrize("strategy", ["model", "exhaustive"])
def test_a_transpose_finds_its_tile(machine: Machine, tmp_path: Path, strategy: str) -> None:
    result = tune(
        TuneOptions(path=TUNING / "transpose.cu", strategy=strategy, budget=Budget(candidates=25), out=tmp_path),
        machine,
    )
    assert result.mode == "measured"
    assert result.best is not None
    assert result.best.evaluation.measurement.low > 1.3
    assert result.best.values["STAGED"] == 1
    assert result.counts["configurations"] <= 25
    assert (tmp_path / "best.patch").is_file()


def test_the_driver_says_the_same_of_registers_and_threads(machine: Machine) -> None:
    """The driver's own figure, beyond which a launch fails, is where `fits` draws the line."""
    from cupy.cuda import driver, function

    text, met = HELD.partition("void run")[0], set()
    for count in range(8, 160, 8):
        binary = machine.compiler.compile(Translation(text.replace("ITEMS 4", f"ITEMS {count}"), "held.cu", ("held",)))
        module = function.Module()
        module.load(binary.cubin)
        most = driver.funcGetAttribute(_MAX_THREADS_PER_BLOCK, module.get_function(binary.entries[0]).ptr)
        met.add(most)
        for threads in range(32, 1025, 32):
            launch = ((LaunchConfig((1, 1, 1), (threads, 1, 1)),),)
            possible = fits(binary.resources, launch, machine.target) == ""
            assert possible == (threads <= most), (binary.resources[0].registers, threads, most)
    assert len(met) > 4


def test_what_cannot_be_launched_leaves_the_set_before_the_search(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "held.cu").write_text(HELD)
    result = tune(TuneOptions(path=tmp_path / "held.cu", budget=Budget(candidates=20), out=tmp_path / "out"), machine)
    assert {e.condition: e.points for e in result.space.excluded} == {"registers * threads <= 65536": 1}
    assert dict(result.space.by_compiler) == {}
    assert "crashed" not in result.counts
    assert result.counts["configurations"] == 6


def test_a_wrong_template_is_refused(machine: Machine, tmp_path: Path) -> None:
    text = (
        (TUNING / "transpose.cu")
        .read_text()
        .replace("(row0 + y) * cols", "(row0 + y + (STAGED ? 0 : SWEEP - 1)) * cols")
    )
    text = text.replace("tune SWEEP = 1, 2, 4", "tune SWEEP = 2, 4").replace("tune STAGED = 0, 1", "tune STAGED = 0")
    (tmp_path / "k.cu").write_text(text)
    with pytest.raises(RefusedError, match="does not reproduce the original at"):
        tune(TuneOptions(path=tmp_path / "k.cu", budget=Budget(candidates=12), out=tmp_path / "out"), machine)


# The original starves the small shape: few threads with much work each.
SLOW = (
    SAXPY.replace("tune BLOCK = 64, 128, 256, 2048", "tune BLOCK = 32, 256")
    .replace("#define BLOCK 256", "#define BLOCK 32")
    .replace("tune ITEMS = 1, 2, 4", "tune ITEMS = 1, 8, 64")
    .replace("int ITEMS = 1;", "int ITEMS = 64;")
)
MAIN = """
#include <cstdio>
#include <vector>
int main() {
    for (int n : {1, 129, 65536, 1048575, 1048576, 1048577, 5000001}) {
        std::vector<float> x(n), y(n, 1.0f);
        for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i % 1000);
        float *dx, *dy;
        cudaMalloc(&dx, n * sizeof(float));
        cudaMalloc(&dy, n * sizeof(float));
        cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
        cudaMemcpy(dy, y.data(), n * sizeof(float), cudaMemcpyHostToDevice);
        run(3.0f, dx, dy, n);
        cudaMemcpy(y.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost);
        if (cudaGetLastError() != cudaSuccess) return 3;
        for (int i = 0; i < n; ++i) {
            if (y[i] != 3.0f * x[i] + 1.0f) { std::printf("n = %d: y[%d] = %g\\n", n, i, y[i]); return 4; }
        }
        cudaFree(dx);
        cudaFree(dy);
    }
    return 0;
}
"""


def test_a_run_says_what_became_of_the_dispatch_code(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "saxpy.cu").write_text(SLOW)
    result = tune(
        TuneOptions(path=tmp_path / "saxpy.cu", budget=Budget(candidates=12), out=tmp_path / "out", dispatch=True),
        machine,
    )
    assert result.best is not None
    assert len(result.shapes) == 2
    if len({tuple(s.values.items()) for s in result.shapes}) < 2:
        assert result.dispatch is None
        assert any("one configuration is the best for every shape" in note for note in result.notes)
        return
    assert result.dispatch is not None
    assert result.dispatch.key == "n"
    assert result.dispatch.ratio >= result.best.evaluation.measurement.low
    assert (tmp_path / "out" / "dispatch.patch").is_file()


@pytest.fixture(scope="module")
def table() -> tuple[ConstantTemplate, Any]:
    """Dispatch code's table as if each shape had a configuration of its own, whatever this device prefers."""
    made = template(SLOW)
    small, large = {"BLOCK": 256, "ITEMS": 1}, {"BLOCK": 256, "ITEMS": 8}
    return made, SimpleNamespace(
        best=None,
        original=Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0)),
        shapes=shapes(made, small, large),
        mode="measured",
    )


@pytest.mark.parametrize(("bench", "verdict"), [("true", "passed"), ("! grep -q 'template <int' k.cu", "failed")])
def test_dispatch_code_is_confirmed_on_the_device(
    machine: Machine, table: tuple[ConstantTemplate, Any], tmp_path: Path, bench: str, verdict: str
) -> None:
    made, result = table
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(SLOW)
    (tmp_path / "bench").write_text(f"#!/bin/sh\n{bench}\n")
    (tmp_path / "bench").chmod(0o755)
    limits = Guardrails(command=("./bench",), time=20.0, end_to_end=3.0)
    dispatch, program = Confirming(machine, made.spec, tmp_path, None, limits, ()).dispatch(made, result)
    assert [(g.name, g.verdict) for g in dispatch.guardrails] == [("end-to-end command", verdict)]
    assert bool(dispatch.patch) == (verdict == "passed")
    assert dispatch.ratio > 1.02
    assert sorted(case for branch in dispatch.branches for case in branch.cases) == sorted(
        c.name for c in made.spec.time
    )
    for evaluation, branch in zip(dispatch.evaluations, dispatch.branches, strict=True):
        if not branch.cases:  # the original's values, for shapes that were not measured
            continue
        assert evaluation.outcome is Outcome.ACCEPTED
        assert [c.case for c in evaluation.measurement.cases] == list(branch.cases)
        assert "failed" not in {g.verdict for g in evaluation.guardrails}
    nvcc = find_nvcc()
    if nvcc is None or verdict == "failed":
        return
    (tmp_path / "main.cu").write_text(program.data.decode() + MAIN)
    build = [str(nvcc), "-std=c++17", f"-arch={machine.arch}", "main.cu", "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=120)
    ended = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
