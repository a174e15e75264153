"""The front worker: reads, writes and builds programs of one spec, one frame per request, until its input closes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import OptimlError
from engine.process import wire
from engine.process.sandbox import NoSandbox, Sandbox

if TYPE_CHECKING:
    from engine.builders.builder_requests import BuilderRequests


def _open(header: dict[str, Any], blobs: list[bytes]) -> BuilderRequests:
    box, cache = header["box"], header["cache"]
    compiler = NvrtcCompiler(
        header["arch"],
        cache=None if cache is None else Path(cache),
        sandbox=NoSandbox() if box is None else Sandbox(**{**box, "bwrap": Path(box["bwrap"])}),
        jobs=1,
        group=True,  # it must end when this process is killed
    )
    if header["compiles"]:
        compiler.warm(1)
    # The compiler's process starts beside this import.
    from engine.builders.builder_requests import BuilderRequests

    return BuilderRequests(header, blobs, compiler)


def main() -> int:
    """Serve until the input closes. Exit code 0."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    opened: Any = None
    while True:
        try:
            header, blobs = wire.receive(source)
        except wire.WireError:
            return 0
        answer: dict[str, Any] = {}
        out: list[bytes] = []
        try:
            if header["op"] == "open":
                opened = _open(header, blobs)
            else:
                answer, out = opened.answer(header, blobs)
        except OptimlError as error:
            answer = {"refused": error.what}
        except (KeyError, LookupError, RecursionError) as error:
            answer = {"refused": f"cannot be analysed: {type(error).__name__}: {error}"[:300]}
        wire.send(sink, answer, out)


if __name__ == "__main__":
    sys.exit(main())
