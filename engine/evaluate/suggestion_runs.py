"""Further runs of what is to be suggested, beside an original on the CPU: at sizes of no check case, at other addresses."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.compile.built import Built
from engine.cpu import CpuBinary, CpuJob, CpuMachine, CpuRun
from engine.cuda.phases import NVCC, form_of
from engine.errors import OptimlError
from engine.evaluate.known_runs import KnownRun
from engine.evaluate.sampled_sizes import Machinery, SampledSizes
from engine.evaluate.twin_jobs import twin_job
from engine.model import Failure, LaunchConfig, Program
from engine.spec.data import bytes_needed, poisoned, scalars
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.assumptions import anywhere
from engine.verify.other_callers import whole_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

MOST_CHECK_BYTES = 128 << 20  # each array is there for the original, the candidate, the reference and a run's process
_MOST_WHOLE_THREADS = 1 << 20  # of a launch at a size that no case has, run whole
_MOST_TIMED_THREADS = 1 << 18  # likewise for one size of a timing case, half a second: the whole of it is sampled. Ours
_LARGEST_NAMED, _MOST_NAMED = 1 << 20, 48  # of a number of a text, and sizes that come of them. Ours
_EXTENTS, _DEPTHS, _MOST_THREADS = (16, 32, 64, 128, 512), (2,), 1024  # of blocks that no host launches. Ours
_MOST_EARLIER = 3  # launches that come before another: a run of a check shape each. Ours
_WHOLE_DEADLINE_S = 5.0  # of the original; a candidate gets twice that

Launch = Callable[[Program, Mapping[str, int | float]], tuple[LaunchConfig, ...]]
Compare = Callable[[KnownRun, Mapping[str, Any]], Failure | None]


class ComparedJob(NamedTuple):
    """What the original made of some inputs, with a candidate's job and the original's own for them."""

    known: KnownRun
    job: CpuJob
    own: CpuJob


@dataclass(frozen=True)
class SuggestionRuns:
    """Runs beside one original; `wide` is its twin in double precision. `launch` raises OptimlError."""

    spec: KernelSpec
    machine: CpuMachine
    original: Built
    wide: CpuBinary | None
    launch: Launch
    compare: Compare
    aligned: bool = True  # whether accesses wider than an element are a fault where callers may pass any address
    earlier: bool = True  # whether results may not hang on a launch that came before

    def samples(self, original: Built, rng: random.Random) -> SampledSizes:
        """The sampled sizes of a run; `original` is what runs there."""

        def within(binary: CpuBinary, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
            return self.machine.run_many(binary, jobs, deadline_s=deadline_s)

        def whole(built: Built, case: Case) -> Failure | bool:
            return self.whole(built, case, rng)

        return SampledSizes(
            self.spec, Machinery(within, self.launch, whole, self._widened, self.machine.jobs), original, rng
        )

    def whole(self, built: Built, case: Case, rng: random.Random, most: int = _MOST_WHOLE_THREADS) -> Failure | bool:
        """Whether a candidate is right at a size of no check case, with all its blocks; False where that cannot be said."""
        if bytes_needed(self.spec, case) > MOST_CHECK_BYTES:
            return False
        launches = [self.launch(each.program, case.sizes) for each in (self.original, built)]
        if any(launch.blocks * launch.threads > most for each in launches for launch in each):
            return False
        values = scalars(self.spec, case)
        buffers = poisoned(self.spec, case, rng.getrandbits(40), "declared")
        jobs = [CpuJob(each, buffers, values) for each in launches]
        (first,) = self.machine.run_many(self.original.extra, jobs[:1], deadline_s=_WHOLE_DEADLINE_S)
        if first.findings:
            return False
        (second,) = self.machine.run_many(built.extra, jobs[1:], deadline_s=2 * _WHOLE_DEADLINE_S)
        if second.findings:
            return Failure(f"{second.findings[0].message} (at {case.name})", case=case.name)
        wide = None
        if (twin := self._widened(jobs[0])) is not None:
            (reference,) = self.machine.run_many(twin[0], [twin[1]])
            wide = None if reference.findings else dict(reference.outputs)
        failure = self.compare(KnownRun(-1, "declared", buffers, values, dict(first.outputs), wide), second.outputs)
        if failure is not None:
            return replace(failure, case=case.name, reason=f"{failure.reason} at {case.name}")
        built.extra.saw(second)
        return True

    def named_values(self, built: Built, words: Collection[str], rng: random.Random) -> Failure | None:
        """What is wrong at a small check case with one size of a timing case, or beside a number of the candidate's text.

        For such sizes edits specialise. `words` are those of the conditions that are to be met.
        """
        smallest = min(self.spec.check, key=lambda case: bytes_needed(self.spec, case))
        values = {
            (name, value) for case in self.spec.time for name, value in case.sizes.items() if name in smallest.sizes
        }
        tested = {a.size_name for a in self.spec.arguments if a.name in words} & smallest.sizes.keys()
        numbers = whole_numbers(form_of(built.text, NVCC).code)
        beside = {
            (name, n + step) for name in tested for n in numbers for step in (-1, 0, 1) if 1 < n <= _LARGEST_NAMED
        }
        beside -= values
        values |= set(rng.sample(sorted(beside), min(len(beside), _MOST_NAMED)))
        for name, value in sorted(values):
            try:
                found = self.whole(
                    built, Case(f"{name} = {value}", {**smallest.sizes, name: value}), rng, _MOST_TIMED_THREADS
                )
            except OptimlError:
                continue
            if isinstance(found, Failure):
                return found
        return None

    def moved(self, built: Built, known: Sequence[ComparedJob]) -> Failure | None:
        """What is wrong where all buffers, or one, are aligned as their elements alone.

        An edit with wider accesses than the original's ends there: it has to look at each address, unless the visible callers pass
        whole buffers.
        """
        names = [argument.name for argument in self.spec.arguments if argument.role != "scalar"]
        which = [frozenset(names), *(frozenset({name}) for name in names if len(names) > 1)]
        pairs = [(each, replace(each.job, moved=some)) for some in which for each in known]
        runs = self.machine.run_many(built.extra, [job for _, job in pairs], deadline_s=_WHOLE_DEADLINE_S)
        for (each, job), run in zip(pairs, runs, strict=True):
            if run.findings:
                if failure := self._misaligned(run, replace(each.own, moved=job.moved)):
                    return failure
                continue
            if failure := self.compare(each.known, run.outputs):
                return failure
            if each.known.compared is None:
                built.extra.saw(run)
        return None

    def after_another(self, built: Built, known: Sequence[ComparedJob]) -> Failure | None:
        """What is wrong behind a launch with fewer blocks in the same module, where the original's results do not hang on one."""
        by_blocks = {_blocks(each.own): each for each in known}
        if not self.earlier or len(by_blocks) < 2:
            return None
        last = by_blocks.pop(max(by_blocks))
        pairs = [(by_blocks[blocks], last) for blocks in sorted(by_blocks)[:_MOST_EARLIER]]
        own = [replace(last.own, before=each.own) for each, last in pairs]
        runs = self.machine.run_many(self.original.extra, own, deadline_s=_WHOLE_DEADLINE_S)
        pairs = [
            pair for pair, run in zip(pairs, runs, strict=True)
            if not run.findings and self.compare(pair[1].known, run.outputs) is None
        ]  # fmt: skip
        jobs = [replace(last.job, before=each.job) for each, last in pairs]
        for (each, last), run in zip(
            pairs, self.machine.run_many(built.extra, jobs, deadline_s=_WHOLE_DEADLINE_S), strict=True
        ):
            words = f"behind a launch with {_blocks(each.job)} blocks"
            if run.findings:
                return Failure(f"{run.findings[0].message} ({words})", line=run.findings[0].line)
            if failure := self.compare(last.known, run.outputs):
                return replace(failure, reason=f"{failure.reason} ({words})")
        return None

    def other_blocks(self, built: Built, known: Sequence[KnownRun]) -> None:
        """Run a candidate with blocks that its host does not launch, for the conditions that it adds for them.

        Only sizes with which the original gives what it gives with its own count, and what a candidate does there is no fault: no
        caller launches it so. Where it is wrong its conditions count as not met.
        """
        item = max(known, key=_bytes, default=None)
        if item is None or built.launches[item.case] != self.original.launches[item.case]:
            return
        for launches in _other_blocks(built.launches[item.case]):
            job = CpuJob(launches, item.buffers, item.scalars)
            (own,) = self.machine.run_many(self.original.extra, [job], deadline_s=_WHOLE_DEADLINE_S)
            if own.findings or self.compare(item, own.outputs) is not None:
                continue
            (run,) = self.machine.run_many(built.extra, [job], deadline_s=_WHOLE_DEADLINE_S)
            if not run.findings and self.compare(item, run.outputs) is None:
                built.extra.saw(run)

    def _misaligned(self, run: CpuRun, own: CpuJob) -> Failure | None:
        """A run that ended at an access that is wider than an element, where the original's run `own` does not."""
        finding = next((each for each in run.findings if each.kind == "misaligned"), None)
        reason = anywhere(self.original.program, self.spec, finding.array) if finding is not None else ""
        if finding is None or not reason or not self.aligned:
            return None
        if self.machine.run_many(self.original.extra, [own], deadline_s=_WHOLE_DEADLINE_S)[0].findings:
            return None
        return Failure(
            f"{finding.message} where '{finding.array}' begins at an odd element, and {reason}: take vectors where its address "
            "allows them",
            argument=finding.array, index=finding.index, line=finding.line,
        )  # fmt: skip

    def _widened(self, job: CpuJob) -> tuple[CpuBinary, CpuJob] | None:
        if self.wide is None:
            return None
        return self.wide, twin_job(self.spec, job)


def _blocks(job: CpuJob) -> int:
    return sum(launch.blocks for launch in job.launches)


def _bytes(item: KnownRun) -> int:
    return sum(array.nbytes for array in item.buffers.values())


def _other_blocks(launches: Sequence[LaunchConfig]) -> Iterator[tuple[LaunchConfig, ...]]:
    """The launches with other extents of their blocks, with as many blocks and with about as many threads."""
    for axis, extents in enumerate((_EXTENTS, _EXTENTS, _DEPTHS)):
        for extent in extents:
            for whole in (True, False):
                found = tuple(_resized(each, axis, extent, whole=whole) for each in launches)
                if found != tuple(launches) and all(each.threads <= _MOST_THREADS for each in found):
                    yield found


def _resized(launch: LaunchConfig, axis: int, extent: int, *, whole: bool) -> LaunchConfig:
    grid, block, old = list(launch.grid), list(launch.block), launch.block[axis]
    block[axis] = extent
    if not whole:
        grid[axis] = -(-grid[axis] * old // extent)
    shared = -(-launch.shared_bytes * max(extent, old) // old)
    return LaunchConfig((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), shared)
