"""Sizes far from every check case, of which some blocks alone are run: what a launch of that size writes where, and what."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.compile.built import Built
from engine.cpu.jobs import CpuBinary, CpuJob, CpuRun
from engine.cpu.sampled import MOST_APART, MOST_BYTES, Sample
from engine.errors import OptimlError
from engine.evaluate.sampled_places import corners, counterparts, fraction, shrinking, spread
from engine.evaluate.sampled_writes import block_of, entries_written_twice, missing_entries, unexpected_entries
from engine.model import Failure, Guardrail, LaunchConfig, Program
from engine.spec.data import Tiles, buffer_elements, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.host_compare import Outputs, difference, noise
from engine.verify.secret_sizes import Sizes, large_sizes, long_sizes, sampled_sizes
from engine.verify.tolerance import Noise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

NAME = "sizes beyond the check cases"
_SIZES = 384  # that are sampled beside the large ones
_COUNTED = (1 << 31) - 1  # elements that an int counts
_TILE = 65_521  # elements after which first contents repeat: a prime, so that no mask or multiple of a block meets the same ones
_CONTENTS = 8  # first contents of the buffers, which the sizes have in turn: drawing and writing them takes longer than the runs. Ours
SAMPLE_DEADLINE_S = 2.0  # of processor time of one sample
BRIEF_DEADLINE_S = 0.5  # likewise of the original's where one size alone is large: what takes longer is left out. Ours
_FRACTION = 16  # of a size at which an edit does not end: where it is done at once there, it does not end at all. Ours
_AT_ONCE_S = SAMPLE_DEADLINE_S / 64
_NEVER_S = _AT_ONCE_S * _FRACTION**2  # that work which grows with the square of a size may take at the whole of it
# Samples of which each is asked whether it ends. Where cores are few they run before the others: a candidate that never ends costs their
# deadlines alone; where they are many, no core waits for them. Ours.
_LOOKED_AT_FIRST, MANY_CORES = 6, 8
_AT_A_TIME = 57  # usual sizes, after which the time is looked at: so many are always run, and the large ones. Ours
_MOST_S = 20.0  # of cores, after which no more begin, of the original or a candidate: tiles of a matrix product take half a second. Ours
_MOST_WHOLE = 3  # launches run whole for one candidate: more doubts come of blocks that lie elsewhere
_WHOLE = 1 << 28  # bytes of a timing case's inputs that are no independent numbers: drawn in a second or two. Ours
_RELATED = 1 << 24  # likewise of a size that no case has: some tens of milliseconds for the largest of them. Ours
_ALIGNMENT = 16  # bytes: what vector loads take; an allocation guarantees more, a pointer into one does not
_LOOSE = 8  # one sample of so many has buffers that are aligned as their elements alone
_PLAIN_NOISE = (
    1e-3  # of the output's root mean square, where there is no float64 reference: longer sums than in the check cases
)
_DOUBTED = ("uninitialised", "timeout", "sample_full", "deadlock")  # what may come of the blocks that are left out
_UNFINISHED = ("timeout", "sample_full")

Run = Callable[[CpuBinary, Sequence[CpuJob], float], list[CpuRun]]  # within a deadline of processor time


class _Compared(Enum):
    """How much of what sampled blocks of the original write was compared with what the candidate's write."""

    NOTHING = "nothing"
    PART = "part"
    WHOLE = "whole"


@dataclass
class _Wanted:
    """A size at which the original is to be run."""

    case: Case
    large: bool
    launch: LaunchConfig
    job: CpuJob
    loose: bool  # its buffers are aligned as their elements alone, which an edit need not allow for
    long: bool  # one size alone is so large that an edit need not be launchable there


@dataclass
class _Known(_Wanted):
    """A size with what sampled blocks of the original write there."""

    run: CpuRun
    wide: CpuRun | None = None


@dataclass(frozen=True)
class Machinery:
    """What the samples need of an evaluator. Launches raise OptimlError where a size cannot be launched."""

    within: Run
    launches: Callable[[Program, Sizes], tuple[LaunchConfig, ...]]
    whole: Callable[[Built, Case], Failure | bool]  # whether it is right, run whole; False: too large for that
    widened: Callable[[CpuJob], tuple[CpuBinary, CpuJob] | None]
    cores: int = 1  # that `within` works with

    def run(self, binary: CpuBinary, jobs: Sequence[CpuJob]) -> list[CpuRun]:
        """Runs within the deadline of a sample."""
        return self.within(binary, jobs, SAMPLE_DEADLINE_S)


@dataclass
class SampledSizes:
    """The sampled sizes of one run, drawn once, and the verdict on candidates."""

    spec: KernelSpec
    machinery: Machinery
    original: Built
    rng: random.Random
    _known: list[_Known] = field(default_factory=list, init=False)
    _why: str = field(default="", init=False)
    _drawn: bool = field(default=False, init=False)
    _whole_left: int = field(default=0, init=False)  # launches that may still be run whole for this candidate
    _contents: list[Tiles] = field(default_factory=list, init=False)
    _slow: set[str] = field(default_factory=set, init=False)  # sizes in which this candidate is slow, and ends

    @property
    def runs(self) -> list[CpuRun]:
        """The original's runs, once the sizes are drawn."""
        return [known.run for known in self._known]

    def judge(
        self, built: Built, counted: Callable[[CpuRun], None] = lambda run: None
    ) -> tuple[Failure | None, Guardrail]:
        """Why a candidate is refused, and the guardrail. `counted` gets each run that could be compared."""
        self.draw()
        if not self._known:
            return None, Guardrail(NAME, "not checked", self._why or "no size could be sampled")
        pairs: list[tuple[_Known, CpuJob]] = []
        for known in self._known:
            try:
                (launch,) = self.machinery.launches(built.program, known.case.sizes)
            except OptimlError as error:
                if known.long:
                    continue
                return Failure(error.what, case=known.case.name), Guardrail(NAME, "failed", error.what)
            blocks = counterparts(known.job.sample.blocks if known.job.sample else (), known.launch, launch)
            pairs.append((known, with_blocks(known.job, launch, blocks)))
        some = self._run_pairs(pairs, built)
        if isinstance(some, Failure):
            return some, Guardrail(NAME, "failed", some.reason)
        pairs, runs = [pairs[at] for at in sorted(some)], [some[at] for at in sorted(some)]
        usual = [
            (known.run, run) for (known, _), run in zip(pairs, runs, strict=True) if not known.large and not known.loose
        ]
        ended = [(before, after) for before, after in usual if not after.findings]
        regular = 2 * len(ended) > len(usual) and all(
            not missing_entries(*pair) and not entries_written_twice(*pair) for pair in ended
        )
        seen, unsure = Counter[_Compared](), ""
        for (known, job), run in zip(pairs, runs, strict=True):
            found = self._against(known, job, run, built, regular)
            if isinstance(found, Failure):
                return found, Guardrail(NAME, "failed", found.reason)
            seen[found] += 1
            if found is _Compared.WHOLE:
                counted(run)
            unsure = unsure or (known.case.name if found is _Compared.NOTHING and not known.loose else "")
        sizes = seen[_Compared.WHOLE] + seen[_Compared.PART]
        if not sizes:
            return None, Guardrail(NAME, "not checked", "no block could be compared with one of the original")
        part = f", at {seen[_Compared.PART]} of them a part of what these write" if seen[_Compared.PART] else ""
        missed = f"; {seen[_Compared.NOTHING]} could not be compared, first: {unsure}" if unsure else ""
        return None, Guardrail(NAME, "passed", f"some blocks at {sizes} sizes not in any case{part}{missed}")

    def _run_pairs(self, pairs: Sequence[tuple[_Known, CpuJob]], built: Built) -> dict[int, CpuRun] | Failure:
        """A candidate's runs by their place; a failure where one does not end."""
        jobs = [job for _, job in pairs]
        self._whole_left, self._slow = _MOST_WHOLE, set()
        length = [_length(job) for job in jobs]
        asked = range(0, len(jobs), max(1, len(jobs) // _LOOKED_AT_FIRST))
        some: dict[int, CpuRun] = {}
        if self.machinery.cores < MANY_CORES:
            some = dict(zip(asked, self.machinery.run(built.extra, [jobs[at] for at in asked]), strict=True))
            if endless := self._endless([(pairs[at][0], some[at]) for at in asked], built):
                return endless
        rest = {at: job for at, job in enumerate(jobs) if at not in some}
        usual = [at for at in rest if not pairs[at][0].large and at not in asked]
        later = [at for at in asked if at in rest]
        some |= self._within_time(built.extra, rest, usual, length)
        return self._endless([(pairs[at][0], some[at]) for at in later], built) or some

    def _within_time(
        self, binary: CpuBinary, jobs: Mapping[int, CpuJob], usual: list[int], length: Sequence[int]
    ) -> dict[int, CpuRun]:
        """Runs of these jobs: the large sizes and some usual ones at any rate, the others in random order while there is time.

        Of those that run together the longest, by `length` in any unit, begin first: no core waits for one of them at the end.
        """
        self.rng.shuffle(usual)
        left = usual[_AT_A_TIME:]
        some = sorted(jobs.keys() - left, key=lambda at: -length[at])
        found: dict[int, CpuRun] = {}
        begin = time.monotonic()
        while some:
            found |= zip(some, self.machinery.run(binary, [jobs[at] for at in some]), strict=True)
            if (time.monotonic() - begin) * self.machinery.cores >= _MOST_S:
                break
            some, left = left[:_AT_A_TIME], left[_AT_A_TIME:]
        return found

    def _endless(self, runs: Sequence[tuple[_Known, CpuRun]], built: Built) -> Failure | None:
        """Whether a candidate whose blocks did not end does not end as a whole either, where the original does."""
        for known, run in runs:
            if known.large or self._whole_left == 0 or all(finding.kind not in _UNFINISHED for finding in run.findings):
                continue
            self._whole_left -= 1
            whole = self.machinery.whole(built, known.case)
            if isinstance(whole, Failure):
                return whole
        return None

    def _against(self, known: _Known, job: CpuJob, run: CpuRun, built: Built, regular: bool) -> Failure | _Compared:
        """A failure, or how much of what the original's blocks write could be compared."""
        case = known.case
        if run.findings:
            # What a block reads of its own the blocks that are left out do not write.
            kinds = {finding.kind for finding in run.findings if not finding.reads_unwritten_shared(job.buffers)}
            if known.long and kinds == {"timeout"}:
                return self._never_ends(known, job, built) or _Compared.NOTHING
            if kinds & set(_DOUBTED) or (known.loose and "misaligned" in kinds):
                return _Compared.NOTHING
            return Failure(f"{run.findings[0].message} (at {case.name})", case=case.name)
        compared = 0
        for name, before in known.run.writes.items():
            common, first, second = np.intersect1d(
                before.entries, run.writes[name].entries, assume_unique=True, return_indices=True
            )
            plain = ~(before.atomic[first] | run.writes[name].atomic[second])
            if not plain.any():
                continue
            compared += 1
            old, new = {name: before.values[first[plain]]}, {name: run.writes[name].values[second[plain]]}
            if failure := self._differs(known, name, common[plain], old, new):
                return failure
        missing = missing_entries(known.run, run)
        if not missing:
            return _Compared.WHOLE if compared else _Compared.NOTHING
        if self._whole_left > 0:
            self._whole_left -= 1
            if whole := self.machinery.whole(built, case):
                return whole if isinstance(whole, Failure) else _Compared.WHOLE
        part = _Compared.PART if compared else _Compared.NOTHING
        if not regular:
            return part
        return self._skipped(known, job, run, missing) or self._lost(known, job, run, built.extra, missing) or part

    def _never_ends(self, known: _Known, whole: CpuJob, built: Built) -> Failure | None:
        """Whether a candidate does not end where one size alone is large and the original ends soon, but does at once at a part of it."""
        part = Case("", fraction(known.case.sizes, _FRACTION))
        name = next(name for name, value in part.sizes.items() if value != known.case.sizes[name])
        if name in self._slow:
            return None
        try:
            _, job = self.placed(part, self._contents[0], loose=False)
            (launch,) = self.machinery.launches(built.program, part.sizes)
        except OptimlError:
            return None
        if job is None or job.sample is None:
            return None
        blocks = counterparts(job.sample.blocks, job.launches[0], launch)
        (run,) = self.machinery.within(built.extra, [with_blocks(job, launch, blocks)], _AT_ONCE_S)
        if run.findings:
            return None
        if all(each.kind != "timeout" for each in self.machinery.within(built.extra, [whole], _NEVER_S)[0].findings):
            self._slow.add(name)
            return None
        return Failure(
            f"does not end at {known.case.name}, but at once at {name} = {part.sizes[name]}: a loop's counter is too narrow",
            case=known.case.name,
        )  # fmt: skip

    def _differs(self, known: _Known, name: str, entries: NDArray[Any], old: Arrays, new: Arrays) -> Failure | None:
        """Where the contents of entries that both wrote are further apart than rounding."""
        case = known.case.name
        exact = Noise(0.0, noise(self.spec, name, old, old).rms)
        failure = difference(self.spec, name, Outputs(new, old), exact, case)
        if failure is None:
            return None
        if (reference := self._reference(known, name, entries)) is not None:
            now = noise(self.spec, name, old, reference)
            failure = difference(self.spec, name, Outputs(new, old, reference), now, case)
            if failure is not None:
                usual = self._usual_noise(known, name, now)
                spec = self._without_broken_tolerance(name, usual) if usual else self.spec
                failure = difference(spec, name, Outputs(new, old, reference), usual, case) if usual else None
        else:
            failure = difference(
                self.spec, name, Outputs(new, old), replace(exact, error=_PLAIN_NOISE * exact.rms), case
            )
        if failure is None or failure.index is None:
            return failure
        index = int(entries[failure.index])
        values = failure.reason.rpartition(": ")[2]
        return replace(failure, index=index, reason=f"'{name}' differs at index {index} at {case}: {values}")

    def _without_broken_tolerance(self, name: str, usual: Noise) -> KernelSpec:
        """The spec, without a tolerance for a float output that the original itself does not keep at a size so large."""
        argument = self.spec.argument(name)
        declared = self.spec.tolerance if argument.tolerance is None else argument.tolerance
        kept = declared is None or usual.error <= declared * usual.rms
        if kept or parse_dtype(argument.type).kind != "float":
            return self.spec
        arguments = tuple(replace(each, tolerance=None) if each is argument else each for each in self.spec.arguments)
        return replace(self.spec, tolerance=None, arguments=arguments)

    def _usual_noise(self, known: _Known, name: str, found: Noise) -> Noise | None:
        """The original's noise at this size over other contents; None where most of its runs did not end, as on a busy machine.

        Where a launch writes one sum, that may come out nearly exact, or nearly zero: no other order of its terms would be as near.
        """
        drawn = [tiles.of(known.case) for tiles in self._contents]
        jobs = [replace(known.job, buffers=contents) for contents in drawn if contents is not None]
        twins = [twin for job in jobs if (twin := self.machinery.widened(job)) is not None]
        if not twins:
            return found
        runs = self.machinery.run(self.original.extra, jobs)
        wides = self.machinery.run(twins[0][0], [twin for _, twin in twins])
        seen, ended = [found], 0
        for run, wide in zip(runs, wides, strict=True):
            if run.findings or wide.findings:
                continue
            ended += 1
            one, other = run.writes[name], wide.writes[name]
            if len(one.entries) and np.array_equal(one.entries, other.entries):
                seen.append(noise(self.spec, name, {name: one.values}, {name: other.values}))
        if 2 * ended < len(twins):
            return None
        return Noise(max(each.error for each in seen), max(each.rms for each in seen))

    def _reference(self, known: _Known, name: str, entries: NDArray[Any]) -> Arrays | None:
        """What the original computes in double precision, where the same blocks write the same entries then."""
        if known.wide is None and (found := self.machinery.widened(known.job)) is not None:
            known.wide = self.machinery.run(found[0], [found[1]])[0]
        if known.wide is None or known.wide.findings or not len(known.wide.writes[name].entries):
            return None
        writes = known.wide.writes[name]
        at = np.minimum(np.searchsorted(writes.entries, entries), len(writes.entries) - 1)
        return {name: writes.values[at]} if (writes.entries[at] == entries).all() else None

    def _skipped(self, known: _Known, job: CpuJob, run: CpuRun, missing: Mapping[str, int]) -> Failure | None:
        """Whether the original's own launch, whose blocks write what its blocks do at other sizes, leaves some of it out here."""
        if job.launches[0] != known.launch or unexpected_entries(known.run, run):
            return None
        name, entry = next(iter(missing.items()))
        return Failure(
            f"at {known.case.name} the block that writes {name}[{entry}] at other sizes leaves it out",
            case=known.case.name, argument=name, index=entry,
        )  # fmt: skip

    def _lost(
        self, known: _Known, job: CpuJob, run: CpuRun, binary: CpuBinary, missing: Mapping[str, int]
    ) -> Failure | None:
        """Whether a candidate that writes each element once at other sizes writes some twice here, and others not at all."""
        assert job.sample is not None
        assert known.job.sample is not None
        again = run
        if not entries_written_twice(known.run, run):
            extra = set()
            for name, entry in unexpected_entries(known.run, run).items():
                block = block_of(known.launch, known.job.sample.blocks, known.run.writes[name], entry)
                if block is not None:
                    extra |= set(counterparts([block], known.launch, job.launches[0]))
            if not extra - set(job.sample.blocks):
                return None
            blocks = sorted({*job.sample.blocks, *extra})
            again = self.machinery.run(binary, [with_blocks(job, job.launches[0], blocks)])[0]
        twice = entries_written_twice(known.run, again)
        if not twice or again.findings:
            return None
        name, lost = next(iter(missing.items()))
        other, entry = next(iter(twice.items()))
        return Failure(
            f"at {known.case.name} two threads write {other}[{entry}], and the block that writes {name}[{lost}] at other sizes "
            "does not: an index is too narrow",
            case=known.case.name, argument=name, index=lost,
        )  # fmt: skip

    # ---- the original

    def draw(self) -> None:
        """Draw the sizes and run the original on them: seconds, once."""
        if self._drawn:
            return
        self._drawn = True
        if len(self.spec.steps) != 1:
            self._why = "the spec has several launches, of which one reads what another wrote"
            return
        beyond = [(each, True, True) for each in long_sizes(self.spec, self.rng, MOST_BYTES)]
        sizes = [(each, False, False) for each in sampled_sizes(self.spec, self.rng, _SIZES)]
        sizes += [(each, True, False) for each in large_sizes(self.spec, self.rng, MOST_BYTES)] + beyond
        wanted: list[_Wanted] = []
        seeds = [self.rng.getrandbits(40) for _ in range(_CONTENTS)]
        self._contents = [Tiles(self.spec, seed, _TILE, whole=_RELATED) for seed in seeds]
        for turn, (each, large, long) in enumerate(sizes):
            loose = not large and turn % _LOOSE == _LOOSE - 1
            for sizes in (each, *(shrinking(each) if long else ())):
                case = Case(", ".join(f"{name} = {value}" for name, value in sorted(sizes.items())), sizes)
                try:
                    launch, job = self.placed(case, self._contents[turn % _CONTENTS], loose)
                except OptimlError:
                    continue
                if job is None:
                    self._why = "dependent inputs are not generated for large sizes"
                    break
                wanted.append(_Wanted(case, large, launch, job, loose, long))
                break
        usual, brief = ([one for one in wanted if one.long is long] for long in (False, True))
        jobs = {at: one.job for at, one in enumerate(usual)}
        length = [_length(one.job) for one in usual]
        found = self._within_time(
            self.original.extra, jobs, [at for at, one in enumerate(usual) if not one.large], length
        )
        runs = [found[at] for at in sorted(found)]
        runs += self.machinery.within(self.original.extra, [one.job for one in brief], BRIEF_DEADLINE_S)
        self._known = [
            _Known(**vars(one), run=run)
            for one, run in zip((*(usual[at] for at in sorted(found)), *brief), runs, strict=True)
            if not run.findings and any(len(w.entries) for w in run.writes.values())
        ]
        self._leave_out_broken()

    def _leave_out_broken(self) -> None:
        """Leave out sizes at which the original fails in a block that is not sampled: 32 bits cannot count their elements, and an index
        that wraps around may be one of the buffer's again in the last block."""
        wide = [
            known for known in self._known if known.job.sample and max(known.job.sample.entries.values()) > _COUNTED
        ]
        jobs = [with_blocks(known.job, known.launch, spread(known.launch)) for known in wide]
        runs = self.machinery.within(self.original.extra, jobs, BRIEF_DEADLINE_S) if jobs else []
        broken = {
            id(known)
            for known, run in zip(wide, runs, strict=True)
            if {finding.kind for finding in run.findings} - set(_DOUBTED)
        }
        self._known = [known for known in self._known if id(known) not in broken]

    def outside(self) -> tuple[Case, str] | None:
        """A timing case at which a sampled block of the original leaves a buffer, and how."""
        if len(self.spec.steps) != 1:
            return None
        tiles = Tiles(self.spec, self.rng.getrandbits(40), _TILE, whole=_WHOLE)
        jobs = list[tuple[Case, CpuJob]]()
        for case in self.spec.time:
            try:
                _, job = self.placed(case, tiles, loose=False)
            except OptimlError:
                continue
            if job is not None:
                jobs.append((case, job))
        runs = self.machinery.within(self.original.extra, [job for _, job in jobs], BRIEF_DEADLINE_S)
        for (case, _), ended in zip(jobs, runs, strict=True):
            for finding in ended.findings:
                if finding.kind == "out_of_bounds":
                    return case, finding.message
        return None

    def placed(self, case: Case, tiles: Tiles, loose: bool = False) -> tuple[LaunchConfig, CpuJob | None]:
        """The original's launch at a size, and its run. Raises OptimlError where there is none."""
        (launch,) = self.machinery.launches(self.original.program, case.sizes)
        return launch, self._job(case, launch, tiles, loose)

    def _job(self, case: Case, launch: LaunchConfig, tiles: Tiles, loose: bool) -> CpuJob | None:
        """A run of some of the original's blocks. None where its inputs cannot be made. Raises SpecError."""
        contents = tiles.of(case)
        if contents is None:
            return None
        lanes = {name: parse_dtype(self.spec.argument(name).type).lanes for name in contents}
        entries = {name: count * lanes[name] for name, count in buffer_elements(self.spec, case).items()}
        steps = {
            name: parse_dtype(self.spec.argument(name).type).itemsize if loose else _ALIGNMENT for name in contents
        }
        apart = {name: self.rng.randrange(MOST_APART // step) * step for name, step in steps.items()}
        sample = Sample(corners(launch, self.rng), entries, apart)
        return CpuJob((launch,), contents, scalars(self.spec, case), 0, sample=sample)


def _length(job: CpuJob) -> int:
    """How long a sample likely takes beside others: the entries of its largest buffer."""
    return max(job.sample.entries.values()) if job.sample else 0


def with_blocks(job: CpuJob, launch: LaunchConfig, blocks: Sequence[int]) -> CpuJob:
    """A sampled run of other blocks, or of another launch."""
    assert job.sample is not None
    return replace(job, launches=(launch,), sample=replace(job.sample, blocks=tuple(blocks)))
