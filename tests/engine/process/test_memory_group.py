"""All sandboxed processes together, where the system lets us make a control group."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.process.memory_group import make_group, remove_group, sweep_groups
from engine.process.sandbox import Limits, Sandbox

from .inside import needs_sandbox, run

_LIMIT = 256 << 20
# Four processes that hold 100 MB each: none is over a limit of its own.
_GREEDY = (
    "import os, sys, time\n"
    "children = []\n"
    "for _ in range(4):\n"
    "  if (child := os.fork()) == 0:\n"
    "    held = bytearray(100 << 20)\n"
    "    held[::4096] = b'x' * len(held[::4096])\n"
    "    time.sleep(2)\n"
    "    os._exit(0)\n"
    "  children.append(child)\n"
    "print(sum(os.waitpid(child, 0)[1] == 0 for child in children))\n"
)


@pytest.fixture
def group() -> Iterator[Path]:
    made = make_group(_LIMIT, "-test")
    if made is None:
        pytest.skip("no control group can be made here")
    yield made
    remove_group(made)
    assert not made.exists()


@needs_sandbox
def test_total_memory_is_limited(box: Sandbox, group: Path) -> None:
    limited = dataclasses.replace(box, memory_group=str(group))
    argv = [sys.executable, "-I", "-c", _GREEDY]
    done = run(limited.command(argv, limits=Limits(memory_bytes=1 << 30)))
    assert done.stdout.strip() != "4"
    # Without the group the same program gets what it wants: each process is within its own limit.
    free = dataclasses.replace(box, memory_group="")
    assert run(free.command(argv, limits=Limits(memory_bytes=1 << 30))).stdout.strip() == "4"


@needs_sandbox
def test_temporary_files_count_too(box: Sandbox, group: Path) -> None:
    limited = dataclasses.replace(box, memory_group=str(group))
    done = run(limited.command(["/bin/sh", "-c", "head -c 500M /dev/zero >/tmp/x; echo $?"]))
    assert done.stdout.strip() != "0"


@needs_sandbox
def test_nothing_runs_outside_of_a_group_that_is_gone(box: Sandbox, tmp_path: Path) -> None:
    done = run(dataclasses.replace(box, memory_group=str(tmp_path / "gone")).command(["/bin/echo", "ran"]))
    assert (done.returncode, done.stdout) == (125, "")


def test_groups_of_killed_processes_are_removed(group: Path) -> None:
    process = subprocess.Popen(["/bin/true"])
    left = group.parent / f"optiml-{process.pid}-1"  # of a process of another start time
    left.mkdir()
    sweep_groups(group.parent)
    assert not left.exists()
    assert group.exists()
    process.wait()
