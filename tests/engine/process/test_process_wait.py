"""Waiting for a process: its exit code at once, its time limit, and a system without the call."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from engine.process.process_wait import wait_process


def test_the_end_of_a_process_is_seen_without_looking_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Popen.wait with a time limit sleeps up to 50 ms between looks: a CPU run of 60 ms took 100."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("no pidfd_open here")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("polled"))
    assert wait_process(subprocess.Popen(["sh", "-c", "sleep 0.05; exit 3"]), 60) == 3
    killed = subprocess.Popen(["sleep", "60"])
    killed.kill()
    assert [wait_process(killed, 60), wait_process(killed, 60)] == [-9, -9]


@pytest.mark.parametrize("known", [True, False])
def test_a_process_that_goes_on_is_left_at_its_limit(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    if not known:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = subprocess.Popen(["sleep", "60"])
    with pytest.raises(subprocess.TimeoutExpired):
        wait_process(process, 0.01)
    process.kill()
    assert wait_process(process, None if known else 60) == -9
