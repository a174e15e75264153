"""Work that many tests ask for anew, done once and shared between the processes and the sessions of tests.

An evaluator looks for races in its original and reads its machine code: seconds of a core, and
most tests open one of a few originals. The first that does takes the whole way; those after it get its answer, and so does the
next session, until the code that makes or reads such an answer changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.compile.cache import DiskCache
from engine.settings.folders import cache_folder

_ENGINE = Path(__file__).parents[2] / "engine"
_MADE_BY = ("compile", "cpu", "predict", "process", "model.py")
_KEPT = 8  # folders: other states of the code, and other checkouts


def kept_folder() -> Path:
    """Where compiled code is kept from session to session, for the engine's code that compiles, disassembles and runs as it is now."""
    digest = hashlib.sha256()
    for path in sorted(p for name in _MADE_BY for p in [_ENGINE / name, *(_ENGINE / name).rglob("*")] if p.is_file()):
        if path.suffix != ".pyc":
            digest.update(f"{path.relative_to(_ENGINE)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    folder = cache_folder() / "tests" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        for old in sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def share(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep in `folder` what nvdisasm makes of machine code, and where ThreadSanitizer found nothing."""
    from engine.cpu import CpuBinary, CpuFinding, CpuJob, CpuMachine
    from engine.predict import predictor

    kept = DiskCache(folder)
    races = CpuMachine.races

    def raced(
        machine: CpuMachine, binary: CpuBinary, jobs: Sequence[CpuJob], *, deadline_s: float = 20
    ) -> tuple[CpuFinding, ...]:
        keys = [_job_key(machine, binary, job) for job in jobs]
        if all(kept.get(key) is not None for key in keys):
            return ()
        found = races(machine, binary, jobs, deadline_s=deadline_s)
        if not found:
            for key in keys:
                kept.put(key, {}, b"")
        return found

    disassemble = predictor.disassemble

    def disassembled(cubin: bytes, *, sandbox: Any, line_info: bool = False) -> str:
        key = f"sass {line_info} {hashlib.sha256(cubin).hexdigest()}"
        found = kept.get(key)
        if found is not None:
            return found[1].decode()
        text = disassemble(cubin, sandbox=sandbox, line_info=line_info)
        kept.put(key, {}, text.encode())
        return text

    patch.setattr(predictor, "disassemble", disassembled)
    patch.setattr(CpuMachine, "races", raced)


def _job_key(machine: Any, binary: Any, job: Any) -> str:
    """A job but for the values in its buffers, which are drawn anew each time."""
    sizes = sorted((name, array.size, str(array.dtype)) for name, array in job.buffers.items())
    parts = (
        machine.toolchain,
        machine.jobs,
        binary.object.read_bytes(),
        job.launches,
        sizes,
        sorted(job.scalars.items()),
        job.order,
    )
    return f"races {hashlib.sha256(repr(parts).encode()).hexdigest()}"
