"""Some blocks of a launch that is too large to be run whole, over buffers that are filled where they are touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from engine.process.bounded_output import BoundedOutput

MOST_ELEMENTS = 1 << 18  # that a sampled launch may write: as in runtime/state.h
MOST_BYTES = 1 << 34  # of one buffer
MOST_APART = 1 << 34  # bytes that a buffer may be moved by
_LINE = [("buffer", "<u4"), ("block", "<u4"), ("how", "<u8"), ("element", "<u8"), ("value", "V16")]
_HEAD = 8
SAMPLE_BYTES = _HEAD + 40 * MOST_ELEMENTS


@dataclass(frozen=True)
class Sample:
    """Which blocks run, by their linear number, and where. By buffer: entries of the storage type, and bytes it is moved by.

    The job's buffers are then the first contents of each, repeated to its end.
    """

    blocks: Sequence[int]
    entries: Mapping[str, int]
    apart: Mapping[str, int]


@dataclass(frozen=True)
class Writes:
    """What the sampled blocks wrote of one buffer, ascending by entry.

    `blocks` is the place of the writing block in the sample; `several`: more than one thread wrote it; `atomic`: by an atomic.
    """

    entries: np.ndarray[Any, np.dtype[np.int64]]
    values: np.ndarray[Any, Any]
    blocks: np.ndarray[Any, np.dtype[np.int64]]
    several: np.ndarray[Any, np.dtype[np.bool_]]
    atomic: np.ndarray[Any, np.dtype[np.bool_]]


def read_writes(results: BoundedOutput, at: int, storage: Mapping[str, np.dtype[Any]]) -> dict[str, Writes]:
    """What a run listed; `storage` are all buffers in order. Untrusted: what is no list counts as none."""
    import numpy as np

    line = np.dtype(_LINE)
    count = min(int.from_bytes(results.at(at, _HEAD), "little"), MOST_ELEMENTS)
    lines = np.frombuffer(results.at(at + _HEAD, count * line.itemsize), line)
    found = {}
    for number, (name, dtype) in enumerate(storage.items()):
        own = lines[lines["buffer"] == number]
        own = own[np.argsort(own["element"], kind="stable")]
        raw = np.ascontiguousarray(own["value"]).view(np.uint8).reshape(len(own), 16)[:, : dtype.itemsize]
        values = np.ascontiguousarray(raw).view(dtype).reshape(-1)
        how = own["how"]
        found[name] = Writes(
            own["element"].astype(np.int64), values, own["block"].astype(np.int64), (how & 1) != 0, (how & 2) != 0
        )
    return found
