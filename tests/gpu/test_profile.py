"""The profiler on a real GPU: what it answers, and that it answers for the kernel that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.compile.built import Built
from engine.cuda.load import load_program, repository_root
from engine.evaluate.build import BuildOptions
from engine.profile.counters import CHEAP, FULL, LINES, Profile, ProfileRequest
from engine.profile.source_lines import worst_site
from engine.run.machine import Machine, make_machine, make_profiler
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = make_machine(device="gpu")
    yield made
    made.close()


def built(machine: Machine, name: str) -> tuple[KernelSpec, Built]:
    from engine.evaluate.build import Builder

    file = EXAMPLES / name
    root = repository_root(file)
    spec, spec_path = find_spec(root, file, None)
    program = load_program(file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    builder = Builder(spec, root, machine.compiler, machine.target, spec_path, BuildOptions(line_info=True))
    return spec, builder.original(program)


def request(spec: KernelSpec, made: Built, key: str = "original") -> ProfileRequest:
    case = len(spec.check)
    return ProfileRequest(key, made.binary, made.launches[case], case)


def test_a_copy_moves_the_bytes_it_must(machine: Machine) -> None:
    """A transpose of 4096² floats and more reads and writes each element once; device memory sees at least half of that."""
    spec, made = built(machine, "transpose.cu")
    profiler = make_profiler(machine, spec)
    try:
        first, second = profiler.profile([request(spec, made, "a"), request(spec, made, "b")], CHEAP)
    finally:
        profiler.close()
    assert isinstance(first, Profile), first
    assert isinstance(second, Profile), second
    sizes = spec.time[0].sizes
    moved = 2 * 4 * float(sizes["rows"]) * float(sizes["cols"])
    assert first.dram_bytes is not None
    assert 0.5 * moved < first.dram_bytes < 10 * moved
    assert first.instructions == second.instructions
    assert first.duration_us is not None
    assert 1.0 < first.duration_us < 1e5


def test_every_counter_of_the_full_set_answers(machine: Machine) -> None:
    spec, made = built(machine, "softmax.cu")
    profiler = make_profiler(machine, spec)
    try:
        (answer,) = profiler.profile([request(spec, made)], FULL)
    finally:
        profiler.close()
    assert isinstance(answer, Profile), answer
    assert answer.steps[0].missing == ()
    assert profiler.dropped == frozenset()
    assert answer.steps[0].get("launch__registers_per_thread") == made.binary.resources[0].registers


def test_the_worst_load_is_on_the_line_that_strides(machine: Machine) -> None:
    """One thread per row of a row-major matrix: its loads of x are the worst there are."""
    from engine.compile.cubin import disassemble

    spec, made = built(machine, "softmax.cu")
    profiler = make_profiler(machine, spec)
    try:
        (answer,) = profiler.profile([request(spec, made)], LINES)
    finally:
        profiler.close()
    assert isinstance(answer, Profile), answer
    listing = disassemble(made.binary.cubin, sandbox=machine.box, line_info=True)
    site = worst_site(answer.steps[0], listing, spec.file)
    assert site is not None, dataclasses.asdict(answer.steps[0])
    text = (EXAMPLES / "softmax.cu").read_text().splitlines()[site.line - 1]
    assert "x[" in text or "y[" in text
    assert site.sectors > 4 * site.ideal


def test_a_search_counts_candidates_names_lines_and_hardly_waits(machine: Machine, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    from engine.process.fair_lock import WAITED
    from engine.run.optimization import Options, optimize
    from engine.search.profiling import HELD
    from engine.search.progress import Budget

    result, out = optimize(Options(EXAMPLES / "softmax.cu", budget=Budget(seconds=20.0), out=tmp_path / "out"), machine)
    with closing(sqlite3.connect(out / "journal.sqlite")) as db:
        counted = dict(db.execute("SELECT metrics, count(*) FROM profiles GROUP BY metrics"))
    # What its share of a search this short allows, on a machine of several GPUs too, where a start takes seconds.
    assert counted.get("cheap", 0) + counted.get("full", 0) >= 4, (counted, result.notes)
    assert counted.get("full", 0) >= 1, (counted, result.notes)
    assert any("line " in sentence for sentence in result.diagnosis), (result.diagnosis, result.notes)
    assert result.best is not None
    assert result.trajectory[-1].diagnosis
    assert any(step.moved for step in result.trajectory), result.trajectory
    assert 0 < result.stages[HELD] < 0.15 * result.elapsed_s, result.stages
    assert result.stages[WAITED] < 0.15 * result.elapsed_s, result.stages


def test_a_search_that_waits_counts_every_candidate_that_is_right(machine: Machine, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    from engine.run.optimization import Options, optimize
    from engine.search.profiling import COUNTED
    from engine.search.progress import Budget

    options = Options(EXAMPLES / "gelu_bias.cu", budget=Budget(candidates=40), out=tmp_path / "out", profile="all")
    result, out = optimize(options, machine)
    assert not [note for note in result.notes if "counted" in note or "no counters" in note], result.notes
    with closing(sqlite3.connect(out / "journal.sqlite")) as db:
        counted = {candidate for (candidate,) in db.execute("SELECT candidate FROM profiles")}
        parents = dict(db.execute("SELECT parent, count(*) FROM candidates WHERE parent IS NOT NULL GROUP BY parent"))
        full = {candidate for (candidate,) in db.execute("SELECT candidate FROM profiles WHERE metrics = 'full'")}
    assert len(counted) >= 10
    assert set(parents) <= full, "a program was built upon before its diagnosis was there"
    assert result.stages[COUNTED] > 0
