"""A file in memory of a fixed size, for what an untrusted process writes: no disk fills, and nothing is left when its maker ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile

# Above what shells use for themselves, and what `engine.process.sandbox` opens.
_LOWEST_FD = 32


class BoundedOutput:
    """At most `limit` bytes, sealed at that size: a write behind them fails with EPERM, and it cannot be truncated either.

    Give its `fileno()` to a process as standard output or error, or by `pass_fds`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        if hasattr(os, "memfd_create"):
            first = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:  # not Linux, and no sandbox then
            with tempfile.TemporaryFile() as file:
                first = os.dup(file.fileno())
        try:
            self._fd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        finally:
            os.close(first)
        os.ftruncate(self._fd, limit)
        if hasattr(fcntl, "F_ADD_SEALS"):
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def fileno(self) -> int:
        """Raises ValueError once it is closed."""
        if self._fd < 0:
            raise ValueError("the output was closed")
        return self._fd

    def written(self) -> int:
        """How many bytes were written through `fileno()`: where its writers stand, who share one position."""
        return min(max(os.lseek(self.fileno(), 0, os.SEEK_CUR), 0), self.limit)

    def head(self, limit: int) -> bytes:
        """The first bytes that were written."""
        return bytes(self.at(0, min(limit, self.written())))

    def tail(self, limit: int) -> bytes:
        """The last bytes that were written."""
        end = self.written()
        return bytes(self.at(max(0, end - limit), min(limit, end)))

    def at(self, offset: int, count: int) -> bytearray:
        """So many bytes from there on, zeros where nobody wrote; fewer at the end."""
        data = bytearray(count)
        done = 0
        while done < count:
            got = os.preadv(self.fileno(), [memoryview(data)[done:]], offset + done)
            if not got:
                return data[:done]
            done += got
        return data

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> BoundedOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
