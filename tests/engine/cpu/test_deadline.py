"""A run ends at its deadline of computing; that the machine was busy with something else is not held against it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engine.cpu import CpuMachine
from tests.engine.cpu.conftest import Make, launch

# What `job.cpp` does, with a shell's script as the job.
WORKER = f"""#!{sys.executable} -S
import ctypes, os, struct, sys
control, answers, slots = map(int, sys.argv[1:4])
logs, jobs = [int(log) for log in sys.argv[4 : 4 + slots]], sys.argv[4 + slots :]
CLONE, CLONE_PARENT, SIGCHLD = {{"x86_64": 56}}.get(os.uname().machine, 220), 0x8000, 17
while asked := os.read(control, 8):
    number, slot = struct.unpack("ii", asked)
    pid = ctypes.CDLL(None).syscall(CLONE, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os.dup2(logs[slot], 2)
        os.environ["WORKER"] = str(control)
        os.execv("/bin/sh", ["sh", jobs[number]])
    os.write(answers, struct.pack("i", pid))
"""


def supervised(machine: CpuMachine, folder: Path, *whats: str) -> subprocess.CompletedProcess[str]:
    worker = folder / "worker"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    jobs = [folder / f"job{i}" for i in range(len(whats))]
    for job, what in zip(jobs, whats, strict=True):
        job.write_text(what + "\n")
    argv = [str(machine.prepared().supervise), "1", "2", "200", "2000", str(worker), *map(str, jobs)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("exit 0", "ok"),
        ("sleep 0.5", "ok"),  # longer than the deadline, without computing
        ("sleep 60", "timeout"),
        ("while :; do :; done", "timeout"),
        ("exit 3", "exit 3"),
        ("kill -9 $$", "signal 9"),
    ],
)
def test_how_a_run_ends(machine: CpuMachine, tmp_path: Path, what: str, ends: str) -> None:
    said = supervised(machine, tmp_path, what, what)
    assert said.returncode == 0
    assert sorted(said.stdout.splitlines()) == [f"0 {ends}", f"1 {ends}"]


def test_what_a_run_says_is_said_of_no_other(machine: CpuMachine, tmp_path: Path) -> None:
    said = supervised(machine, tmp_path, "echo a long first word >&2; exit 1", "exit 1", "echo b >&2; exit 1", "exit 1")
    assert sorted(line.rstrip() for line in said.stdout.splitlines()) == [
        "0 exit 1 a long first word",
        "1 exit 1",
        "2 exit 1 b",
        "3 exit 1",
    ]


def test_runs_are_children_of_the_supervisor_and_a_worker_that_ended_gives_no_verdicts(
    machine: CpuMachine, tmp_path: Path
) -> None:
    children = (
        'test "$(tr "\\0" " " </proc/$PPID/cmdline | cut -d" " -f2)" = 1'  # its first word is the status descriptor
    )
    assert supervised(machine, tmp_path, children).stdout == "0 ok\n"
    ended = "pkill -P $PPID -f worker"
    said = supervised(machine, tmp_path, ended, ended, "exit 0", "exit 0")
    assert said.returncode == 3
    assert "2 ok" not in said.stdout
    assert "3 ok" not in said.stdout


def test_a_run_that_nobody_waits_for_is_ended_in_the_middle(
    make: Make, machine: CpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "__global__ void k(int* y) { volatile int i = 1; while (i) { } y[0] = i; }"
    kernel = make(source, "k", launch(1, 1), [("y", "out", np.zeros(1, np.int32))])
    begin, asked = time.monotonic(), []

    def give_up() -> None:
        asked.append(0)
        if len(asked) == 3:  # before the run and twice beside it
            raise InterruptedError

    monkeypatch.setattr(machine, "go_on", give_up)
    with pytest.raises(InterruptedError):
        kernel.runs((0,), deadline_s=30)
    assert time.monotonic() - begin < 15
