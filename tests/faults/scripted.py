"""A machine whose answers follow from each program's text alone: what a run finds does not depend on when it is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import engine.evaluate.analysis
from engine.compile.built import Built, NotBuilt
from engine.cuda.kernel import Edit, Span
from engine.errors import CompileError
from engine.evaluate.evaluator import Signals, nothing
from engine.model import Binary, Evaluation, Failure, LaunchConfig, Measurement, Outcome, Program, Resources
from engine.predict.targets import target_for
from engine.process.fair_lock import Turns
from engine.process.sandbox import NoSandbox
from engine.rewrite.proposal import Proposal
from engine.run.machine import Machine
from engine.run.optimization import Options
from engine.search.progress import Budget

STEPS = ("a", "b", "c", "d")
TEXT = """// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 3 }]
// optiml: time = [{ n = 1048576 }]
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
void run(const float* x, float* y, int n) { k<<<(n + 127) / 128, 128>>>(x, y, n); }
"""


def kernel(folder: Path) -> Path:
    """A repository with one kernel."""
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    path = folder / "k.cu"
    path.write_text(TEXT)
    return path


def proposals(site: Any, failures: list[Any]) -> Iterator[Proposal]:
    """Each step once, in any order, and an edit that cannot be applied: 129 candidates in all."""
    program: Program = site.program
    text = program.data.decode()
    end = len(program.data)
    for step in STEPS:
        if f"// step {step}\n" not in text:
            edit = Edit(Span(end, end), f"// step {step}\n")
            yield Proposal("rules", "step", f"Add {step}", {program.kernel_file: (edit,)}, {"step": step}, 0.5)
    beyond = Edit(Span(end + 100, end + 200), "nowhere")
    yield Proposal("rules", "beyond", "Edit past the end", {program.kernel_file: (beyond,)}, {}, 0.1)


def _figure(program: Program) -> int:
    return int(program.digest[:8], 16)


class ScriptedEvaluator:
    """Follows the Evaluator protocol. One program in eight is wrong, one in eight does not compile, the others have a speed."""

    def __init__(self, pause_s: float = 0.0, on_evaluate: Callable[[Program], None] = lambda program: None) -> None:
        self.pause_s, self.on_evaluate = pause_s, on_evaluate

    @property
    def signals(self) -> Signals:
        return Signals("measured", {"name": "scripted"})

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        return self._built(original), Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0))

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        if _figure(program) % 8 == 1:
            raise NotBuilt("no", evaluation=Evaluation(Outcome.COMPILE_ERROR, failure=Failure("does not compile")))
        return self._built(program)

    def _built(self, program: Program) -> Built:
        binary = Binary(b"", "sm_90", ("k",), (Resources(32, 0, 0, 0, 0),), code_hash=program.digest)
        return Built(program, program.data.decode(), ("k",), binary, ((LaunchConfig((1, 1, 1), (128, 1, 1)),),) * 2)

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        time.sleep(self.pause_s)
        self.on_evaluate(built.program)
        evaluation = self.confirm(built)
        if evaluation.measurement is None:
            return evaluation, None
        return evaluation, None if incumbent is None else evaluation.measurement.ratio / ratio(incumbent.program)

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        if _figure(built.program) % 8 == 2:
            return Evaluation(Outcome.WRONG_RESULT, failure=Failure("differs"), code_hash=built.binary.code_hash)
        found = ratio(built.program)
        return Evaluation(
            Outcome.ACCEPTED if found > 1 else Outcome.SLOWER, Measurement((), found, found, found), None,
            built.binary.resources, built.binary.code_hash, {"verify": 0.001, "time": 0.002},
        )  # fmt: skip

    def close(self) -> None:
        pass


def ratio(program: Program) -> float:
    """The speedup of a program: from 0.5 to 2, by its digest."""
    return 0.5 * 4 ** (_figure(program) / 2**32)


def _refuse(translation: Any) -> Any:
    raise CompileError("there is no compiler here")


class ScriptedMachine:
    """What `optimize` asks of a machine. `profiles` is where the real profiler's side may work; None: it is not asked."""

    mode, arch, jobs, device, devices = "measured", "sm_90", 2, 0, 1
    remote = None

    def __init__(self, evaluator: Any, profiles: Path | None = None) -> None:
        self._evaluator, self.target, self._profiles = evaluator, target_for("sm_90"), profiles
        self.cache = profiles or Path("/dev/null/cache")  # nothing is kept there
        self.box, self.turns = NoSandbox(), Turns()

        self.compiler = SimpleNamespace(cache_problem="", compile=_refuse, warm=lambda count: None)

    def notes(self) -> tuple[str, ...]:
        return Machine.notes(cast(Machine, self))

    def front(self, *arguments: Any) -> None:
        return None

    def tool_kernels(self) -> bytes:
        return b"tools"

    def evaluator(self, *arguments: Any, **named: Any) -> Any:
        return self._evaluator

    def insight(self, spec: Any, evaluator: Any, every: bool = False) -> Any:
        return None if self._profiles is None else Machine.insight(cast(Machine, self), spec, evaluator, every)

    def watch(self, *arguments: Any) -> None:
        return None


@contextmanager
def scripted(evaluator: Any, profiles: Path | None = None) -> Iterator[Machine]:
    """The machine, with the scripted proposals in the place of the rules. It has no nvcc: the scripted binaries are not its code."""
    with (
        mock.patch.object(engine.evaluate.analysis, "proposals", proposals),
        mock.patch("engine.run.whole_check.find_nvcc", return_value=None),
    ):
        yield cast(Machine, ScriptedMachine(evaluator, profiles))


def options(path: Path, out: Path, *, resume: bool = False, candidates: int | None = None, seed: int = 0) -> Options:
    return Options(path, budget=Budget(candidates=candidates), out=out, resume=resume, seed=seed)


__all__ = ["ScriptedEvaluator", "kernel", "options", "ratio", "scripted"]
