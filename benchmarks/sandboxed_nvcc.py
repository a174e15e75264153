"""Programs of others compiled for the CPU by `optiml nvcc` in the sandbox, in folders of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.capture.cpu_library import cpu_runtime
from engine.process.sandbox import Limits, SandboxAccess, python_command, sandbox
from engine.process.visible_paths import ENGINE
from engine.settings.folders import cache_folder

LIMIT_S = 900.0  # of the compiler
_MEMORY = 8 << 30  # of the compiler; what it builds may reserve far more addresses than it uses


@dataclass(frozen=True)
class CompilerFolders:
    """Where the compiler reads and writes: sources, the result, and the CPU runtime's objects."""

    sources: Path
    out: Path
    cache: Path


@contextmanager
def compiler_folders(prefix: str) -> Iterator[CompilerFolders]:
    """Such folders for a while."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        sources, out, cache = (Path(folder) / name for name in ("sources", "out", "cache"))
        runtime = cpu_runtime(cache_folder()).objects[0].parent
        # The compiler runs as another user, who may not read our cache.
        shutil.copytree(runtime, cache / runtime.name)
        for path in (sources, out):
            path.mkdir()
        for path in (Path(folder), sources, out, cache, cache / runtime.name):
            path.chmod(0o755)
        yield CompilerFolders(sources, out, cache)


def compile_for_cpu(folders: CompilerFolders, arguments: Sequence[str], readable: Sequence[Path] = ()) -> str:
    """Compile with these arguments of nvcc, reading more folders; "" or the first line of what is wrong."""
    command = python_command("engine.cli", "nvcc", "-std=c++17", "-O2", *arguments)
    access = SandboxAccess(
        readable=[ENGINE, *readable, folders.sources, folders.cache], writable=[folders.out],
        environment={"OPTIML_CACHE": str(folders.cache)},
    )  # fmt: skip
    argv = sandbox().command(command, access, Limits(memory_bytes=_MEMORY, cpu_s=int(LIMIT_S)))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the compiler did not end in {LIMIT_S:.0f} s"
    return first_line(done.stderr) or f"exit code {done.returncode}" if done.returncode else ""


def first_line(text: str) -> str:
    """The first line that says something, cut to 300 characters."""
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")
