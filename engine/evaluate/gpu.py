"""Evaluation on a GPU: verify on fresh inputs, then time against original and incumbent."""

import random
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

from engine.compile.built import Built
from engine.errors import MachineError, OptimlError, RefusedError
from engine.evaluate import guardrails
from engine.evaluate.build import Builder
from engine.evaluate.contained import contained_build, contained_evaluation
from engine.evaluate.device_failures import FAULTS, refused, sentence, unlaunchable
from engine.evaluate.evaluator import WIN, Signals, nothing
from engine.evaluate.gpu_original import DRAWN_S, copies, passes_nan_on, refuse_large, widened, without_verdict
from engine.evaluate.samples import beside_incumbent, beside_original, judge, with_process_spread
from engine.evaluate.second_opinion import Opinion, SecondOpinion
from engine.evaluate.secret_cases import SecretCases
from engine.evaluate.stage_times import Laps, turn
from engine.gpu.monitor import disturbance
from engine.gpu.pace import HOST_OVER_EVENTS
from engine.gpu.runner import DeviceFault, GpuRunner, Timing, Wide, wide_launches
from engine.gpu.sanitize import Sanitized
from engine.model import PASSED, Evaluation, Failure, Measurement, Outcome, Program
from engine.spec.data import NAN, takes_nan
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.plan import Check, plan, real_shapes

_SEEDS = 1 << 40
# A candidate whose first look comes this near the original gets a close look: the look's own noise is about 2 %. Beside the
# incumbent both are fast and the look is good to half a per cent.
_NEAR = 0.97
_NEAR_INCUMBENT = 0.995
_RETRIES = 2
_SECRET_BYTES = 256 << 20  # of the buffers of a secret case that is made from a timing case: a millisecond each
# A candidate gets this many times what the original takes for the same checks, but not less than two seconds: a kernel a
# hundred times slower is of no interest, and one that never ends must not cost more.
_LIMIT_FACTOR = 10.0
_LEAST_LIMIT_S = 2.0
_VALIDATED_S = 120.0
_READ_AFTER = ("close", "final")  # efforts whose samples are what is said of a candidate
_NO_SANITIZER = "compute-sanitizer was not found: reads outside arrays and races are not checked on the GPU"
_REPEATED = 4  # checks run twice for the guardrail of repeatable output


class GpuEvaluator:
    """The measured path. `make_runner` makes a worker: the first starts at once, another for the confirmation in a second process."""

    def __init__(
        self, spec: KernelSpec, builder: Builder, make_runner: Callable[[], GpuRunner],
        sanitize: Callable[[Built, Sequence[Check]], tuple[Sanitized, ...]] | None = None,
        gpu: AbstractContextManager[object] | None = None, second: SecondOpinion | None = None,
    ) -> None:  # fmt: skip
        self._spec, self._builder, self._make_runner, self._sanitize = spec, builder, make_runner, sanitize
        self._cpu = second
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
        self.bandwidth, self.ahead = 0.0, True
        self._copies: dict[str, float] = {}
        self._missing = [] if sanitize is not None else [_NO_SANITIZER]
        self._secret = SecretCases(spec, builder, self._random)
        self._nan = False  # whether NaN is among the inputs
        self._reports: tuple[Sanitized, ...] | None = None  # the sanitizers' verdicts on the original
        self._versions: dict[str, Any] = {}
        self._uuid = ""
        self._runner.start_ahead()

    @property
    def signals(self) -> Signals:
        device = {
            **self._runner.device, "copy_bytes_per_s": self.bandwidth, "case_copy_bytes_per_s": self._copies, **self._versions,
        }  # fmt: skip
        return Signals("measured", device, tuple(self._missing))

    def seed(self, secret: int) -> None:
        """Draw what every other device of a search draws; before `open`."""
        self._random.seed(secret)

    @property
    def secret_cases(self) -> tuple[Case, ...]:
        return self._secret.cases

    def state(self) -> dict[str, Any]:
        """The GPU now: UUID, driver, clocks, temperature."""
        monitor = self._runner.monitor
        now = monitor.recent()
        self._uuid = self._uuid or monitor.uuid()
        return {
            "uuid": self._uuid, "driver": str(self._versions.get("driver_version", "")), "sm_mhz": now.sm_mhz,
            "memory_mhz": now.memory_mhz, "temperature_c": now.temperature_c,
        }  # fmt: skip

    def _stated(self, evaluation: Evaluation) -> Evaluation:
        """What was timed with the state of the GPU; what was not needs none, and a reading takes milliseconds."""
        return evaluation if evaluation.measurement is None else replace(evaluation, device=self.state())

    # ---- the original

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        built = self._builder.original(original)
        # The sanitizers run beside what the original takes until it is timed: nothing is timed before they have ended.
        small = plan(self._spec, self._random, self._builder.defences)  # drawn on every device, that all go on alike
        with ThreadPoolExecutor(1) as beside:
            sanitized = beside.submit(self._sanitized, built, small if self.ahead else ())
            begin = time.perf_counter()
            self._wide = widened(self._spec, self._builder, built)
            compiling = built.stage_s.get("compile", 0.0) + time.perf_counter() - begin
            ready()
            if self._cpu and self.ahead:  # a confirmation needs it, and the cores have little to do yet
                self._cpu.open_beside(built)
            refuse_large(self._spec, self._runner.start()["free_bytes"])
            self._original = built
            begin = time.perf_counter()
            answer = self._validated(built)
            validated = time.perf_counter()
        reports = sanitized.result()
        waited = time.perf_counter() - validated
        if answer["problems"]:
            raise RefusedError("; ".join(answer["problems"]), self._spec.origin or self._spec.file, "correct the spec")
        if self.ahead:
            self._reports = reports
            self._missing += without_verdict(self._spec, reports)
        self.bandwidth = self._runner.bandwidth()
        if not answer["widened"]:
            self._missing.append(
                "no float64 reference: the kernel cannot be converted to float64, so the tolerance is a multiple of its type's epsilon"
            )
        self._admit_nan(built)
        verifying = time.perf_counter()
        self._runner.verify("original", self._late_checks(), timeout_s=_VALIDATED_S)
        self._runner.verify("original", plan(self._spec, self._random, self._builder.defences), timeout_s=_VALIDATED_S)
        self._limit_s = max(_LEAST_LIMIT_S, _LIMIT_FACTOR * (time.perf_counter() - verifying))
        measurement, failure, _ = self._time(self._timing(["original", "original"], "look"))
        if failure:
            raise RefusedError(
                f"the kernel '{self._spec.kernel}' gives different results while it is timed: {failure['reason']}",
                self._spec.origin or self._spec.file,
                "check for state that it keeps between launches, and for outputs that it does not write completely",
            )
        self._copies, floors = copies(self._spec, self._runner, measurement)
        self._floors = floors if self._builder.defences.roofline_floor else (0.0,) * len(floors)
        self._versions["driver_version"] = self._runner.monitor.driver()
        evaluation = Evaluation(
            Outcome.ACCEPTED, measurement, None, built.binary.resources, built.binary.code_hash,
            {**built.stage_s, "compile": compiling, "validate": time.perf_counter() - begin - waited, "sanitizers": waited},
            device=self.state(),
        )  # fmt: skip
        return built, evaluation

    def _validated(self, built: Built) -> Mapping[str, Any]:
        """The spec's validation, with secret cases where the original passes on them. Raises RefusedError where it fails."""
        try:
            return self._first_validation(built)
        except DeviceFault as fault:
            how = "never ends" if fault.kind == "timeout" else f"fails in its original form ({fault.what})"
            raise RefusedError(
                f"the kernel '{self._spec.kernel}' {how}", self._spec.origin or self._spec.file,
                "check the spec's sizes and the launch, or fix the kernel",
            ) from None  # fmt: skip

    def _first_validation(self, built: Built) -> Mapping[str, Any]:
        for aligned in (False, True):
            self._secret.draw(built.program, aligned=aligned, large_bytes=_SECRET_BYTES)
            self._secret.keep(self._secret.cases)
            if not self._secret.cases:
                break
            with suppress(DeviceFault):  # it may be for the drawn sizes
                answer = self._opened(built, DRAWN_S)
                if not answer["problems"]:
                    return answer
        self._secret.keep(())
        return self._opened(built, _VALIDATED_S)

    def _opened(self, built: Built, timeout_s: float) -> Mapping[str, Any]:
        self._open(built)
        return self._runner.validate(timeout_s)

    def _open(self, built: Built) -> None:
        whole = self._secret.whole(built)
        wide = self._wide and Wide(self._wide.binary, wide_launches(whole.launches))
        self._runner.open(self._secret.drawn_spec(), whole, wide)

    def _admit_nan(self, built: Built) -> None:
        """Ask candidates for what the original makes of NaN, where it passes NaN on."""
        defences = self._builder.defences
        if not (defences.families and defences.nan_inputs and takes_nan(self._spec)):
            return
        try:
            shapes = range(len(self._spec.check))
            self._nan = all(passes_nan_on(self._spec, self._runner, index, self._random) for index in shapes)
        except DeviceFault:
            self._opened(built, _VALIDATED_S)  # the worker is another one, and knows nothing of the original's error

    def _late_checks(self) -> tuple[Check, ...]:
        """The checks of what comes near the best: NaN on check shapes, then timing shapes and drawn ones."""
        seeds, shapes = self._random, range(len(self._spec.check) if self._builder.defences.shapes else 1)
        with_nan = (Check(i, NAN, seeds.getrandbits(40)) for i in shapes) if self._nan else ()
        return (*with_nan, *real_shapes(self._secret.drawn_spec(), seeds))

    # ---- candidates

    @contained_build
    def build(self, program: Program, *, by_rules: bool) -> Built:
        return self._builder.candidate(program, by_rules=by_rules)

    @contained_evaluation
    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        """See `_evaluate`; takes its turn at the GPU."""
        try:
            built, incumbent = self._secret.whole(built), incumbent and self._secret.whole(incumbent)
        except OptimlError as error:
            return unlaunchable(built, error), None
        with self._gpu:
            evaluation, against = self._evaluate(built, incumbent, brief=brief)
            if evaluation.outcome is Outcome.MEMORY_ERROR:
                self._runner.kill()  # it may have written anywhere in the worker: the next candidate gets a fresh one
            evaluation = self._stated(evaluation)
        if self._cpu and self._original and (against is None or against > WIN):
            evaluation = self._cpu.of_first(self._original, incumbent, built, evaluation)
        return evaluation, against

    def take_over(self, incumbent: Built, measured: Measurement) -> None:
        """Take an incumbent's speedup as another device of the search measured it, rather than measure it here."""
        with suppress(OptimlError):  # `evaluate` says what is wrong with it
            self._near.setdefault(self._secret.whole(incumbent).identity, measured)

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        if self._cpu and self._original:
            self._cpu.begin_ahead(self._original, build)

    def confirm(self, built: Built, *, any_speed: bool = False, beside: bool = False) -> Evaluation:
        """See `Evaluator.confirm`; others have turns at the GPU between. `beside` a device whose sanitizers and CPU say the same."""
        try:
            built = self._secret.whole(built)
        except OptimlError as error:
            return unlaunchable(built, error)
        return self._stated(self._confirm(built, PASSED if any_speed else (Outcome.ACCEPTED,), beside=beside))

    @contained_evaluation
    def retime(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        """See `Evaluator.retime`; takes its turn at the GPU."""
        stages: dict[str, float] = {}
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        try:
            built, incumbent = self._secret.whole(built), incumbent and self._secret.whole(incumbent)
        except OptimlError as error:
            return unlaunchable(built, error), None
        with self._gpu:
            begin = time.perf_counter()
            try:
                self._runner.start()
                self._crown(incumbent)
                yardstick = "original" if incumbent is None else "incumbent"
                checks = self._late_checks()
                timing = self._timing([yardstick, "candidate"], "close")
                failure = self._verified(checks, timing, built)
                stages["verify"] = time.perf_counter() - begin
                if failure:
                    return refused(evaluation, failure), None
                measurement, failure, against = self._time(timing)
                stages["time"] = time.perf_counter() - begin - stages["verify"]
                judged = refused(evaluation, failure) if failure else self._judge(evaluation, measurement)
                return self._stated(judged), against
            except DeviceFault as fault:
                stages["lost"] = time.perf_counter() - begin
                return replace(evaluation, outcome=FAULTS[fault.kind], failure=Failure(sentence(fault))), None

    def _evaluate(self, built: Built, incumbent: Built | None, *, brief: bool) -> tuple[Evaluation, float | None]:
        """Verify on check shapes, look at the speed beside the incumbent; what beats it is verified on the real shapes too and timed
        closely beside incumbent and original."""
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        passed = Laps(stages)
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
                return refused(evaluation, failure), None
            measurement, failure, against = self._time(look)
            passed("time")
            if failure:
                return refused(evaluation, failure), None
            if (measurement.ratio < _NEAR) if against is None else (against < _NEAR_INCUMBENT):
                return self._judge(evaluation, measurement), against
            if incumbent is not None:
                # Against the incumbent first: most lose there, and the original may be a hundred times slower to run.
                measurement, failure, against = self._time(self._timing(["incumbent", "candidate"], "duel", WIN))
                passed("time")
                if failure or against is None or against <= WIN:
                    return (refused(evaluation, failure) if failure else self._judge(evaluation, measurement)), against
            rest = (*(c for c in checks if c not in first), *self._late_checks())
            keys = ["original", *(["incumbent"] if incumbent else []), "candidate"]
            close = self._timing(keys, "duel" if brief else "close")
            failure = self._verified(rest, close)
            passed("verify")
            if failure:
                return refused(evaluation, failure), None
            measurement, failure, against = self._time(close)
            passed("time")
            if failure:
                return refused(evaluation, failure), None
            judged = self._judge(evaluation, measurement)
            self._near[built.identity] = measurement
            if judged.outcome is Outcome.ACCEPTED and self._second is None:  # there will be something to confirm
                self._second = self._make_runner()
                with suppress(OSError):  # then it starts when it is needed, or says why not
                    self._second.start_ahead()
            return judged, against
        except DeviceFault as fault:
            passed("lost")
            return replace(evaluation, outcome=FAULTS[fault.kind], failure=Failure(sentence(fault))), None

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
                what = sentence(fault)
            if what:  # no fault of the candidate at hand, nor of any to come
                why = f"the best of the earlier run is not confirmed here: {what}"
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
                reason = "the host was too busy to keep the GPU occupied"
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

    def _confirm(self, built: Built, guarded: Container[Outcome], *, beside: bool) -> Evaluation:
        """Verify with twice the seeds and time at full effort, in a worker process of its own; what ends `guarded` meets the guardrails."""
        assert self._original is not None
        stages: dict[str, float] = {}
        lap = Laps(stages)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        defences = self._builder.defences
        if self._cpu and (wrong := self._cpu.refuted(built)) is not None:
            return replace(wrong, stage_s=stages)
        try:
            # The sanitizers and the CPU run beside the checks: they look at small shapes, and none of them is timed.
            with ThreadPoolExecutor(2) as others:
                with turn(self._gpu, lap):
                    small = () if beside else plan(self._spec, self._random, defences)
                    sanitized = others.submit(self._sanitized_too, built, small)
                    screened = others.submit(self._on_cpu, None if beside else built)
                    runner, self._runner = self._runner, self._second or self._make_runner()
                    self._second = None
                    runner.close()
                    self._open(self._original)
                    problems = self._runner.validate()["problems"]
                    if problems:
                        raise MachineError(f"the spec no longer validates in a second process: {'; '.join(problems)}")
                    self._runner.load("candidate", built)
                    lap("second process")
                    failure = self._checked(plan(self._spec, self._random, defences, repeats=2))
                    lap("verify")
                    wait([sanitized])
                    lap("sanitizers")
                wait([screened])
            lap("checks on the CPU")
            if failure:
                return refused(evaluation, failure)
            wrong, checked = screened.result()
            if wrong:
                return replace(wrong, stage_s=stages)
            with turn(self._gpu, lap):
                measurement, failure, _ = self._time(self._timing(["original", "candidate"], "final"))
                measurement = with_process_spread(measurement, self._near.get(built.identity))
                lap("time")
            if defences.checks_after_timing and not failure:
                with turn(self._gpu, lap):
                    failure = self._checked(plan(self._spec, self._random, defences))
                    lap("verify")
            if failure:
                return refused(evaluation, failure)
            judged = self._judge(evaluation, measurement)
            if judged.outcome in guarded:
                return self._guarded(replace(judged, guardrails=checked), built, sanitized.result(), lap)
            return self._watched(judged, sanitized.result())
        except DeviceFault as fault:
            lap("lost")
            return Evaluation(FAULTS[fault.kind], failure=Failure(sentence(fault)), stage_s=stages)

    def _checked(self, small: tuple[Check, ...]) -> Mapping[str, Any] | None:
        """The first failure among these checks and those on the real shapes."""
        checks, most_s = (*small, *self._late_checks()), 4 * self._limit_s
        states = self._builder.defences.module_states
        answer = self._runner.verify("candidate", checks, timeout_s=most_s, states=states)
        return cast("Mapping[str, Any] | None", answer["failure"])

    def _sanitized(self, built: Built, checks: Sequence[Check]) -> tuple[Sanitized, ...]:
        """The sanitizers' verdicts on a program, run on the declared inputs of each check shape."""
        if self._sanitize is None or not checks:
            return ()
        return self._sanitize(built, [check for check in checks if check.family == "declared"])

    def _sanitized_too(self, built: Built, checks: Sequence[Check]) -> tuple[Sanitized, ...]:
        """The same of a candidate, after the original where it was opened on another device."""
        assert self._original is not None
        if checks and self._reports is None:
            self._reports = self._sanitized(self._original, checks)
        return self._sanitized(built, checks)

    def _on_cpu(self, built: Built | None) -> Opinion:
        assert self._original is not None
        return self._cpu.judge(self._original, built) if self._cpu and built else (None, ())

    def _watched(self, judged: Evaluation, sanitized: Sequence[Sanitized]) -> Evaluation:
        """What is not suggested for its speed, with the sanitizers' verdicts: a fault is named as what it is."""
        if judged.outcome not in (Outcome.SLOWER, Outcome.NO_DIFFERENCE, Outcome.UNSTABLE):
            return judged
        verdicts = guardrails.sanitizers(sanitized, self._reports or (), self._builder.limits)
        return guardrails.applied(replace(judged, guardrails=verdicts))

    def _guarded(self, judged: Evaluation, built: Built, sanitized: Sequence[Sanitized], lap: Laps) -> Evaluation:
        """The verdicts of the guardrails on a candidate that holds otherwise."""
        limits, repeated = self._builder.limits, self._spec.deterministic and self._builder.limits.repeatable
        assert self._original is not None
        assert judged.measurement is not None
        with turn(self._gpu, lap):
            some = plan(self._spec, self._random, self._builder.defences)[:_REPEATED]
            answer = self._runner.repeats("candidate", some, timeout_s=4 * self._limit_s)
            lap("verify")
        verdicts = [
            guardrails.timing(judged.measurement, limits),
            guardrails.spills(self._original.binary.resources, built.binary.resources, judged.measurement, limits),
            guardrails.numeric(),
            guardrails.repeatable(answer["argument"], answer.get("case", ""), wanted=repeated),
            *judged.guardrails,
            *guardrails.sanitizers(sanitized, self._reports or (), limits),
        ]
        return guardrails.applied(replace(judged, guardrails=tuple(verdicts)))

    def close(self) -> None:
        if self._cpu:
            self._cpu.give_up()
        self._builder.close()
        self._runner.close()
        if self._second is not None:
            self._second.close()
