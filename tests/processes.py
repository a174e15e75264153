"""What runs below a process."""

from __future__ import annotations

from pathlib import Path


def below(pid: int) -> list[int]:
    """The process's children and theirs, the last one's last descendant at the end."""
    children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    return [*children, *(one for child in children for one in below(child))]


def alive(pid: int) -> bool:
    """Whether it runs, or could."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
