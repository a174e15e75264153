"""One generated program on the own tests of a leetgpu challenge, compiled for the CPU by `optiml nvcc`; all of it in the sandbox.

The tests, their tolerances and the reference that they compare with are the challenge's. Tests that a CPU cannot take, for their size or
their time, are counted and say nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.sandboxed_nvcc import compile_for_cpu, compiler_folders
from engine.generate.task import TYPES, Task
from engine.process.sandbox import Limits, SandboxAccess, sandbox

MOST_ELEMENTS = 1 << 22
_LIMIT_S = 900.0
_WORKER = Path(__file__).resolve().parent / "torch_judge_worker.py"


@dataclass(frozen=True)
class Judged:
    """What a challenge's tests say: "pass", "fail", "not built" or "no tests", how many ran and how many
    a CPU cannot take, and the first failure."""

    verdict: str
    tests: int = 0
    skipped: int = 0
    detail: str = ""


def judge(checkout: Path, name: str, task: Task, program: Path) -> Judged:
    """Run a challenge's tests on a program that was generated for `task`."""
    (challenge,) = checkout.resolve().glob(f"challenges/*/{name}/challenge.py")
    with compiler_folders("optiml-judge-") as folders:
        text = program.read_text(encoding="utf-8") + main_of(task)
        (folders.sources / "program.cu").write_text(text, encoding="utf-8")
        shutil.copy(_WORKER, folders.sources / _WORKER.name)
        said = compile_for_cpu(folders, [str(folders.sources / "program.cu"), "-o", str(folders.out / "program")])
        return Judged("not built", detail=said) if said else _tested(challenge, folders.sources, folders.out)


def main_of(task: Task) -> str:
    """A main function that reads arguments from its input, calls the host function, and writes all buffers to its output."""
    lines = [
        "", "#include <cstdio>", "#include <cstdlib>", "#include <vector>",
        "static void take(void* to, size_t size) { if (fread(to, 1, size, stdin) != size) exit(2); }",
        "int main() {", "    long long size;",
    ]  # fmt: skip
    sends = []
    for a in task.arguments:
        spelled = TYPES[a.type]
        if a.role == "scalar":
            wide = "double" if a.type in ("float", "double") else "long long"
            lines += [
                f"    {wide} told_{a.name}; take(&told_{a.name}, 8); {spelled} {a.name} = ({spelled})told_{a.name};"
            ]
            continue
        lines += [
            f"    take(&size, 8); std::vector<char> host_{a.name}(size); take(host_{a.name}.data(), size);",
            f"    {spelled}* {a.name}; cudaMalloc(&{a.name}, size);",
            f"    cudaMemcpy({a.name}, host_{a.name}.data(), size, cudaMemcpyHostToDevice);",
        ]
        sends += [
            f"    cudaMemcpy(host_{a.name}.data(), {a.name}, host_{a.name}.size(), cudaMemcpyDeviceToHost);",
            f"    fwrite(host_{a.name}.data(), 1, host_{a.name}.size(), stdout);",
        ]
    names = ", ".join(a.name for a in task.arguments)
    call = f"    {task.wrapper}({names}, 0);"
    return "\n".join([*lines, call, "    if (cudaDeviceSynchronize() != cudaSuccess) return 3;", *sends, "}", ""])


def _tested(challenge: Path, sources: Path, out: Path) -> Judged:
    challenges = challenge.parents[2]
    command = [sys.executable, "-I", str(sources / _WORKER.name)]
    command += [str(challenges), str(challenge), str(out / "program"), str(MOST_ELEMENTS)]
    access = SandboxAccess(readable=[challenges, sources, out], environment={"OMP_NUM_THREADS": "1"})
    argv = sandbox().command(command, access, Limits(cpu_s=int(_LIMIT_S)))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Judged("fail", detail=f"the tests did not end in {_LIMIT_S:.0f} s")
    try:
        told = json.loads(done.stdout.splitlines()[-1])
        tests, skipped, failure = int(told["tests"]), int(told["skipped"]), str(told["failure"])
    except (IndexError, ValueError, KeyError, TypeError):
        return Judged("no tests", detail=(done.stderr.strip().splitlines() or ["no answer"])[-1][:300])
    return Judged("fail" if failure else "pass" if tests else "no tests", tests, skipped, failure[:300])
