"""A cache of compiled code on disk. Losing it costs time and nothing else."""

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.settings.folders import read_regular

_MAGIC = b"OMLC2"
_LENGTH = struct.Struct("<I")
_LIMIT_BYTES = 2 << 30  # of all entries together
_ENTRY_BYTES = 300 << 20  # the largest object of the CPU path, and some
_PRUNE_EVERY = 256  # writes between two looks at the size


class DiskCache:
    """Entries by key: a JSON header and a blob, with a checksum over both.

    An entry is written under a temporary name and renamed, so a reader sees a whole one or none. A damaged entry reads
    as missing and is replaced by the next write; so does a link, a pipe or a device. Where the disk is full or not
    writable the cache turns itself off.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writes = 0
        self.problem = ""  # why nothing is written any more

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The entry, or None when there is none or it is damaged."""
        if self._folder is None:
            return None
        data = read_regular(self._path(key), _ENTRY_BYTES)
        if data is None:
            return None
        digest, payload = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
        if not data.startswith(_MAGIC) or hashlib.sha256(key.encode() + payload).digest() != digest:
            return None
        try:
            (length,) = _LENGTH.unpack_from(payload)
            header = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        except (struct.error, ValueError):
            return None
        if not isinstance(header, dict):
            return None
        return header, payload[_LENGTH.size + length :]

    def put(self, key: str, header: Mapping[str, Any], blob: bytes) -> None:
        """Write an entry. Never raises for the disk's sake."""
        if self._folder is None or self.problem:
            return
        text = json.dumps(header).encode()
        payload = _LENGTH.pack(len(text)) + text + blob
        data = _MAGIC + hashlib.sha256(key.encode() + payload).digest() + payload
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            self.problem = f"compiled code is not cached: {error.strerror or error}"
            return
        self._writes += 1
        if self._writes % _PRUNE_EVERY == 0:
            self._prune()

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / digest[2:]

    def _prune(self) -> None:
        """Drop the entries written longest ago until the rest fits."""
        assert self._folder is not None
        entries: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob("??/*"):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if total <= _LIMIT_BYTES:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
