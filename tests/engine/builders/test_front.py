"""The front workers say what an analysis here says, and a bad program costs nothing but itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tree_sitter

from engine.builders import builders as client
from engine.builders.builders import BuildWorkers, Compiling
from engine.compile.built import Built, NotBuilt, sizes_key
from engine.compile.nvrtc import NvrtcCompiler
from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.evaluate.build import Builder
from engine.model import Outcome, Program
from engine.predict.targets import target_for
from engine.process.sandbox import NoSandbox, Sandbox, sandbox
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.tune.offers import offers
from tests.processes import alive, below

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "examples" / "softmax.cu"
TARGET = target_for("sm_90")


@pytest.fixture(scope="module")
def known() -> tuple[KernelSpec, str | None, Program]:
    spec, spec_path = find_spec(ROOT, FILE, None)
    return spec, spec_path, load_program(FILE, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])


def started(
    known: tuple[KernelSpec, str | None, Program], builds: int = 1, box: Sandbox | NoSandbox | None = None,
    cache: Path | None = None,
) -> BuildWorkers:  # fmt: skip
    spec, spec_path, _ = known
    return BuildWorkers(
        spec, ROOT, TARGET, spec_path, Compiling(arch="sm_90", box=box or sandbox(), cache=cache, builds=builds)
    )


@pytest.fixture(scope="module")
def front(known: tuple[KernelSpec, str | None, Program]) -> Iterator[BuildWorkers]:
    made = started(known)
    made.original_program = known[2]
    yield made
    made.close()


@pytest.fixture(scope="module")
def here(known: tuple[KernelSpec, str | None, Program]) -> Iterator[Builder]:
    spec, spec_path, program = known
    with NvrtcCompiler("sm_90", cache=None, sandbox=sandbox(), jobs=1) as compiler:
        made = Builder(spec, ROOT, compiler, TARGET, spec_path)
        made.original_program = program
        yield made


def what(built: Built) -> tuple[Any, ...]:
    """What of a built candidate does not depend on when it was built."""
    return (
        built.program,
        built.text,
        built.expressions,
        built.launches,
        built.identity,
        built.binary.resources,
        built.binary.entries,
    )


def test_who_edits_a_program_that_a_worker_has_read_does_not_parse_it(
    front: BuildWorkers, known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = known[2]
    program = plain.replace({plain.kernel_file: plain.data + b"// read by a worker\n"})
    found, _ = front.propose(program)
    monkeypatch.setattr(tree_sitter, "Parser", lambda language: pytest.fail("it is parsed"))
    for proposal in found:
        if proposal.makes is not None:
            assert edit_program(program, proposal.edits).digest == proposal.makes
    assert any(proposal.makes for proposal in found)


def test_says_and_builds_what_is_said_and_built_here(
    front: BuildWorkers, here: Builder, known: tuple[KernelSpec, str | None, Program]
) -> None:
    program = known[2]
    proposals, failures = front.propose(program)
    assert proposals
    assert (proposals, failures) == here.propose(program)
    assert [p.makes for p in proposals] == [edit_program(program, p.edits).digest for p in proposals]
    candidate = edit_program(program, proposals[0].edits)
    wanted = ({"rows": 3, "cols": 70_000}, {"rows": 5, "cols": 1})
    front.further["a test"] = here.further["a test"] = wanted
    built, mine = front.build(candidate), here.candidate(candidate)
    assert what(built) == what(mine)
    assert built.further == mine.further == {sizes_key(sizes): here.launches_for(candidate, sizes) for sizes in wanted}
    assert len(built.binary.cubin) == len(mine.binary.cubin)
    assert set(built.stage_s) == {"parse", "compile"}


@pytest.mark.slow
def test_offers_the_templates_that_there_are_here(
    front: BuildWorkers, known: tuple[KernelSpec, str | None, Program]
) -> None:
    spec, spec_path, program = known
    here = offers(program, spec, spec_path, TARGET)
    there = front.offers(program)
    assert here
    assert [
        (o.template.name, o.template.summary, o.template.space, o.points.points, o.first, o.prior) for o in there
    ] == [(o.template.name, o.template.summary, o.template.space, o.points.points, o.first, o.prior) for o in here]
    for mine, theirs in zip(here, there, strict=True):
        last = mine.points.points[-1]
        assert theirs.template.proposal(last) == mine.template.proposal(last)
    again = front.offers(program)
    assert all(one.points is other.points for one, other in zip(there, again, strict=True))  # held once
    gone = program.replace({program.kernel_file: b"int main() { return 0; }\n"})
    assert front.offers(gone) == offers(gone, spec, spec_path, TARGET) == []


def test_a_point_is_built_where_it_is_written(
    front: BuildWorkers, here: Builder, known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = known[2]
    offer = front.offers(program)[0]
    asked: list[str] = []
    ask = front._ask
    monkeypatch.setattr(front, "_ask", lambda op, *rest, **more: asked.append(op) or ask(op, *rest, **more))
    point = offer.points.points[-1]
    made = edit_program(program, offer.template.proposal(point).edits)
    assert what(front.build(made)) == what(here.candidate(made))
    assert asked == ["write"]
    assert what(front.build(made)) == what(here.candidate(made))  # held until it was asked for
    assert asked == ["write", "build"]


def test_what_is_wrong_with_a_point_is_said_when_its_program_is_built(
    front: BuildWorkers, known: tuple[KernelSpec, str | None, Program]
) -> None:
    program = known[2]
    hostile = program.replace({program.kernel_file: program.data.replace(b"{", b'{ asm("trap;");', 1)})
    offer = front.offers(hostile)[0]
    made = edit_program(hostile, offer.template.proposal(offer.points.points[-1]).edits)
    with pytest.raises(NotBuilt, match="assembly"):
        front.build(made)


def test_a_point_that_the_rule_cannot_write_is_none(
    front: BuildWorkers, known: tuple[KernelSpec, str | None, Program]
) -> None:
    program = known[2]
    offer = front.offers(program)[0]
    family = offer.template.family
    names = family.parameters
    assert family.make(dict.fromkeys(names, 10**6)) is None
    with pytest.raises(OptimlError, match="cannot write this point"):
        offer.template.proposal(tuple(10**6 for _ in names))
    gone = program.replace({program.kernel_file: b"int main() { return 0; }\n"})
    ask = partial(front._write, rule=family.rule, place=(0, 0), parameters=names, values=dict.fromkeys(names, 1))
    with pytest.raises(OptimlError, match="the kernel no longer exists"):
        ask(gone)
    with pytest.raises(OptimlError, match="cannot write this template again"):
        front._write(program, family.rule, (0, 99), names, {})


def test_offers_what_a_person_declared(front: BuildWorkers, known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    text = program.data + b"// optiml: tune WIDTH = 4, 1, 2, 8\n#define WIDTH 4\n"
    found = front.offers(program.replace({program.kernel_file: text}))
    assert found[0].template.name == "constants"
    assert [len(o.points.points) for o in found[:1]] == [4]
    assert found[0].first.parameters == {"WIDTH": 1}  # 4 is there already, and no candidate


def test_a_refusal_comes_back_with_its_reason(
    front: BuildWorkers, here: Builder, known: tuple[KernelSpec, str | None, Program]
) -> None:
    program = known[2]
    hostile = program.replace({program.kernel_file: program.data.replace(b"{", b'{ asm("trap;");', 1)})
    with pytest.raises(NotBuilt, match="assembly") as refused:
        front.build(hostile)
    assert refused.value.evaluation is not None
    assert refused.value.evaluation.outcome is Outcome.SCREENED_OUT
    broken = program.replace(
        {program.kernel_file: program.data.replace(b"float largest", b"float odd = nothing, largest", 1)}
    )
    said = []
    for build in (front.build, here.candidate):
        with pytest.raises(NotBuilt) as error:
            build(broken)
        ended = error.value.evaluation
        assert ended is not None
        assert set(ended.stage_s) == {"parse", "compile"}
        said.append((error.value.what, ended.outcome, ended.failure))
    assert said[0] == said[1]
    assert said[0][1] is Outcome.COMPILE_ERROR
    lines = b"float odd = nothing;\n    odd = other;\n    odd = third;\n    float largest"
    several = program.replace({program.kernel_file: program.data.replace(b"float largest", lines, 1)})
    with pytest.raises(NotBuilt) as error:
        front.build(several)
    for name in ("nothing", "other", "third"):  # whoever is to correct them was told the first alone
        assert f'identifier "{name}" is undefined' in error.value.what
    assert "; line " in error.value.what
    with pytest.raises(OptimlError, match="cannot be analysed"):
        front.propose(program.replace({program.kernel_file: b"int main() { return 0; }\n"}))


def test_a_worker_that_dies_or_hangs_costs_one_program(
    front: BuildWorkers, known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = known[2]
    front.build(program)
    front._crew._idle[-1].kill()
    front.build(program)  # a dead one is replaced before it is asked
    monkeypatch.setattr(client, "_BUILD_TIMEOUT_S", 1e-9)
    with pytest.raises(NotBuilt, match="the analysis took too long") as lost:
        front.build(program)
    assert lost.value.evaluation is not None
    assert lost.value.evaluation.outcome is Outcome.SCREENED_OUT
    monkeypatch.undo()
    assert front.build(program).launches


@pytest.mark.parametrize("box", [sandbox(), NoSandbox()], ids=["sandbox", "none"])
def test_a_compiler_ends_with_the_worker_that_it_belongs_to(
    known: tuple[KernelSpec, str | None, Program], box: Sandbox | NoSandbox
) -> None:
    """One that hangs over a text must not outlive the search that wanted it."""
    program = known[2]
    front = started(known, box=box)
    front.original_program = program
    front.build(program)
    (worker,) = front._crew._workers
    compilers = below(worker.pid)
    assert compilers
    front.close()
    deadline = time.monotonic() + 10
    while left := [pid for pid in compilers if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_what_was_compiled_is_kept_between_runs(known: tuple[KernelSpec, str | None, Program], tmp_path: Path) -> None:
    cached = []
    for _ in range(2):
        front = started(known, cache=tmp_path)
        front.original_program = known[2]
        cached.append(front.build(known[2]).binary.cached)
        front.close()
    assert cached == [False, True]


def test_many_threads_share_a_few_workers(known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    made = started(known, 2)
    try:
        made.warm(program, 64)
        with ThreadPoolExecutor(8) as threads:
            texts = [
                program.replace({program.kernel_file: program.data.replace(b"largest", b"largest%d" % i)})
                for i in range(24)
            ]
            found = list(threads.map(made.build, texts))
        assert [f"largest{i} " in one.text for i, one in enumerate(found)] == [True] * 24
        assert 1 <= len(made._crew._workers) <= 2 + client._READERS
    finally:
        made.close()


def test_a_further_run_of_a_kernel_starts_no_more(known: tuple[KernelSpec, str | None, Program]) -> None:
    """Each of an ablation's fifteen runs started as many again."""
    program = known[2]
    made = started(known, 2)
    made.warm(program, 64)
    crew = made._crew
    with crew._changed:
        assert crew._changed.wait_for(lambda: len(crew._workers) == 2, timeout=60)
    made.warm(program, 64)
    assert (len(crew._workers), crew._starting) == (2, 0)
    made.close()


def test_no_more_start_than_are_built_at_once(known: tuple[KernelSpec, str | None, Program]) -> None:
    """A search of 25 candidates has four in flight, and began with a process and a compiler for each core of the machine."""
    made = started(known, 8)
    made.warm(known[2], 3)
    assert len(made._crew._workers) + made._crew._starting == 3
    made.close()


def test_whoever_waits_for_a_worker_is_told_of_the_end(known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    made = started(known)
    held = [made._crew._take() for _ in range(1 + client._READERS)]
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(made.build, program)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.2)
        made.close()
        with pytest.raises(OptimlError, match="ended"):
            waits.result(timeout=10)
    assert not any(worker.alive for worker in held)


def test_a_worker_that_cannot_start_is_told_to_who_asks(
    known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = known[2]
    made = started(known, 4)
    monkeypatch.setattr(client, "python_command", lambda module: [sys.executable, "-c", "raise SystemExit(3)"])
    made.warm(program, 64)
    for _ in range(2):
        with pytest.raises(OptimlError, match="cannot start"):
            made.build(program)
    monkeypatch.undo()
    assert made.build(program).launches
    made.close()


def test_what_is_closed_starts_nothing(known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    closed = started(known)
    closed.close()
    with pytest.raises(OptimlError, match="ended"):
        closed.build(program)


def test_workers_that_are_there_to_read_start_no_compiler_before_they_build(
    known: tuple[KernelSpec, str | None, Program],
) -> None:
    program = known[2]
    front = started(known, 1)
    front.warm(program, 64)
    crew = front._crew
    held = [crew._take() for _ in range(2)]
    deadline = time.monotonic() + 60
    while not any(compilers := [below(worker.pid) for worker in held]):  # it is started beside the answer
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    assert [below(worker.pid) for worker in held].count([]) == 1
    reader = held[compilers.index([])]
    with crew._changed:
        crew._idle.append(reader)
    assert front.build(program).launches
    assert below(reader.pid)
    front.close()
