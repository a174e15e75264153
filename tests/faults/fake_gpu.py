"""A stand-in for the GPU: a worker process that speaks the real worker's frames, and an NVML that answers or does not.

What the worker does with a program stands in its machine code: b"kills", b"hangs", b"oom", b"faults", b"wrong", or a speed; with b"timed"
before it, or b"unsteady" behind, while it is timed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import engine
from engine.compile.built import Built
from engine.compile.compiler import Compiler
from engine.evaluate.build import Builder
from engine.evaluate.gpu import GpuEvaluator
from engine.gpu.runner import GpuRunner
from engine.model import Binary, Evaluation, LaunchConfig, Program, Resources
from engine.predict.targets import target_for
from engine.process.sandbox import NoSandbox
from engine.spec.kernel_spec import KernelSpec

_WORKER = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from engine.process import wire

source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
loaded, right = {{}}, True
while True:
    try:
        header, blobs = wire.receive(source)
    except wire.WireError:
        sys.exit(0)
    op, answer = header["op"], {{}}
    if "load" in header:
        loaded[header["load"]["key"]] = blobs[0]
    if header.get("if_right") and not right:
        answer = {{"skipped": True}}
    elif op == "hello":
        answer = {{"name": "stand-in", "arch": "sm_90", "free_bytes": 1 << 40, "l2_bytes": 1 << 20}}
    elif op == "bandwidth":
        answer = {{"bytes_per_s": 1e12}}
    elif op == "copies":
        answer = {{"us": [(read + written) / 1e12 * 1e6 for read, written in header["bytes"]]}}
    elif op == "open":
        loaded = {{"original": blobs[0]}}
    elif op == "validate":
        answer = {{"problems": [], "widened": True, "noise": []}}
    elif op in ("verify", "repeats"):
        what = loaded[header["key"]]
        if what == b"kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == b"hangs":
            time.sleep(60)
        if what == b"oom":
            answer = {{"error": "out of memory", "error_kind": "out_of_memory"}}
        elif what == b"faults":
            answer = {{"error": "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "error_kind": "device"}}
        elif what.startswith(b"wrong"):
            wrong = {{"kind": "wrong_result", "case": "c", "reason": "'y' differs"}}
            answer = {{"failure": wrong, "checks": 1, "argument": None}}
        else:
            answer = {{"failure": None, "checks": len(header["plan"]), "argument": None}}
    elif op == "time":
        late = [loaded[key] for key in header["programs"] if bytes(str(loaded[key]), "ascii").count(b"timed")]
        if late and b"kills" in late[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if late and b"hangs" in late[0]:
            time.sleep(60)
        if late:
            wire.send(sink, {{"error": "CUDA_ERROR_ILLEGAL_ADDRESS", "error_kind": "device", "seconds": 0.0}})
            os._exit(70)
        speeds = [float(loaded[key].split()[0]) for key in header["programs"]]
        samples = [[100.0 / speed + 0.01 * i for i in range(8)] for speed in speeds]
        wrong = {{"kind": "wrong_result", "case": "c", "reason": "'y' differs"}} if b"unsteady" in loaded[header["programs"][-1]] else None
        results = [{{"samples_us": samples, "failure": wrong, "host_over_events": 1.0, "given_up": False}} for _ in header["cases"]]
        answer = {{"results": results[:1] if wrong else results}}
    right = "error" not in answer and not answer.get("failure")
    wire.send(sink, {{**answer, "seconds": 0.0}})
    if answer.get("error_kind") == "device" or (answer.get("failure") and what.endswith(b"leaves")):
        os._exit(70)
"""


def worker_command(folder: Path) -> Path:
    """The worker's script."""
    path = folder / "worker.py"
    path.write_text(_WORKER.format(root=str(Path(engine.__file__).parent.parent)))
    return path


class Nvml(SimpleNamespace):
    """What the monitor uses of pynvml; `lost` makes every question end as it does when the GPU has fallen off the bus."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    lost = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if self.lost:
                raise Nvml.NVMLError("GPU is lost")
            answers = {"nvmlDeviceGetProcessUtilization": [], "nvmlDeviceGetCurrentClocksThrottleReasons": 0}
            return answers.get(name, 40)

        return answer


class FakeBuilder(Builder):
    """Machine code from the last line of a program: `// code X`."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(
            spec, Path("/"), cast(Compiler, SimpleNamespace(give_up=lambda owner: None)), target_for("sm_90")
        )

    def original(self, program: Program) -> Built:
        return self.candidate(program)

    def candidate(self, program: Program, *, by_rules: bool = False) -> Built:
        code = program.data.decode().rpartition("// code ")[2].strip()
        binary = Binary(code.encode(), "sm_90", ("k",), (Resources(32, 0, 0, 0, 0),), code_hash=program.digest)
        launch = LaunchConfig((1, 1, 1), (128, 1, 1))
        return Built(program, "text", ("k",), binary, ((launch,), (launch,)))


def evaluator(spec: KernelSpec, folder: Path) -> GpuEvaluator:
    """The real evaluator and runner around the stand-in; `engine.gpu.process.python_command` must have been replaced."""

    def make() -> GpuRunner:
        return GpuRunner(NoSandbox(), b"tools", folder / "scratch")

    return GpuEvaluator(spec, FakeBuilder(spec), make, lambda built, checks: ())


def command(folder: Path) -> Any:
    """What replaces `python_command`."""
    script = worker_command(folder)
    return lambda module, *arguments: [sys.executable, str(script)]


def program(code: str) -> Program:
    return Program({"k.cu": f"// code {code}".encode()}, "k.cu")


def evaluated(bench: GpuEvaluator, code: str) -> Evaluation:
    return bench.evaluate(bench.build(program(code), by_rules=False), None)[0]
