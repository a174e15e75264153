"""A run ends at its deadline of computing; that the machine was busy with something else is not held against it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.cpu import CpuMachine


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
    worker, job = tmp_path / "worker", tmp_path / "job"
    worker.write_text('#!/bin/sh\n. "$1"\n')
    worker.chmod(0o755)
    job.write_text(what + "\n")
    argv = [str(machine.prepared().supervise), "1", "2", "200", "2000", str(worker), str(job), str(job)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=True).stdout
    assert sorted(said.splitlines()) == [f"0 {ends}", f"1 {ends}"]
