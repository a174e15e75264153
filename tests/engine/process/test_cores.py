"""Who goes first on a machine whose cores are all at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.compile.compiler import Translation
from engine.compile.nvrtc import NvrtcCompiler
from engine.process.cores import attentive
from engine.process.sandbox import sandbox
from tests.processes import below

_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_STANDS_BACK = """
import sys, time
sys.path[:0] = {path!r}
from engine.process.cores import stand_back
stand_back()
print("told", flush=True)
time.sleep(60)
"""


def nice(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def nice_of_session(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


def soon(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def grouped() -> bool:
    return _ENABLED.exists() and _ENABLED.read_text().strip() == "1"


def test_a_process_stands_back_and_so_does_its_session() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STANDS_BACK.format(path=sys.path)], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert nice(process.pid) == nice(0) + 10
            if grouped():
                assert soon(lambda: nice_of_session(process.pid) == 10)
        finally:
            process.kill()


def test_a_session_says_so_until_it_is_heard() -> None:
    """The system hears one in a tenth of a second, and as many start at once as there are cores."""
    if not grouped():
        pytest.skip("this system has no groups of processes by session")
    command = [sys.executable, "-c", _STANDS_BACK.format(path=sys.path)]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) for _ in range(6)]
    try:
        assert all(soon(lambda of=process: nice_of_session(of.pid) == 10) for process in processes)  # type: ignore[misc]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_compilers_stand_back_in_the_sandbox_too() -> None:
    with NvrtcCompiler("sm_90", cache=None, sandbox=sandbox(), jobs=1) as compiler:
        compiler.compile(Translation(text="__global__ void k() {}", path="k.cu", expressions=("k",)))
        (worker,) = compiler._crews[()]._workers
        python = below(worker.pid)[-1]
        assert nice(python) == nice(0) + 10
        if grouped():
            assert soon(lambda: nice_of_session(python) == 10)


def test_a_compiler_that_a_person_waits_for_does_not() -> None:
    """On a busy machine it took a hook's compiler ten seconds to start, and its budget ran out."""
    with NvrtcCompiler("sm_90", cache=None, sandbox=sandbox(), jobs=1) as compiler:
        compiler.stands_back = False
        compiler.compile(Translation(text="__global__ void k() {}", path="k.cu", expressions=("k",)))
        (worker,) = compiler._crews[()]._workers
        assert nice(below(worker.pid)[-1]) == nice(0)


def test_the_interpreter_changes_threads_often_for_a_while() -> None:
    before = sys.getswitchinterval()
    with attentive():
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
