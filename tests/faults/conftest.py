"""Fixtures of the tests on failing parts: an evaluator whose worker has no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.evaluate.gpu import GpuEvaluator
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import Nvml, command, evaluator, program


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Iterator[GpuEvaluator]:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    monkeypatch.setattr(engine.evaluate.gpu, "_LEAST_LIMIT_S", 30.0)  # a busy machine is no hanging kernel
    made = evaluator(spec(), tmp_path)
    made.open(program("1.0"))
    yield made
    made.close()
