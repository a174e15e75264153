"""Checks beyond the spec's cases and families, each admitted where the original says what must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cpu import CpuRun
from engine.evaluate.cpu_controls import unwritten
from engine.evaluate.known_noise import KnownNoise
from engine.evaluate.known_runs import KnownRun
from engine.evaluate.secret_cases import SecretCases
from engine.evaluate.special_values import SpecialValues
from engine.spec.data import EXTREMES, NAN, bytes_needed, takes_nan
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.undeclared import LONG_ROWS, in_order, outputs_in_order, undeclared
from engine.verify.defences import Defences
from engine.verify.other_callers import CallerCase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

Wanted = tuple[int, str]  # a case, by its place, and a family of inputs

_TWO = 2  # check cases that undeclared contents are tried at: the largest ones. Ours
_CLOSE = 1e-3  # of a result in double precision: rounding, not an overflow or a cancellation


@dataclass(frozen=True)
class AdmittedRuns:
    """Runs of the original: on inputs drawn for cases and families, likewise in another order of threads, and on other buffers or
    launches of a known run: those of the case that is named, or its own."""

    drawn: Callable[[Sequence[Wanted]], tuple[list[KnownRun], list[CpuRun], list[CpuRun]]]
    again: Callable[[Sequence[tuple[KnownRun, Arrays, Case | None]]], Sequence[CpuRun]]


@dataclass
class AdmittedChecks:
    """The checks of one original. `cases` gives all cases by their place: those of the spec, and behind them secret ones."""

    spec: KernelSpec
    defences: Defences
    secret: SecretCases
    noise: KnownNoise
    runs: AdmittedRuns
    cases: Callable[[], Sequence[Case]]
    screening: list[KnownRun] = field(default_factory=list, init=False)  # what each candidate is tried with
    _confirming: dict[Wanted, frozenset[str] | None] = field(default_factory=dict, init=False)
    _infinite: set[str] = field(default_factory=set, init=False)  # outputs that are so for the spec's own inputs

    def record(self, known: Sequence[KnownRun]) -> None:
        """Look at the original's runs on the spec's own cases."""
        for item in known:
            floats = ((name, values) for name, values in self._floats(item) if item.family == "declared")
            self._infinite |= {name for name, values in floats if np.isinf(values).any()}

    def confirming(self, rng: random.Random) -> list[tuple[int, str, int]]:
        """The admitted checks, each with a fresh seed."""
        return [(case, family, rng.getrandbits(40)) for case, family in self._confirming]

    def compared(self, case: int, family: str) -> frozenset[str] | None:
        """The outputs that say something in a check; None: all."""
        return self._confirming.get((case, family))

    def admit_secret(self) -> None:
        """The secret cases, NaN and extreme values."""
        first, drawn = len(self.spec.check), len(self.secret.cases)
        wanted: list[Wanted] = [(first + i, "declared") for i in range(drawn)]
        if self.defences.families and takes_nan(self.spec):
            shapes = first if self.defences.shapes else 1
            wanted += [(i, NAN) for i in range(shapes) if self.defences.nan_inputs]
            wanted += [(i, family) for family in EXTREMES for i in range(first) if self.defences.infinite_inputs]
        passing = self._passing(wanted)
        secret = [item for item in passing if item.case >= first]
        self.secret.keep([self.cases()[item.case] for item in secret])
        for place, item in enumerate(secret[: len(self.secret.cases)]):
            self.screening.append(replace(item, case=first + place))
            self._confirming[first + place, "declared"] = None
        special = SpecialValues(self.spec, self._ordinary)
        with_nan = [item for item in passing if item.case < first and item.family == NAN]
        if checks := self._nan_checks(special, with_nan):
            self._confirming |= checks
            last = with_nan[-1]
            self.screening.append(replace(last, compared=checks[last.case, NAN]))
        for family in EXTREMES:
            of_it = [item for item in passing if item.case < first and item.family == family]
            if of_it and special.defines_extremes(of_it):
                self._confirming |= {(item.case, family): None for item in of_it}

    def admit_callers(self, proposed: Sequence[CallerCase]) -> None:
        """Cases of other callers, behind the secret ones."""
        before = self.secret.cases
        first = len(self.spec.check) + len(before)
        self.secret.cases = (*before, *(each.case for each in proposed))
        families = [each.family for each in proposed]
        wanted: list[Wanted] = [(first + i, family) for i, family in enumerate(families)]
        if takes_nan(self.spec) and self.defences.nan_inputs:
            wanted += [(first + i, NAN) for i, each in enumerate(proposed) if each.nan]
        passing = self._passing(wanted)
        apart = (NAN, LONG_ROWS)
        plain = [(item, proposed[item.case - first].same_as) for item in passing if item.family not in apart]
        compared = [(item, self._apart(item), same_as) for item, same_as in plain if same_as is not None]
        kept = [item.case for item, same_as in plain if same_as is None and self._finite(item)]
        for (item, _, _), run in zip(compared, self.runs.again(compared), strict=True):
            if not run.findings and self.noise.compare(item, run.outputs) is None:
                kept.append(item.case)
        long = self._in_any_order([item for item in passing if item.family == LONG_ROWS])
        kept = sorted([*kept, *(item.case for item in long)])
        special = SpecialValues(self.spec, self._ordinary)
        # Those of no visible caller count by their results alone.
        results = frozenset(a.name for a in self.spec.outputs)
        admitted: dict[Wanted, frozenset[str] | None] = {
            (case, families[case - first]): results if proposed[case - first].unseen else None for case in kept
        }
        for item in passing:
            if item.family == NAN and item.case in kept:
                admitted |= self._nan_checks(special, [item])
        self.secret.cases = (*before, *(proposed[case - first].case for case in kept))
        for place, case in enumerate(kept):
            self.noise.rename(case, first + place)
        self._confirming |= {(first + kept.index(case), family): c for (case, family), c in admitted.items()}

    def _apart(self, item: KnownRun) -> Arrays:
        """The contents of a run, those that an output's buffer shares in a buffer of its own."""
        return {
            **item.buffers,
            **{name: item.buffers[of].copy() for name, of in self.cases()[item.case].shared.items()},
        }

    def admit_undeclared(self) -> None:
        """Contents that the spec's fills leave out."""
        if not self.defences.undeclared:
            return
        by_size = sorted(range(len(self.spec.check)), key=lambda i: bytes_needed(self.spec, self.spec.check[i]))
        for change in undeclared(self.spec):
            cases = by_size if change.kind == "filled" else by_size[-_TWO:]  # one block alone need not add up
            passing = self._passing([(case, change.words) for case in cases])
            if change.nan:
                self._confirming |= self._nan_checks(SpecialValues(self.spec, self._ordinary), passing)
            elif change.kind == "masked":
                finite = all(np.isfinite(values).all() for item in passing for _, values in self._floats(item))
                if passing and finite and SpecialValues(self.spec, self._ordinary).defines_extremes(passing):
                    self._confirming |= {(item.case, item.family): None for item in passing}
            elif change.kind == "rows":
                self._confirming |= {(item.case, item.family): None for item in self._in_any_order(passing)}
            else:
                self._confirming |= {(i.case, i.family): None for i in passing if self._finite(i) and self._close(i)}

    def _in_any_order(self, passing: Sequence[KnownRun]) -> list[KnownRun]:
        """Those of runs on sparse matrices whose results are those of the same rows with their columns in order, either way."""
        kept = list(passing)
        for falling in (False, True):
            runs = self.runs.again([(item, in_order(self.spec, item.buffers, falling=falling), None) for item in kept])
            pairs, kept = list(zip(kept, runs, strict=True)), []
            for item, run in pairs:
                ordered = self._ordered(item, falling=falling)
                if not run.findings and self.noise.compare(ordered, run.outputs) is None:
                    self.noise.record_sums(ordered, run.outputs)  # long sums are nearly exact in one order by luck
                    kept.append(item)
        return kept

    def _ordered(self, item: KnownRun, *, falling: bool) -> KnownRun:
        def ordered(outputs: Arrays) -> Arrays:
            return outputs_in_order(self.spec, item.buffers, outputs, falling=falling)

        return replace(item, original=ordered(item.original), wide=item.wide and ordered(item.wide))

    def _nan_checks(self, special: SpecialValues, passed: Sequence[KnownRun]) -> dict[Wanted, frozenset[str] | None]:
        """Runs with NaN, with the outputs that pass it on in each."""
        names = special.passing_nan_on(passed) if passed else frozenset()
        everything = {a.name for a in self.spec.outputs}
        compared = None if names == everything else names
        return {(item.case, item.family): compared for item in passed} if names else {}

    def _passing(self, wanted: Sequence[Wanted]) -> list[KnownRun]:
        """Those of these cases and families that the original passes: no finding, outputs written, alike in other orders of threads."""
        if not wanted:
            return []
        known, runs, again = self.runs.drawn(wanted)
        clean = [
            (item, other)
            for item, run, other in zip(known, runs, again, strict=True)
            if not run.findings and not other.findings
        ]
        for item, other in clean:
            self.noise.record_order(item, other.outputs)
        return [
            item
            for item, other in clean
            if not unwritten(self.spec, [item], self.cases()) and self.noise.compare(item, other.outputs) is None
        ]

    def _ordinary(self, drawn: Sequence[tuple[KnownRun, Arrays]]) -> Sequence[CpuRun]:
        return self.runs.again([(item, buffers, None) for item, buffers in drawn])

    def _finite(self, item: KnownRun) -> bool:
        """Whether the original's results are numbers, or infinite as others of the output are for the spec's own inputs."""
        return all(
            not np.isnan(values).any() if name in self._infinite else np.isfinite(values).all()
            for name, values in self._floats(item)
        )

    def _floats(self, item: KnownRun) -> Iterator[tuple[str, NDArray[Any]]]:
        for name, values in item.original.items():
            dtype = parse_dtype(self.spec.argument(name).type)
            if dtype.kind == "float":
                yield name, dtype.to_float64(values)

    def _close(self, item: KnownRun) -> bool:
        """Whether its results are those in double precision but for rounding, where these are known."""
        if item.wide is None:
            return True
        for name, values in item.original.items():
            dtype = parse_dtype(self.spec.argument(name).type)
            rtol = max(_CLOSE, 8 * dtype.epsilon) if dtype.kind == "float" else 0.0
            now = dtype.to_float64(values) if dtype.kind == "float" else values
            if dtype.kind in ("float", "int") and not np.isclose(now, item.wide[name], rtol=rtol, atol=0.0).all():
                return False
        return True
