"""What runs under the profiler: the launches of one spec's programs, on one case's buffers."""

from __future__ import annotations

from typing import Any

import cupy as cp

from engine.gpu.buffers import CaseBuffers
from engine.gpu.device import Call, Loaded, Tools
from engine.model import LaunchConfig
from engine.process.decode import decode
from engine.spec.kernel_spec import KernelSpec


class ProfiledSession:
    """One spec's buffers on the device."""

    def __init__(self, header: dict[str, Any], tools: bytes) -> None:
        self.spec = decode(KernelSpec, header["spec"])
        self.cases = (*self.spec.check, *self.spec.time)
        self.tools = Tools(tools)
        self.stream = cp.cuda.get_current_stream()
        self.seed = int(header["seed"])
        self._buffers: dict[int, Any] = {}
        if header["case"] is not None:
            self.buffers(int(header["case"]))

    def buffers(self, index: int) -> Any:
        """The buffers of a case with inputs drawn, made once."""
        if index not in self._buffers:
            self._buffers.clear()  # one case at a time: a second one may not fit beside it
            made = CaseBuffers(self.spec, self.cases[index], self.tools, widened=False)
            made.draw(self.seed, "declared", widen=False)
            self._buffers[index] = made
        return self._buffers[index]

    def prime(self) -> None:
        """Profile one launch of a kernel of ours: what the profiler sets up at its first kernel, some half a second in which the GPU
        idles, is not spent in the batch. From then on this process holds the counters, and no other can have them."""
        scratch = cp.empty(256, cp.uint32)
        cp.cuda.runtime.profilerStart()
        self.tools.fill(int(scratch.data.ptr), scratch.nbytes, 0)
        self.stream.synchronize()
        cp.cuda.runtime.profilerStop()

    def run(self, item: dict[str, Any], cubin: bytes) -> None:
        """Launch every step once, profiled, after a whole run that is not: it warms up and shows what faults."""
        buffers = self.buffers(int(item["case"]))
        loaded = Loaded(cubin, item["entries"], item["constants"])
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
