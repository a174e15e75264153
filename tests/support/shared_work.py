"""Work that many tests ask for anew, done once in a session of tests and shared between its processes.

An evaluator looks for races in its original and reads its machine code: seconds of a core, and
most tests open one of a few originals. The first that does takes the whole way; those after it get its answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.compile.cache import DiskCache


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest, the same for each of its workers."""
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def share(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep in `folder` what nvdisasm makes of machine code, and where ThreadSanitizer found nothing."""
    from engine.cpu import CpuBinary, CpuJob, CpuMachine, Finding
    from engine.predict import predictor

    kept = DiskCache(folder)
    races = CpuMachine.races

    def raced(
        machine: CpuMachine, binary: CpuBinary, jobs: Sequence[CpuJob], *, deadline_s: float = 20
    ) -> tuple[Finding, ...]:
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
