"""Evaluation on a GPU: verify on fresh inputs, then time against original and incumbent."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import CompileError, MachineError, OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.model import Built, Signals
from engine.gpu.monitor import disturbance
from engine.gpu.runner import DeviceFault, GpuRunner, Wide
from engine.model import CaseTiming, Evaluation, Failure, LaunchConfig, Measurement, Outcome, Program
from engine.spec.data import buffer_elements, bytes_needed
from engine.spec.dtypes import parse_dtype
from engine.spec.model import KernelSpec
from engine.statistics import paired_ratio, weighted_ratio
from engine.verify.plan import plan
from engine.verify.widen import widen

_SEEDS = 1 << 40
# A candidate whose first look comes this near the incumbent gets a close look. The look's own noise is about 2 %.
_NEAR = 0.97
# No timing case may lose more than this, however much the others win (KernelOPT's end-to-end gate, arXiv 2609.30059).
_MOST_LOSS = 1.03
# Faster than the bytes allow, with this margin for the roof's own noise, is not believed.
_FLOOR_MARGIN = 0.9
_HOST_OVER_EVENTS = 2.0  # a batch that took the host twice what the events say was disturbed
_RETRIES = 2

_KINDS = {"wrong_result": Outcome.WRONG_RESULT, "memory_error": Outcome.MEMORY_ERROR}
_FAULTS = {
    "launch": Outcome.CRASHED, "device": Outcome.MEMORY_ERROR, "out_of_memory": Outcome.CRASHED,
    "timeout": Outcome.TIMED_OUT, "died": Outcome.CRASHED,
}  # fmt: skip


class GpuEvaluator:
    """The measured path. `make_runner` starts a further worker, for the confirmation in a second process."""

    def __init__(self, spec: KernelSpec, builder: Builder, make_runner: Callable[[], GpuRunner]) -> None:
        self._spec, self._builder, self._make_runner = spec, builder, make_runner
        self._runner = make_runner()
        self._random = random.Random(secrets.randbits(64))
        self._original: Built | None = None
        self._wide: Wide | None = None
        self._ratios: dict[tuple[object, ...], float] = {}
        self._verify_s = 5.0
        self._floors: dict[int, float] = {}
        self.bandwidth = 0.0
        self._missing: list[str] = []
        self._versions: dict[str, Any] = {}

    @property
    def signals(self) -> Signals:
        device = {**self._runner.device, "copy_bytes_per_s": self.bandwidth, **self._versions}
        return Signals("measured", device, tuple(self._missing))

    # ---- the original

    def open(self, original: Program) -> tuple[Built, Evaluation]:
        device = self._runner.start()
        for case in (*self._spec.check, *self._spec.time):
            needed = bytes_needed(self._spec, case)
            # Inputs, two sets of outputs, and a twin in doubles.
            if needed * 5 > device["free_bytes"]:
                raise RefusedError(
                    f"case {case.name} needs {needed / 1e9:.1f} GB of buffers and about five times that to check; the GPU has "
                    f"{device['free_bytes'] / 1e9:.1f} GB free", self._spec.origin or self._spec.file, "choose smaller sizes",
                )  # fmt: skip
        built = self._builder.original(original)
        self._original = built
        self._wide = self._widened(built)
        self.bandwidth = self._runner.bandwidth()
        begin = time.perf_counter()
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
        verify_begin = time.perf_counter()
        self._runner.verify("original", plan(self._spec, self._random), timeout_s=120)
        self._verify_s = time.perf_counter() - verify_begin
        timings = self._time("original", None, "look", 0.0)
        self._set_floors(timings[0])
        driver = self._runner.monitor.driver()
        self._versions["driver_version"] = driver
        evaluation = Evaluation(
            Outcome.ACCEPTED, timings[0], None, built.binary.resources, built.binary.code_hash,
            {**built.stage_s, "validate": time.perf_counter() - begin},
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

    def _set_floors(self, original: Measurement) -> None:
        """The least time that each timing case's compulsory bytes take at the measured copy bandwidth, in µs.

        Void where data may be read sparsely (integer inputs can be indices) or fits the cache; the outputs alone count then.
        """
        sparse = any(a.role == "in" and a.fill.kind not in ("normal", "uniform") for a in self._spec.arguments)
        cache = int(self._runner.device.get("l2_bytes", 0))
        for i, case in enumerate(self._spec.time):
            elements = buffer_elements(self._spec, case)
            moved = sum(
                elements[a.name] * parse_dtype(a.type).itemsize
                for a in self._spec.arguments
                if a.role in ("out", "inout") or (a.role == "in" and not sparse)
            )
            floor = moved / self.bandwidth * 1e6 * _FLOOR_MARGIN
            holds = moved > 2 * cache and original.cases[i].original_us > floor
            self._floors[i] = floor if holds else 0.0

    # ---- candidates

    def build(self, program: Program) -> Built:
        return self._builder.candidate(program)

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        begin = time.perf_counter()
        try:
            self._runner.start()
            stages["restart"] = time.perf_counter() - begin
            begin = time.perf_counter()
            self._runner.load("candidate", built)
            checks = plan(self._spec, self._random)
            answer = self._runner.verify("candidate", checks, timeout_s=max(3.0, 6 * self._verify_s))
            stages["verify"] = time.perf_counter() - begin
            if answer["failure"]:
                return _refused(evaluation, answer["failure"]), None
            begin = time.perf_counter()
            evaluation, against = self._timed(evaluation, incumbent)
            if evaluation.outcome is Outcome.ACCEPTED and evaluation.measurement:
                self._ratios[built.identity] = evaluation.measurement.ratio
            stages["time"] = time.perf_counter() - begin
            return evaluation, against
        except DeviceFault as fault:
            stages["lost"] = time.perf_counter() - begin
            return replace(evaluation, outcome=_FAULTS[fault.kind], failure=Failure(_sentence(fault))), None

    def _timed(self, evaluation: Evaluation, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        bar = max(1.0, self._ratios.get(incumbent.identity, 1.0)) if incumbent is not None else 1.0
        measurement, failure, _ = self._time("candidate", None, "look", bar)
        against: float | None = None
        if failure is None and measurement.ratio >= bar * _NEAR:
            if incumbent is not None:
                self._runner.load("incumbent", incumbent)
            measurement, failure, against = self._time("candidate", incumbent, "close", bar)
        if failure:
            return _refused(evaluation, failure), None
        return self._judge(evaluation, measurement), against

    def _judge(self, evaluation: Evaluation, measurement: Measurement) -> Evaluation:
        evaluation = replace(evaluation, measurement=measurement)
        for i, case in enumerate(measurement.cases):
            if case.candidate_us < self._floors.get(i, 0.0):
                return replace(
                    evaluation, outcome=Outcome.GUARDRAIL,
                    failure=Failure(
                        f"takes {case.candidate_us:.1f} µs where the bytes alone take {self._floors[i]:.1f} µs at the copy bandwidth: "
                        "it cannot have done the work", case=case.case,
                    ),
                )  # fmt: skip
        if not measurement.stable:
            return replace(evaluation, outcome=Outcome.UNSTABLE, failure=Failure("; ".join(measurement.notes)))
        if measurement.low > 1.0:
            for case in measurement.cases:
                if case.high < 1 / _MOST_LOSS:
                    return replace(
                        evaluation, outcome=Outcome.GUARDRAIL,
                        failure=Failure(f"case {case.case} became {1 / case.ratio:.2f} times slower", case=case.case),
                    )  # fmt: skip
            return replace(evaluation, outcome=Outcome.ACCEPTED)
        return replace(evaluation, outcome=Outcome.SLOWER if measurement.high < 1.0 else Outcome.NO_DIFFERENCE)

    def _time(
        self, key: str, incumbent: Built | None, effort: str, bar: float
    ) -> tuple[Measurement, Mapping[str, Any] | None, float | None]:
        """Measure `key` against the original (and an incumbent that is loaded); taken again when something disturbed it."""
        notes: tuple[str, ...] = ()
        for _ in range(_RETRIES):
            before = self._runner.monitor.read(self._runner.pid)
            offset = len(self._spec.check)
            keys = ["original", *(["incumbent"] if incumbent else []), key]
            results = self._runner.time(
                keys, range(offset, offset + len(self._spec.time)), effort, self._random.randrange(_SEEDS),
                bar=bar, timeout_s=max(10.0, 20 * self._verify_s),
            )  # fmt: skip
            failure = next((r["failure"] for r in results if r["failure"]), None)
            if failure:
                return Measurement((), 0.0, 0.0, 0.0, stable=False), failure, None
            after = self._runner.monitor.read(self._runner.pid)
            reason = disturbance(before, after)
            if reason is None and max(r["host_over_events"] for r in results) > _HOST_OVER_EVENTS:
                reason = "the host was too busy to keep the GPU fed"
            measurement, against = self._measurement(results)
            if reason is None:
                return measurement, None, against
            notes = (reason,)
        return replace(measurement, stable=False, notes=notes), None, against

    def _measurement(self, results: Sequence[Mapping[str, Any]]) -> tuple[Measurement, float | None]:
        cases, pairs, rivals = [], [], []
        for case, result in zip(self._spec.time, results, strict=True):
            original, *between, candidate = result["samples_us"]
            interval = paired_ratio(original, candidate)
            cases.append(
                CaseTiming(
                    case.name, case.weight, _median(original), _median(candidate), interval.ratio, interval.low, interval.high,
                    len(candidate), bool(result["cold"]),
                )
            )  # fmt: skip
            pairs.append((original, candidate))
            rivals += [(incumbent, candidate) for incumbent in between]
        weights = [case.weight for case in self._spec.time]
        total = weighted_ratio(pairs, weights)
        against = weighted_ratio(rivals, weights).ratio if rivals else None
        return Measurement(tuple(cases), total.ratio, total.low, total.high), against

    # ---- the suggestion

    def confirm(self, built: Built) -> Evaluation:
        """Verify with twice the seeds and time at full effort, in a worker process of its own."""
        assert self._original is not None
        runner, self._runner = self._runner, self._make_runner()
        runner.close()
        try:
            self._runner.open(self._spec, self._original, self._wide)
            problems = self._runner.validate()["problems"]
            if problems:
                raise MachineError(f"the spec no longer validates in a second process: {'; '.join(problems)}")
            self._runner.load("candidate", built)
            evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, {})
            checks = plan(self._spec, self._random, repeats=2)
            answer = self._runner.verify("candidate", checks, timeout_s=max(10.0, 20 * self._verify_s))
            if answer["failure"]:
                return _refused(evaluation, answer["failure"])
            measurement, failure, _ = self._time("candidate", None, "final", 0.0)
            if failure:
                return _refused(evaluation, failure)
            checks = plan(self._spec, self._random)
            answer = self._runner.verify("candidate", checks, timeout_s=max(10.0, 20 * self._verify_s))
            if answer["failure"]:
                return _refused(evaluation, answer["failure"])
            return self._judge(evaluation, measurement)
        except DeviceFault as fault:
            return Evaluation(_FAULTS[fault.kind], failure=Failure(_sentence(fault)))

    def close(self) -> None:
        self._runner.close()


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


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
