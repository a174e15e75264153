"""Every example is what its first line says: NumPy in float64 agrees with its kernel, and its spec stands up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cpu.jobs import CpuJob
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.evaluate.build import Builder
from engine.model import Outcome, Program
from engine.run.machine import Machine, make_machine
from engine.spec.data import buffer_elements, poisoned, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from tests.runtime import with_runtime

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# L2 of an H200: 60 MB. A timing shape must not fit, or the measurement says nothing about memory.
L2_BYTES = 60_000_000
Arrays = dict[str, Any]


def _rows(a: Any, case: Arrays) -> Any:
    return a.astype(np.float64).reshape(case["rows"], case["cols"])


def _softmax(b: Arrays, s: Arrays) -> Arrays:
    e = np.exp(_rows(b["x"], s) - _rows(b["x"], s).max(axis=1, keepdims=True))
    return {"y": e / e.sum(axis=1, keepdims=True)}


def _layer_norm(b: Arrays, s: Arrays) -> Arrays:
    x = _rows(b["x"], s)
    y = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return {"y": y * b["gamma"] + b["beta"]}


def _matmul(b: Arrays, s: Arrays) -> Arrays:
    a = b["a"].astype(np.float64).reshape(s["m"], s["k"])
    return {"c": a @ b["b"].astype(np.float64).reshape(s["k"], s["n"])}


def _stencil(b: Arrays, s: Arrays) -> Arrays:
    x = b["in"].astype(np.float64).reshape(s["height"], s["width"])
    y = x.copy()
    around = x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    y[1:-1, 1:-1] = 0.2 * around
    return {"out": y}


def _gelu(b: Arrays, s: Arrays) -> Arrays:
    v = _rows(b["x"], s) + b["bias"]
    return {"y": 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))}


REFERENCES: dict[str, Callable[[Arrays, Arrays], Arrays]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
    "transpose": lambda b, s: {"out": _rows(b["in"], s).T},
    "column_sum": lambda b, s: {"sums": _rows(b["x"], s).sum(axis=0)},
    "stencil": _stencil,
    "histogram": lambda b, s: {"bins": np.bincount(b["data"], minlength=256)},
    "gelu_bias": _gelu,
    "gemv": lambda b, s: {"y": _rows(b["a"], s) @ b["x"].astype(np.float64)},
    "dot": lambda b, s: {"result": b["a"].astype(np.float64) @ b["b"].astype(np.float64)},
}
NAMES = sorted(REFERENCES)


@dataclasses.dataclass(frozen=True)
class Example:
    """One example, read as `optiml optimize` reads it."""

    spec: KernelSpec
    program: Program
    spec_path: str | None


def _example(name: str) -> Example:
    path = EXAMPLES / f"{name}.cu"
    spec, spec_path = find_spec(ROOT, path, None)
    program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    return Example(spec, program, spec_path)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        made = make_machine(device="cpu", arch="sm_90")
    yield made
    made.close()


def test_every_example_has_its_reference() -> None:
    assert sorted(p.stem for p in EXAMPLES.glob("*.cu")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_text_parses_without_gaps_and_shows_its_launch(name: str) -> None:
    unit = parse((EXAMPLES / f"{name}.cu").read_bytes(), f"examples/{name}.cu")
    assert unit.errors == ()
    assert [k.name for k in unit.kernels] == [f"{name}_kernel"]
    assert [site.kernel for site in unit.launches] == [f"{name}_kernel"]


@pytest.mark.parametrize("name", NAMES)
def test_check_shapes_are_small_and_awkward_and_timing_shapes_large(name: str) -> None:
    spec = _example(name).spec
    assert len(spec.check) >= 3
    assert any(set(case.sizes.values()) <= {1, 2} for case in spec.check)
    for case in spec.check:
        assert sum(buffer_elements(spec, case).values()) <= 40_000
    for case in spec.time:
        elements = buffer_elements(spec, case)
        moved = sum(n * parse_dtype(spec.argument(a).type).itemsize for a, n in elements.items())
        # The matrix product is bound by arithmetic: its data fits, and may.
        assert moved > L2_BYTES or name == "matmul"


@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_every_case(name: str, machine: Machine) -> None:
    example = _example(name)
    builder = Builder(example.spec, ROOT, machine.compiler, machine.target, example.spec_path)
    built = builder.original(example.program)
    assert len(built.launches) == len(example.spec.check) + len(example.spec.time)
    assert built.binary.arch == "sm_90"
    assert built.binary.resources[0].spill_store_bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_kernel_computes_what_its_file_says(name: str, machine: Machine, tmp_path: Path) -> None:
    from engine.cpu import CpuMachine

    example = _example(name)
    spec = example.spec
    builder = Builder(spec, ROOT, machine.compiler, machine.target, example.spec_path)
    built = builder.original(example.program)
    runner = CpuMachine(machine.cache / "cpu", sandbox=machine.box, scratch=tmp_path, jobs=2)
    binary = runner.build(built.text, spec.file, spec, builder.expressions)
    for case, launches in zip(spec.check, built.launches, strict=False):
        buffers = poisoned(spec, case, 1, "declared")
        run = runner.run(binary, CpuJob(launches, buffers, scalars(spec, case)))
        assert run.findings == ()
        wanted = REFERENCES[name](buffers, dict(case.sizes))
        assert set(run.outputs) == set(wanted)
        for output, values in wanted.items():
            expected = np.asarray(values, dtype=np.float64).ravel()
            error = np.abs(run.outputs[output].astype(np.float64) - expected).max()
            assert error <= 1e-5 * np.sqrt(np.mean(expected**2)), (case.name, output)


@pytest.mark.parametrize("name", NAMES)
def test_spec_validates(name: str, machine: Machine) -> None:
    """The original runs clean and repeats itself, and the three controls fail: `optiml optimize` would start."""
    example = _example(name)
    evaluator = machine.evaluator(example.spec, ROOT, example.spec_path)
    try:
        built, evaluation = evaluator.open(example.program)
    finally:
        evaluator.close()
    assert evaluation.outcome is Outcome.SCREENED
    assert built.binary.code_hash
