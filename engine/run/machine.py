"""What this machine can do for a run: which evaluator, which target, how many compilers at once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.errors import MachineError
from engine.evaluate.guardrails import LIMITS
from engine.process.fair_lock import Turns
from engine.process.sandbox import NoSandbox, Sandbox, sandbox
from engine.settings.folders import cache_folder, private_folder
from engine.settings.scratch import Scratch
from engine.verify.defences import ALL, Defences

if TYPE_CHECKING:
    from engine.builders.builders import Front as Workers
    from engine.compile.built import Built
    from engine.compile.nvrtc import NvrtcCompiler
    from engine.cpu import CpuMachine
    from engine.evaluate.build import Builder, Front
    from engine.evaluate.evaluator import Evaluator
    from engine.gpu.sanitize import Sanitized
    from engine.model import Binary, Target
    from engine.process.worker_process import Worker
    from engine.profile.ncu import Profiler
    from engine.profile.service import Source
    from engine.search.predicted_profile import PredictedWatch
    from engine.search.profiling import Insight
    from engine.settings.config import Guardrails
    from engine.spec.kernel_spec import KernelSpec
    from engine.verify.plan import Check

_CPU_ARCH = "sm_90"
_WORKER_CACHE, _COMPILED = "worker", "compile"  # folders of the cache


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
        front: Front | None = None,
    ) -> Builder:  # fmt: skip
        """What makes machine code of programs of one spec, as the evaluator has it."""
        from engine.evaluate.build import Builder

        return Builder(
            spec, root, self.compiler, self.target, spec_path, line_info=self.mode == "predicted", defences=defences,
            limits=limits, front=front,
        )  # fmt: skip

    def evaluator(
        self, spec: KernelSpec, root: Path, spec_path: str | None, defences: Defences = ALL, limits: Guardrails = LIMITS,
        front: Front | None = None,
    ) -> Evaluator:  # fmt: skip
        """The evaluator for one spec. Raises MachineError where a part cannot start."""
        return self.evaluator_with(spec, self.builder(spec, root, spec_path, defences, limits, front))

    def evaluator_with(self, spec: KernelSpec, builder: Builder) -> Evaluator:
        """The same with a builder that is there."""
        defences, limits = builder.defences, builder.limits
        if self.remote is not None:
            return self.remote(spec, builder)
        if self.mode == "predicted":
            from engine.evaluate.cpu import CpuEvaluator

            return CpuEvaluator(spec, builder, self.cpu_machine(), self.target, self.box)
        from engine.compile.cubin import find_tool
        from engine.evaluate.gpu import GpuEvaluator
        from engine.evaluate.second_opinion import SecondOpinion
        from engine.gpu.runner import GpuRunner
        from engine.gpu.sanitize import TOOLS, sanitize

        tools = self.tool_kernels()

        def make() -> GpuRunner:
            process, self.process = self.process, None
            return GpuRunner(
                self.box, tools, self.cache / _WORKER_CACHE, device=self.device, defences=defences, process=process
            )

        def watched(watcher: Sequence[str], scratch: Path) -> GpuRunner:
            return GpuRunner(self.box, tools, scratch, device=self.device, watcher=watcher)

        found = find_tool("compute-sanitizer")
        tools_wanted = tuple(tool for tool in TOOLS if tool in limits.sanitizers)

        def sanitized(built: Built, checks: Sequence[Check]) -> tuple[Sanitized, ...]:
            return sanitize(spec, built, checks, watched, str(found), tools_wanted)

        wanted = found is not None and defences.sanitizers and tools_wanted
        second = SecondOpinion(spec, builder, self.cpu_machine) if defences.second_opinion else None
        return GpuEvaluator(spec, builder, make, sanitized if wanted else None, self.turns, second)

    def cpu_machine(self) -> CpuMachine:
        """What runs kernels on the CPU. Raises MachineError where there is no C++ compiler."""
        from engine.cpu import CpuMachine

        return CpuMachine(self.cache / "cpu", sandbox=self.box, scratch=self.scratch, jobs=self.jobs)

    def front(self, spec: KernelSpec, root: Path, spec_path: str | None) -> Workers | None:
        """Worker processes that read and build candidates; None where there are too few cores for them. Whoever asks closes them."""
        from engine.builders.builders import LEAST_CORES
        from engine.builders.builders import Front as Workers

        if self.jobs < LEAST_CORES:
            return None
        return Workers(
            spec, root, self.target, spec_path, arch=self.arch, box=self.box, cache=self.cache / _COMPILED, builds=self.jobs,
            line_info=self.mode == "predicted",
        )  # fmt: skip

    def tool_kernels(self) -> bytes:
        """The machine code of the worker's own kernels (tools.cu and relations.cu in engine/gpu). Raises CompileError."""
        from engine.compile.compiler import Translation

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
        from engine.compile.compiler import Translation
        from engine.compile.cubin import disassemble
        from engine.profile.counters import CHEAP, FULL, LINES
        from engine.profile.evidence import heaviest_case
        from engine.profile.service import BATCH, SHARE, ProfileService
        from engine.search.profiling import ProfilerInsight

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
            service, spec, self.target, bandwidth, lambda: self.turns.waited_s - before_s, lined, every
        )

    def watch(self, spec: KernelSpec, evaluator: Evaluator) -> PredictedWatch | None:
        """Who says what programs move and execute where no profiler does: on the CPU path, the model's counts."""
        from engine.search.predicted_profile import PredictedWatch

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
    from engine.profile.ncu import Profiler, find_ncu

    return Profiler(
        machine.box, find_ncu(), machine.tool_kernels(), machine.cache / "profiler", spec,
        case=case, device=machine.device, prime=prime, spares=spares,
    )  # fmt: skip


def visible_gpu() -> tuple[int, str] | None:
    """NVML's index of the first GPU that CUDA_VISIBLE_DEVICES leaves, and its architecture ("sm_90"); None: none that answers.

    Raises MachineError where the variable names a part of a GPU (MIG), which cannot be timed alone.
    """
    import pynvml

    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if wanted.startswith("MIG-"):
        raise MachineError("a MIG instance shares its GPU's memory bandwidth, so nothing can be timed", wanted)
    try:
        pynvml.nvmlInit()
        if wanted.startswith("GPU-"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(wanted)
        elif wanted.isdecimal():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(wanted))
        else:
            return None
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(pynvml.nvmlDeviceGetIndex(handle)), f"sm_{major}{minor}"
    except pynvml.NVMLError:
        return None


def gpu_name(index: int) -> str:
    """A GPU by NVML's index, with its driver; "" where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return f"{pynvml.nvmlDeviceGetName(handle)}, driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError:
        return ""


def usable_gpu(device: str) -> tuple[int, str] | None:
    """The GPU that a run with this `device` ("auto", "gpu" or "cpu") measures on, as `visible_gpu`; None: it predicts.

    Raises MachineError where "gpu" is asked for and missing.
    """
    found = None if device == "cpu" else visible_gpu()
    if device == "gpu" and found is None:
        raise MachineError("no NVIDIA GPU found", do="use --device cpu to screen and predict without one")
    from engine.compile.toolkit import for_driver

    if found is None or _has_cupy():
        return found
    if device == "gpu":
        raise MachineError("CuPy is missing, so nothing can run on the GPU", do=f"pip install '{for_driver()}'")
    return None


def make_machine(
    *,
    device: Literal["auto", "gpu", "cpu"] = "auto",
    arch: str | None = None,
    jobs: int | None = None,
    unsafe: bool = False,
    ahead: bool = False,
) -> Machine:
    """Look at what is here and set it up.

    With `ahead` a GPU's worker starts at once, for who needs an evaluator as soon as the rest of the program is imported.

    `auto` measures on a GPU where there is one (with CuPy), else screens on the CPU and predicts for `arch` (sm_90).
    Raises MachineError where what is asked for is missing.
    """
    index, found = usable_gpu(device) or (0, None)
    if found is not None and arch is not None and arch.rstrip("a") != found:
        raise MachineError(
            f"this machine's GPU is {found}, so nothing can be measured for {arch}",
            do="omit --arch, or use --device cpu",
        )
    chosen = arch or found or _CPU_ARCH
    box = sandbox(unsafe)
    cache = private_folder(cache_folder())
    count = jobs or len(os.sched_getaffinity(0))
    with ExitStack() as undo:
        process: Worker | None = None
        if ahead and found is not None:
            from engine.gpu.process import gpu_process

            process = gpu_process(box, cache / _WORKER_CACHE, index)
            undo.callback(process.kill)
        from engine.compile.nvrtc import NvrtcCompiler
        from engine.predict.targets import target_for

        compiler = NvrtcCompiler(chosen, cache=cache / _COMPILED, sandbox=box, jobs=count)
        mode: Literal["measured", "predicted"] = "measured" if found else "predicted"
        machine = Machine(mode, chosen, target_for(chosen), count, box, cache, compiler, index, process=process)
        undo.pop_all()
    return machine


def _has_cupy() -> bool:
    import importlib.util

    return importlib.util.find_spec("cupy") is not None
