"""Sampled blocks at sizes not in any case: what is refused, and what is left as not checked."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.cpu.jobs import CpuFinding, CpuJob, CpuRun
from engine.cpu.sampled import Writes
from engine.evaluate import sampled_sizes
from engine.evaluate.sampled_places import corners, counterparts
from engine.evaluate.sampled_sizes import Machinery, SampledSizes
from engine.model import Failure, LaunchConfig
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("x", "y", "n")),),
    (Argument("x", "float", "in", "n", fill=Fill("normal")), Argument("y", "float", "out", "n"), Argument("n", "int", "scalar", "")),
    (Case("small", {"n": 4100}),), (Case("large", {"n": 1 << 25}),),
)  # fmt: skip
TWO_SIZES = replace(
    SPEC, arguments=(Argument("x", "float", "in", "n*m", fill=Fill("normal")), Argument("y", "float", "out", "n*m"),
    Argument("n", "int", "scalar", ""), Argument("m", "int", "scalar", "")), steps=(Step("k", "", ("x", "y", "n", "m")),),
    check=(Case("small", {"n": 64, "m": 65}),), time=(Case("large", {"n": 4096, "m": 4096}),),
)  # fmt: skip
BLOCK = 256
Kernel = Callable[[int, int, int], tuple[int, float] | None]  # thread, n, threads of the grid: what it writes where


def _run(kernel: Kernel, job: CpuJob) -> CpuRun:
    """What the sampled blocks of a kernel of one output write."""
    assert job.sample is not None
    (launch,) = job.launches
    n, found = job.sample.entries["y"], dict[int, tuple[float, int, set[int]]]()
    for place, block in enumerate(job.sample.blocks):
        for thread in range(0, BLOCK, 37):
            i = block * BLOCK + thread
            if (wrote := kernel(i, n, launch.blocks * BLOCK)) is not None:
                at, value = wrote
                if not 0 <= at < n:
                    return CpuRun({}, (CpuFinding("out_of_bounds", f"writes y[{at}]"),), None, 0.0)
                found[at] = (value, place, found.get(at, (0.0, 0, set()))[2] | {i})
    entries = np.array(sorted(found), np.int64)
    nothing = np.zeros(0, bool)
    none = Writes(np.zeros(0, np.int64), np.zeros(0, np.float32), {}, nothing, nothing)
    lowest: dict[int, int] = {}
    for e in entries:
        lowest.setdefault(found[e][1], int(e))
    own = Writes(
        entries, np.array([found[e][0] for e in entries], np.float32), lowest,
        np.array([len(found[e][2]) > 1 for e in entries], bool), np.zeros(len(entries), bool),
    )  # fmt: skip
    return CpuRun({}, (), None, 0.0, writes={"x": none, "y": own})


def _value(i: int) -> float:
    return float(i % 1009)


def _original(i: int, n: int, threads: int) -> tuple[int, float] | None:
    return (i, _value(i)) if i < n else None


def _judge(
    kernel: Kernel,
    blocks: Callable[[int], int] = lambda n: -(-n // BLOCK),
    whole: Failure | bool = False,
    cores: int = 1,
) -> tuple[Failure | None, Any]:
    def launches(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
        count = blocks if program == "candidate" else lambda n: -(-n // BLOCK)
        return (LaunchConfig((count(sizes["n"]), 1, 1), (BLOCK, 1, 1), 0),)

    def run(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        return [_run(binary, job) for job in jobs]

    def built(name: str, kernel: Kernel) -> Any:
        return SimpleNamespace(program=name, extra=kernel)

    machinery = Machinery(run, launches, lambda candidate, case: whole, lambda job: None, cores)
    samples = SampledSizes(SPEC, machinery, built("original", _original), random.Random(7))
    return samples.judge(built("candidate", kernel))


def test_the_same_kernel_passes_at_every_size() -> None:
    failure, verdict = _judge(_original)
    assert failure is None
    assert verdict.verdict == "passed"
    assert "could not" not in verdict.detail


def test_blocks_that_write_less_than_the_originals_are_compared_in_what_they_write() -> None:
    """One block of the original is many of a candidate, of which some are run."""

    def part(i: int, n: int, threads: int) -> tuple[int, float] | None:
        return _original(i, n, threads) if i % BLOCK < 128 else None

    failure, verdict = _judge(part)
    assert failure is None
    assert verdict.verdict == "passed"
    said = re.fullmatch(
        r"some blocks at (\d+) sizes not in any case, at (\d+) of them a part of what these write", verdict.detail
    )
    assert said
    assert int(said[1]) > int(said[2]) > 300  # all but the smallest sizes
    failure, _ = _judge(lambda i, n, threads: (i, _value(i) + 1.0) if i % BLOCK < 128 and i < n else None)
    assert failure is not None


@pytest.mark.parametrize("bits", [24, 29])
def test_a_masked_index_writes_some_elements_twice_and_others_never(bits: int) -> None:
    mask = (1 << bits) - 1
    failure, _ = _judge(lambda i, n, threads: (i & mask, _value(i & mask)) if i < n else None)
    assert failure is not None
    assert "two threads write" in failure.reason


def test_a_size_behind_a_mask_leaves_out_what_the_same_blocks_write_at_other_sizes() -> None:
    """Only sizes beyond every case show it: from 2^26 on, and the mask has no bit of it."""
    failure, _ = _judge(lambda i, n, threads: (i, _value(i)) if i < (n & ((1 << 26) - 1)) else None)
    assert failure is not None
    assert "leaves it out" in failure.reason


def test_a_wrong_value_at_a_large_index_is_named() -> None:
    failure, _ = _judge(lambda i, n, threads: (i, _value(i) + (9.0 if i > 1 << 26 else 0.0)) if i < n else None)
    assert failure is not None
    assert "differs at index" in failure.reason


def test_an_access_outside_at_a_large_size_is_refused() -> None:
    failure, _ = _judge(lambda i, n, threads: (i + (i >> 20), _value(i)) if i < n else None)
    assert failure is not None
    assert failure.reason.startswith("writes y[")


def test_blocks_in_another_order_are_no_reason_to_refuse() -> None:
    def backwards(i: int, n: int, threads: int) -> tuple[int, float] | None:
        j = threads - 1 - i
        return (j, _value(j)) if j < n else None

    failure, verdict = _judge(backwards)
    assert failure is None
    assert verdict.verdict in ("passed", "not checked")


def test_a_doubt_at_a_size_that_can_be_run_whole_is_settled_by_that() -> None:
    def leaves_out(i: int, n: int, threads: int) -> tuple[int, float] | None:
        return (i, _value(i)) if i < n and not (n % 2 and i % 2) else None

    assert _judge(leaves_out, whole=True)[0] is None
    wrong = Failure("'y' differs")
    assert _judge(leaves_out, whole=wrong)[0] is wrong


def test_blocks_that_do_not_end_are_a_doubt_that_the_whole_launch_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without end at sizes that are not small was left as not compared, and passed."""
    looked_at = []

    def ended(run: Callable[..., CpuRun]) -> Callable[..., CpuRun]:
        def given(kernel: Kernel, job: CpuJob) -> CpuRun:
            looked_at.append(kernel)
            slow = kernel is not _original and job.sample is not None and job.sample.entries["y"] > 30_000
            return CpuRun({}, (CpuFinding("timeout", "did not end"),), None, 0.0) if slow else run(kernel, job)

        return given

    monkeypatch.setattr(f"{__name__}._run", ended(_run))
    wrong = Failure("did not end in 20 s")
    slow = lambda i, n, threads: _original(i, n, threads)  # noqa: E731
    failure, verdict = _judge(slow, whole=wrong)
    assert failure is wrong
    assert verdict.verdict == "failed"
    assert sum(kernel is slow for kernel in looked_at) < 12  # not one deadline for each size
    assert _judge(slow, whole=wrong, cores=16)[0] is wrong  # all at once there
    assert _judge(slow, whole=True)[0] is None


def test_a_loop_that_ends_at_once_at_a_part_of_a_size_and_never_at_the_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A counter of 16 bits never ended beyond 2^20 columns, which counted as a slow edit."""

    def given(kernel: Kernel, job: CpuJob) -> CpuRun:
        endless = kernel is not _original and job.sample is not None and job.sample.entries["y"] > 1 << 20
        return CpuRun({}, (CpuFinding("timeout", "did not end"),), None, 0.0) if endless else plain(kernel, job)

    plain = _run
    monkeypatch.setattr(f"{__name__}._run", given)
    failure, _ = _judge(lambda i, n, threads: _original(i, n, threads))
    assert failure is not None
    assert "does not end at n = " in failure.reason


@pytest.mark.parametrize("kind", ["sample_full", "timeout"])
def test_a_loop_that_takes_long_at_a_large_size_is_not_one_without_end(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """A thread that goes through all heads writes more than a sample lists, and was taken for a counter that is too narrow; so
    was one whose work grows with the square of a size."""
    deadlines = list[float]()

    def given(kernel: Kernel, job: CpuJob) -> CpuRun:
        large = kernel is not _original and job.sample is not None and job.sample.entries["y"] > 1 << 20
        ends = kind == "timeout" and deadlines[-1] > 4 * sampled_sizes.SAMPLE_DEADLINE_S - 1
        return CpuRun({}, (CpuFinding(kind, "did not end"),), None, 0.0) if large and not ends else plain(kernel, job)

    class Deadlines(Machinery):
        def __init__(self, within: Any, *rest: Any) -> None:
            def noted(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
                deadlines.append(deadline_s)
                found: list[CpuRun] = within(binary, jobs, deadline_s)
                return found

            super().__init__(noted, *rest)

    plain = _run
    monkeypatch.setattr(f"{__name__}._run", given)
    monkeypatch.setattr(f"{__name__}.Machinery", Deadlines)
    failure, verdict = _judge(lambda i, n, threads: _original(i, n, threads))
    assert failure is None
    assert "could not be compared" in verdict.detail
    assert sum(each > sampled_sizes.SAMPLE_DEADLINE_S for each in deadlines) == (kind == "timeout")


@pytest.mark.parametrize(("array", "refused"), [("tile", True), ("x", False)])
def test_what_nobody_wrote_counts_where_the_block_itself_has_to(
    monkeypatch: pytest.MonkeyPatch, array: str, refused: bool
) -> None:
    """A tile whose halo is not loaded at one height in eight was taken for what the blocks that are left out write."""

    def given(kernel: Kernel, job: CpuJob) -> CpuRun:
        unwritten = CpuFinding("uninitialised", f"reads {array}[3] before it is written", array=array, index=3)
        wrong = kernel is not _original and job.sample is not None and job.sample.entries["y"] % 8 == 1
        return CpuRun({}, (unwritten,), None, 0.0) if wrong else plain(kernel, job)

    plain = _run
    monkeypatch.setattr(f"{__name__}._run", given)
    failure, _ = _judge(lambda i, n, threads: _original(i, n, threads))
    assert (failure is not None) == refused


@pytest.mark.parametrize(
    ("off", "declared", "refused"),
    [
        (5e-5, None, False),
        (5e-2, None, True),
        (4e-3, 1e-2, False),
        (2e-2, 1e-2, True),
        (5e-5, 1e-5, False),
        (5e-2, 1e-5, True),
    ],
)
def test_a_sum_that_is_exact_by_luck_leaves_room_for_another_order_of_its_terms(
    off: float, declared: float | None, refused: bool
) -> None:
    """One row_sum in fourteen met such a size among the sampled ones, and the search ended without a suggestion.

    Nor does a declared tolerance refuse what is no further off than the original: sums of a million terms in two parts were.
    """

    def run(value: Callable[[CpuJob], float], jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        return [_run(lambda i, n, threads, job=job: (0, value(job)) if i == 0 else None, job) for job in jobs]  # type: ignore[misc]

    def rounded(job: CpuJob) -> float:
        return 0.5 + (1e-4 if job.buffers["x"][0] > 0 else 0.0)  # half of the contents are lucky

    launch = (LaunchConfig((1, 1, 1), (BLOCK, 1, 1), 0),)
    machinery = Machinery(
        run, lambda program, sizes: launch, lambda candidate, case: False, lambda job: (lambda job: 0.5, job)  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    original = SimpleNamespace(program="original", extra=rounded)
    samples = SampledSizes(replace(SPEC, tolerance=declared), machinery, original, random.Random(7))  # type: ignore[arg-type]
    failure, _ = samples.judge(SimpleNamespace(program="candidate", extra=lambda job: 0.5 + off))  # type: ignore[arg-type]
    assert (failure is not None) == refused, failure


@pytest.mark.parametrize("slow", ["original", "candidate"])
def test_what_takes_long_is_tried_at_the_large_sizes_and_some_others(
    monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    now, tried = [0.0], list[int]()

    def run(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        if binary == slow:
            now[0] += 3.0 * len(jobs) / 16
            tried.extend(int(job.scalars["n"]) for job in jobs)
        return [_run(_original, job) for job in jobs]

    def launches(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
        return (LaunchConfig((-(-sizes["n"] // BLOCK), 1, 1), (BLOCK, 1, 1), 0),)

    monkeypatch.setattr(sampled_sizes.time, "monotonic", lambda: now[0])
    machinery = Machinery(run, launches, lambda candidate, case: False, lambda job: None, cores=16)
    original, candidate = (SimpleNamespace(program=name, extra=name) for name in ("original", "candidate"))
    samples = SampledSizes(SPEC, machinery, original, random.Random(7))  # type: ignore[arg-type]
    failure, verdict = samples.judge(candidate)  # type: ignore[arg-type]
    assert failure is None
    assert 64 <= len(tried) <= 80
    assert f"some blocks at {len(tried)} sizes" in verdict.detail
    assert {known.case.sizes["n"] for known in samples._known if known.large} <= set(tried)
    assert sum(known.case.sizes["n"] in tried for known in samples._known if not known.large) >= 57


@pytest.mark.parametrize("seed", range(12))
def test_sizes_at_which_the_originals_own_index_wraps_around_say_nothing(seed: int) -> None:
    """Its first and last blocks stay within the buffer there, and those between, which a candidate's lie at, do not."""

    def wrapped(i: int, n: int, threads: int) -> tuple[int, float] | None:
        at = (i + (1 << 31)) % (1 << 32) - (1 << 31)
        return (at, _value(at)) if i < n else None

    def run(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        return [_run(wrapped, job) for job in jobs]

    def launches(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
        blocks = -(-sizes["n"] * sizes["m"] // BLOCK)
        return (LaunchConfig((blocks, 1, 1) if program == "original" else (-(-blocks // 97), 97, 1), (BLOCK, 1, 1), 0),)

    machinery = Machinery(run, launches, lambda candidate, case: False, lambda job: None)
    original, candidate = (SimpleNamespace(program=name, extra=None) for name in ("original", "candidate"))
    samples = SampledSizes(TWO_SIZES, machinery, original, random.Random(seed))  # type: ignore[arg-type]
    failure, _ = samples.judge(candidate)  # type: ignore[arg-type]
    assert failure is None
    assert any(known.case.sizes["n"] * known.case.sizes["m"] > 1 << 29 for known in samples._known)


def test_sizes_at_which_blocks_of_the_original_take_long_are_kept() -> None:
    """What ends in time in the blocks that are sampled is no fault in those between."""

    def run(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        late = CpuRun({}, (CpuFinding("timeout", "did not end"),), None, 0.0)
        between = [job.sample is not None and len(job.sample.blocks) == 16 for job in jobs]
        return [late if each else _run(_original, job) for each, job in zip(between, jobs, strict=True)]

    def launches(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
        return (LaunchConfig((-(-sizes["n"] * sizes["m"] // BLOCK), 1, 1), (BLOCK, 1, 1), 0),)

    machinery = Machinery(run, launches, lambda candidate, case: False, lambda job: None)
    samples = SampledSizes(TWO_SIZES, machinery, SimpleNamespace(program="original", extra=None), random.Random(7))  # type: ignore[arg-type]
    samples.draw()
    assert any(known.case.sizes["n"] * known.case.sizes["m"] > 1 << 31 for known in samples._known)


def test_blocks_of_another_grid_are_found_where_they_lie() -> None:
    def grid(*extent: int) -> LaunchConfig:
        return LaunchConfig((extent[0], extent[1] if len(extent) > 1 else 1, 1), (BLOCK, 1, 1), 0)

    assert counterparts((0, 7, 99), grid(100), grid(100)) == (0, 7, 99)
    assert set(counterparts((40,), grid(100), grid(25))) == {0, 9, 10, 24}
    for old, new, tile in (
        (64, 16, 64),
        (63, 16, 64),
        (100, 7, 256),
        (16, 63, 16),
    ):  # tiles of 16, or of 64, beside those
        before = 64 if old == 16 else 16
        for n in range((max((old - 1) * before, (new - 1) * tile)) + 1, min(old * before, new * tile) + 1, 5):
            for at in range(old):
                lie = {i // tile for i in range(at * before, min(n, (at + 1) * before))}
                assert lie <= set(counterparts((at,), grid(old), grid(new)))
    assert {80, 81} <= set(counterparts((40,), grid(100), grid(200)))
    assert 5 * 10 + 3 in counterparts((10 * 20 + 6,), grid(20, 20), grid(10, 10))
    assert {0, 1, 7, 13, 19, 20} <= set(corners(grid(7, 3), random.Random(0))) <= set(range(21))


@pytest.mark.parametrize("busy", [False, True])
def test_a_difference_is_none_where_the_noise_of_sums_could_not_be_measured(busy: bool) -> None:
    """On a busy machine the original's runs over other contents did not end, and a sum that was exact by luck refused another order."""
    seen: list[int] = []

    def run(binary: Any, jobs: Sequence[CpuJob], deadline_s: float) -> list[CpuRun]:
        late = (CpuFinding("timeout", "did not end"),)
        seen.append(len(jobs))
        again = busy and len(jobs) == sampled_sizes._CONTENTS
        return [CpuRun({}, late, None, 0.0) if again else _run(binary, job) for job in jobs]

    def launches(program: Any, sizes: Any) -> tuple[LaunchConfig, ...]:
        return (LaunchConfig((-(-sizes["n"] // BLOCK), 1, 1), (BLOCK, 1, 1), 0),)

    def other(i: int, n: int, threads: int) -> tuple[int, float] | None:
        return (i, _value(i) * (1.0 + 1e-3)) if i < n else None

    machinery = Machinery(run, launches, lambda built, case: False, lambda job: (_original, job))
    original: Any = SimpleNamespace(program="original", extra=_original)
    samples = SampledSizes(SPEC, machinery, original, random.Random(7))
    failure, _ = samples.judge(SimpleNamespace(program="candidate", extra=other))  # type: ignore[arg-type]
    assert (failure is None) is busy
    assert sampled_sizes._CONTENTS in seen
