"""The front workers say what an analysis here says, and a bad program costs nothing but itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from engine.errors import OptimlError
from engine.evaluate.analysis import Analysis
from engine.front import client
from engine.front.client import Front
from engine.model import Program
from engine.predict.targets import target_for
from engine.source.edit import edit_program
from engine.source.load import load_program
from engine.spec.find import find_spec
from engine.spec.model import KernelSpec
from engine.tune.offers import offers

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "examples" / "softmax.cu"
TARGET = target_for("sm_90")


@pytest.fixture(scope="module")
def known() -> tuple[KernelSpec, str | None, Program]:
    spec, spec_path = find_spec(ROOT, FILE, None)
    return spec, spec_path, load_program(FILE, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])


@pytest.fixture(scope="module")
def front(known: tuple[KernelSpec, str | None, Program]) -> Iterator[Front]:
    spec, spec_path, program = known
    made = Front(spec, ROOT, TARGET, spec_path)
    made.original_program = program
    yield made
    made.close()


def test_says_what_an_analysis_here_says(front: Front, known: tuple[KernelSpec, str | None, Program]) -> None:
    spec, spec_path, program = known
    here = Analysis(spec, ROOT, TARGET, spec_path)
    here.original_program = program
    proposals, failures = front.propose(program)
    assert proposals
    assert (proposals, failures) == here.propose(program)
    assert [p.makes for p in proposals] == [edit_program(program, p.edits).digest for p in proposals]
    candidate = edit_program(program, proposals[0].edits)
    assert front.prepare(candidate) == here.prepare(candidate)


def test_offers_the_templates_that_there_are_here(front: Front, known: tuple[KernelSpec, str | None, Program]) -> None:
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


def test_a_point_is_prepared_where_it_is_written(
    front: Front, known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, spec_path, program = known
    here = Analysis(spec, ROOT, TARGET, spec_path)
    here.original_program = program
    offer = front.offers(program)[0]
    asked: list[str] = []
    ask = front._ask
    monkeypatch.setattr(front, "_ask", lambda op, *rest, **more: asked.append(op) or ask(op, *rest, **more))
    point = offer.points.points[-1]
    made = edit_program(program, offer.template.proposal(point).edits)
    assert front.prepare(made) == here.prepare(made)
    assert asked == ["write"]
    assert front.prepare(made) == here.prepare(made)  # held until it was asked for
    assert asked == ["write", "prepare"]


def test_what_is_wrong_with_a_point_is_said_when_its_program_is_prepared(
    front: Front, known: tuple[KernelSpec, str | None, Program]
) -> None:
    program = known[2]
    hostile = program.replace({program.kernel_file: program.data.replace(b"{", b'{ asm("trap;");', 1)})
    offer = front.offers(hostile)[0]
    made = edit_program(hostile, offer.template.proposal(offer.points.points[-1]).edits)
    with pytest.raises(OptimlError, match="assembly"):
        front.prepare(made)


def test_a_point_that_the_rule_cannot_write_is_none(
    front: Front, known: tuple[KernelSpec, str | None, Program]
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
    with pytest.raises(OptimlError, match="the kernel is gone"):
        ask(gone)
    with pytest.raises(OptimlError, match="cannot write this template again"):
        front._write(program, family.rule, (0, 99), names, {})


def test_offers_what_a_person_declared(front: Front, known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    text = program.data + b"// optiml: tune WIDTH = 4, 1, 2, 8\n#define WIDTH 4\n"
    found = front.offers(program.replace({program.kernel_file: text}))
    assert found[0].template.name == "constants"
    assert [len(o.points.points) for o in found[:1]] == [4]
    assert found[0].first.parameters == {"WIDTH": 1}  # 4 is there already, and no candidate


def test_a_refusal_comes_back_with_its_reason(front: Front, known: tuple[KernelSpec, str | None, Program]) -> None:
    program = known[2]
    hostile = program.replace({program.kernel_file: program.data.replace(b"{", b'{ asm("trap;");', 1)})
    with pytest.raises(OptimlError, match="assembly"):
        front.prepare(hostile)
    with pytest.raises(OptimlError, match="cannot be analysed"):
        front.propose(program.replace({program.kernel_file: b"int main() { return 0; }\n"}))


def test_a_worker_that_dies_or_hangs_costs_one_program(
    front: Front, known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = known[2]
    front.prepare(program)
    front._crew._idle[-1].kill()
    front.prepare(program)  # a dead one is replaced before it is asked
    monkeypatch.setattr(client, "_TIMEOUT_S", 0.0)
    with pytest.raises(OptimlError, match="too long to analyse"):
        front.prepare(program)
    monkeypatch.undo()
    assert front.prepare(program).launches


def test_many_threads_share_a_few_workers(known: tuple[KernelSpec, str | None, Program]) -> None:
    spec, spec_path, program = known
    made = Front(spec, ROOT, TARGET, spec_path, workers=2)
    try:
        made.warm(program)
        with ThreadPoolExecutor(8) as threads:
            texts = [
                program.replace({program.kernel_file: program.data.replace(b"largest", b"largest%d" % i)})
                for i in range(24)
            ]
            found = list(threads.map(made.prepare, texts))
        assert [f"largest{i} " in one.text for i, one in enumerate(found)] == [True] * 24
        assert 1 <= len(made._crew._workers) <= 2
    finally:
        made.close()


def test_a_further_run_of_a_kernel_starts_no_more(known: tuple[KernelSpec, str | None, Program]) -> None:
    """Each of an ablation's fifteen runs started as many again."""
    spec, spec_path, program = known
    made = Front(spec, ROOT, TARGET, spec_path, workers=4)
    made.warm(program)
    crew = made._crew
    with crew._changed:
        assert crew._changed.wait_for(lambda: len(crew._workers) == 2, timeout=60)
    made.warm(program)
    assert (len(crew._workers), crew._starting) == (2, 0)
    made.close()


def test_whoever_waits_for_a_worker_is_told_of_the_end(known: tuple[KernelSpec, str | None, Program]) -> None:
    spec, spec_path, program = known
    made = Front(spec, ROOT, TARGET, spec_path)
    held = made._crew._take()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(made.prepare, program)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.2)
        made.close()
        with pytest.raises(OptimlError, match="ended"):
            waits.result(timeout=10)
    assert not held.alive


def test_a_worker_that_cannot_start_is_told_to_who_asks(
    known: tuple[KernelSpec, str | None, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, spec_path, program = known
    made = Front(spec, ROOT, TARGET, spec_path, workers=4)
    monkeypatch.setattr(client, "python_command", lambda module: [sys.executable, "-c", "raise SystemExit(3)"])
    made.warm(program)
    for _ in range(2):
        with pytest.raises(OptimlError, match="cannot start"):
            made.prepare(program)
    monkeypatch.undo()
    assert made.prepare(program).launches
    made.close()


def test_what_is_closed_starts_nothing(known: tuple[KernelSpec, str | None, Program]) -> None:
    spec, spec_path, program = known
    closed = Front(spec, ROOT, TARGET, spec_path)
    closed.close()
    with pytest.raises(OptimlError, match="ended"):
        closed.prepare(program)
