"""What becomes of contents for which an edit may be another program, though it gives the same results with ordinary ones.

One input is huge, or all its numbers lie far from zero: an edit that multiplies in another order, rounds a factor to zero or subtracts
large terms loses the whole result. Most elements are alike: an edit that concludes from some of them what the others are is wrong.
All are faint, and an edit leaves out what the original adds to them. Some are NaN, and the original passes over them.

Only elements count at which the original is as close to its twin in double precision as rounding allows: beside a huge input also where
that is some times larger, as sums in another order then overflow as little as its own; beside NaN where the original's result is
the one without them. Only differences count that no rounding explains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from engine.compile.built import Built
from engine.cpu import CpuBinary, CpuJob, CpuMachine
from engine.cuda.phases import NVCC, form_of
from engine.evaluate.twin_jobs import twin_job
from engine.model import Failure, LaunchConfig
from engine.spec.alike import ALIKE, NAN_SHARES, alike, faint, far, halves, side_by_side, spread, with_nan
from engine.spec.data import bytes_needed, poisoned, scalars
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.spec.magnitudes import AWAY, FROM_ONE, HUGE, Mix, all_magnitudes, away, mixed, mixes, top
from engine.verify.defences import ALL, Defences
from engine.verify.other_callers import whole_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Marks = dict[str, NDArray[np.bool_]]

_EXACT_ULPS = 64.0  # of the result: the original's own rounding, where nothing cancelled out or overflowed. Ours
_GROSS = 0.125  # of the result: what no order of rounding makes of an exact one. Ours
# Likewise where numbers are ordinary and most are equal: sums of them round one way, by less than this. Ours.
_ALIKE = 2.0**-10
_ROOM = 8.0  # times by which the huge values may grow: a power of two, which rounds nothing. Ours
# Draws of contents far from zero, where the original must be exact: of few elements, and of many. Ours
_DRAWS, _FEW_DRAWS = 10, 2
_BY_RULE = 0.9  # of all elements: where sums are exact by luck fewer are, where terms cancel out more. Ours
_DEADLINE_S = 4.0
_NEARLY = 2.0**-7  # of a result: what the original may be off far from zero, a sixteenth of what counts. Ours
_PLAIN_PEAK, _MOST_PEAKS = 8, 2  # halves without a scale; peaks that are tried, of those with all bits set. Ours

Asked = Literal["all", "not of rules", "not of rules, whole numbers"]


@dataclass(frozen=True)
class _ContentsTrial:
    """Contents for one case, and others that say at which elements the original's results with them count.

    With "larger" ones it must be exact too; with all "others" of its kind nearly everywhere, so that it is not by luck. With "plain"
    ones it must give the same. "usual" ones say how large results are.
    """

    words: str
    case: int
    contents: tuple[Arrays, ...]
    beside: Literal["larger", "others", "plain", "usual"]
    order: int
    wrong: float = _GROSS  # of a result as large as usual, or larger: what counts as a difference
    exact: float = 0.0  # of a result: how far the original may be from its twin; 0: by rounding alone
    asked: Asked = "all"
    rule: float = _BY_RULE  # of all elements, with "others": where the original must be exact
    coarse: bool = False  # whole numbers count too, where they differ by more than an eighth of a usual one

    @property
    def tried(self) -> tuple[Arrays, ...]:
        """The contents that candidates are run with."""
        return self.contents if self.beside == "others" else self.contents[:1]


@dataclass(frozen=True)
class _KnownContents:
    """Contents of a trial with the elements of each output that count, the results there, and the magnitude of a usual result."""

    trial: _ContentsTrial
    buffers: Arrays
    counts: Marks
    results: Arrays
    usual: Mapping[str, float]


@dataclass
class MixedMagnitudes:
    """Runs beside one original; `wide` is its twin in double precision. Without one only whole numbers are compared."""

    spec: KernelSpec
    machine: CpuMachine
    original: Built
    wide: CpuBinary | None
    defences: Defences = ALL
    _runs: list[_KnownContents] = field(default_factory=list, init=False)

    def draw(self, rng: random.Random) -> None:
        """Run the original and its twin on newly drawn contents."""
        trials = list(self._trials(rng))
        if not trials:
            return
        jobs = [self._job(self.original.launches, trial, each) for trial in trials for each in trial.contents]
        # Whole numbers have no twin to compare with: those that hang on the order of threads do not count.
        again = [replace(job, order=job.order + 1) for job in jobs]
        runs = self.machine.run_many(self.original.extra, [*jobs, *again], deadline_s=_DEADLINE_S)
        twins = runs[: len(jobs)]
        if self.wide is not None:
            twins = self.machine.run_many(self.wide, [twin_job(self.spec, job) for job in jobs], deadline_s=_DEADLINE_S)
        together = list(zip(runs, runs[len(jobs) :], twins, strict=False))
        for trial in trials:
            own, together = together[: len(trial.contents)], together[len(trial.contents) :]
            if not any(run.findings for each in own for run in each):
                self._add(trial, [_TrialOutputs(*(run.outputs for run in each)) for each in own])

    def _add(self, trial: _ContentsTrial, results: Sequence[_TrialOutputs]) -> None:
        """Keep a trial by what the original and its twin make of each of its contents."""
        counts = dict[str, Any]()
        for name, own in results[0].own.items():
            dtype = self._dtype(name)
            if dtype.kind == "float" and self.wide is not None:
                if trial.asked == "not of rules, whole numbers":
                    continue
                exact = [
                    _exact(dtype, each.own[name], each.twin[name].astype(np.float64), trial.exact) for each in results
                ]
                counts[name] = exact[0] if trial.beside in ("plain", "usual") else np.logical_and.reduce(exact)
                if trial.beside == "larger":
                    counts[name] &= results[1].twin[name] != 0
                elif trial.beside == "others":
                    counts[name] = np.full(own.shape, np.mean(exact) >= trial.rule)
            elif dtype.kind == "int" and trial.coarse:
                alike = [
                    (each.own[name] == each.again[name]) & ~_coarse(each.twin[name], each.own[name]) for each in results
                ]
                counts[name] = np.full(own.shape, np.mean(alike) >= trial.rule)
            elif dtype.kind == "int" and trial.beside in ("plain", "usual"):
                counts[name] = own == results[0].again[name]
            if trial.beside == "plain" and name in counts:
                counts[name] &= own == results[1].own[name]
        usual = {n: _rms(self._dtype(n).to_float64(results[-1].own[n])) for n in counts if self._float(n)}
        for buffers, each in zip(trial.tried, results, strict=False):
            wanted = {n: each.twin[n].astype(np.float64) if n in usual else each.own[n] for n in counts}
            own_counts = counts
            if trial.beside in ("larger", "others"):  # beside zeros there is no relative error
                own_counts = {name: at & (wanted[name] != 0) for name, at in counts.items()}
            if trial.beside == "others":
                own_counts |= {
                    n: at & _exact(self._dtype(n), each.own[n], wanted[n]) for n, at in own_counts.items() if n in usual
                }
            if any(at.any() for at in own_counts.values()):
                self._runs.append(_KnownContents(trial, buffers, own_counts, wanted, usual))

    def _trials(self, rng: random.Random) -> Iterator[_ContentsTrial]:
        spec = self.spec
        by_size = sorted(range(len(spec.check)), key=lambda i: bytes_needed(spec, spec.check[i]))

        def declared(case: int) -> tuple[int, dict[str, NDArray[Any]]]:
            seed = rng.getrandbits(40)
            return seed, poisoned(spec, spec.check[case], seed, "declared")

        if self.defences.mixed_magnitudes and self.wide is not None:
            for turn, mix in enumerate(mixes(spec, rng)):
                seed, buffers = declared(by_size[-1])
                pair = (mixed(spec, buffers, mix, seed, _ROOM), mixed(spec, buffers, mix, seed))
                yield _ContentsTrial(_said(mix), by_size[-1], pair, "larger", turn % 3)
            if (every := all_magnitudes(spec)) is not None:
                for turn, case in enumerate(by_size):
                    seed, buffers = declared(case)
                    pair = (mixed(spec, buffers, every, seed, _ROOM), mixed(spec, buffers, every, seed))
                    yield _ContentsTrial(f"inputs {FROM_ONE}", case, pair, "larger", turn % 3)
            for turn, mix in enumerate(away(spec, rng)):  # a sum of many such numbers is exact by luck alone
                for case, draws in {by_size[-1]: _FEW_DRAWS, by_size[0]: _DRAWS}.items():
                    drawn = [declared(case) for _ in range(draws)]
                    several = tuple(mixed(spec, buffers, mix, seed) for seed, buffers in drawn)
                    yield _ContentsTrial(_said(mix), case, several, "others", turn % 3)
            for turn, case in enumerate(dict.fromkeys((by_size[0], by_size[-1]))):
                tops = tuple(top(spec, declared(case)[1]) for _ in range(_FEW_DRAWS))
                words = "inputs near the end of their type's range"
                # Sums in another order may overflow: only where none overflows at all it says something.
                yield _ContentsTrial(words, case, tops, "others", turn % 3, asked="not of rules", rule=1.0, coarse=True)
        if self.defences.alike_inputs:
            for turn, (how, case) in enumerate((how, case) for how in ALIKE for case in by_size):
                seed, buffers = declared(case)
                pair = (alike(spec, buffers, how, seed), buffers)
                yield _ContentsTrial(how.words, case, pair, "usual", turn % 3, self._least())
            for turn, case in enumerate(by_size):
                seed, buffers = declared(case)
                if (small := faint(spec, buffers, seed)) is not None:
                    yield _ContentsTrial("faint inputs", case, (small, buffers), "usual", turn % 3)
            for turn, case in enumerate(by_size[-2:]):
                seed, buffers = declared(case)
                if (sides := side_by_side(spec, spec.check[case], buffers, seed)) is not None:
                    words = "inputs with one large number in each row"
                    yield _ContentsTrial(words, case, (sides, buffers), "usual", turn % 3, self._least())
        if self.defences.ignored_nan:
            for turn, (share, case) in enumerate((share, case) for share in NAN_SHARES for case in by_size):
                seed, buffers = declared(case)
                if (both := with_nan(spec, buffers, seed, share)) is not None:
                    words = "NaN, which the original passes over"
                    yield _ContentsTrial(words, case, both, "plain", turn % 3, self._least(), asked="not of rules")
        yield from self._chosen(by_size[-1], declared)

    def _chosen(self, case: int, declared: Callable[[int], tuple[int, Arrays]]) -> Iterator[_ContentsTrial]:
        """Contents at which one form of the arithmetic differs from another: far from zero, halves, subnormal ones."""
        spec = self.spec
        if self.defences.far_inputs and self.wide is not None:
            for turn, name in enumerate(spread(spec)):
                seed, buffers = declared(case)
                pair = (far(spec, buffers, name, seed), buffers)
                words = f"'{name}' far from zero by many times its spread"
                yield _ContentsTrial(words, case, pair, "usual", turn % 3, exact=_NEARLY)
        if self.defences.halves:
            named = whole_numbers(form_of(self.original.text, NVCC).code)
            peaks = sorted({_PLAIN_PEAK, *(n for n in named if n > 2 and n & (n + 1) == 0)})  # of bits that are all set
            for peak in peaks[-_MOST_PEAKS:]:
                seed, buffers = declared(case)
                if (drawn := halves(spec, buffers, peak, seed)) is not None:
                    words = f"inputs of multiples of a half, a quarter or less, up to {peak} of them"
                    yield _ContentsTrial(words, case, (drawn, buffers), "usual", 0, self._least(), asked="not of rules")
            seed, buffers = declared(case)
            if (least := faint(spec, buffers, seed, subnormal=True)) is not None:
                asked: Asked = "not of rules, whole numbers"
                yield _ContentsTrial("subnormal inputs", case, (least, buffers), "usual", 1, asked=asked)

    def _least(self) -> float:
        """What counts as a difference where numbers are ordinary: more than the coarsest type of a buffer rounds."""
        coarse = [
            parse_dtype(a.type).epsilon for a in self.spec.arguments if a.role != "scalar" and self._float(a.name)
        ]
        return min(_GROSS, max(_ALIKE, _EXACT_ULPS * max(coarse, default=0.0)))

    def _job(self, launches: Sequence[Sequence[LaunchConfig]], trial: _ContentsTrial, buffers: Arrays) -> CpuJob:
        values = scalars(self.spec, self.spec.check[trial.case])
        return CpuJob(tuple(launches[trial.case]), buffers, values, trial.order)

    def judge(self, built: Built) -> Failure | None:
        """What is wrong with a candidate on the same contents."""
        runs = [known for known in self._runs if known.trial.asked == "all" or not built.by_rules]
        jobs = [self._job(built.launches, known.trial, known.buffers) for known in runs]
        if not jobs:
            return None
        for known, run in zip(runs, self.machine.run_many(built.extra, jobs, deadline_s=_DEADLINE_S), strict=True):
            name, words = self.spec.check[known.trial.case].name, known.trial.words
            faults = [found for found in run.findings if found.kind != "timeout"]
            if faults:
                return Failure(f"{faults[0].message} (with {words})", case=name)
            if run.findings:
                continue
            if failure := self._differing(known, run.outputs, name):
                return failure
            if all(at.all() for at in known.counts.values()) and len(known.counts) == len(run.outputs):
                built.extra.saw(run)
        return None

    def _differing(self, known: _KnownContents, outputs: Arrays, case: str) -> Failure | None:
        for name, counts in known.counts.items():
            wanted, got = known.results[name], outputs[name]
            if self._float(name):
                got = self._dtype(name).to_float64(got)
                with np.errstate(invalid="ignore", over="ignore"):
                    size = np.where(wanted == 0, known.usual[name], np.abs(wanted))
                    close = np.abs(got - wanted) <= _GROSS * size
                    close &= np.abs(got - wanted) <= known.trial.wrong * np.maximum(size, known.usual[name])
                    wrong = counts & ~close
            else:
                wrong = counts & (got != wanted) & ~self._near(name, wanted, got)
                if known.trial.coarse:
                    wrong &= _coarse(wanted, got)
            if wrong.any():
                at = int(wrong.argmax())
                expected, actual = float(wanted[at]), float(got[at])
                return Failure(
                    f"'{name}' differs at {int(wrong.sum())} of {wrong.size} elements, first at index {at}: {actual:.9g} instead "
                    f"of {expected:.9g} (with {known.trial.words})",
                    case=case, argument=name, index=at, expected=expected, got=actual,
                )  # fmt: skip
        return None

    def _near(self, name: str, wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
        """Where whole numbers are as close as a tolerance that the spec declares for them allows, or by one."""
        argument = self.spec.argument(name)
        if self.spec.tolerance is None and argument.tolerance is None:
            return np.zeros(wanted.shape, np.bool_)
        near: NDArray[np.bool_] = np.abs(wanted.astype(np.float64) - got.astype(np.float64)) <= 1.0
        return near

    def _float(self, name: str) -> bool:
        return self._dtype(name).kind == "float"

    def _dtype(self, name: str) -> DType:
        return parse_dtype(self.spec.argument(name).type)


class _TrialOutputs(NamedTuple):
    """Outputs for the same contents: the original's, in another order of threads, and its twin's in double precision."""

    own: Arrays
    again: Arrays
    twin: Arrays


def _exact(dtype: DType, original: NDArray[Any], wide: NDArray[np.float64], most: float = 0.0) -> NDArray[np.bool_]:
    """Where the original's result is the exact one but for rounding, or `most` of it: a normal number, or zero."""
    own, size = dtype.to_float64(original), np.abs(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(own - wide) <= max(most, _EXACT_ULPS * dtype.epsilon) * size
    normal = (size >= dtype.tiny) & (size <= float(dtype.limits[1]))
    found: NDArray[np.bool_] = close & (normal | (size == 0))
    return found


def _coarse(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    """Where whole numbers differ by more than a part of a usual one."""
    found: NDArray[np.bool_] = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) > _GROSS * _rms(wanted)
    return found


def _rms(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _said(mix: Mix) -> str:
    name = next(name for name, magnitude in mix.items() if magnitude in (HUGE, AWAY))
    rest = next((magnitude for magnitude in mix.values() if magnitude != mix[name]), "")
    return f"'{name}' {mix[name]}" + (f", the other inputs {rest}" if rest else "")
