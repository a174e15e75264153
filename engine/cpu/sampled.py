"""Some blocks of a launch that is too large to be run whole, over buffers that are filled where they are touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.process.bounded_output import BoundedOutput

MOST_ELEMENTS = 1 << 18  # that a sampled launch may write: as in runtime/state.h
MOST_BYTES = 1 << 36  # of one buffer: a quarter of a slot of runtime/screen.cpp
MOST_APART = 1 << 34  # bytes that a buffer may be moved by
_LINE = [("buffer", "<u4"), ("block", "<u4"), ("how", "<u8"), ("element", "<u8"), ("value", "V16")]
_VALUE_AT = 24  # bytes of a line before its value
_HEAD = 8
_NARROW = 1 << 32
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

    `lowest`: by the place of a block in the sample, the first entry that it writes; `several`: more than one thread wrote it;
    `atomic`: by an atomic. Hundreds are kept for a search, of up to 2^18 entries each.
    """

    entries: np.ndarray[Any, np.dtype[np.int64] | np.dtype[np.uint32]]
    values: np.ndarray[Any, Any]
    lowest: Mapping[int, int]
    several: np.ndarray[Any, np.dtype[np.bool_]]
    atomic: np.ndarray[Any, np.dtype[np.bool_]]


def read_writes(results: BoundedOutput, at: int, storage: Mapping[str, np.dtype[Any]]) -> dict[str, Writes]:
    """What a run listed; `storage` are all buffers in order. Untrusted: what is no list counts as none."""
    line = np.dtype(_LINE)
    count = min(int.from_bytes(results.at(at, _HEAD), "little"), MOST_ELEMENTS)
    lines = np.frombuffer(results.at(at + _HEAD, count * line.itemsize), line)
    buffers, elements = lines["buffer"].astype(np.int64), lines["element"].astype(np.int64)
    same, above = buffers[1:] == buffers[:-1], elements[1:] > elements[:-1]
    if not (same & above | (buffers[1:] > buffers[:-1])).all():
        order = np.lexsort((elements, buffers))
        lines, buffers, elements = lines[order], buffers[order], elements[order]
    raw = lines.view(np.uint8).reshape(len(lines), line.itemsize)
    found = {}
    for number, (name, dtype) in enumerate(storage.items()):
        begin, end = np.searchsorted(buffers, (number, number + 1))
        own = lines[begin:end]
        value = np.ascontiguousarray(raw[begin:end, _VALUE_AT : _VALUE_AT + dtype.itemsize])
        values = value.view(dtype).reshape(-1)
        entries = elements[begin:end]
        blocks, first = np.unique(own["block"], return_index=True)
        lowest = {int(block): int(entries[at]) for block, at in zip(blocks, first, strict=True)}
        if len(entries) and entries[-1] < _NARROW:
            entries = entries.astype(np.uint32)
        several, atomic = (_flags(own["how"], bit) for bit in (1, 2))
        found[name] = Writes(entries, values, lowest, several, atomic)
    return found


def _flags(how: np.ndarray[Any, np.dtype[np.uint64]], bit: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found = (how & bit) != 0
    return found if found.any() else np.broadcast_to(np.False_, found.shape)
