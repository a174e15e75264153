"""Messages between the parent and its worker processes: a JSON header and raw blobs, both bounded. Never pickle.

A frame is `b"OML1"`, the header's length (4 bytes, little endian), the number of blobs (4 bytes), the blobs' lengths (8 bytes
each), then the header and the blobs. What comes from a worker is data: every length is checked before it is read.
"""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from engine.errors import OptimlError

_MAGIC = b"OML1"
_HEAD = struct.Struct("<4sII")
_MAX_HEADER = 64 << 20
# Of an answer, whose JSON an untrusted process wrote: "[[],[]," and so on takes 24 bytes of memory for each of text.
_MAX_ANSWER_HEADER = 16 << 20
_MAX_BLOBS = 4096
MAX_FRAME = 4 << 30
MAX_ANSWER = 384 << 20  # while it is read it stands in memory twice
_ONE_PIECE = 1 << 20  # bytes that are copied to be written at once: each write lets other threads go first


@dataclass
class WireError(OptimlError):
    """The other side closed the stream or sent something that is no frame."""


def send(stream: BinaryIO, header: Mapping[str, Any], blobs: Sequence[bytes | bytearray | memoryview] = ()) -> None:
    """Write one frame and flush. Raises OSError when the other side is gone."""
    for part in _parts(to_json(header), blobs):
        stream.write(part)
    stream.flush()


def _parts(text: bytes, blobs: Sequence[bytes | bytearray | memoryview]) -> list[bytes | memoryview]:
    """A frame with this header, in pieces to be written one after the other."""
    views = [memoryview(blob).cast("B") for blob in blobs]
    head = _HEAD.pack(_MAGIC, len(text), len(views)) + struct.pack(f"<{len(views)}Q", *(v.nbytes for v in views)) + text
    parts: list[bytes | memoryview] = [head, *views]
    return [b"".join(parts)] if sum(view.nbytes for view in views) <= _ONE_PIECE else parts


def receive(stream: BinaryIO, limit: int = MAX_FRAME) -> tuple[dict[str, Any], list[bytes]]:
    """Read one frame of at most `limit` bytes. Raises WireError at the stream's end or on anything malformed.

    A limit of no more than `MAX_ANSWER` says that the other side is not trusted: then headers are bounded more closely too.
    """
    most = _MAX_ANSWER_HEADER if limit <= MAX_ANSWER else _MAX_HEADER
    magic, header_length, count = _HEAD.unpack(_exactly(stream, _HEAD.size))
    if magic != _MAGIC or header_length > min(most, limit) or count > _MAX_BLOBS:
        raise WireError("a worker sent an invalid frame")
    lengths = [int(n) for (n,) in struct.iter_unpack("<Q", _exactly(stream, 8 * count))]
    if header_length + sum(lengths) > limit:
        raise WireError(
            f"a message of {header_length + sum(lengths)} bytes came from a worker, which exceeds the limit of {limit}"
        )
    try:
        header = json.loads(_exactly(stream, header_length))
    except (ValueError, RecursionError):
        raise WireError("a worker sent a malformed header") from None
    if not isinstance(header, dict):
        raise WireError("a worker sent a malformed header")
    return header, [_exactly(stream, n) for n in lengths]


def _exactly(stream: BinaryIO, count: int) -> bytes:
    parts: list[bytes] = []
    left = count
    while left:
        part = stream.read(min(left, 16 << 20))
        if not part:
            raise WireError("the stream of a worker ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def pack(header: Mapping[str, Any] | bytes, blobs: Sequence[bytes] = ()) -> bytes:
    """One frame as bytes; `header` may be JSON already."""
    return b"".join(_parts(header if isinstance(header, bytes) else to_json(header), blobs))


def to_json(message: Any, *, finite: bool = False) -> bytes:
    """JSON whose dataclasses are objects and whose bytes, which are sent as blobs, are null. `dataclasses.asdict` makes copies, which
    took a third of what a search does for a candidate of another device. With `finite`, infinities and NaN raise ValueError.
    """
    return json.dumps(message, separators=(",", ":"), default=_fields, allow_nan=not finite).encode()


def _fields(message: Any) -> dict[str, Any] | None:
    if isinstance(message, bytes):
        return None
    return {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}


def unpack(frame: bytes, limit: int = MAX_ANSWER) -> tuple[dict[str, Any], list[bytes]]:
    """Read what `pack` made, from whomever. Raises WireError."""
    if len(frame) > limit + (_HEAD.size + 8 * _MAX_BLOBS):
        raise WireError(f"a message of {len(frame)} bytes came from a worker, which exceeds the limit of {limit}")
    return receive(io.BytesIO(frame), limit)
