"""One generated program in ParEval's CUDA driver, compiled for the CPU by `optiml nvcc` and run, both in the sandbox."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.capture.cpu_library import cpu_runtime
from engine.process.sandbox import Limits, SandboxAccess, python_command, sandbox
from engine.process.visible_paths import ENGINE
from engine.settings.folders import cache_folder

# The driver's benchmark after its validation runs on this size, and is not read: as small as any launch allows.
_SIZE = 64
_LIMIT_S = 900.0  # of the compiler, and of the driver
# Validations of a driver where its own number takes too long on a CPU: a product of 1024 by 1024 matrices, 2 by default.
_VALIDATIONS = {"02_dense_la_gemm": 1}
_MEMORY = 8 << 30  # of the compiler; the driver reserves far more addresses than it uses


class DriverError(Exception):
    """A driver that cannot be used as a judge, and why."""


_GIVEN = (
    Path(__file__).resolve().parent / "pareval"
)  # <function>/given.cuh: what a problem declares beside its function


@dataclass(frozen=True)
class Judgement:
    """What a driver says: "pass", "fail", "not built", "crashed" or "timed out"; `detail` has the first line of an error."""

    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Compilation:
    """Folders of one compilation: ParEval's drivers, the problem's, our sources, the result, and the CPU runtime's objects."""

    drivers: Path
    problem: Path
    sources: Path
    out: Path
    cache: Path


def judge(checkout: Path, problem: str, function: str, program: Path) -> Judgement:
    """Put a program into the driver of a problem and run its validation. Raises DriverError."""
    drivers = checkout.resolve() / "drivers" / "cpp"
    found = sorted(drivers.glob(f"benchmarks/*/{problem}/gpu.cu"))
    if len(found) != 1:
        raise DriverError(f"no driver of {problem} in {checkout.name}")
    text = with_host_function(found[0].read_text(encoding="utf-8"), function)
    with tempfile.TemporaryDirectory(prefix="optiml-pareval-") as folder:
        sources, out, cache = (Path(folder) / name for name in ("sources", "out", "cache"))
        runtime = cpu_runtime(cache_folder()).objects[0].parent
        # The compiler runs as another user, who may not read our cache.
        shutil.copytree(runtime, cache / runtime.name)
        for path in (sources, out):
            path.mkdir()
        for path in (Path(folder), sources, out, cache, cache / runtime.name):
            path.chmod(0o755)
        (sources / "gpu.cu").write_text(text, encoding="utf-8")
        given = _GIVEN / function / "given.cuh"
        before = given.read_bytes() if given.is_file() else b""
        (sources / "generated-code.cuh").write_bytes(before + program.read_bytes())
        said = _compiled(Compilation(drivers, found[0].parent, sources, out, cache))
        return Judgement("not built", said) if said else _validated(out)


def _compiled(what: Compilation) -> str:
    """Compile a driver; "" or the first line of what is wrong."""
    includes = (what.sources, what.problem, what.drivers, what.drivers / "models")
    tries = _VALIDATIONS.get(what.problem.name)
    command = python_command(
        "engine.cli", "nvcc", "-std=c++17", "-O2", *(f"-I{folder}" for folder in includes),
        "-DUSE_CUDA", f"-DDRIVER_PROBLEM_SIZE={_SIZE}", str(what.drivers / "models" / "cuda-driver.cu"),
        str(what.sources / "gpu.cu"), "-o", str(what.out / "driver"),
        *([f"-DMAX_VALIDATION_ATTEMPTS={tries}"] if tries else []),
    )  # fmt: skip
    access = SandboxAccess(
        readable=[ENGINE, what.drivers, what.sources, what.cache], writable=[what.out],
        environment={"OPTIML_CACHE": str(what.cache)},
    )  # fmt: skip
    argv = sandbox().command(command, access, Limits(memory_bytes=_MEMORY, cpu_s=int(_LIMIT_S)))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the compiler did not end in {_LIMIT_S:.0f} s"
    return _first_line(done.stderr) or f"exit code {done.returncode}" if done.returncode else ""


def _validated(out: Path) -> Judgement:
    argv = sandbox().command([str(out / "driver")], SandboxAccess(readable=[out]), Limits(cpu_s=int(_LIMIT_S)))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Judgement("timed out", f"the driver did not end in {_LIMIT_S:.0f} s")
    said = re.search(r"^Validation: (PASS|FAIL)$", done.stdout, re.M)
    if said is None:
        return Judgement("crashed", _first_line(done.stderr) or f"exit code {done.returncode}")
    return Judgement(said[1].lower(), _first_line(done.stderr))


def with_host_function(text: str, function: str) -> str:
    """A driver's text with every launch of `function` as a call of the host function of that name. Raises DriverError."""
    launch = re.compile(rf"\b{re.escape(function)}\s*<<<.*?>>>\s*\((.*)\)\s*;")
    lines = [
        line if line.lstrip().startswith("//") else launch.sub(rf"{function}(\1, 0);", line)
        for line in text.splitlines(keepends=True)
    ]
    changed = "".join(lines)
    if changed == text or any("<<<" in line.partition("//")[0] for line in lines):
        raise DriverError(f"the driver of {function} launches it in a way that is not understood")
    return changed


def _first_line(text: str) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")
