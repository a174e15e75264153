"""One generated program in ParEval's CUDA driver, compiled for the CPU by `optiml nvcc` and run in the sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import optiml
from engine.process.sandbox import Limits, SandboxAccess, sandbox

# The driver's benchmark after its validation runs on this size, and is not read: as small as any launch allows.
_SIZE = 64
_BUILD_S, _RUN_S = 300.0, 300.0
_MEMORY = 8 << 30


class DriverError(Exception):
    """A driver that cannot be used as a judge, and why."""


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
        raise DriverError(f"no driver of {problem} in {checkout}")
    text = with_host_function(found[0].read_text(encoding="utf-8"), function)
    with tempfile.TemporaryDirectory(prefix="optiml-pareval-") as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        (scratch / "gpu.cu").write_text(text, encoding="utf-8")
        (scratch / "generated-code.cuh").write_bytes(program.read_bytes())
        built = scratch / "driver"
        command = [
            optiml(), "nvcc", "-std=c++17", "-O2", f"-I{scratch}", f"-I{found[0].parent}", f"-I{drivers}", f"-I{drivers / 'models'}",
            "-DUSE_CUDA", f"-DDRIVER_PROBLEM_SIZE={_SIZE}", str(drivers / "models" / "cuda-driver.cu"), str(scratch / "gpu.cu"),
            "-o", str(built),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False, env=dict(os.environ))
        except subprocess.TimeoutExpired:
            return Judgement("not built", f"the compiler did not end in {_BUILD_S:.0f} s")
        if done.returncode:
            return Judgement("not built", _first_line(done.stderr))
        return _run(built)


def _run(built: Path) -> Judgement:
    argv = sandbox().command([str(built)], SandboxAccess(readable=[built.parent]), Limits(memory_bytes=_MEMORY))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_RUN_S, check=False)
    except subprocess.TimeoutExpired:
        return Judgement("timed out", f"the driver did not end in {_RUN_S:.0f} s")
    said = re.search(r"^Validation: (PASS|FAIL)$", done.stdout, re.M)
    if said is None:
        return Judgement("crashed", _first_line(done.stderr) or f"exit code {done.returncode}")
    return Judgement(said[1].lower(), _first_line(done.stderr))


def with_host_function(text: str, function: str) -> str:
    """A driver's text with every launch of `function` as a call of the host function of that name. Raises DriverError."""
    launch = re.compile(rf"\b{re.escape(function)}\s*<<<.*?>>>\s*\((.*?)\)\s*;", re.S)
    changed, count = launch.subn(rf"{function}(\1, 0);", text)
    if not count or "<<<" in re.sub(r"//.*", "", changed):
        raise DriverError(f"the driver of {function} launches it in a way that is not understood")
    return changed


def _first_line(text: str) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")
