"""A worker that dies, hangs, has no memory left or lost its context; a GPU that is lost: what it costs is that one candidate."""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.errors import MachineError, RefusedError
from engine.evaluate.evaluator import WIN
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.samples import on_other_device
from engine.evaluate.secret_cases import SecretCases
from engine.gpu.runner import DeviceFault, Timing
from engine.gpu.sanitize import Sanitized
from engine.model import CaseTiming, Evaluation, Failure, Guardrail, LaunchConfig, Measurement, Outcome, Program
from engine.process.fair_lock import WAITED, Turns
from engine.process.worker_process import Worker
from engine.run.optimization import optimize
from engine.spec.data import NAN
from engine.spec.kernel_spec import Argument, Case
from engine.verify.plan import Check, real_shapes
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import Nvml, command, evaluator
from .kills import rows
from .scripted import ScriptedEvaluator, kernel, options, scripted


def _opinion(**answers: Any) -> Any:
    """A second opinion that answers this, and checks nothing ahead."""
    return SimpleNamespace(
        **{"open_beside": lambda original: None, "refuted": lambda built: None, "give_up": lambda: None, **answers}
    )


def _program(code: str) -> Program:
    return Program({"k.cu": f"// code {code}".encode()}, "k.cu")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Iterator[GpuEvaluator]:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    monkeypatch.setattr(engine.evaluate.gpu, "_LEAST_LIMIT_S", 30.0)  # a busy machine is no hanging kernel
    made = evaluator(spec(), tmp_path)
    made.open(_program("1.0"))
    yield made
    made.close()


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
        made.open(_program("1.0"), lambda: met.append(begun.wait(10)))
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
        made.open(_program("1.0"))
        assert not ran
        alike.open(_program("1.0"))
        assert made.secret_cases == alike.secret_cases
        built = made.build(_program("2.0"), by_rules=False)
        made._confirm(built, (Outcome.ACCEPTED,), beside=True)
        assert not ran
        made.confirm(built)
        assert ran == [b"1.0", b"2.0"]
    finally:
        made.close()
        alike.close()


def _evaluated(bench: GpuEvaluator, code: str) -> Evaluation:
    return bench.evaluate(bench.build(_program(code), by_rules=False), None)[0]


def test_every_sample_has_the_state_of_its_gpu(bench: GpuEvaluator) -> None:
    sample, failed = _evaluated(bench, "2.0"), _evaluated(bench, "wrong")
    assert sample.measurement is not None
    assert set(sample.device) == {"uuid", "driver", "sm_mhz", "memory_mhz", "temperature_c"}
    assert sample.device["temperature_c"] == 40
    assert failed.device == {}  # nothing was timed


@pytest.mark.parametrize(
    ("code", "outcome", "says"),
    [
        ("kills", Outcome.CRASHED, "crashed the worker process"),
        ("hangs", Outcome.TIMED_OUT, "did not finish in time"),
        ("oom", Outcome.CRASHED, "not enough device memory"),
        ("faults", Outcome.MEMORY_ERROR, "illegal memory access"),
        ("wrong", Outcome.WRONG_RESULT, "'y' differs"),
    ],
)
def test_what_fails_or_takes_the_worker_down_costs_one_candidate(
    bench: GpuEvaluator, code: str, outcome: Outcome, says: str
) -> None:
    usual_s = bench._limit_s
    bench._limit_s = 0.5 if code == "hangs" else usual_s
    begin = time.monotonic()
    evaluation = _evaluated(bench, code)
    assert time.monotonic() - begin < 40  # and not the minute that it would hang
    bench._limit_s = usual_s
    assert evaluation.outcome is outcome
    assert evaluation.failure is not None
    assert says in evaluation.failure.reason
    following = _evaluated(bench, "2.0")
    assert following.outcome is Outcome.ACCEPTED
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("code", "outcome"), [("faults", Outcome.MEMORY_ERROR), ("wrong leaves", Outcome.WRONG_RESULT)]
)
def test_what_was_found_counts_though_the_worker_ended_before_the_request_for_the_timing(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch, code: str, outcome: Outcome
) -> None:
    sends = Worker.send

    def late(worker: Worker, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
        if header.get("if_right"):
            worker._process.wait(timeout=20)
        sends(worker, header, blobs)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "send", late)
        assert _evaluated(bench, code).outcome is outcome
    assert _evaluated(bench, "2.0").outcome is Outcome.ACCEPTED


def test_an_interrupt_beside_a_timing_leaves_no_answer_for_the_next_request(bench: GpuEvaluator) -> None:
    """NVML is asked while the worker is busy: its answer would have been taken for that to whatever was asked next."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert _evaluated(bench, "2.0").outcome is Outcome.ACCEPTED
    with pytest.raises(KeyboardInterrupt):
        bench._runner.time(bench._timing(["original", "candidate"], "look"), timeout_s=5.0, meanwhile=interrupted)
    following = _evaluated(bench, "3.0")
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(3.0, rel=0.01)


def test_a_timing_that_nobody_fetches_leaves_no_answer_for_the_next_request(bench: GpuEvaluator) -> None:
    """It begins beside the answer of the checks before it."""
    checks = real_shapes(spec(), random.Random(0))
    timing = bench._timing(["original", "candidate"], "look")
    bench._runner.verify(
        "candidate", checks, timeout_s=5.0, built=bench.build(_program("2.0"), by_rules=False), then=timing
    )
    following = _evaluated(bench, "3.0")
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(3.0, rel=0.01)


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "scratch").write_text("where the folder should be")
    bench = evaluator(spec(), tmp_path)
    try:
        bench.open(_program("1.0"))
        assert _evaluated(bench, "2.0").outcome is Outcome.ACCEPTED
    finally:
        bench.close()


def test_it_may_happen_in_the_confirmation_too(bench: GpuEvaluator) -> None:
    built = bench.build(_program("kills"), by_rules=False)
    assert bench.confirm(built).outcome is Outcome.CRASHED
    assert bench.confirm(bench.build(_program("2.0"), by_rules=False)).outcome is Outcome.ACCEPTED


def _waiting(bench: GpuEvaluator) -> Worker:
    """The second process, started ahead of the confirmation."""
    assert bench._second is not None
    assert bench._second._worker is not None
    return bench._second._worker


def test_the_second_process_starts_with_the_first_candidate_worth_confirming(bench: GpuEvaluator) -> None:
    built = bench.build(_program("2.0"), by_rules=False)
    assert bench.evaluate(bench.build(_program("0.5"), by_rules=False), None)[0].outcome is Outcome.SLOWER
    assert bench._second is None
    bench.evaluate(built, None)
    ahead = _waiting(bench)
    bench.evaluate(bench.build(_program("3.0"), by_rules=False), built)
    assert _waiting(bench) is ahead
    first = bench._runner._worker
    assert bench.confirm(built).outcome is Outcome.ACCEPTED
    assert bench._runner._worker is ahead is not first
    assert first is not None
    assert not first.alive
    assert bench._second is None


def test_the_checks_on_the_cpu_do_not_hold_the_gpu(bench: GpuEvaluator) -> None:
    lock, free = threading.Lock(), list[bool]()

    def judge(original: Any, built: Any) -> Any:
        free.append(lock.acquire(timeout=60))  # what the confirmation gives back once its own checks are done
        lock.release()
        return None, ()

    bench._gpu = lock
    bench._cpu = _opinion(judge=judge)
    evaluation = bench.confirm(bench.build(_program("2.0"), by_rules=False))
    assert evaluation.outcome is Outcome.ACCEPTED
    assert free == [True]
    assert {"second process", "verify", "sanitizers", "checks on the CPU", "time"} <= set(evaluation.stage_s)


@pytest.mark.parametrize("answered", [False, True], ids=["before it answered", "after it answered"])
def test_a_second_process_that_dies_while_it_waits_costs_nothing(bench: GpuEvaluator, answered: bool) -> None:
    built = bench.build(_program("2.0"), by_rules=False)
    bench.evaluate(built, None)
    ahead = _waiting(bench)
    while answered and not select.select([ahead._answers._socket], [], [], 0.01)[0]:
        pass
    os.kill(ahead.pid, signal.SIGKILL)
    while ahead.alive:
        time.sleep(0.01)
    assert bench.confirm(built).outcome is Outcome.ACCEPTED


def test_a_second_process_that_is_not_needed_ends_with_the_evaluator(bench: GpuEvaluator) -> None:
    bench.evaluate(bench.build(_program("2.0"), by_rules=False), None)
    ahead = _waiting(bench)
    bench.close()
    assert not ahead.alive


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
    found = bench.confirm(bench.build(_program("2.0"), by_rules=False))
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
    made.open(_program("1.0"))
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
    found = bench.confirm(bench.build(_program(code), by_rules=False))
    assert found.outcome is Outcome.WRONG_RESULT
    assert "66345" in str(found.failure)


def test_what_the_cpu_has_refuted_beside_the_search_takes_no_turn_at_the_gpu(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'y' differs at n = 66345"))
    monkeypatch.setattr(bench, "_cpu", _opinion(refuted=lambda built: wrong))
    monkeypatch.setattr("engine.evaluate.gpu.turn", lambda gpu, lap: pytest.fail("it was run"))
    found = bench.confirm(bench.build(_program("2.0"), by_rules=False))
    assert found.outcome is Outcome.WRONG_RESULT
    assert found.stage_s == {}


def test_what_the_cpu_has_checked_stands_among_the_guardrails(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = (Guardrail("also checked on the CPU", "not checked", "it uses inline PTX"),)
    monkeypatch.setattr(bench, "_cpu", _opinion(judge=lambda original, built: (None, checked)))
    found = bench.confirm(bench.build(_program("2.0"), by_rules=False))
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
        made.open(_program("1.0"))
    assert says in refused.value.what
    made.close()


def test_a_tool_without_a_verdict_on_the_original_is_named_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    monkeypatch.setattr(made, "_sanitize", lambda built, checks: (Sanitized("initcheck", None, "not supported"),))
    made.open(_program("1.0"))
    assert "initcheck gave no verdict on the original: not supported" in made.signals.missing
    made.close()


def test_waiting_for_a_turn_at_the_gpu_is_no_part_of_the_confirmations_stages(bench: GpuEvaluator) -> None:
    """It was counted twice: as a wait for the profiler, and as verifying and timing."""
    turns = Turns()
    bench._gpu = turns
    built = bench.build(_program("2.0"), by_rules=False)
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


@pytest.mark.parametrize("code", ["kills", "hangs", "faults"])
def test_an_incumbent_of_an_earlier_run_that_fails_now_is_held_against_no_candidate(
    bench: GpuEvaluator, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was verified before: the machine or the driver has changed, and every candidate beside it would count as crashed."""
    bench._limit_s = 0.2 if code == "hangs" else bench._limit_s
    with pytest.raises(MachineError, match="best of the earlier run") as caught:
        bench.evaluate(
            bench.build(_program("2.0"), by_rules=False), bench.build(_program(f"timed {code}"), by_rules=False)
        )
    assert "without --resume" in caught.value.do


@pytest.mark.parametrize("beside", [False, True])
def test_what_another_device_says_of_a_suggestion_is_not_found_out_again(
    bench: GpuEvaluator, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def judge(original: object, built: object) -> tuple[None, tuple[()]]:
        asked.append("on the CPU")
        return None, ()

    monkeypatch.setattr(bench, "_cpu", SimpleNamespace(judge=judge, refuted=lambda built: None, give_up=lambda: None))
    monkeypatch.setattr(bench, "_sanitize", lambda built, checks: asked.append("sanitizers") or ())
    confirmed = bench.confirm(bench.build(_program("2.0"), by_rules=False), beside=beside)
    assert confirmed.outcome is Outcome.ACCEPTED
    assert sorted(asked) == ([] if beside else ["on the CPU", "sanitizers"])


def test_an_incumbent_that_another_device_timed_is_not_timed_again(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = bench.build(_program("2.0"), by_rules=False)
    case = CaseTiming(spec().time[0].name, 1.0, 30.0, 15.0, 2.0, 1.9, 2.1, 8)
    measured = on_other_device(
        Measurement((case,), 2.0, 1.9, 2.1), Measurement((replace(case, original_us=40.0),), 1.0, 1.0, 1.0)
    )
    assert measured is not None
    assert (measured.cases[0].original_us, measured.cases[0].candidate_us) == (40.0, 20.0)
    assert on_other_device(measured, Measurement((replace(case, case="other"),), 1.0, 1.0, 1.0)) is None
    bench.take_over(best, measured)
    asked: list[Sequence[str]] = []
    timed = bench._time
    monkeypatch.setattr(bench, "_time", lambda timing: asked.append(timing.programs) or timed(timing))
    evaluation, against = bench.evaluate(bench.build(_program("1.0"), by_rules=False), best)
    assert asked == [("incumbent", "candidate")]
    assert against == pytest.approx(0.5, rel=0.05)
    assert evaluation.measurement is not None
    assert evaluation.measurement.ratio == pytest.approx(1.0, rel=0.05)


def test_a_wall_clock_set_back_hides_no_other_process(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML stamps its samples by the wall clock: what is asked for must not lie in a future that was taken back."""
    from engine.gpu.monitor import Monitor

    asked: list[int] = []
    nvml.nvmlDeviceGetProcessUtilization = lambda handle, since: asked.append(since) or []
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monitor = Monitor()
    monitor.read()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    monitor.read()
    assert asked[1] <= asked[0] - 3_600_000_000


def test_a_lost_gpu_ends_the_run_with_everything_booked(bench: GpuEvaluator, nvml: Nvml, tmp_path: Path) -> None:
    class Losing(ScriptedEvaluator):
        seen = 0

        def evaluate(self, built, incumbent):  # type: ignore[no-untyped-def]
            self.seen += 1
            nvml.lost = self.seen > 10
            bench._runner.monitor.read()
            return super().evaluate(built, incumbent)

    path = kernel(tmp_path)
    with scripted(Losing()) as machine, pytest.raises(MachineError, match="GPU is lost") as caught:
        optimize(options(path, tmp_path / "out"), machine)
    assert "nvidia-smi" in caught.value.do
    kept = rows(tmp_path / "out")
    assert len(kept) > 10
    with scripted(ScriptedEvaluator()) as machine:
        result, _ = optimize(options(path, tmp_path / "out", resume=True), machine)
    assert result.counts["candidates"] == 88
    assert kept.items() <= rows(tmp_path / "out").items()


def test_no_gpu_answers_at_the_start(nvml: Nvml, tmp_path: Path) -> None:
    nvml.lost = True
    with pytest.raises(MachineError, match="NVML does not answer: GPU is lost"):
        evaluator(spec(), tmp_path)


def test_the_best_of_an_earlier_run_is_timed_here_before_others_are_held_against_it(bench: GpuEvaluator) -> None:
    """In a resumed run it comes from the journal: this process has not measured it."""
    best = bench.build(_program("2.0"), by_rules=False)
    evaluation, against = bench.evaluate(bench.build(_program("3.0"), by_rules=False), best)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert evaluation.measurement is not None
    assert evaluation.measurement.ratio == pytest.approx(3.0, rel=0.01)
    assert against == pytest.approx(1.5, rel=0.01)
    with pytest.raises(MachineError, match="the best of the earlier run is not confirmed here"):
        bench.evaluate(
            bench.build(_program("3.0"), by_rules=False), bench.build(_program("timed faults"), by_rules=False)
        )


@pytest.mark.parametrize(("speed", "steps"), [("1.9", 2), ("2.0 again", 3), ("2.004", 3), ("2.02", 5)])
def test_what_cannot_take_the_incumbents_place_gets_no_close_look(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch, speed: str, steps: int
) -> None:
    """Where many are as fast as the best, half of them won by a hair and were timed closely beside a slow original, and each
    that came near was verified on the real shapes, which takes longer than all else."""
    best = bench.build(_program("2.0"), by_rules=False)
    bench.evaluate(best, None)
    asked: list[str] = []
    time, verify = bench._time, bench._runner.verify

    def noted(timing: Timing) -> Any:
        asked.append(timing.effort)
        return time(timing)

    def verified(key: str, checks: Sequence[Check], **named: Any) -> Any:
        real = {c.case for c in checks} & set(range(len(spec().check), len(spec().check) + len(spec().time)))
        asked.append("real shapes" if real else "check shapes")
        return verify(key, checks, **named)

    monkeypatch.setattr(bench, "_time", noted)
    monkeypatch.setattr(bench._runner, "verify", verified)
    evaluation, against = bench.evaluate(bench.build(_program(speed), by_rules=False), best, brief=True)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert asked == ["check shapes", "look", "duel", "real shapes", "duel"][:steps]
    assert against is not None
    assert (against > WIN) == (steps == 5)
    asked.clear()
    bench.evaluate(bench.build(_program(f"{speed} "), by_rules=False), best)
    assert asked == ["check shapes", "look", "duel", "real shapes", "close"][:steps]


def test_an_original_that_is_wrong_while_timed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    """There was no measurement to take the floors from, so this was an internal error."""
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    made = evaluator(spec(), tmp_path)
    with pytest.raises(RefusedError, match="gives different results while it is timed: 'y' differs") as caught:
        made.open(_program("1.0 unsteady"))
    assert "between launches" in caught.value.do
    made.close()


class Validating:
    """A runner whose validation fails while the session has sizes of a kind."""

    def __init__(self, fails: Any) -> None:
        self.fails, self.opened = fails, []

    def open(self, spec: Any, built: Any, wide: Any) -> None:
        assert len(built.launches) == len(spec.check) + len(spec.time)
        self.opened.append([case.sizes for case in spec.time])

    def close(self) -> None:
        pass

    def validate(self, timeout_s: float) -> Mapping[str, Any]:
        if problem := self.fails(self.opened[-1]):
            if problem == "faults":
                raise DeviceFault("illegal address", kind="device")
            return {"problems": [problem], "widened": True}
        return {"problems": [], "widened": True}


@pytest.mark.parametrize(
    ("fails", "opened", "kept"),
    [
        (lambda cases: "", 1, True),
        (lambda cases: "faults" if any(c["n"] % 4 for c in cases) else "", 2, True),
        (lambda cases: "writes outside an array" if len(cases) > 1 else "", 3, False),
    ],
    ids=["any size", "multiples of 4", "named sizes alone"],
)
def test_sizes_that_the_original_does_not_take_are_not_asked_of_candidates(
    bench: GpuEvaluator, fails: Any, opened: int, kept: bool
) -> None:
    case = Case("n=4096", {"n": 4096})
    argument = Argument("x", "float", "in", size="n")
    bench._spec = replace(bench._spec, arguments=(argument,), check=(Case("n=64", {"n": 64}),), time=(case,))
    launch = (LaunchConfig((1, 1, 1), (32, 1, 1)),)
    bench._builder.launches_for = lambda program, sizes: launch  # type: ignore[method-assign]
    bench._secret = SecretCases(bench._spec, bench._builder, random.Random(1))
    bench._wide = None
    bench._runner.close()
    runner = bench._runner = cast(Any, Validating(fails))
    built = replace(bench._original, launches=(launch, launch))  # type: ignore[type-var]
    assert bench._validated(built)["problems"] == []
    assert len(runner.opened) == opened
    assert bool(bench._secret.cases) is kept


@pytest.mark.parametrize("ends", ["passes on", "drops", "strays", "faults"])
def test_nan_is_asked_for_only_where_the_original_passes_it_on(bench: GpuEvaluator, ends: str) -> None:
    def outputs(key: str, index: int, buffers: Mapping[str, Any], poison: int, *, timeout_s: float) -> Any:
        assert key == "original"
        if ends == "faults":
            raise DeviceFault("illegal address", kind="device")
        return "outside" if ends == "strays" else "", {
            "y": buffers["x"] if ends == "passes on" else np.fmax(buffers["x"], 0)
        }

    opened: list[Any] = []
    arguments = (Argument("x", "float", "in", size="n"), Argument("y", "float", "out", size="n"))
    bench._spec = replace(bench._spec, arguments=arguments, check=(Case("n=64", {"n": 640}),))
    bench._runner.close()
    bench._runner = cast(Any, SimpleNamespace(outputs=outputs, close=lambda: None))
    bench._opened = lambda built, timeout_s: opened.append(built) or {}  # type: ignore[assignment,func-returns-value]
    assert bench._original is not None
    bench._admit_nan(bench._original)
    assert any(check.family == NAN for check in bench._late_checks()) is (ends == "passes on")
    assert len(opened) == (ends == "faults")
