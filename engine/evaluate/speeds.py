"""Predicted times of programs, from their machine code and the accesses that small runs on the CPU count."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.compile.built import Built
from engine.cpu import CpuJob, CpuMachine, CpuRun
from engine.errors import RefusedError
from engine.evaluate.build import Builder
from engine.model import CaseTiming, Measurement
from engine.predict.footprint import Footprint, footprint
from engine.predict.predictor import Predictor
from engine.predict.scale import Sizes, extrapolate, probe_sizes
from engine.spec.data import buffer_elements, bytes_needed, poisoned, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]
    _Probe = tuple[Case, Arrays, Mapping[str, Any]]

_PROBE_BYTES = 512 << 10  # of all buffers of one counting run: some 10^5 elements, tens of milliseconds
# A kernel whose grid is capped is counted at up to so many times that: its threads then do several trips.
_PROBE_GROWTH = 32
# Tens of milliseconds, unless work grows with the square of a size: then smaller sizes are tried, each so many times smaller.
_COUNT_S, _MOST_COUNT_S = 5.0, 20.0
_SHRINK, _MOST_SHRINK = 8, 512


class Speeds:
    """Speedups of programs of one spec over the first one that is asked for, the original. Each is predicted once."""

    def __init__(self, spec: KernelSpec, builder: Builder, machine: CpuMachine, predictor: Predictor) -> None:
        self._spec, self._builder, self._machine, self.predictor = spec, builder, machine, predictor
        self._random = random.Random(secrets.randbits(64))
        self._probe_inputs: dict[tuple[tuple[str, int | float], ...], _Probe] = {}
        self._times: dict[tuple[object, ...], list[float]] = {}
        self._original_us: list[float] = []
        self._shrink = 1
        self._footprints: dict[tuple[object, ...], list[Footprint]] = {}

    def predict(self, built: Built) -> Measurement:
        """The predicted speedup over the original; an interval it cannot have, so both bounds are the ratio."""
        known = self._times.get(built.identity)
        if known is None:
            known = self._times[built.identity] = self._times_us(built)
        if not self._original_us:
            self._original_us = known
        total = sum(case.weight for case in self._spec.time)
        logs = 0.0
        cases = []
        for case, before, after in zip(self._spec.time, self._original_us, known, strict=True):
            ratio = before / after
            logs += case.weight / total * math.log(ratio)
            cases.append(CaseTiming(case.name, case.weight, before, after, ratio, ratio, ratio, 0))
        ratio = math.exp(logs)
        return Measurement(tuple(cases), ratio, ratio, ratio, predicted=True)

    def footprint(self, built: Built, case: int) -> Footprint | None:
        """What is predicted to move for a timing case; None before a prediction."""
        known = self.footprints(built)
        return None if known is None else known[case]

    def footprints(self, built: Built) -> list[Footprint] | None:
        """The same of every timing case."""
        return self._footprints.get(built.identity)

    def seed(self, secret: int) -> None:
        """Count with the same inputs as every other device of a search."""
        self._random.seed(secret)

    def _times_us(self, built: Built) -> list[float]:
        """Predicted time of each timing case, from the accesses counted in small runs. Raises RefusedError where that takes too long."""
        probes, wanted, runs = self._count(built)
        while not self._original_us and any(run.counts is None for run in runs) and self._shrink < _MOST_SHRINK:
            self._shrink *= _SHRINK
            probes, wanted, runs = self._count(built)
        why = next((f.message for run in runs if run.counts is None for f in run.findings), "")
        if why:
            raise RefusedError(
                f"the kernel's accesses cannot be counted on the CPU: a run {why}", do="measure it on a GPU"
            )
        times, moved_by = [], []
        for index, case in enumerate(self._spec.time):
            counted = [
                (probe.sizes, run.counts)
                for probe, _, _ in wanted[index]
                for (other, _, _), run in zip(probes, runs, strict=True)
                if probe.sizes == other.sizes and run.counts is not None
            ]
            launches = built.launches[len(self._spec.check) + index]
            moved = {a.name: n * parse_dtype(a.type).itemsize for a, n in self._sized(case)}
            loaded = sum(n for a, n in moved.items() if self._spec.argument(a).role != "out")
            stored = sum(n for a, n in moved.items() if self._spec.argument(a).role != "in")
            counts = extrapolate(
                counted, case.sizes, launches, load_bytes=loaded, store_bytes=stored, array_bytes=moved
            )
            times.append(self.predictor.predict(built.binary, launches, counts).time_us)
            moved_by.append(footprint(built.binary, launches, counts, self.predictor.code(built.binary)))
        self._footprints[built.identity] = moved_by
        return times

    def _count(self, built: Built) -> tuple[list[_Probe], list[list[_Probe]], list[CpuRun]]:
        """Small runs that count accesses: each once, those of each timing case, and what came of them."""
        wanted = [[self._probe(case, sizes) for sizes in self._probe_sizes(built, case)] for case in self._spec.time]
        probes: list[_Probe] = []
        for probe in (probe for one in wanted for probe in one):
            if not any(probe[0].sizes == other.sizes for other, _, _ in probes):
                probes.append(probe)
        jobs = [
            CpuJob(self._builder.launches_for(built.program, probe.sizes), buffers, values, 0, count=True)
            for probe, buffers, values in probes
        ]
        may_shrink = not self._original_us and self._shrink < _MOST_SHRINK
        runs = self._machine.run_many(built.extra, jobs, deadline_s=_COUNT_S if may_shrink else _MOST_COUNT_S)
        return probes, wanted, runs

    def _probe_sizes(self, built: Built, case: Case) -> tuple[dict[str, int | float], ...]:
        def blocks(sizes: Sizes) -> int:
            return max(launch.blocks for launch in self._builder.launches_for(built.program, sizes))

        def elements(sizes: Sizes) -> int:
            return max((count for _, count in self._sized(Case("", dict(sizes)))), default=0)

        def within(most: int) -> Callable[[Sizes], bool]:
            return lambda sizes: bytes_needed(self._spec, Case("", dict(sizes))) <= most

        small = probe_sizes(case.sizes, within(_PROBE_BYTES), shrink=self._shrink)[0]
        # A grid of one size loops over the elements: counted are a few blocks, and each thread has to have more than one trip.
        threads = max(x.blocks * x.threads for x in self._builder.launches_for(built.program, case.sizes))
        one_size = blocks(small) == blocks(case.sizes)
        return probe_sizes(
            case.sizes,
            within(_PROBE_BYTES),
            blocks=blocks,
            fits_at_most=within(_PROBE_BYTES * _PROBE_GROWTH),
            work=elements,
            least_work=2 * threads if one_size else 0,
            shrink=self._shrink,
        )

    def _probe(self, case: Case, sizes: Sizes) -> _Probe:
        """Sizes to count accesses at, with their inputs, drawn once: (case, buffers, scalars)."""
        key = tuple(sizes.items())
        if key not in self._probe_inputs:
            probe = Case(case.name, dict(sizes))
            buffers = poisoned(self._spec, probe, self._random.getrandbits(40), "declared")
            self._probe_inputs[key] = (probe, buffers, scalars(self._spec, probe))
        return self._probe_inputs[key]

    def _sized(self, case: Case) -> list[tuple[Argument, int]]:
        return [(self._spec.argument(name), count) for name, count in buffer_elements(self._spec, case).items()]
