"""A control group (cgroup) that limits the memory of all sandboxed processes of this process together."""

import atexit
import contextlib
import functools
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"optiml-(\d+)-(\d+)")
# What is left is for this process, the driver and the system. Ours.
_SHARE = 0.75
_LEAST_BYTES = 1 << 30


def total_bytes() -> int:
    """The memory, in bytes, that all sandboxed processes together may use: three quarters of what this machine has."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [pages]
    for parent in _parents():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((parent / name).read_text()))
    return max(_LEAST_BYTES, int(_SHARE * min(limits)))


@functools.cache
def memory_group() -> Path | None:
    """The group of this process, made on the first call and removed when it ends; None where the system allows none."""
    found = make_group(total_bytes())
    if found is not None:
        atexit.register(remove_group, found)
    return found


def make_group(limit_bytes: int, suffix: str = "") -> Path | None:
    """A new group with this limit, in bytes; None where none can be made. Groups that killed processes left are removed first.

    A process joins by writing 0 to `cgroup.procs` in it. At the limit the kernel ends a process of the group.
    """
    for parent in _parents():
        sweep_groups(parent)
        folder = parent / f"optiml-{os.getpid()}-{_start_time(os.getpid())}{suffix}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        for limit, swap in (
            ("memory.max", "memory.swap.max"),
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ):
            if (folder / limit).exists():
                with contextlib.suppress(OSError):
                    (folder / limit).write_text(str(limit_bytes))
                    with contextlib.suppress(OSError):  # without swap there is no such file, or it is off
                        (folder / swap).write_text("0" if swap.startswith("memory.swap") else str(limit_bytes))
                    if _can_join(folder):
                        return folder
        remove_group(folder)
    return None


def remove_group(folder: Path) -> None:
    """Remove a group; its processes are ending, which takes the system a moment."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def sweep_groups(parent: Path) -> None:
    """Remove the groups of processes that have ended without doing so. A group with processes in it stays."""
    with contextlib.suppress(OSError):
        for folder in parent.glob("optiml-*"):
            match = _NAME.match(folder.name)
            if match and _start_time(int(match[1])) != match[2]:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _can_join(folder: Path) -> bool:
    """Whether a child process gets in: moving one needs rights on the common ancestor too."""
    script = ["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs"', str(folder)]
    return subprocess.run(script, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode == 0


def _parents() -> Iterator[Path]:
    """Where a group may be made. Version 2 forbids groups with a controller below one that has processes: there, beside ours."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if "memory" in controllers.split(","):
            yield from (folder for folder in (_ROOT / "memory" / own, _ROOT / "memory") if folder.is_dir())
        elif not controllers:
            parent = (_ROOT / own).parent if own else _ROOT
            with contextlib.suppress(OSError):
                if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                    yield parent


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks: with its number this names it once. "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
