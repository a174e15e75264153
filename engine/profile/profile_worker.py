"""The process under the profiler: warms up, profiles a launch of ours when told so, takes one batch, launches every step once
between start and stop, ends.

It gets machine code and launch figures, never host code of a candidate. The profiler speaks only when this process ends.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from engine.process import wire


def main() -> int:
    """Serve one batch. The first argument is the file that holds the set-up frame."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printf of a kernel must not reach the frames
    begin = time.perf_counter()
    try:
        with Path(sys.argv[1]).open("rb") as file:
            header, blobs = wire.receive(file)
        # What it brings, CuPy above all, may be what fails: the parent is told.
        from engine.profile.profiled_session import ProfiledSession

        session = ProfiledSession(header, blobs[0])
    except Exception as error:
        wire.send(sink, {"ready": False, "error": _say(error)})
        return 0
    wire.send(sink, {"ready": True, "prepare_s": time.perf_counter() - begin})
    try:
        batch, cubins = wire.receive(source)
        if batch.get("prime"):
            begin = time.perf_counter()
            session.prime()
            wire.send(sink, {"primed": True, "prime_s": time.perf_counter() - begin})
            batch, cubins = wire.receive(source)
    except wire.WireError:
        return 0
    except Exception as error:
        wire.send(sink, {"primed": False, "error": _say(error)})
        return 0
    for item, cubin in zip(batch["items"], cubins, strict=True):
        begin = time.perf_counter()
        answer: dict[str, Any] = {"error": None}
        try:
            session.run(item, cubin)
        except Exception as error:
            answer = {"error": _say(error)}
        answer["seconds"] = time.perf_counter() - begin
        try:
            wire.send(sink, answer)
        except OSError:
            return 0
        if answer["error"]:
            return 0  # the context may be lost: what is left of the batch gets a new process
    return 0


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what the interpreter would still tidy up holds the counters for a quarter of a second
