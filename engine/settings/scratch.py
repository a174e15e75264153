"""Temporary folders of a run. Those of a run that was killed are removed when the next one starts."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "optiml-"
_LOCK = ".in-use"


class Scratch:
    """A temporary folder, for its owner alone, that goes with `cleanup` or the process.

    A lock on a file in it, which the system releases when the process ends in whatever way, says that it is in use.
    """

    def __init__(self) -> None:
        sweep()
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        # Under another name until it is locked: whoever sweeps looks at the final one.
        coming = self.path / f"{_LOCK}.new"
        self._lock = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        coming.rename(self.path / _LOCK)

    def cleanup(self) -> None:
        """Remove it. Safe to call again."""
        self._folder.cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A `Scratch` for a while: the path of its folder."""
    scratch = Scratch()
    try:
        yield scratch.path
    finally:
        scratch.cleanup()


def sweep() -> list[Path]:
    """Remove this user's folders that no process uses any more; what was removed."""
    removed: list[Path] = []
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _abandoned(folder: Path) -> bool:
    """Whether a folder is one of this user's with a lock that nobody holds. One without a lock is not ours, or not ready yet."""
    try:
        found = folder.lstat()
        if found.st_uid != os.geteuid() or folder.is_symlink():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
