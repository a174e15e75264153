"""Evaluation on a GPU: verify on fresh inputs, then time against original and incumbent."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

from engine import guardrails
from engine.errors import CompileError, MachineError, OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.model import WIN, Built, Signals, nothing
from engine.evaluate.samples import beside_incumbent, beside_original, floors_us, judge
from engine.gpu.monitor import disturbance
from engine.gpu.pace import HOST_OVER_EVENTS
from engine.gpu.runner import DeviceFault, GpuRunner, Timing, Wide
from engine.gpu.sanitize import Sanitized
from engine.model import Evaluation, Failure, LaunchConfig, Measurement, Outcome, Program
from engine.profile.turns import WAITED
from engine.spec.data import bytes_needed
from engine.spec.model import KernelSpec
from engine.verify.plan import Check, plan, real_shapes
from engine.verify.widen import widen

_Found = tuple[Sanitized, ...]
_SEEDS = 1 << 40
# A candidate whose first look comes this near the original gets a close look: the look's own noise is about 2 %. Beside the
# incumbent both are fast and the look is good to half a per cent.
_NEAR = 0.97
_NEAR_INCUMBENT = 0.995
_RETRIES = 2
# A candidate gets this many times what the original takes for the same checks, but not less than two seconds: a kernel a
# hundred times slower is of no interest, and one that never ends must not cost more.
_LIMIT_FACTOR = 10.0
_LEAST_LIMIT_S = 2.0
_VALIDATED_S = 120.0
_READ_AFTER = ("close", "final")  # efforts whose samples are what is said of a candidate
_REPEATED = 4  # checks run twice for the guardrail of repeatable output

_KINDS = {"wrong_result": Outcome.WRONG_RESULT, "memory_error": Outcome.MEMORY_ERROR}
_FAULTS = {
    "launch": Outcome.CRASHED, "device": Outcome.MEMORY_ERROR, "out_of_memory": Outcome.CRASHED,
    "timeout": Outcome.TIMED_OUT, "died": Outcome.CRASHED,
}  # fmt: skip


class GpuEvaluator:
    """The measured path. `make_runner` makes a worker: the first starts at once, another for the confirmation in a second process."""

    def __init__(
        self, spec: KernelSpec, builder: Builder, make_runner: Callable[[], GpuRunner],
        sanitize: Callable[[Built, Sequence[Check]], tuple[Sanitized, ...]] | None = None,
        gpu: AbstractContextManager[object] | None = None,
    ) -> None:  # fmt: skip
        self._spec, self._builder, self._make_runner, self._sanitize = spec, builder, make_runner, sanitize
        self._gpu = gpu or nullcontext()  # whose turn it is at the GPU: ours, or the profiler's
        self._runner = make_runner()
        self._second: GpuRunner | None = None  # the confirmation's, started ahead
        self._random = random.Random(secrets.randbits(64))
        self._original: Built | None = None
        self._wide: Wide | None = None
        self._near: dict[tuple[object, ...], Measurement] = {}  # of what was timed closely, by identity
        self._held: Measurement | None = None  # the incumbent's
        self._limit_s = _LEAST_LIMIT_S
        self._floors: tuple[float, ...] = ()
        self.bandwidth = 0.0
        self._missing: list[str] = []
        if sanitize is None:
            self._missing.append(
                "compute-sanitizer is not there: memory errors and races are looked for by our checks alone"
            )
        self._versions: dict[str, Any] = {}
        self._runner.start_ahead()

    @property
    def signals(self) -> Signals:
        device = {**self._runner.device, "copy_bytes_per_s": self.bandwidth, **self._versions}
        return Signals("measured", device, tuple(self._missing))

    # ---- the original

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        built = self._builder.original(original)
        begin = time.perf_counter()
        wide = self._widened(built)
        compiling = built.stage_s.get("compile", 0.0) + time.perf_counter() - begin
        ready()
        device = self._runner.start()
        for case in (*self._spec.check, *self._spec.time):
            needed = bytes_needed(self._spec, case)
            # Inputs, two sets of outputs, and a twin in doubles.
            if needed * 5 > device["free_bytes"]:
                raise RefusedError(
                    f"case {case.name} needs {needed / 1e9:.1f} GB of buffers and about five times that to check; the GPU has "
                    f"{device['free_bytes'] / 1e9:.1f} GB free", self._spec.origin or self._spec.file, "choose smaller sizes",
                )  # fmt: skip
        self._original, self._wide = built, wide
        begin = time.perf_counter()
        self.bandwidth = self._runner.bandwidth()
        try:
            self._runner.open(self._spec, built, self._wide)
            answer = self._runner.validate()
        except DeviceFault as fault:
            how = "never ends" if fault.kind == "timeout" else f"fails on its own ({fault.what})"
            raise RefusedError(
                f"the kernel '{self._spec.kernel}' {how}", self._spec.origin or self._spec.file,
                "check the spec's sizes and the launch, or mend the kernel",
            ) from None  # fmt: skip
        if answer["problems"]:
            raise RefusedError("; ".join(answer["problems"]), self._spec.origin or self._spec.file, "mend the spec")
        if not answer["widened"]:
            self._missing.append(
                "no float64 reference: the kernel cannot be widened, so the tolerance is a multiple of its type's epsilon"
            )
        verifying = time.perf_counter()
        self._runner.verify("original", real_shapes(self._spec, self._random), timeout_s=_VALIDATED_S)
        self._runner.verify("original", plan(self._spec, self._random, self._builder.defences), timeout_s=_VALIDATED_S)
        self._limit_s = max(_LEAST_LIMIT_S, _LIMIT_FACTOR * (time.perf_counter() - verifying))
        measurement, failure, _ = self._time(self._timing(["original", "original"], "look"))
        if failure:
            raise RefusedError(
                f"the kernel '{self._spec.kernel}' gives other results while it is timed: {failure['reason']}",
                self._spec.origin or self._spec.file,
                "look for what it keeps from launch to launch, and for outputs that it does not write whole",
            )
        cache = int(self._runner.device.get("l2_bytes", 0))
        floors = floors_us(self._spec, measurement, self.bandwidth, cache)
        self._floors = floors if self._builder.defences.roofline_floor else (0.0,) * len(floors)
        driver = self._runner.monitor.driver()
        self._versions["driver_version"] = driver
        evaluation = Evaluation(
            Outcome.ACCEPTED, measurement, None, built.binary.resources, built.binary.code_hash,
            {**built.stage_s, "compile": compiling, "validate": time.perf_counter() - begin},
        )  # fmt: skip
        return built, evaluation

    def _widened(self, built: Built) -> Wide | None:
        found = widen(built.text, built.expressions)
        if found is None:
            return None
        text, expressions = found
        try:
            binary = self._builder.compile(text, expressions)
        except (CompileError, OptimlError):
            return None
        # Dynamic shared memory held floats; it must hold doubles. Twice is enough for every narrow type but half: four times.
        launches = tuple(
            tuple(LaunchConfig(s.grid, s.block, min(s.shared_bytes * 4, 200 << 10)) for s in case)
            for case in built.launches
        )
        return Wide(binary, launches)

    # ---- candidates

    def build(self, program: Program) -> Built:
        return self._builder.candidate(program)

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        """See `_evaluate`; takes its turn at the GPU."""
        with self._gpu:
            evaluation, against = self._evaluate(built, incumbent, brief=brief)
            if evaluation.outcome is Outcome.MEMORY_ERROR:
                self._runner.kill()  # it may have written anywhere in the worker: the next candidate gets a fresh one
            return evaluation, against

    def confirm(self, built: Built) -> Evaluation:
        """See `Evaluator.confirm`; between two stages others have their turn at the GPU."""
        return self._confirm(built)

    def retime(self, built: Built, incumbent: Built | None, effort: int) -> tuple[Evaluation, float | None]:
        """See `Evaluator.retime`; takes its turn at the GPU."""
        stages: dict[str, float] = {}
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        with self._gpu:
            begin = time.perf_counter()
            try:
                self._runner.start()
                self._crown(incumbent)
                yardstick = "original" if incumbent is None else "incumbent"
                checks = real_shapes(self._spec, self._random)
                timing = self._timing([yardstick, "candidate"], "duel" if effort == 1 else "close")
                failure = self._verified(checks, timing, built)
                stages["verify"] = time.perf_counter() - begin
                if failure:
                    return _refused(evaluation, failure), None
                measurement, failure, against = self._time(timing)
                stages["time"] = time.perf_counter() - begin - stages["verify"]
                return (_refused(evaluation, failure) if failure else self._judge(evaluation, measurement)), against
            except DeviceFault as fault:
                stages["lost"] = time.perf_counter() - begin
                return replace(evaluation, outcome=_FAULTS[fault.kind], failure=Failure(_sentence(fault))), None

    def _evaluate(self, built: Built, incumbent: Built | None, *, brief: bool) -> tuple[Evaluation, float | None]:
        """Verify on check shapes, look at the speed beside the incumbent; what beats it is verified on the real shapes too and timed
        closely beside incumbent and original."""
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        passed = _Laps(stages)
        try:
            self._runner.start()
            passed("restart")
            self._crown(incumbent)
            checks = plan(self._spec, self._random, self._builder.defences)
            first = tuple(c for c in checks if c.family == "declared") if brief else checks
            look = self._timing(["original" if incumbent is None else "incumbent", "candidate"], "look", 1.0)
            failure = self._verified(first, look, built)
            passed("verify")
            if failure:
                return _refused(evaluation, failure), None
            measurement, failure, against = self._time(look)
            passed("time")
            if failure:
                return _refused(evaluation, failure), None
            if (measurement.ratio < _NEAR) if against is None else (against < _NEAR_INCUMBENT):
                return self._judge(evaluation, measurement), against
            if incumbent is not None:
                # Against the incumbent first: most lose there, and the original may be a hundred times slower to run.
                measurement, failure, against = self._time(self._timing(["incumbent", "candidate"], "duel", WIN))
                passed("time")
                if failure or against is None or against <= WIN:
                    return (_refused(evaluation, failure) if failure else self._judge(evaluation, measurement)), against
            rest = (*(c for c in checks if c not in first), *real_shapes(self._spec, self._random))
            keys = ["original", *(["incumbent"] if incumbent else []), "candidate"]
            close = self._timing(keys, "duel" if brief else "close")
            failure = self._verified(rest, close)
            passed("verify")
            if failure:
                return _refused(evaluation, failure), None
            measurement, failure, against = self._time(close)
            passed("time")
            if failure:
                return _refused(evaluation, failure), None
            judged = self._judge(evaluation, measurement)
            self._near[built.identity] = measurement
            if judged.outcome is Outcome.ACCEPTED and self._second is None:  # there will be something to confirm
                self._second = self._make_runner()
                with suppress(OSError):  # then it starts when it is needed, or says why not
                    self._second.start_ahead()
            return judged, against
        except DeviceFault as fault:
            passed("lost")
            return replace(evaluation, outcome=_FAULTS[fault.kind], failure=Failure(_sentence(fault))), None

    def _verified(self, checks: Sequence[Check], then: Timing, built: Built | None = None) -> Mapping[str, Any] | None:
        """The first failure among these checks of the candidate, whose timing begins where there is none."""
        answer = self._runner.verify("candidate", checks, timeout_s=self._limit_s, built=built, then=then)
        return cast("Mapping[str, Any] | None", answer["failure"])

    def _crown(self, incumbent: Built | None) -> None:
        """Have the incumbent on the device, and its measurement at hand: it is what candidates are looked at beside."""
        if incumbent is None:
            self._held = None
            return
        self._held = self._near.get(incumbent.identity)
        if self._held is None:  # taken over from a journal: measured before, but not in this process
            what = ""
            try:
                self._runner.load("candidate", incumbent)
                measurement, failure, _ = self._time(self._timing(["original", "candidate"], "look"))
                what = failure["reason"] if failure else ""
            except DeviceFault as fault:
                what = _sentence(fault)
            if what:  # no fault of the candidate at hand, nor of any to come
                why = f"the best of the earlier run no longer holds here: {what}"
                raise MachineError(why, do="check the GPU with nvidia-smi, or start without --resume")
            self._held = self._near[incumbent.identity] = measurement
        self._runner.keep("incumbent", incumbent)

    def _judge(self, evaluation: Evaluation, measurement: Measurement) -> Evaluation:
        return judge(evaluation, measurement, self._floors, self._builder.limits)

    def _timing(self, programs: Sequence[str], effort: str, bar: float = 0.0) -> Timing:
        """All timing cases, with a seed of its own."""
        cases = range(len(self._spec.check), len(self._spec.check) + len(self._spec.time))
        return Timing(tuple(programs), tuple(cases), effort, self._random.randrange(_SEEDS), bar)

    def _time(self, timing: Timing) -> tuple[Measurement, Mapping[str, Any] | None, float | None]:
        """Measure the last of the programs beside the others; taken again when something disturbed it.

        Returns the speedup over the original, what the check after timing found, and the speedup over the incumbent.
        """
        reason: str | None = None
        measurement, against = Measurement((), 0.0, 0.0, 0.0, stable=False), None
        monitor, said_of = self._runner.monitor, timing.effort in _READ_AFTER
        for _ in range(_RETRIES):
            before = monitor.recent() if said_of else None
            results = self._runner.time(timing, timeout_s=4 * self._limit_s, meanwhile=monitor.recent)
            failure = next((r["failure"] for r in results if r["failure"]), None)
            if failure:
                return measurement, failure, None
            # Of what is only looked at a reading taken beside it will do: another costs half as much as the look did.
            after = monitor.read() if said_of else monitor.recent()
            reason = disturbance(before or after, after)
            behind = max(r["host_over_events"] for r in results) > HOST_OVER_EVENTS
            if reason is None and behind and self._builder.defences.host_time:
                reason = "the host was too busy to keep the GPU fed"
            if timing.programs[0] == "incumbent":
                assert self._held is not None
                measurement, against = beside_incumbent(self._spec, results, self._held)
            else:
                measurement, against = beside_original(self._spec, results)
            if reason is None:
                return measurement, None, against
            timing = replace(timing, seed=self._random.randrange(_SEEDS))
        return replace(measurement, stable=False, notes=(reason or "",)), None, against

    # ---- the suggestion

    def _confirm(self, built: Built) -> Evaluation:
        """Verify with twice the seeds and time at full effort, in a worker process of its own."""
        assert self._original is not None
        stages: dict[str, float] = {}
        lap = _Laps(stages)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        defences = self._builder.defences
        try:
            # The sanitizers run beside the checks: they look at small shapes, and neither is timed.
            with self._turn(lap), ThreadPoolExecutor(1) as beside:
                sanitized = beside.submit(self._sanitized, built, plan(self._spec, self._random, defences))
                runner, self._runner = self._runner, self._second or self._make_runner()
                self._second = None
                runner.close()
                self._runner.open(self._spec, self._original, self._wide)
                problems = self._runner.validate()["problems"]
                if problems:
                    raise MachineError(f"the spec no longer validates in a second process: {'; '.join(problems)}")
                self._runner.load("candidate", built)
                lap("second process")
                failure = self._checked(plan(self._spec, self._random, defences, repeats=2))
                lap("verify")
            lap("sanitizers")
            if failure:
                return _refused(evaluation, failure)
            with self._turn(lap):
                measurement, failure, _ = self._time(self._timing(["original", "candidate"], "final"))
                lap("time")
            if defences.checks_after_timing and not failure:
                with self._turn(lap):
                    failure = self._checked(plan(self._spec, self._random, defences))
                    lap("verify")
            if failure:
                return _refused(evaluation, failure)
            judged = self._judge(evaluation, measurement)
            if judged.outcome is not Outcome.ACCEPTED:
                return judged
            return self._guarded(judged, built, sanitized.result(), lap)
        except DeviceFault as fault:
            lap("lost")
            return Evaluation(_FAULTS[fault.kind], failure=Failure(_sentence(fault)), stage_s=stages)

    @contextmanager
    def _turn(self, lap: _Laps) -> Iterator[None]:
        """A turn at the GPU; what it took to get it is a stage of its own, for it counts as the profiler's time already."""
        with self._gpu:
            lap(WAITED)
            yield

    def _checked(self, small: tuple[Check, ...]) -> Mapping[str, Any] | None:
        """The first failure among these checks and those on the real shapes."""
        checks, most_s = (*small, *real_shapes(self._spec, self._random)), 4 * self._limit_s
        return cast("Mapping[str, Any] | None", self._runner.verify("candidate", checks, timeout_s=most_s)["failure"])

    def _sanitized(self, built: Built, checks: Sequence[Check]) -> tuple[_Found, _Found]:
        """What the sanitizers say of a candidate; and where it is something, of the original."""
        if self._sanitize is None or self._original is None:
            return (), ()
        found = self._sanitize(built, some := [c for c in checks if c.family == "declared"])
        return found, self._sanitize(self._original, some) if any(s.errors for s in found) else ()

    def _guarded(self, judged: Evaluation, built: Built, sanitized: tuple[_Found, _Found], lap: _Laps) -> Evaluation:
        """The verdicts of the guardrails on a candidate that holds otherwise."""
        limits = self._builder.limits
        assert self._original is not None
        assert judged.measurement is not None
        with self._turn(lap):
            some = plan(self._spec, self._random, self._builder.defences)[:_REPEATED]
            answer = self._runner.repeats("candidate", some, timeout_s=4 * self._limit_s)
            lap("verify")
        verdicts = [
            guardrails.timing(judged.measurement, limits),
            guardrails.spills(self._original.binary.resources, built.binary.resources, judged.measurement, limits),
            guardrails.numeric(),
            guardrails.repeatable(
                answer["argument"], answer.get("case", ""), wanted=self._spec.deterministic and limits.repeatable
            ),
        ]
        judged = replace(judged, guardrails=(*verdicts, *guardrails.sanitizers(*sanitized, limits)))
        failed = guardrails.broken(judged)
        if failed is not None:
            return replace(judged, outcome=Outcome.GUARDRAIL, failure=Failure(f"{failed.name}: {failed.detail}"))
        return judged

    def close(self) -> None:
        self._builder.close()
        self._runner.close()
        if self._second is not None:
            self._second.close()


class _Laps:
    """Adds the seconds since the last call to a stage."""

    def __init__(self, stages: dict[str, float]) -> None:
        self._stages, self._since = stages, time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._since
        self._since = now


def _refused(evaluation: Evaluation, failure: Mapping[str, Any]) -> Evaluation:
    names = ("argument", "index", "expected", "got", "error", "tolerance")
    family = failure.get("family", "")
    reason = failure["reason"] + (f" (inputs '{family}')" if family else "")
    return replace(
        evaluation, outcome=_KINDS[failure["kind"]], measurement=None,
        failure=Failure(reason, case=failure["case"], **{n: failure[n] for n in names if n in failure}),
    )  # fmt: skip


def _sentence(fault: DeviceFault) -> str:
    return {
        "launch": f"the launch was refused: {fault.what}",
        "device": f"the kernel faulted: {fault.what}",
        "out_of_memory": "not enough device memory",
        "timeout": "did not finish in time",
        "died": "took the worker process down",
    }[fault.kind]
