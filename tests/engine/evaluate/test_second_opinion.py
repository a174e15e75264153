"""What the CPU path's checks of a suggestion on a GPU come to: refused, checked, or not checked with the reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import engine.evaluate.second_opinion
from engine.compile.built import Built
from engine.cpu import CpuMachine, Unsupported
from engine.cuda.load import load_program
from engine.errors import CompileError, MachineError, OptimlError, RefusedError
from engine.evaluate.cpu_screen import CpuScreen
from engine.evaluate.second_opinion import NAME, SecondOpinion
from engine.model import Evaluation, Failure, Guardrail, Outcome, Program
from engine.run.confirmation import Expected
from engine.run.machine import make_machine
from engine.selftest.cases import load_cases
from engine.spec.find import find_spec
from tests.runtime import prepare_runtime

BUILT: Any = SimpleNamespace(
    binary=SimpleNamespace(resources=(), code_hash=""), program=Program({"k.cu": b"int a;\n"}, "k.cu")
)
WRONG = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'y' differs"))
SAMPLED = Guardrail("sizes", "passed")


def _opinion(monkeypatch: pytest.MonkeyPatch, **screen: Any) -> tuple[SecondOpinion, list[str]]:
    """An opinion whose screen answers, raises, or calls for its answer, this."""
    called = []
    machine: Any = SimpleNamespace(go_on=lambda: None)
    monkeypatch.setattr(engine.evaluate.second_opinion, "_STOOD_LEAST_S", 0.0)

    def answer(name: str, otherwise: Any) -> Any:
        def given(*arguments: Any) -> Any:
            called.append(name)
            found = screen.get(name, otherwise)
            if callable(found):
                found = found(machine)
            if isinstance(found, Exception):
                raise found
            return found

        return given

    made = SimpleNamespace(
        open=answer("open", BUILT),
        prepare=answer("prepare", None),
        confirm=answer("confirm", (None, (SAMPLED,))),
    )
    monkeypatch.setattr(engine.evaluate.second_opinion, "CpuScreen", lambda *arguments: made)
    nothing: Any = None
    return SecondOpinion(nothing, nothing, lambda: machine), called


def _named(text: str) -> Any:
    program = Program({"k.cu": text.encode()}, "k.cu")
    return SimpleNamespace(binary=BUILT.binary, program=program, by_rules=False)


def _wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_checks_that_began_ahead_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opinion, called = _opinion(monkeypatch)
    opinion.begin_ahead(BUILT, lambda: _named("best"))
    _wait_for(lambda: "confirm" in called)
    assert opinion.judge(BUILT, _named("best"))[1][0].verdict == "passed"
    assert called.count("confirm") == 1
    assert opinion.judge(BUILT, _named("another"))[1][0].verdict == "passed"
    assert called.count("confirm") == 2


def test_what_was_refuted_ahead_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opinion, _ = _opinion(monkeypatch, confirm=(WRONG, ()))
    opinion.begin_ahead(BUILT, lambda: _named("best"))
    _wait_for(lambda: opinion.refuted(_named("best")) is not None)
    assert opinion.refuted(_named("another")) is None


def test_a_search_whose_bests_are_alike_checks_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run: bests that come one after the other, a confirmation at its end, and the checks that it took, counted."""
    opinion, called = _opinion(monkeypatch)
    begin = SimpleNamespace(begin_confirming=lambda build: opinion.begin_ahead(BUILT, build))
    expected = Expected(cast(Any, begin))
    for name, ratio in (("first", 2.0), ("second", 2.006), ("last", 2.012)):
        expected.better(_named(name).program.digest, ratio, partial(_named, name))
        _wait_for(lambda: "confirm" in called)
    assert opinion.judge(BUILT, _named("first"))[1][0].verdict == "passed"  # what is confirmed first
    assert called.count("confirm") == 1
    assert opinion.judge(BUILT, _named("last"))[1][0].verdict == "passed"  # nothing counts for another program
    assert called.count("confirm") == 2


def test_what_is_as_fast_is_checked_where_the_first_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    refuting, answers = threading.Event(), iter([(WRONG, ()), (None, (SAMPLED,))])

    def confirm(machine: Any) -> Any:
        assert refuting.wait(30)
        return next(answers)

    opinion, called = _opinion(monkeypatch, confirm=confirm)
    expected = Expected(cast(Any, SimpleNamespace(begin_confirming=lambda build: opinion.begin_ahead(BUILT, build))))
    expected.better("first", 2.0, partial(_named, "first"))
    expected.better("second", 2.006, partial(_named, "second"))
    refuting.set()
    _wait_for(lambda: called.count("confirm") == 2)
    assert opinion.refuted(_named("first")) is not None
    assert opinion.judge(BUILT, _named("second"))[1][0].verdict == "passed"
    assert called.count("confirm") == 2


def test_the_first_code_of_a_model_that_is_the_best_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200 a search built on an edit that differed with NaN until its end; then 15× was refused, and 1.05× was left."""
    opinion, called = _opinion(monkeypatch, confirm=(WRONG, ()))
    of_rules: Any = SimpleNamespace(by_rules=True)
    accepted = Evaluation(Outcome.ACCEPTED, stage_s={"time": 1.0})
    for incumbent in (None, of_rules):
        found = opinion.of_first(BUILT, incumbent, _named("model's"), accepted)
        assert found.outcome is Outcome.WRONG_RESULT
        assert found.failure is not None
        assert found.failure.reason == "on the CPU: 'y' differs"
        assert found.stage_s.keys() == {"time", "screen"}
    assert called.count("confirm") == 2
    slower = replace(accepted, outcome=Outcome.SLOWER)
    assert opinion.of_first(BUILT, None, _named("model's"), slower) is slower
    assert opinion.of_first(BUILT, None, of_rules, accepted) is accepted  # these are checked when they are suggested
    assert opinion.of_first(BUILT, _named("checked"), _named("model's"), accepted) is accepted
    assert called.count("confirm") == 2


@pytest.mark.parametrize("by", ["another best", "the confirmation", "the end"])
def test_checks_ahead_of_what_is_the_best_no_more_are_given_up(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    started, superseded = threading.Event(), threading.Event()

    def confirm(machine: Any) -> Any:
        if not superseded.is_set():
            started.set()
            assert superseded.wait(30)
            machine.go_on()  # raises
            pytest.fail("went on")
        machine.go_on()
        return None, (SAMPLED,)

    opinion, called = _opinion(monkeypatch, confirm=confirm)
    opinion.begin_ahead(BUILT, lambda: _named("first"))
    assert started.wait(30)
    if by == "another best":
        opinion.begin_ahead(BUILT, lambda: _named("second"))
        superseded.set()
        _wait_for(lambda: called.count("confirm") == 2)
    elif by == "the end":
        opinion.give_up()
        superseded.set()
    else:
        (first,) = opinion._known
        threading.Thread(target=lambda: first.given_up.wait(30) and superseded.set()).start()
    assert opinion.judge(BUILT, _named("second"))[1][0].verdict == "passed"
    assert called.count("confirm") == 2


def test_the_original_is_validated_whatever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def opened(machine: Any) -> Any:
        assert given_up.wait(30)
        machine.go_on()
        return BUILT

    opinion, _ = _opinion(monkeypatch, open=opened)
    opinion.begin_ahead(BUILT, lambda: _named("best"))
    opinion.give_up()
    given_up.set()
    assert opinion.judge(BUILT, _named("best"))[1][0].verdict == "passed"


def test_texts_by_architecture_that_the_cpu_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs is one of them."""
    opinion, _ = _opinion(monkeypatch, open=RefusedError("the CPU path cannot run inline PTX"))
    edited = SimpleNamespace(**vars(BUILT))
    edited.program = Program({"k.cu": b"#if __CUDA_ARCH__ > 800\nint a;\n#else\nint b;\n#endif\n"}, "k.cu")
    wrong, _ = opinion.judge(BUILT, edited)
    assert wrong is not None
    assert wrong.outcome is Outcome.SCREENED_OUT
    assert "differs by architecture" in str(wrong.failure)


def test_the_original_is_looked_at_beside_the_search_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opinion, called = _opinion(monkeypatch)
    for _ in range(2):
        opinion.open_beside(BUILT)
    assert opinion.judge(BUILT, BUILT)[0] is None
    assert called == ["open", "prepare", "confirm"]


def test_the_original_is_looked_at_with_the_first_suggestion_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    opinion, called = _opinion(monkeypatch)
    assert called == []
    for _ in range(2):
        wrong, checked = opinion.judge(BUILT, BUILT)
        assert wrong is None
        assert [(g.name, g.verdict) for g in checked] == [(NAME, "passed"), ("sizes", "passed")]
    assert called == ["open", "prepare", "confirm", "confirm"]


def test_what_it_refutes_is_refused_with_where_it_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, _ = _opinion(monkeypatch, confirm=(WRONG, ()))[0].judge(BUILT, BUILT)
    assert wrong is not None
    assert wrong.outcome is Outcome.WRONG_RESULT
    assert wrong.failure is not None
    assert wrong.failure.reason == "on the CPU: 'y' differs"


def test_code_that_switches_its_checks_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, _ = _opinion(monkeypatch, confirm=RefusedError("defines '__tsan_read4'"))[0].judge(BUILT, BUILT)
    assert wrong is not None
    assert wrong.outcome is Outcome.SCREENED_OUT


@pytest.mark.parametrize(
    ("where", "error", "says"),
    [
        ("open", RefusedError("the kernel has data races"), "data races"),
        ("open", MachineError("no C++ compiler was found"), "no C++ compiler"),
        ("open", ValueError("of ours"), "internal error"),
        ("prepare", MachineError("the scratch folder cannot be written"), "scratch folder"),
        ("confirm", Unsupported("", features=("inline PTX",)), "cannot run inline PTX"),
        ("confirm", CompileError("refused", log=""), "refused"),
        ("confirm", ValueError("of ours"), "internal error"),
        ("confirm", (replace(WRONG, outcome=Outcome.TIMED_OUT), ()), "'y' differs"),
    ],
)
def test_without_an_opinion_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, where: str, error: OptimlError, says: str
) -> None:
    opinion, _ = _opinion(monkeypatch, **{where: error})
    for _ in range(2):
        wrong, checked = opinion.judge(BUILT, BUILT)
        assert wrong is None
        assert [(g.name, g.verdict) for g in checked] == [(NAME, "not checked")]
        assert says in checked[0].detail


def test_a_size_that_no_case_has_and_the_same_kernel_written_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real parts: what a GPU evaluator gets to hear of an index that is too narrow."""
    prepare_runtime()
    case = next(case for case in load_cases("attacks") if case.name == "narrow-index")
    path = tmp_path / case.path
    path.write_bytes(case.before[case.path])
    (tmp_path / ".git").mkdir()
    machine = make_machine(device="cpu", jobs=2)
    with closing(machine):
        spec, spec_path = find_spec(tmp_path, path)
        program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        builder = machine.builder(spec, tmp_path, spec_path)
        original = builder.original(program)
        opinion = SecondOpinion(spec, builder, machine.cpu_machine)
        wrong, _ = opinion.judge(original, builder.candidate(program.replace({case.path: case.text()})))
        assert wrong is not None
        assert wrong.failure is not None
        assert "index is too narrow" in wrong.failure.reason or "differs at" in wrong.failure.reason
        # A suggestion is compiled with marks for its conditions while it is compiled: neither waits for the other.
        marking = threading.Event()
        complete, marked = CpuScreen.complete, CpuMachine.marked

        def mark(self: CpuMachine, *given: Any, **named: Any) -> Any:
            marking.set()
            return marked(self, *given, **named)

        def waits(self: CpuScreen, built: Built) -> Built:
            assert marking.wait(60)
            return complete(self, built)

        monkeypatch.setattr(CpuMachine, "marked", mark)
        monkeypatch.setattr(CpuScreen, "complete", waits)
        # The original's runs serve what comes next as well, but not after a refusal, whose reason names an input.
        drawn, afresh = [], CpuScreen._drawn_afresh
        monkeypatch.setattr(CpuScreen, "_drawn_afresh", lambda self: drawn.append(1) or afresh(self))
        for _ in range(2):
            wrong, checked = opinion.judge(original, original)
            assert wrong is None
            assert {g.verdict for g in checked} == {"passed"}
            assert len(drawn) == 1
