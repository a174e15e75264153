"""What this machine can do for a run: which evaluator, which target, how many compilers at once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.builders.builders import LEAST_CORES, BuildWorkers, Compiling
from engine.compile.compiler import Translation
from engine.compile.cubin import disassemble, find_tool
from engine.compile.nvrtc import NvrtcCompiler
from engine.cpu import CpuMachine
from engine.evaluate.build import Builder, BuildOptions
from engine.evaluate.cpu import CpuEvaluator
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.guardrails import LIMITS
from engine.evaluate.second_opinion import SecondOpinion
from engine.gpu.runner import GpuRunner, WorkerStart
from engine.gpu.sanitize import TOOLS, sanitize
from engine.predict.targets import target_for
from engine.process.fair_lock import Turns
from engine.process.sandbox import NoSandbox, Sandbox
from engine.profile.counters import CHEAP, FULL, LINES
from engine.profile.evidence import heaviest_case
from engine.profile.ncu import Profiler, ProfilerSettings, find_ncu
from engine.profile.service import BATCH, SHARE, ProfileService
from engine.run.device_choice import WORKER_CACHE, ChosenDevice, Device, choose_device, gpu_name
from engine.search.predicted_profile import PredictedWatch
from engine.search.profiling import ProfilerInsight, Waiting
from engine.settings.scratch import Scratch
from engine.verify.defences import ALL, Defences

if TYPE_CHECKING:
    from engine.compile.built import Built
    from engine.evaluate.build import CandidateBuilder
    from engine.evaluate.evaluator import Evaluator
    from engine.gpu.sanitize import Sanitized
    from engine.model import Binary, Target
    from engine.process.worker_process import Worker
    from engine.profile.service import Source
    from engine.search.profiling import Insight
    from engine.settings.config import Guardrails
    from engine.spec.kernel_spec import KernelSpec
    from engine.verify.plan import Check

_COMPILED = "compile"  # folder of the cache


@dataclass
class Machine:
    """The parts of this machine, set up once for a run. `close` ends what it started."""

    mode: Literal["measured", "predicted"]
    arch: str
    target: Target
    jobs: int
    box: Sandbox | NoSandbox
    cache: Path
    compiler: NvrtcCompiler
    device: int = 0
    turns: Turns = field(default_factory=Turns)
    process: Worker | None = None  # a GPU worker that was started ahead, for the first evaluator
    remote: Callable[[KernelSpec, Builder], Evaluator] | None = None  # evaluates on devices elsewhere, so many
    devices: int = 1
    _scratch: Scratch = field(default_factory=Scratch)

    @property
    def scratch(self) -> Path:
        """A folder that goes with the machine."""
        return self._scratch.path

    def builder(
        self, spec: KernelSpec, root: Path, spec_path: str | None, defences: Defences = ALL, limits: Guardrails = LIMITS,
        front: CandidateBuilder | None = None,
    ) -> Builder:  # fmt: skip
        """What makes machine code of programs of one spec, as the evaluator has it."""
        return Builder(
            spec, root, self.compiler, self.target, spec_path,
            BuildOptions(self.mode == "predicted", defences, limits, front),
        )  # fmt: skip

    def evaluator(
        self, spec: KernelSpec, root: Path, spec_path: str | None, defences: Defences = ALL, limits: Guardrails = LIMITS,
        front: CandidateBuilder | None = None,
    ) -> Evaluator:  # fmt: skip
        """The evaluator for one spec. Raises MachineError where a part cannot start."""
        return self.evaluator_with(spec, self.builder(spec, root, spec_path, defences, limits, front))

    def evaluator_with(self, spec: KernelSpec, builder: Builder) -> Evaluator:
        """The same with a builder that is there."""
        defences, limits = builder.defences, builder.limits
        if self.remote is not None:
            return self.remote(spec, builder)
        if self.mode == "predicted":
            return CpuEvaluator(spec, builder, self.cpu_machine(), self.target, self.box)

        tools = self.tool_kernels()

        def make() -> GpuRunner:
            process, self.process = self.process, None
            return GpuRunner(
                self.box, tools, self.cache / WORKER_CACHE, WorkerStart(self.device, process=process), defences
            )

        def watched(watcher: Sequence[str], scratch: Path) -> GpuRunner:
            return GpuRunner(self.box, tools, scratch, WorkerStart(self.device, watcher))

        found = find_tool("compute-sanitizer")
        tools_wanted = tuple(tool for tool in TOOLS if tool in limits.sanitizers)

        def sanitized(built: Built, checks: Sequence[Check]) -> tuple[Sanitized, ...]:
            return sanitize(spec, built, checks, watched, str(found), tools_wanted)

        wanted = found is not None and defences.sanitizers and tools_wanted
        second = SecondOpinion(spec, builder, self.cpu_machine) if defences.second_opinion else None
        return GpuEvaluator(spec, builder, make, sanitized if wanted else None, self.turns, second)

    def cpu_machine(self) -> CpuMachine:
        """What runs kernels on the CPU. Raises MachineError where there is no C++ compiler."""
        return CpuMachine(self.cache / "cpu", sandbox=self.box, scratch=self.scratch, jobs=self.jobs)

    def front(self, spec: KernelSpec, root: Path, spec_path: str | None) -> BuildWorkers | None:
        """Worker processes that read and build candidates; None where there are too few cores for them. Whoever asks closes them."""
        if self.jobs < LEAST_CORES:
            return None
        compiling = Compiling(self.arch, self.box, self.cache / _COMPILED, self.jobs, self.mode == "predicted")
        return BuildWorkers(spec, root, self.target, spec_path, compiling)

    def tool_kernels(self) -> bytes:
        """The machine code of the worker's own kernels (tools.cu and relations.cu in engine/gpu). Raises CompileError."""
        text = "".join((Path(__file__).parents[1] / "gpu" / name).read_text() for name in ("tools.cu", "relations.cu"))
        return self.compiler.compile(Translation(text=text, path="tools.cu", expressions=())).cubin

    def insight(
        self, spec: KernelSpec, evaluator: Evaluator, every: bool = False, share: float | None = None,
        before: Callable[[Source], Source] = lambda source: source, batch: int | None = None,
    ) -> Insight | None:  # fmt: skip
        """What a profiler can say of programs of this spec; None without a GPU. Without Nsight Compute it says what is missing.

        With `every` the search waits until each candidate that passed has its counters. `share` bounds the part of the time that the
        GPU is held for it (none for every candidate, else the service's own), `batch` how many programs it takes at once; `before` may
        put something before it.
        """
        if self.mode == "predicted" or self.remote is not None:
            return None

        device, timed = evaluator.signals.device, spec.time[heaviest_case(spec) - len(spec.check)]
        peak = float(device.get("copy_bytes_per_s", 0.0))
        bandwidth = float(device.get("case_copy_bytes_per_s", {}).get(timed.name, peak))
        source = before(make_profiler(self, spec))
        part = share if share is not None else math.inf if every else SHARE
        prepare = (FULL, CHEAP, LINES)
        service = ProfileService(source, self.turns.guest(), share=part, batch=batch or BATCH, prepare=prepare)
        before_s = self.turns.waited_s

        def lined(built: Built) -> tuple[Binary, str]:
            options = spec.compile
            translation = Translation(
                built.text, spec.file, built.expressions, defines=options.defines, std=options.std, line_info=True
            )
            binary = self.compiler.compile(translation)
            return binary, disassemble(binary.cubin, sandbox=self.box, line_info=True)

        return ProfilerInsight(
            service, spec, self.target, bandwidth, Waiting(lambda: self.turns.waited_s - before_s, every), lined
        )

    def watch(self, spec: KernelSpec, evaluator: Evaluator) -> PredictedWatch | None:
        """Who says what programs move and execute where no profiler does: on the CPU path, the model's counts."""
        speeds = getattr(evaluator, "speeds", None)  # of those that predict
        return PredictedWatch(speeds, spec, self.target) if speeds is not None else None

    @property
    def name(self) -> str:
        """What measures or predicts here: the GPU with its driver, or the target of predictions."""
        return self.arch if self.mode == "predicted" else gpu_name(self.device)

    def notes(self) -> tuple[str, ...]:
        """What a result has to say of this machine: no sandbox or less of one, a cache that is not kept."""
        said = []
        if isinstance(self.box, NoSandbox):
            said.append("no sandbox (--unsafe-no-sandbox): compiled code ran with the user's permissions")
        else:
            if not self.box.filtered:
                said.append(
                    "the sandbox does not filter system calls: the Linux kernel or the architecture does not support it"
                )
            if not self.box.memory_group:
                said.append(
                    "memory is limited per sandboxed process, not for all together: no control group can be created"
                )
            if not self.box.nested:
                said.append("the sandbox cannot forbid nested user namespaces on this machine")
        if self.compiler.cache_problem:
            said.append(self.compiler.cache_problem)
        return tuple(said)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.compiler.close()
        self._scratch.cleanup()


def make_profiler(
    machine: Machine, spec: KernelSpec, *, case: int | None = None, prime: bool = True, spares: int = 2
) -> Profiler:
    """The profiler of a machine with a GPU, for one spec; look at `unusable` before using it. Raises CompileError."""
    # CuPy and ncu are looked for only on a machine with a GPU

    return Profiler(
        machine.box, find_ncu(), machine.tool_kernels(), machine.cache / "profiler", spec,
        ProfilerSettings(case, machine.device, prime, spares),
    )  # fmt: skip


def make_machine(
    *,
    device: Device = "auto",
    arch: str | None = None,
    jobs: int | None = None,
    unsafe: bool = False,
    chosen: ChosenDevice | None = None,
) -> Machine:
    """Look at what is here and set it up; `chosen` is what `choose_device` found before for the same options.

    `auto` measures on a GPU where there is one (with CuPy), else screens on the CPU and predicts for `arch` (sm_90).
    Raises MachineError where what is asked for is missing.
    """
    here = chosen or choose_device(device=device, arch=arch, unsafe=unsafe)
    with ExitStack() as undo:
        if here.process is not None:
            undo.callback(here.process.kill)
        count = jobs or len(os.sched_getaffinity(0))
        compiler = NvrtcCompiler(here.arch, cache=here.cache / _COMPILED, sandbox=here.box, jobs=count)
        machine = Machine(
            here.mode, here.arch, target_for(here.arch), count, here.box, here.cache, compiler, here.index,
            process=here.process,
        )  # fmt: skip
        undo.pop_all()
    return machine
