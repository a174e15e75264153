from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cpu import CpuBinary, CpuFinding, CpuJob, CpuMachine, CpuRun
from engine.cpu.toolchain import find_toolchain
from engine.model import LaunchConfig
from engine.process.sandbox import sandbox
from engine.spec.kernel_spec import Argument, KernelSpec, Role, Step
from tests.runtime import with_runtime

Array = np.ndarray[Any, Any]


def launch(grid: int | tuple[int, int, int], block: int | tuple[int, int, int], shared: int = 0) -> LaunchConfig:
    def three(v: int | tuple[int, int, int]) -> tuple[int, int, int]:
        return (v, 1, 1) if isinstance(v, int) else v

    return LaunchConfig(three(grid), three(block), shared)


@dataclass
class Kernel:
    """A kernel with data, as the tests run it. Roles: buffers in `inputs` are "in"; `outputs` by their role."""

    machine: CpuMachine
    binary: CpuBinary
    launches: Sequence[LaunchConfig]
    buffers: Mapping[str, Array]
    scalars: Mapping[str, Any]

    def job(self, order: int = 0, count: bool = False) -> CpuJob:
        return CpuJob(self.launches, self.buffers, self.scalars, order, count)

    def runs(self, orders: Sequence[int] = (0, 1, 2), *, deadline_s: float = 20) -> list[CpuRun]:
        return self.machine.run_many(self.binary, [self.job(o) for o in orders], deadline_s=deadline_s)

    def races(self, orders: Sequence[int] = (0, 1)) -> tuple[CpuFinding, ...]:
        return self.machine.races(self.binary, [self.job(o) for o in orders])

    def races_by_order(self, orders: Sequence[int]) -> list[tuple[CpuFinding, ...]]:
        """As `races`, one answer for each order; the fibres of all are made once."""
        runs = self.machine.race_runs([(self.binary, self.job(o)) for o in orders])
        return [run.findings for run in runs]


Make = Callable[..., Kernel]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> CpuMachine:
    if find_toolchain() is None:
        pytest.skip("no C++ compiler here")
    base: Path = tmp_path_factory.mktemp("cpu")
    return CpuMachine(with_runtime(base) / "cpu", sandbox=sandbox(), scratch=base / "scratch")


@pytest.fixture(scope="session")
def make(machine: CpuMachine) -> Make:
    def build(
        text: str,
        expressions: str | Sequence[str],
        launches: LaunchConfig | Sequence[LaunchConfig],
        arguments: Sequence[tuple[str, Role, Any]],
        steps: Sequence[Sequence[str]] | None = None,
    ) -> Kernel:
        names = [expressions] if isinstance(expressions, str) else list(expressions)
        configs = [launches] if isinstance(launches, LaunchConfig) else list(launches)
        order = steps or [[name for name, _, _ in arguments]]
        spec = KernelSpec(
            "dir/k.cu",
            tuple(Step(n, "", tuple(a)) for n, a in zip(names, order, strict=True)),
            tuple(Argument(name, "float", role, "") for name, role, _ in arguments),
            (),
            (),
        )
        binary = machine.build(text, "dir/k.cu", spec, names)
        buffers = {name: value for name, role, value in arguments if role != "scalar"}
        scalars = {name: value for name, role, value in arguments if role == "scalar"}
        return Kernel(machine, binary, configs, buffers, scalars)

    return build
