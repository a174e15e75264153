"""Originals that validation or timing shows to be unsteady, and what is asked of candidates only where the original admits it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.errors import RefusedError
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.secret_cases import SecretCases
from engine.gpu.runner import DeviceFault
from engine.model import LaunchConfig
from engine.spec.data import NAN
from engine.spec.kernel_spec import Argument, Case
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import Nvml, command, evaluator, program


def test_an_original_that_is_wrong_while_timed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    """There was no measurement to take the floors from, so this was an internal error."""
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    with pytest.raises(RefusedError, match="gives different results while it is timed: 'y' differs") as caught:
        made.open(program("1.0 unsteady"))
    assert "between launches" in caught.value.do
    made.close()


class Validating:
    """A runner whose validation fails while the session has sizes of a kind."""

    def __init__(self, fails: Any) -> None:
        self.fails, self.opened = fails, []

    def open(self, spec: Any, built: Any, wide: Any) -> None:
        assert len(built.launches) == len(spec.check) + len(spec.time)
        self.opened.append([case.sizes for case in spec.time])

    def close(self) -> None:
        pass

    def validate(self, timeout_s: float) -> Mapping[str, Any]:
        if problem := self.fails(self.opened[-1]):
            if problem == "faults":
                raise DeviceFault("illegal address", kind="device")
            return {"problems": [problem], "widened": True}
        return {"problems": [], "widened": True}


@pytest.mark.parametrize(
    ("fails", "opened", "kept"),
    [
        (lambda cases: "", 1, True),
        (lambda cases: "faults" if any(c["n"] % 4 for c in cases) else "", 2, True),
        (lambda cases: "writes outside an array" if len(cases) > 1 else "", 3, False),
    ],
    ids=["any size", "multiples of 4", "named sizes alone"],
)
def test_sizes_that_the_original_does_not_take_are_not_asked_of_candidates(
    bench: GpuEvaluator, fails: Any, opened: int, kept: bool
) -> None:
    case = Case("n=4096", {"n": 4096})
    argument = Argument("x", "float", "in", size="n")
    bench._spec = replace(bench._spec, arguments=(argument,), check=(Case("n=64", {"n": 64}),), time=(case,))
    launch = (LaunchConfig((1, 1, 1), (32, 1, 1)),)
    bench._builder.launches_for = lambda program, sizes: launch  # type: ignore[method-assign]
    bench._secret = SecretCases(bench._spec, bench._builder, random.Random(1))
    bench._wide = None
    bench._runner.close()
    runner = bench._runner = cast(Any, Validating(fails))
    built = replace(bench._original, launches=(launch, launch))  # type: ignore[type-var]
    assert bench._validated(built)["problems"] == []
    assert len(runner.opened) == opened
    assert bool(bench._secret.cases) is kept


@pytest.mark.parametrize("ends", ["passes on", "drops", "strays", "faults"])
def test_nan_is_asked_for_only_where_the_original_passes_it_on(bench: GpuEvaluator, ends: str) -> None:
    def outputs(key: str, index: int, buffers: Mapping[str, Any], poison: int, *, timeout_s: float) -> Any:
        assert key == "original"
        if ends == "faults":
            raise DeviceFault("illegal address", kind="device")
        return "outside" if ends == "strays" else "", {
            "y": buffers["x"] if ends == "passes on" else np.fmax(buffers["x"], 0)
        }

    opened: list[Any] = []
    arguments = (Argument("x", "float", "in", size="n"), Argument("y", "float", "out", size="n"))
    bench._spec = replace(bench._spec, arguments=arguments, check=(Case("n=64", {"n": 640}),))
    bench._runner.close()
    bench._runner = cast(Any, SimpleNamespace(outputs=outputs, close=lambda: None))
    bench._opened = lambda built, timeout_s: opened.append(built) or {}  # type: ignore[assignment,func-returns-value]
    assert bench._original is not None
    bench._admit_nan(bench._original)
    assert any(check.family == NAN for check in bench._late_checks()) is (ends == "passes on")
    assert len(opened) == (ends == "faults")
