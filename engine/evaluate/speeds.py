"""Predicted times of programs, from their machine code and the accesses that small runs on the CPU count."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.compile.built import Built
from engine.cpu import CpuJob, CpuMachine, CpuRun
from engine.errors import NotPredictedError, RefusedError, SourceError, SpecError
from engine.evaluate.build import Builder
from engine.evaluate.size_relations import relations
from engine.model import CaseTiming, LaunchConfig, Measurement
from engine.predict.counts import AccessCounts
from engine.predict.footprint import Footprint, footprint
from engine.predict.predictor import Predictor
from engine.predict.probe_sizes import ProbeLimits, ProbeSizes, Sizes, probe_sizes
from engine.predict.scale import CountedRuns, Full, extrapolate
from engine.spec.data import buffer_elements, bytes_needed, poisoned, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]
    _Probe = tuple[Case, Arrays, Mapping[str, Any]]
    _Key = tuple[tuple[tuple[str, int | float], ...], int]

_PROBE_BYTES = 512 << 10  # of all buffers of one counting run: some 10^5 elements, tens of milliseconds
# A kernel whose grid is capped is counted at up to so many times that: its threads then do several trips.
_PROBE_GROWTH = 32
# Tens of milliseconds, unless work grows with the square of a size: then smaller sizes are tried.
_COUNT_S, _MOST_COUNT_S = 0.5, 20.0
_SHRINK, _MOST_SHRINK = 8, 1024
_ACCESSES = 1 << 18  # of all threads in the base run: some 0.05 s
# A prediction is given up where the inputs change it by more than the first factor, or a run that was held out by the second.
_REPEATS, _HELD_OUT = 1.3, 1.5


def _key(sizes: Sizes, inputs: int) -> _Key:
    return tuple(sizes.items()), inputs


@dataclass(frozen=True)
class _Runs:
    """The runs that counted accesses, by sizes and inputs; `sizes` are those of each timing case."""

    sizes: Sequence[ProbeSizes]
    runs: Mapping[_Key, CpuRun]

    @property
    def failed(self) -> str:
        """Why a run counted nothing; "" where all did."""
        return next((f.message for run in self.runs.values() if run.counts is None for f in run.findings), "")

    @property
    def over(self) -> int:
        """How many times less the base runs should do, a power of two; 1 where they are small enough to be done for each candidate."""
        if self.failed:
            return _SHRINK
        runs = [self._counts(each.base, 0) for each in self.sizes]
        most = max(sum(site.lanes for kernel in run.kernels for site in kernel.sites) for run in runs)
        return 1 << max(0, math.ceil(math.log2(max(most, 1.0) / _ACCESSES)))

    def of(self, sizes: ProbeSizes) -> CountedRuns:
        grown = [(one, self._counts(one, 0)) for one in sizes.doubled]
        return CountedRuns(sizes.base, [self._counts(sizes.base, 0), self._counts(sizes.base, 1)], grown)

    def held_out(self, sizes: ProbeSizes) -> tuple[Sizes, AccessCounts] | None:
        return None if sizes.held_out is None else (sizes.held_out, self._counts(sizes.held_out, 0))

    def _counts(self, sizes: Sizes, inputs: int) -> AccessCounts:
        counts = self.runs[_key(sizes, inputs)].counts
        if counts is None:
            raise RefusedError("what the kernel accesses cannot be counted on the CPU: a run did not end")
        return counts


class Speeds:
    """Speedups of programs of one spec over the first one that is asked for, the original. Each is predicted once."""

    def __init__(self, spec: KernelSpec, builder: Builder, machine: CpuMachine, predictor: Predictor) -> None:
        self._spec, self._builder, self._machine, self.predictor = spec, builder, machine, predictor
        self._random = random.Random(secrets.randbits(64))
        self._probe_inputs: dict[_Key, _Probe] = {}
        self._times: dict[tuple[object, ...], list[float]] = {}
        self._original_us: list[float] = []
        self._shrink = 1
        # What cannot be predicted takes as long as the original: for who asks of correctness alone.
        self.lenient = False
        self._footprints: dict[tuple[object, ...], list[Footprint]] = {}

    def predict(self, built: Built) -> Measurement:
        """The predicted speedup over the original; an interval it cannot have, so both bounds are the ratio."""
        known = self._times.get(built.identity)
        if known is None:
            known = self._times[built.identity] = self._known_times(built)
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

    def _known_times(self, built: Built) -> list[float]:
        try:
            return self._times_us(built)
        except NotPredictedError:
            if not self.lenient:
                raise
            return self._original_us or [1.0] * len(self._spec.time)

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
        """Predicted time of each timing case, from the accesses counted in small runs. Raises NotPredictedError where that takes too long
        and where the prediction does not hold.
        """
        if not self._original_us:
            while self._shrink < _MOST_SHRINK and (over := self._count(built, brief=True).over) > 1:
                self._shrink *= over
        counted = self._count(built)
        if counted.failed:
            raise NotPredictedError(
                f"the kernel's accesses cannot be counted on the CPU: a run {counted.failed}", do="measure it on a GPU"
            )
        times, moved_by = [], []
        for index, (case, sizes) in enumerate(zip(self._spec.time, counted.sizes, strict=True)):
            full = self._full(case, built.launches[len(self._spec.check) + index])
            runs = counted.of(sizes)
            counts = extrapolate(runs, full)
            predicted = self.predictor.predict(built.binary, full.launches, counts)
            self._doubt(built, full, runs, counted.held_out(sizes), predicted.time_us)
            times.append(predicted.time_us)
            code, figures = self.predictor.code(built.binary), self.predictor.figures
            moved = footprint(built.binary, full.launches, counts, code, figures)
            moved_by.append(replace(moved, parts_us={str(part): us for part, us in predicted.terms.items()}))
        self._footprints[built.identity] = moved_by
        return times

    def _full(self, case: Case, launches: Sequence[LaunchConfig]) -> Full:
        moved = {a.name: n * parse_dtype(a.type).itemsize for a, n in self._sized(case)}
        loaded = sum(n for a, n in moved.items() if self._spec.argument(a).role != "out")
        stored = sum(n for a, n in moved.items() if self._spec.argument(a).role != "in")
        return Full(case.sizes, launches, loaded, stored, moved)

    def _time_us(self, built: Built, full: Full, counts: AccessCounts) -> float:
        return self.predictor.predict(built.binary, full.launches, counts).time_us

    def _doubt(
        self, built: Built, full: Full, runs: CountedRuns, held: tuple[Sizes, AccessCounts] | None, time_us: float
    ) -> None:
        """Raise NotPredictedError where other inputs, or the run that had no part in the prediction, lead to another time."""
        if any(counts != runs.base[0] for counts in runs.base):
            times = [self._time_us(built, full, extrapolate(runs, full, sample=i)) for i in range(len(runs.base))]
            if max(times) > _REPEATS * min(times):
                raise NotPredictedError(
                    f"not predicted: with other inputs of the same sizes it is {max(times) / min(times):.2g} times as long "
                    f"(more than {_REPEATS:g})", do="measure it on a GPU",
                )  # fmt: skip
        if held is not None:
            other = self._time_us(built, full, extrapolate(runs, full, start=held))
            missed = max(time_us / other, other / time_us)
            if missed > _HELD_OUT:
                raise NotPredictedError(
                    f"not predicted: a run that was held out misses what the others predict by {missed:.2g} times "
                    f"(more than {_HELD_OUT:g})", do="measure it on a GPU",
                )  # fmt: skip

    def _count(self, built: Built, *, brief: bool = False) -> _Runs:
        """Small runs that count accesses: those of each timing case, each once; with `brief` the first of each, in little time."""
        sizes = [self._probe_sizes(built, case) for case in self._spec.time]
        probes: dict[_Key, _Probe] = {}
        for case, each in zip(self._spec.time, sizes, strict=True):
            held = [each.held_out] if each.held_out is not None else []
            all_of = [(each.base, 0), (each.base, 1), *((one, 0) for one in [*each.doubled, *held])]
            for at, inputs in all_of[:1] if brief else all_of:
                probes.setdefault(_key(at, inputs), self._probe(case, at, inputs))
        jobs = [
            CpuJob(
                self._builder.launches_for(built.program, probe.sizes), buffers, values, 0, count=True, every_block=True
            )
            for probe, buffers, values in probes.values()
        ]
        runs = self._machine.run_many(built.extra, jobs, deadline_s=_COUNT_S if brief else _MOST_COUNT_S)
        return _Runs(sizes, dict(zip(probes, runs, strict=True)))

    def _probe_sizes(self, built: Built, case: Case) -> ProbeSizes:
        def blocks(sizes: Sizes) -> int:
            return max(launch.blocks for launch in self._builder.launches_for(built.program, sizes))

        def elements(sizes: Sizes) -> int:
            return max((count for _, count in self._sized(Case("", dict(sizes)))), default=0)

        def legal(sizes: Sizes) -> bool:
            try:
                return bytes_needed(self._spec, Case("", dict(sizes))) > 0 and blocks(sizes) > 0
            except (SpecError, SourceError):
                return False

        def within(most: int) -> Callable[[Sizes], bool]:
            return lambda sizes: bytes_needed(self._spec, Case("", dict(sizes))) <= most

        related = relations(self._spec)
        fits = within(_PROBE_BYTES // self._shrink)
        small = probe_sizes(case.sizes, ProbeLimits(fits, shrink=self._shrink, legal=legal), related).base
        # A grid of one size loops over the elements: each thread has to have more than one trip.
        threads = max(x.blocks * x.threads for x in self._builder.launches_for(built.program, case.sizes))
        one_size = blocks(small) == blocks(case.sizes)
        limits = ProbeLimits(
            fits, blocks, within(_PROBE_BYTES * _PROBE_GROWTH), elements,
            2 * threads if one_size else 0, self._shrink, legal,
        )  # fmt: skip
        return probe_sizes(case.sizes, limits, related)

    def _probe(self, case: Case, sizes: Sizes, inputs: int) -> _Probe:
        """Sizes to count accesses at, with the inputs of that number, drawn once: (case, buffers, scalars)."""
        key = _key(sizes, inputs)
        if key not in self._probe_inputs:
            probe = Case(case.name, dict(sizes))
            buffers = poisoned(self._spec, probe, self._random.getrandbits(40), "declared")
            self._probe_inputs[key] = (probe, buffers, scalars(self._spec, probe))
        return self._probe_inputs[key]

    def _sized(self, case: Case) -> list[tuple[Argument, int]]:
        return [(self._spec.argument(name), count) for name, count in buffer_elements(self._spec, case).items()]
