"""What earlier jobs found of a kernel, on this runner or in an earlier bundle: the same inputs are not compared and searched again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from bot.bundle import Bundle, Looked, parse_bundle
from bot.changed import ChangedKernel
from bot.errors import BundleError
from engine.compile.cache import DiskCache
from engine.settings.folders import cache_folder

_NO_COMMIT = "0" * 40  # an entry is about a kernel, whatever commit holds it
COMPARED_ONLY = "compared only, as requested"
ANSWERED = "nothing changed since an earlier review of this kernel, so its result is shown"


def folder() -> Path:
    """Where they are kept: in the cache of the code's trust domain."""
    return cache_folder() / "reviews"


class KeptReviews:
    """Entries by everything that a review of one kernel depends on."""

    def __init__(self, where: Path, earlier: Bundle | None = None) -> None:
        self._cache = DiskCache(where)
        kernels = earlier.kernels if earlier is not None else ()
        self._earlier = {found.key: found for found in kernels if found.key}

    def get(self, key: str, changed: ChangedKernel) -> Looked | None:
        """What was found, said of this change; None where nothing is kept."""
        found = self._kept(key) or self._earlier.get(key) if key else None
        if found is None:
            return None
        if found.result is not None and ANSWERED not in found.result.notes:
            result = dataclasses.replace(found.result, notes=(*found.result.notes, ANSWERED))
            found = dataclasses.replace(found, result=result)
        return dataclasses.replace(found, changed=changed)

    def _kept(self, key: str) -> Looked | None:
        entry = self._cache.get(key)
        try:
            return parse_bundle(entry[1], head=_NO_COMMIT).kernels[0] if entry is not None else None
        except (BundleError, IndexError):
            return None  # of another version

    def put(self, key: str, found: Looked) -> Looked:
        """Keep what was found, where it is whole: compared and searched, or only compared as requested. Returns it with its key."""
        if not key or not _is_whole(found):
            return found
        found = dataclasses.replace(found, key=key)
        self._cache.put(key, {}, Bundle(_NO_COMMIT, _NO_COMMIT, (found,)).to_json().encode())
        return found


def key_of(parts: Sequence[object]) -> str:
    """A name for everything that a review depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _is_whole(found: Looked) -> bool:
    if found.comparison is not None and found.comparison.standing == "not compared":
        return False
    return found.error == COMPARED_ONLY if found.result is None else not found.error
