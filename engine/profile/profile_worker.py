"""The process under the profiler: warms up, profiles a launch of ours when told so, takes one batch, launches every step once
between start and stop, ends.

It gets machine code and launch figures, never host code of a candidate. The profiler speaks only when this process ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


class _Session:
    """One spec's buffers on the device."""

    def __init__(self, header: dict[str, Any], tools: bytes) -> None:
        import cupy as cp

        from engine.gpu.device import Tools
        from engine.spec.plain import as_spec

        self.spec = as_spec(header["spec"])
        self.cases = (*self.spec.check, *self.spec.time)
        self.tools = Tools(tools)
        self.stream = cp.cuda.get_current_stream()
        self.seed = int(header["seed"])
        self._buffers: dict[int, Any] = {}
        if header["case"] is not None:
            self.buffers(int(header["case"]))

    def buffers(self, index: int) -> Any:
        """The buffers of a case with inputs drawn, made once."""
        from engine.gpu.buffers import CaseBuffers

        if index not in self._buffers:
            self._buffers.clear()  # one case at a time: a second one may not fit beside it
            made = CaseBuffers(self.spec, self.cases[index], self.tools, widened=False)
            made.draw(self.seed, "declared", widen=False)
            self._buffers[index] = made
        return self._buffers[index]

    def prime(self) -> None:
        """Profile one launch of a kernel of ours: what the profiler sets up at its first kernel, some half a second in which the GPU
        idles, is not spent in the batch. From then on this process holds the counters, and no other can have them."""
        import cupy as cp

        scratch = cp.empty(256, cp.uint32)
        cp.cuda.runtime.profilerStart()
        self.tools.fill(int(scratch.data.ptr), scratch.nbytes, 0)
        self.stream.synchronize()
        cp.cuda.runtime.profilerStop()

    def run(self, item: dict[str, Any], cubin: bytes) -> None:
        """Launch every step once, profiled, after a whole run that is not: it warms up and shows what faults."""
        import cupy as cp

        from engine.gpu.device import Call, Loaded
        from engine.model import LaunchConfig

        buffers = self.buffers(int(item["case"]))
        loaded = Loaded(cubin, item["entries"])
        launches = [LaunchConfig(tuple(g), tuple(b), s) for g, b, s in item["launches"]]
        call = Call(loaded, launches, buffers.arguments(buffers.main))
        buffers.reset(buffers.main, 0)
        call(self.stream)
        self.stream.synchronize()
        buffers.reset(buffers.main, 0)
        self.stream.synchronize()
        cp.cuda.runtime.profilerStart()
        call(self.stream)
        self.stream.synchronize()
        cp.cuda.runtime.profilerStop()


def main() -> int:
    """Serve one batch. The first argument is the file that holds the set-up frame."""
    from engine.process import wire

    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printf of a kernel must not reach the frames
    begin = time.perf_counter()
    try:
        with Path(sys.argv[1]).open("rb") as file:
            header, blobs = wire.receive(file)
        session = _Session(header, blobs[0])
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
