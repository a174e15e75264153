"""Sizes far from every check case, of which some blocks alone are run: what a launch of that size writes where, and what."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.compile.built import Built
from engine.cpu.jobs import CpuBinary, CpuJob, CpuRun
from engine.cpu.sampled import MOST_APART, MOST_BYTES, Sample, Writes
from engine.errors import OptimlError
from engine.model import Failure, Guardrail, LaunchConfig, Program
from engine.spec.data import buffer_elements, scalars, tiles
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.host_compare import difference, noise
from engine.verify.secret_sizes import Sizes, large_sizes, sampled_sizes
from engine.verify.tolerance import Noise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

NAME = "sizes beyond the check cases"
_SIZES = 384  # that are sampled beside the large ones
_TILE = 65_521  # elements after which first contents repeat: a prime, so that no mask or multiple of a block meets the same ones
SAMPLE_DEADLINE_S = 2.0  # of processor time of one sample
_MOST_BLOCKS = 96  # of a candidate's sample
_MOST_A_SIDE = 4  # blocks of a candidate in the place of one of the original, along one axis
_LOOKED_AT_FIRST = 6  # samples: a candidate that never ends costs their deadlines alone
_MOST_WHOLE = 3  # launches run whole for one candidate: more doubts come of blocks that lie elsewhere
_ALIGNMENT = 16  # bytes: what vector loads take; an allocation guarantees more, a pointer into one does not
_PLAIN_NOISE = (
    1e-3  # of the output's root mean square, where there is no float64 reference: longer sums than in the check cases
)
_DOUBTED = ("uninitialised", "timeout", "deadlock")  # what may come of the blocks that are left out

Run = Callable[[CpuBinary, Sequence[CpuJob]], list[CpuRun]]


@dataclass
class _Known:
    """A size with what sampled blocks of the original write there."""

    case: Case
    large: bool
    launch: LaunchConfig
    job: CpuJob
    run: CpuRun
    wide: CpuRun | None = None


@dataclass(frozen=True)
class Machinery:
    """What the samples need of an evaluator. Launches raise OptimlError where a size cannot be launched."""

    run: Run
    launches: Callable[[Program, Sizes], tuple[LaunchConfig, ...]]
    whole: Callable[[Built, Case], Failure | bool]  # whether it is right, run whole; False: too large for that
    widened: Callable[[CpuJob], tuple[CpuBinary, CpuJob] | None]


@dataclass
class SampledSizes:
    """The sampled sizes of one run, drawn when the first candidate is confirmed, and the verdict on candidates."""

    spec: KernelSpec
    machinery: Machinery
    original: Built
    rng: random.Random
    _known: list[_Known] = field(default_factory=list, init=False)
    _why: str = field(default="", init=False)
    _drawn: bool = field(default=False, init=False)
    _whole_left: int = field(default=0, init=False)  # launches that may still be run whole for this candidate

    def judge(self, built: Built) -> tuple[Failure | None, Guardrail]:
        """Why a candidate is refused, and the guardrail."""
        self._draw()
        if not self._known:
            return None, Guardrail(NAME, "not checked", self._why or "no size could be sampled")
        jobs = []
        for known in self._known:
            try:
                (launch,) = self.machinery.launches(built.program, known.case.sizes)
            except OptimlError as error:
                return Failure(error.what, case=known.case.name), Guardrail(NAME, "failed", error.what)
            blocks = counterparts(known.job.sample.blocks if known.job.sample else (), known.launch, launch)
            jobs.append(_with_blocks(known.job, launch, blocks))
        self._whole_left = _MOST_WHOLE
        first = range(0, len(jobs), max(1, len(jobs) // _LOOKED_AT_FIRST))
        some = dict(zip(first, self.machinery.run(built.extra, [jobs[at] for at in first]), strict=True))
        for at, run in some.items():
            if endless := self._endless(self._known[at], run, built):
                return endless, Guardrail(NAME, "failed", endless.reason)
        others = [at for at in range(len(jobs)) if at not in some]
        some |= dict(zip(others, self.machinery.run(built.extra, [jobs[at] for at in others]), strict=True))
        runs = [some[at] for at in range(len(jobs))]
        regular = all(
            not run.findings and not _missing(known.run, run) and not _twice(known.run, run)
            for known, run in zip(self._known, runs, strict=True)
            if not known.large
        )
        seen, unsure = 0, ""
        for known, job, run in zip(self._known, jobs, runs, strict=True):
            found = self._against(known, job, run, built, regular)
            if isinstance(found, Failure):
                return found, Guardrail(NAME, "failed", found.reason)
            seen += found
            unsure = unsure or ("" if found else known.case.name)
        if not seen:
            return None, Guardrail(NAME, "not checked", "no block could be compared with one of the original")
        missed = f"; {len(runs) - seen} could not be compared, first: {unsure}" if unsure else ""
        return None, Guardrail(NAME, "passed", f"some blocks at {seen} sizes not in any case{missed}")

    def _endless(self, known: _Known, run: CpuRun, built: Built) -> Failure | None:
        """Whether a candidate whose blocks did not end does not end as a whole either, where the original does."""
        if known.large or self._whole_left == 0 or all(finding.kind != "timeout" for finding in run.findings):
            return None
        self._whole_left -= 1
        whole = self.machinery.whole(built, known.case)
        return whole if isinstance(whole, Failure) else None

    def _against(self, known: _Known, job: CpuJob, run: CpuRun, built: Built, regular: bool) -> Failure | bool:
        """A failure, or whether something could be compared."""
        case = known.case
        if run.findings:
            kinds = {finding.kind for finding in run.findings}
            if kinds & set(_DOUBTED):
                return False
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
        missing = _missing(known.run, run)
        if not missing:
            return compared > 0
        if self._whole_left > 0:
            self._whole_left -= 1
            if whole := self.machinery.whole(built, case):
                return whole
        return (self._lost(known, job, run, built.extra, missing) or False) if regular else False

    def _differs(self, known: _Known, name: str, entries: NDArray[Any], old: Arrays, new: Arrays) -> Failure | None:
        """Where the contents of entries that both wrote are further apart than rounding."""
        case = known.case.name
        exact = Noise(0.0, noise(self.spec, name, old, old).rms)
        failure = difference(self.spec, name, new, old, None, exact, case)
        if failure is None:
            return None
        if (reference := self._reference(known, name, entries)) is not None:
            now = noise(self.spec, name, old, reference)
            failure = difference(self.spec, name, new, old, reference, now, case)
        else:
            failure = difference(self.spec, name, new, old, None, replace(exact, error=_PLAIN_NOISE * exact.rms), case)
        if failure is None or failure.index is None:
            return failure
        index = int(entries[failure.index])
        return replace(
            failure, index=index, reason=f"'{name}' differs at index {index} at {case}: {failure.got:.9g} instead of "
            f"{failure.expected:.9g}",
        )  # fmt: skip

    def _reference(self, known: _Known, name: str, entries: NDArray[Any]) -> Arrays | None:
        """What the original computes in double precision, where the same blocks write the same entries then."""
        if known.wide is None and (found := self.machinery.widened(known.job)) is not None:
            known.wide = self.machinery.run(found[0], [found[1]])[0]
        if known.wide is None or known.wide.findings or not len(known.wide.writes[name].entries):
            return None
        writes = known.wide.writes[name]
        at = np.minimum(np.searchsorted(writes.entries, entries), len(writes.entries) - 1)
        return {name: writes.values[at]} if (writes.entries[at] == entries).all() else None

    def _lost(
        self, known: _Known, job: CpuJob, run: CpuRun, binary: CpuBinary, missing: Mapping[str, int]
    ) -> Failure | None:
        """Whether a candidate that writes each element once at other sizes writes some twice here, and others not at all."""
        assert job.sample is not None
        again = run
        if not _twice(known.run, run):
            extra = set()
            for name, entry in _unexpected(known.run, run).items():
                block = _block_of(known, name, entry)
                if block is not None:
                    extra |= set(counterparts([block], known.launch, job.launches[0]))
            if not extra - set(job.sample.blocks):
                return None
            blocks = sorted({*job.sample.blocks, *extra})
            again = self.machinery.run(binary, [_with_blocks(job, job.launches[0], blocks)])[0]
        twice = _twice(known.run, again)
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

    def _draw(self) -> None:
        if self._drawn:
            return
        self._drawn = True
        if len(self.spec.steps) != 1:
            self._why = "the spec has several launches, of which one reads what another wrote"
            return
        sizes = [(each, False) for each in sampled_sizes(self.spec, self.rng, _SIZES)]
        sizes += [(each, True) for each in large_sizes(self.spec, self.rng, MOST_BYTES)]
        wanted: list[tuple[Case, bool, LaunchConfig, CpuJob]] = []
        for each, large in sizes:
            case = Case(", ".join(f"{name} = {value}" for name, value in sorted(each.items())), each)
            try:
                (launch,) = self.machinery.launches(self.original.program, each)
                job = self._job(case, launch)
            except OptimlError:
                continue
            if job is None:
                self._why = "dependent inputs are not generated for large sizes"
                return
            wanted.append((case, large, launch, job))
        runs = self.machinery.run(self.original.extra, [job for *_, job in wanted]) if wanted else []
        self._known = [
            _Known(case, large, launch, job, run)
            for (case, large, launch, job), run in zip(wanted, runs, strict=True)
            if not run.findings and any(len(w.entries) for w in run.writes.values())
        ]

    def _job(self, case: Case, launch: LaunchConfig) -> CpuJob | None:
        """A run of some of the original's blocks. None where its inputs cannot be made. Raises SpecError."""
        contents = tiles(self.spec, case, self.rng.getrandbits(40), _TILE)
        if contents is None:
            return None
        lanes = {name: parse_dtype(self.spec.argument(name).type).lanes for name in contents}
        entries = {name: count * lanes[name] for name, count in buffer_elements(self.spec, case).items()}
        apart = {name: self.rng.randrange(MOST_APART // _ALIGNMENT) * _ALIGNMENT for name in contents}
        sample = Sample(corners(launch, self.rng), entries, apart)
        return CpuJob((launch,), contents, scalars(self.spec, case), 0, sample=sample)


def corners(launch: LaunchConfig, rng: random.Random) -> tuple[int, ...]:
    """The first block, its neighbour along each axis, the last two, and two of those between."""
    x, y, z = launch.grid
    last = x * y * z - 1
    near = [0, 1 if x > 1 else 0, x if y > 1 else 0, x * y if z > 1 else 0, last, max(0, last - 1)]
    return tuple(sorted({*near, rng.randint(0, last), rng.randint(0, last)}))


def counterparts(blocks: Sequence[int], old: LaunchConfig, new: LaunchConfig) -> tuple[int, ...]:
    """The blocks of another launch that lie where these lie, axis by axis and in linear order."""
    if old.grid == new.grid:
        return tuple(blocks)
    (x, y, _), last = new.grid, new.blocks - 1
    found = {0, last}
    for block in blocks:
        place = (block % old.grid[0], block // old.grid[0] % old.grid[1], block // old.grid[0] // old.grid[1])
        sides = [_scaled(at, o, n) for at, o, n in zip(place, old.grid, new.grid, strict=True)]
        found |= {i + x * (j + y * k) for i, j, k in itertools.product(*sides)}
        found |= set(_scaled(block, old.blocks, new.blocks))
    chosen = sorted(found)
    step = max(1, math.ceil(len(chosen) / _MOST_BLOCKS))
    return tuple(sorted({*chosen[::step], 0, last}))


def _scaled(at: int, old: int, new: int) -> list[int]:
    first, last = at * new // old, max(at * new // old, ((at + 1) * new - 1) // old)
    near = (first - 1, *range(first, min(last + 1, first + _MOST_A_SIDE)), last, last + 1)  # both grids are rounded up
    return sorted({v for v in near if 0 <= v < new})


def _with_blocks(job: CpuJob, launch: LaunchConfig, blocks: Sequence[int]) -> CpuJob:
    assert job.sample is not None
    return replace(job, launches=(launch,), sample=replace(job.sample, blocks=tuple(blocks)))


def _missing(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that the original's sample writes, without an atomic, and the candidate's does not."""
    found = {}
    for name, before in old.writes.items():
        left = np.setdiff1d(before.entries[~before.atomic], new.writes[name].entries, assume_unique=True)
        if len(left):
            found[name] = int(left[0])
    return found


def _twice(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that several threads of the candidate write without atomics, where the original's write none so."""
    found = {}
    for name, after in new.writes.items():
        several = after.entries[after.several & ~after.atomic]
        before = old.writes[name]
        if len(several) and not (before.several & ~before.atomic).any():
            found[name] = int(several[0])
    return found


def _unexpected(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that the candidate's sample writes and the original's does not."""
    found = {}
    for name, after in new.writes.items():
        other = np.setdiff1d(after.entries, old.writes[name].entries, assume_unique=True)
        if len(other):
            found[name] = int(other[0])
    return found


def _block_of(known: _Known, name: str, entry: int) -> int | None:
    """The original's block that writes an entry, if what blocks write lies as far apart as that of the first ones."""
    assert known.job.sample is not None
    blocks, writes = known.job.sample.blocks, known.run.writes[name]
    first = {blocks[at]: low for at, low in _lowest(writes)}
    if 0 not in first:
        return None
    x, y, _ = known.launch.grid
    rest, found = entry - first[0], 0
    strides = {step: first[step] - first[0] for step in {1, x, x * y} if step in first}
    for step, stride in sorted(strides.items(), key=lambda pair: -pair[1]):
        if stride > 0 and rest >= stride:
            found += step * (rest // stride)
            rest %= stride
    return found if 0 <= found < known.launch.blocks else None


def _lowest(writes: Writes) -> Iterator[tuple[int, int]]:
    for block in np.unique(writes.blocks):
        yield int(block), int(writes.entries[writes.blocks == block].min())
