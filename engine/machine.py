"""What this machine can do for a run: which evaluator, which target, how many compilers at once."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.errors import MachineError
from engine.folders import cache_folder
from engine.guardrails import LIMITS
from engine.profile.turns import Turns
from engine.sandbox import NoSandbox, Sandbox, sandbox
from engine.verify.defences import ALL, Defences

if TYPE_CHECKING:
    from engine.compile.nvrtc import NvrtcCompiler
    from engine.config import Guardrails
    from engine.evaluate.build import Builder, Front
    from engine.evaluate.model import Built, Evaluator
    from engine.front.client import Front as Workers
    from engine.model import Binary
    from engine.profile.service import Source
    from engine.rules.model import Target
    from engine.search.insight import Insight
    from engine.search.predicted import PredictedWatch
    from engine.spec.model import KernelSpec
    from engine.worker import Worker

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
    _scratch: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory("optiml"))

    @property
    def scratch(self) -> Path:
        """A folder that goes with the machine."""
        return Path(self._scratch.name)

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
        builder = self.builder(spec, root, spec_path, defences, limits, front)
        if self.mode == "predicted":
            from engine.evaluate.cpu import CpuEvaluator

            return CpuEvaluator(spec, builder, self.box, self.cache, self.scratch, self.target, self.jobs)
        from engine.compile.cubin import find_tool
        from engine.evaluate.gpu import GpuEvaluator
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
        if found is None or not defences.sanitizers or not tools_wanted:
            return GpuEvaluator(spec, builder, make, gpu=self.turns)
        sanitizer = str(found)
        return GpuEvaluator(
            spec,
            builder,
            make,
            lambda built, checks: sanitize(spec, built, checks, watched, sanitizer, tools_wanted),
            self.turns,
        )

    def front(self, spec: KernelSpec, root: Path, spec_path: str | None) -> Workers | None:
        """Worker processes that read and build candidates; None where there are too few cores for them. Whoever asks closes them."""
        from engine.front.client import LEAST_CORES
        from engine.front.client import Front as Workers

        if self.jobs < LEAST_CORES:
            return None
        return Workers(
            spec, root, self.target, spec_path, arch=self.arch, box=self.box, cache=self.cache / _COMPILED, builds=self.jobs,
            line_info=self.mode == "predicted",
        )  # fmt: skip

    def tool_kernels(self) -> bytes:
        """The machine code of the worker's own kernels (tools.cu and relations.cu in engine/gpu). Raises CompileError."""
        from engine.compile.compiler import Translation

        text = "".join((Path(__file__).parent / "gpu" / name).read_text() for name in ("tools.cu", "relations.cu"))
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
        if self.mode == "predicted":
            return None
        from engine.compile.compiler import Translation
        from engine.compile.cubin import disassemble
        from engine.profile.model import CHEAP, FULL, LINES
        from engine.profile.ncu import make_profiler
        from engine.profile.service import BATCH, SHARE, ProfileService
        from engine.search.insight import ProfilerInsight

        bandwidth = float(evaluator.signals.device.get("copy_bytes_per_s", 0.0))
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
        from engine.evaluate.cpu import CpuEvaluator
        from engine.search.predicted import PredictedWatch

        return PredictedWatch(evaluator.speeds, spec, self.target) if isinstance(evaluator, CpuEvaluator) else None

    def notes(self) -> tuple[str, ...]:
        """What a result has to say of this machine: no sandbox or less of one, a cache that is not kept."""
        said = []
        if isinstance(self.box, NoSandbox):
            said.append("no sandbox (--unsafe-no-sandbox): what was compiled and run could do what the user can")
        else:
            if not self.box.filtered:
                said.append("the sandbox has no filter of system calls here: the kernel or the architecture takes none")
            if not self.box.nested:
                said.append("the sandbox cannot forbid further user namespaces inside it here")
        if self.compiler.cache_problem:
            said.append(self.compiler.cache_problem)
        return tuple(said)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.compiler.close()
        self._scratch.cleanup()


def visible_gpu() -> tuple[int, str] | None:
    """NVML's index of the first GPU that CUDA_VISIBLE_DEVICES leaves, and its architecture ("sm_90"); None: none that answers.

    Raises MachineError where the variable names a part of a GPU (MIG), which cannot be timed alone.
    """
    import pynvml

    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if wanted.startswith("MIG-"):
        raise MachineError("a part of a GPU (MIG) shares its memory bandwidth, so nothing can be timed", wanted)
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


def usable_gpu(device: str) -> tuple[int, str] | None:
    """The GPU that a run with this `device` ("auto", "gpu" or "cpu") measures on, as `visible_gpu`; None: it predicts.

    Raises MachineError where "gpu" is asked for and missing.
    """
    found = None if device == "cpu" else visible_gpu()
    if device == "gpu" and found is None:
        raise MachineError("no NVIDIA GPU answers here", do="use --device cpu to screen and predict without one")
    if found is None or _has_cupy():
        return found
    if device == "gpu":
        raise MachineError("CuPy is missing, so nothing can run on the GPU", do="pip install 'optiml[gpu]'")
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
            f"the GPU here is {found}, so nothing can be measured for {arch}",
            do="leave --arch away, or use --device cpu",
        )
    chosen = arch or found or _CPU_ARCH
    box = sandbox(unsafe)
    cache = cache_folder()
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
