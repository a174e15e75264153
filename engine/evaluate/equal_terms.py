"""Inputs of one value each at the timed sizes: sums of equal terms round one way, so that it shows how exact a sum is.

Among drawn numbers rounding goes both ways and cancels out: a sum without its compensation, or in lower precision, comes out nearly as
well. An original that is exact on equal terms may be followed by an edit that is some times less so, and by no other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.compile.built import Built
from engine.cpu.jobs import CpuJob, CpuRun
from engine.errors import OptimlError
from engine.evaluate.sampled_places import counterparts
from engine.evaluate.sampled_sizes import SampledSizes, with_blocks
from engine.model import Failure
from engine.spec.data import Tiles
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VALUES = 3  # contents of each case: the terms of one of them may be rounded by little. Ours
_CASES = 2  # timing cases: the first and the last
_TILE = 4096
_EXACT_ULPS = 64.0  # of a result: what is further from its twin in double precision says nothing of edits. Ours
# Times by which an edit may be less exact, and units in the last place that it may be off in any case: some times more terms in a row
# than the original has. Ours.
_RATIO, _FLOOR_ULPS = 32.0, 64.0


class _EqualTiles(Tiles):
    """First contents of which those of each float input are one drawn value."""

    def _draw(self, case: Case, argument: Argument, dtype: DType) -> Any:
        drawn = super()._draw(case, argument, dtype)
        if argument.role == "out" or dtype.kind != "float" or argument.fill.kind not in ("normal", "uniform"):
            return drawn
        return np.full_like(drawn, drawn[0])


@dataclass(frozen=True)
class _Timed:
    """The original's run of two blocks with its twin's."""

    case: Case
    job: CpuJob
    run: CpuRun
    wide: CpuRun


@dataclass
class EqualTerms:
    """The runs of one original, beside the sampled sizes, and the verdict on candidates."""

    spec: KernelSpec
    sampled: SampledSizes
    rng: random.Random
    _known: list[_Timed] = field(default_factory=list, init=False)

    def draw(self) -> None:
        """Run the original and its twin: nothing is known where there is none, or they do not end."""
        if len(self.spec.steps) != 1:
            return
        machinery, jobs = self.sampled.machinery, list[tuple[Case, CpuJob]]()
        for case in {id(case): case for case in (*self.spec.time[:1], *self.spec.time[-1:])}.values():
            for _ in range(_VALUES):
                try:
                    launch, job = self.sampled.placed(case, _EqualTiles(self.spec, self.rng.getrandbits(40), _TILE))
                except OptimlError:
                    continue
                if job is not None:
                    jobs.append((case, with_blocks(job, launch, sorted({0, launch.blocks - 1}))))
        twins = [twin for _, job in jobs if (twin := machinery.widened(job)) is not None]
        if not twins:
            return
        runs = machinery.run(self.sampled.original.extra, [job for _, job in jobs])
        wides = machinery.run(twins[0][0], [twin for _, twin in twins])
        for (case, job), run, wide in zip(jobs, runs, wides, strict=True):
            if not run.findings and not wide.findings:
                self._known.append(_Timed(case, job, run, wide))

    def judge(self, built: Built) -> Failure | None:
        """Where a candidate is many times further from the twin than the original is."""
        pairs = list[tuple[_Timed, CpuJob]]()
        for known in self._known:
            assert known.job.sample is not None
            try:
                (launch,) = self.sampled.machinery.launches(built.program, known.case.sizes)
            except OptimlError:
                return None
            blocks = counterparts(known.job.sample.blocks, known.job.launches[0], launch)
            pairs.append((known, with_blocks(known.job, launch, blocks)))
        if not pairs:
            return None
        runs = self.sampled.machinery.run(built.extra, [job for _, job in pairs])
        for argument in self.spec.outputs:
            name, dtype = argument.name, parse_dtype(argument.type)
            if dtype.kind != "float":
                continue
            own, other = 0.0, 0.0
            for (known, _), run in zip(pairs, runs, strict=True):
                if not run.findings and (found := _errors(name, dtype, known, run)) is not None:
                    own, other = max(own, found[0]), max(other, found[1])
            most = max(_RATIO * own, _FLOOR_ULPS * dtype.epsilon)
            if own <= _EXACT_ULPS * dtype.epsilon and other > most:
                return Failure(
                    f"'{name}' is {other:.2g} of itself from the exact result where all terms are equal, the original {own:.2g} "
                    f"(timing case {self.spec.time[-1].name})",
                    argument=name, error=other, tolerance=most,
                )  # fmt: skip
        return None


def _errors(name: str, dtype: DType, known: _Timed, run: CpuRun) -> tuple[float, float] | None:
    """The largest errors of the original and of a candidate relative to the twin, where all three wrote; None where they did not."""
    before, twin, after = known.run.writes[name], known.wide.writes[name], run.writes[name]
    entries, first, second = np.intersect1d(before.entries, after.entries, assume_unique=True, return_indices=True)
    plain = ~(before.atomic[first] | after.atomic[second])
    at = np.searchsorted(twin.entries, entries[plain])
    if not plain.any() or not len(twin.entries) or (at >= len(twin.entries)).any():
        return None
    exact = twin.values[at].astype(np.float64)
    pairs = (dtype.to_float64(before.values[first[plain]]), dtype.to_float64(after.values[second[plain]]))
    counts = np.isfinite(exact) & (np.abs(exact) > dtype.tiny) & (twin.entries[at] == entries[plain])
    own, other = (_largest(values, exact, counts) for values in pairs)
    return own, other


def _largest(values: NDArray[Any], exact: NDArray[np.float64], counts: NDArray[np.bool_]) -> float:
    if not counts.any():
        return 0.0
    with np.errstate(all="ignore"):
        error = np.abs(values - exact)[counts] / np.abs(exact[counts])
    return float(np.where(np.isfinite(error), error, np.inf).max())
