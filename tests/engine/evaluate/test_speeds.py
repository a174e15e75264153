"""How sizes for counting accesses are found, with a CPU that takes as long as the square of a size."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.compile.built import Built
from engine.cpu import CpuFinding, CpuRun
from engine.errors import RefusedError
from engine.evaluate import speeds
from engine.evaluate.cpu import CpuEvaluator
from engine.model import LaunchConfig, Measurement
from engine.predict.counts import AccessCounts, KernelCounts
from engine.predict.footprint import Footprint
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step

FULL = 16384


class Slow:
    """A machine on which a run of n takes (n / 4096)² seconds, on the clock of its own."""

    def __init__(self, unit: int = 4096) -> None:
        self.unit, self.tried, self.sizes = unit, list[int](), list[int]()

    def run_many(self, binary: Any, jobs: Any, *, deadline_s: float) -> list[CpuRun]:
        runs = []
        for job in jobs:
            n = job.launches[0].grid[0] * 256
            self.tried.append(n)
            self.sizes.append(len(job.buffers["x"]))
            taken = (n / self.unit) ** 2
            late = (CpuFinding("timeout", f"did not end in {deadline_s:g} s"),) if taken > deadline_s else ()
            counts = AccessCounts((KernelCounts(job.launches[0], (), 0.0, 0.0, barriers=float(n * n)),))
            runs.append(CpuRun({}, late, None if late else counts, taken))
        return runs


def blocks_of_256(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
    return (LaunchConfig((max(1, int(sizes["n"]) // 256), 1, 1), (256, 1, 1)),)


def predicted(
    monkeypatch: pytest.MonkeyPatch,
    machine: Any,
    *,
    full: int = FULL,
    launches: Any = blocks_of_256,
    sizes: dict[str, int] | None = None,
) -> Measurement:
    spec = KernelSpec(
        "k.cu", (Step("k", "", ("x", "n")),), (Argument("x", "float", "out", "n", Fill(), ""),), (), (Case("large", sizes or {"n": full}),)
    )  # fmt: skip

    monkeypatch.setattr(speeds, "footprint", lambda *arguments: Footprint(0.0, 0.0, AccessCounts(())))
    predictor = SimpleNamespace(
        predict=lambda binary, launches, counts: SimpleNamespace(time_us=counts.kernels[0].barriers, terms={}),
        code=lambda binary: None,
        figures=None,
    )
    builder = SimpleNamespace(launches_for=launches)
    made = speeds.Speeds(spec, builder, machine, predictor)  # type: ignore[arg-type]
    built: Any = SimpleNamespace(
        identity=("a",), program=None, extra=None, binary=None, launches=(launches(None, sizes or {"n": full}),)
    )
    return made.predict(built)


def test_a_kernel_whose_work_grows_with_the_square_is_counted_at_smaller_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Slow()
    measurement = predicted(monkeypatch, machine)
    assert machine.tried[0] == FULL
    assert max(machine.tried[2:]) <= FULL // 8  # the run that is held out among them
    assert measurement.cases[0].original_us == pytest.approx(FULL**2, rel=0.01)  # and still grows as it does


class Strided:
    """Counts a grid-stride loop over n as the runtime does: eight evenly spread blocks, scaled to all of them."""

    blocks, threads = 2112, 128

    def run_many(self, binary: Any, jobs: Any, *, deadline_s: float) -> list[CpuRun]:
        runs = []
        every = self.blocks // 8
        for job in jobs:
            n = len(job.buffers["x"])
            elements = 0
            for block in range(every // 2, self.blocks, every):
                first, stride = block * self.threads, self.blocks * self.threads
                elements += sum(max(0, min(self.threads, n - start)) for start in range(first, n, stride))
            counts = KernelCounts(job.launches[0], (), 0.0, 0.0, barriers=float(elements * every))
            runs.append(CpuRun({}, (), AccessCounts((counts,)), 0.0))
        return runs


def test_a_loop_over_a_grid_of_one_size_is_counted_where_every_block_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2112 blocks of 128 threads the ones that are looked at had nothing to do in a run of 16,384 elements."""
    machine = Strided()
    launch = (LaunchConfig((machine.blocks, 1, 1), (machine.threads, 1, 1)),)
    measurement = predicted(monkeypatch, machine, full=1 << 25, launches=lambda program, sizes: launch)
    assert measurement.cases[0].original_us == pytest.approx(1 << 25, rel=0.1)


def test_a_grid_that_moves_with_a_size_is_not_capped_by_what_an_array_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each of 2^25 edges between 2^20 nodes was counted at the most nodes that there was room for."""
    machine = Slow(unit=1 << 30)
    sizes = {"n": 1 << 20, "edges": 1 << 25}
    predicted(
        monkeypatch, machine, sizes=sizes,
        launches=lambda program, sizes: (LaunchConfig((-(-int(sizes["edges"]) // 256), 1, 1), (256, 1, 1)),),
    )  # fmt: skip
    assert max(machine.sizes) <= 1 << 17


def test_a_kernel_that_takes_too_long_at_any_size_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="did not end in 20 s"):
        predicted(monkeypatch, Slow(unit=1))


class Counting:
    """Counts barriers by a function of n and of the number of the job: the first two are of the base with other inputs."""

    def __init__(self, barriers: Callable[[int, int], float]) -> None:
        self.barriers, self.asked = barriers, 0

    def run_many(self, binary: Any, jobs: Any, *, deadline_s: float) -> list[CpuRun]:
        runs = []
        for number, job in enumerate(jobs):
            n = len(job.buffers["x"])
            counts = KernelCounts(job.launches[0], (), 0.0, 0.0, barriers=self.barriers(n, number))
            runs.append(CpuRun({}, (), AccessCounts((counts,)), 0.0))
        return runs


def test_a_text_whose_two_predictions_differ_is_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of another length for each input: one prediction was 6 microseconds, the next one 11 seconds."""
    noisy = Counting(lambda n, number: n * (1.5 if number == 1 else 1.0))
    with pytest.raises(RefusedError, match="not predicted: with other inputs of the same sizes it is"):
        predicted(monkeypatch, noisy, full=1 << 24)
    even = predicted(monkeypatch, Counting(lambda n, number: n * (1.02 if number == 1 else 1.0)), full=1 << 24)
    assert even.cases[0].original_us == pytest.approx(1 << 24, rel=0.02)


def test_a_run_that_is_held_out_and_missed_ends_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(n: int, number: int) -> float:
        return float(n) if n <= 1 << 16 else 10.0 * n  # a second kind of work that no smaller run has shown

    with pytest.raises(
        RefusedError, match="not predicted: a run that was held out misses what the others predict by 10 times"
    ):
        predicted(monkeypatch, Counting(steps), full=1 << 24)


def test_an_incumbent_of_an_earlier_run_that_cannot_be_predicted_ends_no_search() -> None:
    def predict(built: Any) -> Measurement:
        if built == "its":
            raise RefusedError("the kernel's accesses cannot be counted on the CPU")
        return Measurement((), 2.0, 2.0, 2.0)

    made = CpuEvaluator.__new__(CpuEvaluator)
    made.speeds = cast(speeds.Speeds, SimpleNamespace(predict=predict))
    assert made._against(Measurement((), 3.0, 3.0, 3.0), cast(Built, "another")) == 1.5
    assert made._against(Measurement((), 3.0, 3.0, 3.0), cast(Built, "its")) is None
