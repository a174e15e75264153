"""The script that says what a search takes of its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from benchmarks import search_time


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_stage_has_its_own_time_without_the_stages_within() -> None:
    code = SimpleNamespace(inner=lambda: busy(0.05))
    code.outer = lambda: (busy(0.02), code.inner(), code.inner())
    stages = search_time.Stages()
    stages.watch(code, "inner", "inner")
    stages.watch(code, "outer", "outer")
    outer: Callable[[], object] = code.outer
    outer()
    assert not stages.spent  # before it is on
    stages.on = True
    outer()
    assert stages.calls == {"inner": 2, "outer": 1}
    assert 0.1 <= stages.spent["inner"] < 0.12
    assert 0.02 <= stages.spent["outer"] < 0.04


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_is_counted_by_stage() -> None:
    command = [
        sys.executable,
        search_time.__file__,
        "benchmarks/tuning/saxpy.cu",
        "--runs",
        "optimize",
        "--devices",
        "1",
    ]
    said = subprocess.run([*command, "--candidates", "3", "--once"], check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(said)
    assert found["candidates"] >= 3
    assert {"select", "rewrite", "to the device", "from the device", "book", "journal"} <= set(found["stages"])
    assert all(took > 0 for took in found["stages"].values())
    assert sum(found["stages"].values()) == pytest.approx(found["all"])
