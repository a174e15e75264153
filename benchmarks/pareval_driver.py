"""One generated program in ParEval's CUDA driver, compiled for the CPU by `optiml nvcc` and run, both in the sandbox."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.sandboxed_nvcc import CompilerFolders, compile_for_cpu, compiler_folders, first_line
from engine.process.sandbox import Limits, SandboxAccess, sandbox

# The driver's benchmark after its validation runs on this size, and is not read: as small as any launch allows.
_SIZE = 64
_LIMIT_S = 900.0  # of the driver
# Validations of a driver where its own number takes too long on a CPU: a product of 1024 by 1024 matrices, 2 by default.
_VALIDATIONS = {"02_dense_la_gemm": 1}


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


def judge(checkout: Path, problem: str, function: str, program: Path) -> Judgement:
    """Put a program into the driver of a problem and run its validation. Raises DriverError."""
    drivers = checkout.resolve() / "drivers" / "cpp"
    found = sorted(drivers.glob(f"benchmarks/*/{problem}/gpu.cu"))
    if len(found) != 1:
        raise DriverError(f"no driver of {problem} in {checkout.name}")
    text = with_host_function(found[0].read_text(encoding="utf-8"), function)
    with compiler_folders("optiml-pareval-") as folders:
        (folders.sources / "gpu.cu").write_text(text, encoding="utf-8")
        given = _GIVEN / function / "given.cuh"
        before = given.read_bytes() if given.is_file() else b""
        (folders.sources / "generated-code.cuh").write_bytes(before + program.read_bytes())
        said = compile_for_cpu(folders, _arguments(folders, drivers, found[0].parent), [drivers])
        return Judgement("not built", said) if said else _validated(folders.out)


def _arguments(folders: CompilerFolders, drivers: Path, problem: Path) -> list[str]:
    """The compiler's arguments for a problem's driver."""
    includes = (folders.sources, problem, drivers, drivers / "models")
    tries = _VALIDATIONS.get(problem.name)
    return [
        *(f"-I{folder}" for folder in includes), "-DUSE_CUDA", f"-DDRIVER_PROBLEM_SIZE={_SIZE}",
        str(drivers / "models" / "cuda-driver.cu"), str(folders.sources / "gpu.cu"), "-o", str(folders.out / "driver"),
        *([f"-DMAX_VALIDATION_ATTEMPTS={tries}"] if tries else []),
    ]  # fmt: skip


def _validated(out: Path) -> Judgement:
    argv = sandbox().command([str(out / "driver")], SandboxAccess(readable=[out]), Limits(cpu_s=int(_LIMIT_S)))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Judgement("timed out", f"the driver did not end in {_LIMIT_S:.0f} s")
    said = re.search(r"^Validation: (PASS|FAIL)$", done.stdout, re.M)
    if said is None:
        return Judgement("crashed", first_line(done.stderr) or f"exit code {done.returncode}")
    return Judgement(said[1].lower(), first_line(done.stderr))


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
