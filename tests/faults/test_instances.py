"""Other instances of a kernel on the measured path: verified and timed by a worker of their own, whatever their speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.compile.built import Built
from engine.evaluate.evaluator import Evaluator
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.guardrails import LIMITS
from engine.model import Evaluation, Outcome, Program
from engine.process.fair_lock import Turns
from engine.run.instance_check import InstanceCheck, InstanceVerdict
from engine.run.machine import Machine, make_machine
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.verify.defences import ALL
from tests.runtime import with_runtime

from .fake_gpu import Nvml, command, evaluator

TEXT = """// optiml: kernel = "scale<float>"
// optiml: args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 1, high = 2 } }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
template <typename T> __global__ void scale(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + T(1);
}
template <typename T> void run(const T* x, T* y, int n) { scale<T><<<(n + 255) / 256, 256>>>(x, y, n); }
"""


class Watched(Turns):
    """Turns at the GPU that notes who has one."""

    taken = 0

    def __enter__(self) -> None:
        super().__enter__()
        self.taken += 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    monkeypatch.setattr(engine.evaluate.gpu, "_LEAST_LIMIT_S", 30.0)  # a busy machine is no hanging kernel
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    made = make_machine(device="cpu")
    made.mode, made.turns = "measured", Watched()
    yield made
    made.close()


def judged(
    machine: Machine, folder: Path, code: str, patch: pytest.MonkeyPatch
) -> tuple[InstanceVerdict, list[KernelSpec]]:
    """The verdict on an edit of which the worker makes `code` in the instance of doubles, and the specs that were opened."""
    opened: list[KernelSpec] = []

    def evaluator_with(spec: KernelSpec, builder: Any) -> Evaluator:
        opened.append(spec)
        return evaluator(spec, folder)

    patch.setattr(machine, "evaluator_with", evaluator_with)
    original = Program({"k.cu": f"{TEXT}// code 1.0".encode()}, "k.cu")
    candidate = Program({"k.cu": f"{TEXT.replace('x[i] + T(1)', 'T(1) * x[i] + T(2)')}// code {code}".encode()}, "k.cu")
    (spec,) = specs_in(original, None)
    check = InstanceCheck(machine, spec, folder, None, LIMITS, replace(ALL, screening=False))
    built = machine.builder(spec, folder, None).original(candidate)
    return check.judge(original, built, ["scale<double>"]), opened


@pytest.mark.parametrize(
    ("code", "verdict", "detail"),
    [
        ("1.2", "passed", "also verified: scale<double> (1.20×, 95 % interval 1.1"),
        ("1.0", "passed", "also verified: scale<double> (1.00×"),
        ("0.98", "passed", "also verified: scale<double> (0.98×"),
        (
            "0.9",
            "failed",
            "changes scale<double>, which fails the guardrail 'no case more than 3 % slower': case n=1048576 takes 1.1",
        ),
        ("wrong", "failed", "changes scale<double>, which is incorrect: 'y' differs in case c"),
        ("kills", "failed", "changes scale<double>, which is not confirmed: "),
    ],
)
def test_an_instance_is_verified_and_timed_beside_its_own_original(
    code: str, verdict: str, detail: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, opened = judged(machine, tmp_path, code, monkeypatch)
    assert (found.guardrail.verdict, found.guardrail.detail[: len(detail)]) == (verdict, detail)
    assert [instance.name for instance in found.instances] == (["scale<double>"] if verdict == "passed" else [])
    assert [(a.name, a.type) for a in opened[0].arguments] == [("x", "double"), ("y", "double"), ("n", "int32")]
    assert isinstance(machine.turns, Watched)
    assert machine.turns.taken >= 1  # its original is validated in a turn of its own: a profiler may be at work


def test_a_confirmation_for_its_speed_alone_still_ends_where_there_is_none(machine: Machine, tmp_path: Path) -> None:
    def confirmed(code: str, *, any_speed: bool) -> Evaluation:
        spec = specs_in(Program({"k.cu": TEXT.encode()}, "k.cu"), None)[0]
        made: GpuEvaluator = evaluator(spec, tmp_path)
        try:
            made.open(Program({"k.cu": b"// code 1.0"}, "k.cu"))
            built: Built = made.build(Program({"k.cu": f"// code {code}".encode()}, "k.cu"), by_rules=False)
            return made.confirm(built, any_speed=any_speed)
        finally:
            made.close()

    assert (
        confirmed("0.98", any_speed=False).guardrails == ()
        or confirmed("0.98", any_speed=False).outcome is Outcome.SLOWER
    )
    guarded = confirmed("0.98", any_speed=True)
    assert guarded.outcome is Outcome.SLOWER
    assert "repeatable output" in {g.name for g in guarded.guardrails}
