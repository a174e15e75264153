"""Sanitizers and checks on the CPU beside the search: what they find, what fails in them, and whose time they take."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.errors import RefusedError
from engine.evaluate.gpu import GpuEvaluator
from engine.gpu.sanitize import Sanitized
from engine.model import Evaluation, Failure, Guardrail, Outcome
from engine.process.fair_lock import WAITED, Turns
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import Nvml, command, evaluator, program


def _opinion(**answers: Any) -> Any:
    """A second opinion that answers this, and checks nothing ahead."""
    return SimpleNamespace(
        **{"open_beside": lambda original: None, "refuted": lambda built: None, "give_up": lambda: None, **answers}
    )


def test_the_sanitizers_begin_as_soon_as_the_original_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    """They began with the validation, behind the float64 reference's compiler and the worker's start, and were then waited for."""
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made, begun, met = evaluator(spec(), tmp_path), threading.Event(), list[bool]()

    def sanitize(built: Any, checks: Any) -> tuple[Sanitized, ...]:
        begun.set()
        return ()

    made._sanitize = sanitize
    try:
        made.open(program("1.0"), lambda: met.append(begun.wait(10)))
    finally:
        made.close()
    assert met == [True]


def test_a_device_beside_the_first_sanitizes_nothing_until_it_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    """Four devices ran sixteen sanitizers beside each other to open one original: all of them waited 8 s for it instead of 3."""
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made, ran = evaluator(spec(), tmp_path), list[bytes]()

    def sanitize(built: Any, checks: Any) -> tuple[Sanitized, ...]:
        ran.append(built.binary.cubin)
        return ()

    made._sanitize = sanitize
    made.seed(1)
    made.ahead = False
    alike = evaluator(spec(), tmp_path)
    alike.seed(1)
    try:
        made.open(program("1.0"))
        assert not ran
        alike.open(program("1.0"))
        assert made.secret_cases == alike.secret_cases
        built = made.build(program("2.0"), by_rules=False)
        made._confirm(built, (Outcome.ACCEPTED,), beside=True)
        assert not ran
        made.confirm(built)
        assert ran == [b"1.0", b"2.0"]
    finally:
        made.close()
        alike.close()


def test_the_checks_on_the_cpu_do_not_hold_the_gpu(bench: GpuEvaluator) -> None:
    lock, free = threading.Lock(), list[bool]()

    def judge(original: Any, built: Any) -> Any:
        free.append(lock.acquire(timeout=60))  # what the confirmation gives back once its own checks are done
        lock.release()
        return None, ()

    bench._gpu = lock
    bench._cpu = _opinion(judge=judge)
    evaluation = bench.confirm(bench.build(program("2.0"), by_rules=False))
    assert evaluation.outcome is Outcome.ACCEPTED
    assert free == [True]
    assert {"second process", "verify", "sanitizers", "checks on the CPU", "time"} <= set(evaluation.stage_s)


def test_the_sanitizers_run_beside_the_checks_and_not_beside_the_timing(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, order = threading.Event(), []
    check, timed = bench._checked, bench._time

    def checks(*arguments):  # type: ignore[no-untyped-def]
        checked.set()
        return check(*arguments)

    def sanitize(built, some):  # type: ignore[no-untyped-def]
        assert {c.family for c in some} == {"declared"}
        order.append("beside" if checked.wait(20) else "alone")
        time.sleep(0.1)
        order.append("sanitized")
        return (Sanitized("memcheck", 1, "Invalid write"),)

    def times(*arguments):  # type: ignore[no-untyped-def]
        order.append("timed")
        return timed(*arguments)

    monkeypatch.setattr(bench, "_checked", checks)
    monkeypatch.setattr(bench, "_time", times)
    monkeypatch.setattr(bench, "_sanitize", sanitize)
    found = bench.confirm(bench.build(program("2.0"), by_rules=False))
    assert order == ["beside", "sanitized", "timed"]
    assert found.outcome is Outcome.GUARDRAIL
    assert "Invalid write" in str(found.failure)


def test_the_cpu_begins_with_the_original_beside_its_validation_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    begun: list[object] = []
    validate = made._validated
    made._cpu = _opinion(open_beside=begun.append)
    monkeypatch.setattr(made, "_validated", lambda built: (begun.append("validated"), validate(built))[1])
    made.open(program("1.0"))
    assert begun == [made._original, "validated"]
    made.close()


@pytest.mark.parametrize("code", ["2.0", "0.5"])
def test_what_the_cpu_refutes_is_wrong_at_any_speed_and_is_not_timed(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """An attack that was slower than its original was called slower, and no one looked further."""
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'y' differs at n = 66345"))
    monkeypatch.setattr(bench, "_cpu", _opinion(judge=lambda original, built: (wrong, ())))
    monkeypatch.setattr(bench, "_time", lambda timing: pytest.fail("it was timed"))
    found = bench.confirm(bench.build(program(code), by_rules=False))
    assert found.outcome is Outcome.WRONG_RESULT
    assert "66345" in str(found.failure)


def test_what_the_cpu_has_refuted_beside_the_search_takes_no_turn_at_the_gpu(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'y' differs at n = 66345"))
    monkeypatch.setattr(bench, "_cpu", _opinion(refuted=lambda built: wrong))
    monkeypatch.setattr("engine.evaluate.gpu.turn", lambda gpu, lap: pytest.fail("it was run"))
    found = bench.confirm(bench.build(program("2.0"), by_rules=False))
    assert found.outcome is Outcome.WRONG_RESULT
    assert found.stage_s == {}


def test_what_the_cpu_has_checked_stands_among_the_guardrails(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = (Guardrail("also checked on the CPU", "not checked", "it uses inline PTX"),)
    monkeypatch.setattr(bench, "_cpu", _opinion(judge=lambda original, built: (None, checked)))
    found = bench.confirm(bench.build(program("2.0"), by_rules=False))
    assert found.outcome is Outcome.ACCEPTED
    assert checked[0] in found.guardrails


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            Sanitized("racecheck", 2, "Race reported at k+0x40 in k.cu:7"),
            "racecheck: Race reported at k+0x40 in k.cu:7",
        ),
        (Sanitized("memcheck", 1, "Invalid __global__ read of size 4 bytes at k+0x10"), "Invalid __global__ read"),
    ],
)
def test_an_original_with_a_report_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml, found: Sanitized, says: str
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    monkeypatch.setattr(made, "_sanitize", lambda built, checks: (Sanitized("synccheck", 0), found))
    with pytest.raises(RefusedError, match="compute-sanitizer reports errors") as refused:
        made.open(program("1.0"))
    assert says in refused.value.what
    made.close()


def test_a_tool_without_a_verdict_on_the_original_is_named_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    monkeypatch.setattr(made, "_sanitize", lambda built, checks: (Sanitized("initcheck", None, "not supported"),))
    made.open(program("1.0"))
    assert "initcheck gave no verdict on the original: not supported" in made.signals.missing
    made.close()


def test_waiting_for_a_turn_at_the_gpu_is_no_part_of_the_confirmations_stages(bench: GpuEvaluator) -> None:
    """It was counted twice: as a wait for the profiler, and as verifying and timing."""
    turns = Turns()
    bench._gpu = turns
    built = bench.build(program("2.0"), by_rules=False)
    began = threading.Event()

    def profile() -> None:
        for _ in range(3):
            with turns.guest():
                began.set()
                for _ in range(20_000):
                    if turns._waiting:
                        break
                    time.sleep(0.001)
                time.sleep(0.1)

    profiler = threading.Thread(target=profile)
    profiler.start()
    began.wait()
    begin = time.perf_counter()
    stages = dict(bench.confirm(built).stage_s)
    took = time.perf_counter() - begin
    profiler.join()
    assert turns.waited_s > 0.25
    assert stages[WAITED] >= turns.waited_s
    assert sum(stages.values()) <= took  # so that no other stage has the wait too
    assert stages["verify"] > 0
    assert stages["time"] > 0
