"""What earlier jobs of this runner found of a kernel: the same inputs are not compared and searched again."""

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
ANSWERED = "nothing changed since an earlier review of this kernel, so this is what it found"


def folder() -> Path:
    """Where they are kept: in the cache of the code's trust domain."""
    return cache_folder() / "reviews"


class KeptReviews:
    """Entries by everything that a review of one kernel depends on."""

    def __init__(self, where: Path) -> None:
        self._cache = DiskCache(where)

    def get(self, key: str, changed: ChangedKernel) -> Looked | None:
        """What was found, said of this change; None where nothing is kept."""
        entry = self._cache.get(key) if key else None
        if entry is None:
            return None
        try:
            (found,) = parse_bundle(entry[1], head=_NO_COMMIT).kernels
        except (BundleError, ValueError):
            return None  # of another version
        if found.result is not None:
            result = dataclasses.replace(found.result, notes=(*found.result.notes, ANSWERED))
            found = dataclasses.replace(found, result=result)
        return dataclasses.replace(found, changed=changed)

    def put(self, key: str, found: Looked) -> None:
        """Keep what was found, where it is whole: compared and searched, or only compared as requested."""
        if key and _is_whole(found):
            bundle = Bundle(_NO_COMMIT, _NO_COMMIT, (found,))
            self._cache.put(key, {}, bundle.to_json().encode())


def key_of(parts: Sequence[object]) -> str:
    """A name for everything that a review depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _is_whole(found: Looked) -> bool:
    compared = found.comparison is None or found.comparison.standing != "not compared"
    return compared and found.result is not None and not found.error
