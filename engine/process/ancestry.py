"""Which process started which, as /proc shows it."""

from pathlib import Path


def began(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None where it is gone or cannot be seen."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor` or one of its descendants; a pid that cannot be seen counts as ours only if gone."""
    seen = 0
    while pid > 1 and seen < 64:
        if pid == ancestor:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return not Path(f"/proc/{pid}").exists()
        pid = int(stat.rpartition(")")[2].split()[1])
        seen += 1
    return False
