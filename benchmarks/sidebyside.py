"""Kernels of the checkout and other implementations of the same operation in one process, timed in turn with cold caches.

This is for our own kernels and for libraries alone: nothing here runs in a sandbox.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Place
from engine.errors import MachineError
from engine.model import Program
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.statistics import paired_ratio

FLUSH_BYTES = 256 << 20  # as engine.gpu.timing
# Three flushes take some 200 µs: while they run the host queues what follows, so that its own time is not in the measurement.
FLUSHES = 3
LEAST_ROUNDS, MOST_ROUNDS, HALF_WIDTH, BUDGET_S = 15, 60, 0.005, 6.0


def read(place: Place, file: str) -> tuple[Path, KernelSpec, str | None, Program]:
    """A kernel of the checkout as the command reads it: its repository (an unpacked archive has no .git), spec, the spec's file, program.

    Raises OptimlError.
    """
    from engine.cuda.load import load_program, repository_root
    from engine.spec.find import find_spec

    path = place.root / file
    root = repository_root(path)
    spec, spec_path = find_spec(root, path)
    return root, spec, spec_path, load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])


def written(place: Place, root: Path, changed: Mapping[str, str]) -> dict[str, bytes]:
    """Files by their paths in the checkout as files of a program of the repository `root`."""
    return {os.path.relpath(place.root / name, root): text.encode() for name, text in changed.items()}


class Stage:
    """One kernel of the checkout on the GPU, as it is and with files changed, on the inputs of its first timing case.

    `changed` has whole files by their paths in the checkout. Raises OptimlError where it cannot be built.
    """

    def __init__(self, place: Place, file: str, changed: Mapping[str, str] | None = None) -> None:
        from engine.evaluate.build import Builder
        from engine.gpu.buffers import CaseBuffers
        from engine.gpu.device import Tools
        from engine.run.machine import make_machine

        self.machine = make_machine(device="gpu")
        root, self.spec, self.spec_path, self.program = read(place, file)
        self.builder = Builder(self.spec, root, self.machine.compiler, self.machine.target, self.spec_path)
        self.case = self.spec.time[0]
        self.buffers = CaseBuffers(self.spec, self.case, Tools(self.machine.tool_kernels()), widened=False)
        self.buffers.draw(1, "declared", widen=False)
        first = self.builder.original(self.program)
        self.calls = {"before": self.call(first)}
        files = written(place, root, changed or {})
        if strange := set(files) - set(self.program.files):
            why = f"the record changes {min(strange)}, which the kernel has no part in"
            raise MachineError(why, file, "measure the suite anew")
        best = self.builder.candidate(self.program.replace(files)) if files else first
        self.calls["ours"] = self.call(best)

    def call(self, built: Any) -> Callable[[], None]:
        """A function that launches a program once on the buffers, on the default stream."""
        import cupy as cp

        from engine.gpu.device import Call, Loaded

        launches = built.launches[len(self.spec.check)]
        arguments = self.buffers.arguments(self.buffers.main)
        ready = Call(Loaded(built.binary.cubin, built.binary.entries, built.binary.constants), launches, arguments)
        return lambda: ready(cp.cuda.Stream.null)

    def reset(self) -> None:
        """First contents of what is both read and written."""
        self.buffers.reset(self.buffers.main, None)

    def array(self, name: str) -> Any:
        """A copy of an input's (or an inout's first) contents as a CuPy array."""
        arena = self.buffers.pristine if name in self.buffers.inout else self.buffers.main
        assert arena is not None
        return arena.view(name, parse_dtype(self.spec.argument(name).type).storage).copy()

    def result(self, name: str = "ours") -> dict[str, Any]:
        """What a program leaves in its outputs, as copies."""
        self.reset()
        self.calls[name]()
        written = self.buffers.written
        return {n: self.buffers.main.view(n, parse_dtype(self.spec.argument(n).type).storage).copy() for n in written}

    def close(self) -> None:
        """Give everything back."""
        self.machine.close()


def interleaved(
    contestants: Mapping[str, Callable[[], Any]], reset: Mapping[str, Callable[[], Any]] | None = None, budget_s: float = BUDGET_S
) -> dict[str, list[float]]:  # fmt: skip
    """Times in µs of each contestant, one a round, in an order drawn anew each round; caches are flushed before each.

    Rounds go on until every ratio to the first contestant is known to half a per cent, or the budget is spent.
    """
    import cupy as cp

    reset = reset or {}
    flush = cp.empty(FLUSH_BYTES // 4, cp.uint32)
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    order = np.random.default_rng(0)
    for function in contestants.values():  # whatever a first call sets up
        for _ in range(3):
            function()
    cp.cuda.Device().synchronize()
    begin = time.monotonic()
    for done in range(1, MOST_ROUNDS + 1):
        for name in order.permutation(names):
            reset.get(name, lambda: None)()
            for _ in range(FLUSHES):
                flush.fill(done)
            start.record()
            contestants[name]()
            stop.record()
            stop.synchronize()
            samples[name].append(1e3 * float(cp.cuda.get_elapsed_time(start, stop)))
        spent = time.monotonic() - begin
        if done >= LEAST_ROUNDS and (spent > budget_s or _narrow(samples)):
            break
    return samples


def _narrow(samples: Mapping[str, list[float]]) -> bool:
    first, *others = samples.values()
    return all(paired_ratio(other, first).half_width < HALF_WIDTH for other in others)


def compared(samples: Mapping[str, list[float]]) -> dict[str, Any]:
    """Medians in µs, and for each contestant but "ours" its time over ours with a 95 % interval: above 1, ours is faster."""
    times = {name: float(np.median(values)) for name, values in samples.items()}
    ratios = {
        name: dataclasses.asdict(paired_ratio(values, samples["ours"]))
        for name, values in samples.items()
        if name != "ours"
    }
    return {"times_us": times, "ratios": ratios, "rounds": min(len(values) for values in samples.values())}


def disagreement(got: Any, wanted: Any) -> float:
    """The root mean square of the difference of two arrays, over that of the second: a rounding here or there is no other result."""
    import cupy as cp

    a, b = cp.asarray(got).reshape(-1).astype(cp.float64), cp.asarray(wanted).reshape(-1).astype(cp.float64)
    if a.size != b.size:
        return float("inf")
    scale = float(cp.sqrt(cp.mean(b * b))) or 1.0
    return float(cp.sqrt(cp.mean((a - b) ** 2))) / scale
