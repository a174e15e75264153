"""Sums of equal terms at the timed sizes: an edit that is many times less exact than an exact original is refused, others are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu.jobs import CpuJob, CpuRun
from engine.cpu.sampled import Sample, Writes
from engine.evaluate.equal_terms import EqualTerms
from engine.model import LaunchConfig
from engine.spec.data import Tiles
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step

X = Argument("x", "float", "in", "n", fill=Fill("uniform", "0.5", "1.5"))
SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("x", "y")),), (X, Argument("y", "float", "out", "1")),
    (Case("small", {"n": 64}),), (Case("large", {"n": 1 << 14}),),
)  # fmt: skip
LAUNCH = LaunchConfig((2, 1, 1), (32, 1, 1), 0)
Sum = Callable[[NDArray[Any]], Any]


def _serial(x: NDArray[Any]) -> Any:
    return np.add.accumulate(x)[-1]


def _compensated(x: NDArray[Any]) -> Any:
    return np.float32(x.sum(dtype=np.float64))


def _pairwise(x: NDArray[Any]) -> Any:
    return _serial(np.array([_serial(part) for part in x.reshape(-1, 64)], x.dtype))


def _run(kernel: Sum, job: CpuJob) -> CpuRun:
    value = kernel(np.full(1 << 14, job.buffers["x"][0], job.buffers["x"].dtype))
    no = np.zeros(1, bool)
    return CpuRun({}, (), None, 0.0, writes={"y": Writes(np.array([0]), np.array([value]), {}, no, no)})


def _judge(original: Sum, candidate: Sum, seed: int, *, twin: bool = True) -> Any:
    def placed(case: Case, tiles: Tiles) -> tuple[LaunchConfig, CpuJob]:
        contents = tiles.of(case)
        assert contents is not None
        assert np.unique(contents["x"]).size == 1
        return LAUNCH, CpuJob((LAUNCH,), contents, sample=Sample((0, 1), {"x": 1 << 14, "y": 1}, {"x": 0, "y": 0}))

    def run(kernel: Sum, jobs: Sequence[CpuJob]) -> list[CpuRun]:
        return [_run(kernel, job) for job in jobs]

    def widened(job: CpuJob) -> tuple[Sum, CpuJob] | None:
        wide = CpuJob(job.launches, {n: a.astype(np.float64) for n, a in job.buffers.items()})
        return (_serial, wide) if twin else None

    machinery = SimpleNamespace(run=run, widened=widened, launches=lambda program, sizes: (LAUNCH,))
    sampled: Any = SimpleNamespace(machinery=machinery, placed=placed, original=SimpleNamespace(extra=original))
    terms = EqualTerms(SPEC, sampled, random.Random(seed))
    terms.draw()
    built: Any = SimpleNamespace(extra=candidate, program=None)
    return terms.judge(built)


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_without_its_compensation_is_refused(seed: int) -> None:
    failure = _judge(_compensated, _serial, seed)
    assert failure is not None
    assert failure.argument == "y"
    assert failure.error > 32 * 6e-8


@pytest.mark.parametrize(
    ("original", "candidate"),
    [
        (_compensated, _compensated),
        (_pairwise, _compensated),
        (_serial, _serial),
        (_serial, _pairwise),
        (_compensated, _pairwise),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_sums_that_are_as_exact_or_nearly_are_not(original: Sum, candidate: Sum, seed: int) -> None:
    assert _judge(original, candidate, seed) is None


def test_without_a_twin_nothing_is_said() -> None:
    assert _judge(_compensated, _serial, 1, twin=False) is None
