"""Evaluation without a GPU: screened on the CPU, speed predicted from machine code and counted accesses."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import guardrails
from engine.cpu import CpuBinary, CpuJob, CpuMachine, CpuRun, Finding, Unsupported
from engine.errors import CompileError, OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.model import Built, NotBuilt, Signals, nothing
from engine.evaluate.speeds import Speeds
from engine.model import Evaluation, Failure, Guardrail, LaunchConfig, Measurement, Outcome, Program
from engine.predict.predictor import Predictor
from engine.rules.model import Target
from engine.sandbox import NoSandbox, Sandbox
from engine.spec.data import poisoned, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.model import KernelSpec
from engine.verify.host import difference, noise
from engine.verify.plan import plan
from engine.verify.tolerance import Noise
from engine.verify.widen import widen, widened_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_OUTCOMES = {
    "out_of_bounds": Outcome.MEMORY_ERROR, "shared_out_of_bounds": Outcome.MEMORY_ERROR,
    "uninitialised": Outcome.MEMORY_ERROR, "input_written": Outcome.MEMORY_ERROR,
    "race": Outcome.RACE, "barrier_divergence": Outcome.RACE, "deadlock": Outcome.RACE,
    "timeout": Outcome.TIMED_OUT, "crash": Outcome.CRASHED, "assert": Outcome.CRASHED,
}  # fmt: skip
_ACCESSES = ("input_written", "uninitialised")  # found by looking at each access; the run goes on after them
_ORDERS = 3  # lane and block orders a candidate is run in: forward, reversed, shuffled
_VALIDATION_SEEDS = 2
_ORIGINAL_DEADLINE_S = 10.0
_DEADLINE_S = 4.0  # of one run on a check shape, which takes milliseconds


@dataclass(frozen=True)
class _Known:
    """One prepared input set with what the original makes of it."""

    case: int
    family: str
    buffers: Arrays
    scalars: Mapping[str, Any]
    original: Arrays
    wide: Arrays | None


class CpuEvaluator:
    """The predicted path: candidates are refuted on the check shapes, never verified."""

    def __init__(
        self, spec: KernelSpec, builder: Builder, box: Sandbox | NoSandbox, cache: Path, scratch: Path, target: Target,
        jobs: int,
    ) -> None:  # fmt: skip
        self._spec, self._builder, self._target = spec, builder, target
        self._machine = CpuMachine(cache / "cpu", sandbox=box, scratch=scratch, jobs=jobs)
        self._random = random.Random(secrets.randbits(64))
        self._wide_spec = widened_spec(spec)
        self._known: list[_Known] = []
        self._noise: dict[tuple[int, str], Noise] = {}
        self._original: Built | None = None
        self._wide: CpuBinary | None = None
        self.speeds = Speeds(spec, builder, self._machine, Predictor(target.arch, sandbox=box))
        self._missing: list[str] = []

    @property
    def signals(self) -> Signals:
        missing = ("no GPU: candidates are screened on the CPU, speeds are predicted", *self._missing)
        missing += self._machine.degraded
        return Signals(
            "predicted", {"arch": self._target.arch, "name": f"none (predicted for {self._target.arch})"}, missing
        )

    # ---- the original

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        begin = time.perf_counter()
        built = self._builder.original(original)
        ready()
        where = self._spec.origin or self._spec.file
        try:
            binary = self._machine.build(built.text, self._spec.file, self._spec, self._builder.expressions)
        except Unsupported as error:
            uses = [f"{r.registers} registers, {r.spill_store_bytes} bytes spilled" for r in built.binary.resources]
            raise RefusedError(
                f"the CPU path cannot run {', '.join(error.features)}; the compiler's findings alone: {'; '.join(uses)}",
                where, "run it on a machine with a GPU",
            ) from None  # fmt: skip
        built = replace(built, extra=binary)
        self._original = built
        self._wide = self._widened(built)
        if self._wide is None:
            self._missing.append("no float64 reference: the tolerance is a multiple of the type's epsilon")
        problems = self._validate(binary)
        if problems:
            raise RefusedError("; ".join(problems), where, "mend the spec")
        stages = {**built.stage_s, "validate": time.perf_counter() - begin}
        return built, Evaluation(
            Outcome.SCREENED, self.speeds.predict(built), None, built.binary.resources, built.binary.code_hash, stages
        )

    def _widened(self, built: Built) -> CpuBinary | None:
        found = widen(built.text, built.expressions)
        if found is None or self._wide_spec is None:
            return None
        try:
            return self._machine.build(found[0], self._spec.file, self._wide_spec, found[1])
        except OptimlError:
            return None

    def _job(self, launches: Sequence[LaunchConfig], buffers: Arrays, values: Mapping[str, Any], order: int) -> CpuJob:
        return CpuJob(tuple(launches), buffers, values, order)

    def _inputs(self, case: int, family: str, seed: int) -> tuple[Arrays, dict[str, Any]]:
        return poisoned(self._spec, self._spec.check[case], seed, family), scalars(self._spec, self._spec.check[case])

    def _prepare(self, binary: CpuBinary, plan: Sequence[tuple[int, str, int]]) -> tuple[list[_Known], list[CpuRun]]:
        """Draw inputs and run the original (and its wide twin) on them."""
        assert self._original is not None
        drawn = [(case, family, *self._inputs(case, family, seed)) for case, family, seed in plan]
        jobs = [self._job(self._original.launches[c], b, v, 0) for c, _, b, v in drawn]
        runs = self._machine.run_many(binary, jobs, deadline_s=_ORIGINAL_DEADLINE_S)
        wides: list[CpuRun | None] = [None] * len(runs)
        if self._wide is not None and not any(run.findings for run in runs):
            wide_jobs = [
                self._job(self._original.launches[c], self._wide_buffers(b), self._wide_scalars(v), 0)
                for c, _, b, v in drawn
            ]
            wides = list(self._machine.run_many(self._wide, wide_jobs))
        known = [
            _Known(c, f, b, v, dict(run.outputs), dict(wide.outputs) if wide and not wide.findings else None)
            for (c, f, b, v), run, wide in zip(drawn, runs, wides, strict=True)
        ]
        return known, runs

    def _wide_buffers(self, buffers: Arrays) -> Arrays:
        widened = {}
        for name, array in buffers.items():
            dtype = parse_dtype(self._spec.argument(name).type)
            widened[name] = dtype.to_float64(array) if dtype.kind == "float" else array
        return widened

    def _wide_scalars(self, values: Mapping[str, Any]) -> dict[str, Any]:
        widened = {}
        for name, value in values.items():
            dtype = parse_dtype(self._spec.argument(name).type)
            is_float = dtype.kind == "float" and dtype.lanes == 1
            widened[name] = np.float64(dtype.to_float64(np.asarray(value).reshape(1))[0]) if is_float else value
        return widened

    def _seeds(self, repeats: int) -> list[tuple[int, str, int]]:
        checks = [check for _ in range(repeats) for check in plan(self._spec, self._random, self._builder.defences)]
        return [(check.case, check.family, check.seed) for check in checks]

    def _validate(self, binary: CpuBinary) -> list[str]:
        assert self._original is not None
        first = self._seeds(1)[:1]
        known, runs = self._prepare(
            binary, first
        )  # alone: a kernel that never ends must not cost the deadline many times
        if not runs[0].findings:
            known, runs = self._prepare(binary, self._seeds(_VALIDATION_SEEDS))
        for item, run in zip(known, runs, strict=True):
            if run.findings:
                finding = run.findings[0]
                raise RefusedError(
                    f"case {self._spec.check[item.case].name}: the kernel fails on its own: {finding.message}",
                    self._spec.origin or self._spec.file,
                    "give smaller check shapes, or mend the kernel" if finding.kind == "timeout" else "mend the spec",
                )
        written = [a.name for a in self._spec.arguments if a.role in ("out", "inout")]
        for item in known:
            for name in written:
                reference: Arrays = item.wide if item.wide is not None else item.original
                now = noise(self._spec, name, item.original, reference)
                old = self._noise.get((item.case, item.family + name), Noise(0.0, 0.0))
                self._noise[item.case, item.family + name] = Noise(max(now.error, old.error), max(now.rms, old.rms))
        problems = self._unwritten(known) or self._repeats(binary, known) or self._controls(binary, known, written)
        self._known = _screening_set(known[: len(known) // _VALIDATION_SEEDS])
        return problems

    def _unwritten(self, known: Sequence[_Known]) -> list[str]:
        """Elements of an output that no run of a case has changed: what stood there would count for the tolerance."""
        for argument in self._spec.arguments:
            dtype = parse_dtype(argument.type)
            if argument.role != "out" or dtype.storage.itemsize == 1:  # of single bytes some are right by chance
                continue
            stale: dict[int, np.ndarray[Any, Any]] = {}
            for item in known:
                pairs = (item.original[argument.name], item.buffers[argument.name])
                now, before = (np.ascontiguousarray(a).view(np.uint8).reshape(-1, dtype.itemsize) for a in pairs)
                same = (now == before).all(axis=1)
                stale[item.case] = stale.get(item.case, same) & same
            for case, left in stale.items():
                if left.any():
                    return [
                        f"case {self._spec.check[case].name}: the kernel leaves {int(left.sum())} of {left.size} elements of the "
                        f"output '{argument.name}' unwritten, first at index {int(left.argmax())}; declare it as inout, or give "
                        "its true size"
                    ]
        return []

    def _repeats(self, binary: CpuBinary, known: Sequence[_Known]) -> list[str]:
        """The original again in other orders: it must not depend on them by more than its tolerance."""
        assert self._original is not None
        jobs = [
            self._job(self._original.launches[k.case], k.buffers, k.scalars, 1 + i % 2) for i, k in enumerate(known)
        ]
        for item, run in zip(known, self._machine.run_many(binary, jobs), strict=True):
            failure = self._compare(item, run.outputs)
            if failure:
                return [f"case {failure.case}: run in another order of threads, {failure.reason}"]
        return []

    def _controls(self, binary: CpuBinary, known: Sequence[_Known], written: Sequence[str]) -> list[str]:
        wanted: dict[tuple[str, str], bool] = {}
        for item in known:
            for name in written:
                right = item.original[name]
                controls = {"all zeros": np.zeros_like(right)}
                controls["whatever stood there before"] = item.buffers[name]
                for argument in self._spec.arguments:
                    other = item.buffers.get(argument.name)
                    if (
                        argument.role == "in"
                        and other is not None
                        and other.dtype == right.dtype
                        and other.size >= right.size
                    ):
                        controls["a copy of an input"] = other[: right.size]
                        break
                for what, content in controls.items():
                    failure = self._compare(item, {**item.original, name: content})
                    wanted[what, name] = wanted.get((what, name), False) or failure is not None
        problems = [
            f"{what} in '{name}' would pass for a right result" for (what, name), seen in wanted.items() if not seen
        ]
        return problems + self._independent(binary, known)

    def _independent(self, binary: CpuBinary, known: Sequence[_Known]) -> list[str]:
        """Inputs that no output depends on, tried by exchanging one input at a time."""
        assert self._original is not None
        jobs, meaning = [], []
        items = [k for k in known[: len(known) // _VALIDATION_SEEDS] if k.family == "declared"]
        for item in items:
            fresh, _ = self._inputs(item.case, item.family, self._random.getrandbits(40))
            for argument in self._spec.arguments:
                if argument.role in ("in", "inout") and argument.fill.kind != "constant":
                    changed = {**item.buffers, argument.name: fresh[argument.name]}
                    jobs.append(self._job(self._original.launches[item.case], changed, item.scalars, 0))
                    meaning.append((item, argument.name))
        seen: dict[str, bool] = {}
        for (item, name), run in zip(meaning, self._machine.run_many(binary, jobs) if jobs else [], strict=True):
            seen[name] = seen.get(name, False) or bool(run.findings) or self._compare(item, run.outputs) is not None
        return [
            f"no output depends on the input '{name}' in any check case" for name, found in seen.items() if not found
        ]

    def _compare(self, item: _Known, outputs: Mapping[str, Any], *, loose: bool = False) -> Failure | None:
        for argument in self._spec.arguments:
            if argument.role not in ("out", "inout"):
                continue
            now = noise(self._spec, argument.name, item.original, item.wide if item.wide is not None else item.original)
            old = self._noise.get((item.case, item.family + argument.name), Noise(0.0, 0.0))
            scale = Noise(max(now.error, old.error), max(now.rms, old.rms))
            case = self._spec.check[item.case].name
            failure = difference(
                self._spec, argument.name, outputs, item.original, item.wide, scale, case,
                loose=loose,
            )  # fmt: skip
            if failure:
                return replace(failure, reason=f"{failure.reason} (inputs '{item.family}')")
        return None

    # ---- candidates

    def build(self, program: Program) -> Built:
        built = self._builder.candidate(program)
        if self._original is not None and built.identity == self._original.identity:
            return replace(built, extra=self._original.extra)  # known already: no need to compile it for the CPU
        begin = time.perf_counter()
        try:
            binary = self._machine.build(built.text, self._spec.file, self._spec, self._builder.expressions)
        except Unsupported as error:
            reason = f"the CPU path cannot run {', '.join(error.features)}"
            raise _not_built(Outcome.SCREENED_OUT, reason, built) from None
        except CompileError as error:
            raise _not_built(Outcome.COMPILE_ERROR, error.what, built) from None
        compiled = time.perf_counter()
        self.speeds.predictor.code(built.binary)  # disassembled here, beside what runs, and kept
        stages = {
            **built.stage_s,
            "compile for the CPU": compiled - begin,
            "disassemble": time.perf_counter() - compiled,
        }
        return replace(built, extra=binary, stage_s=stages)

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        begin = time.perf_counter()
        refused = self._screen(built, self._known, evaluation)
        stages["screen"] = time.perf_counter() - begin
        if refused:
            return refused, None
        begin = time.perf_counter()
        try:
            measurement = self.speeds.predict(built)
        except OptimlError as error:
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=Failure(error.what)), None
        stages["predict"] = time.perf_counter() - begin
        against = None if incumbent is None else self._against(measurement, incumbent)
        return replace(evaluation, outcome=Outcome.SCREENED, measurement=measurement), against

    def _against(self, measurement: Measurement, incumbent: Built) -> float | None:
        """The speedup over the incumbent; None where that comes from an earlier run and cannot be predicted again."""
        try:
            return measurement.ratio / self.speeds.predict(incumbent).ratio
        except OptimlError:
            return None

    def retime(self, built: Built, incumbent: Built | None, effort: int) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    def _before(self, item: _Known) -> Arrays:
        """What stands in the buffers before a run."""
        if self._builder.defences.poison:
            return item.buffers
        stale = {a.name: item.original[a.name] for a in self._spec.arguments if a.role == "out"}
        return {**item.buffers, **stale}

    def _screen(self, built: Built, known: Sequence[_Known], evaluation: Evaluation) -> Evaluation | None:
        orders = _ORDERS if self._builder.defences.thread_orders else 1
        jobs = [
            self._job(built.launches[item.case], self._before(item), item.scalars, i % orders)
            for i, item in enumerate(known)
        ]
        # The first run alone, so that a candidate that never ends costs its deadline once.
        runs = self._machine.run_many(built.extra, jobs[:1], deadline_s=_DEADLINE_S)
        if not runs[0].findings or not self._builder.defences.access_checks:
            runs += self._machine.run_many(built.extra, jobs[1:], deadline_s=_DEADLINE_S)
        for item, run in zip(known, runs, strict=False):
            held = [f for f in run.findings if self._builder.defences.access_checks or f.kind not in _ACCESSES]
            if held:
                return _refused(evaluation, held[0], self._spec.check[item.case].name)
            failure = self._compare(item, run.outputs, loose=not self._builder.defences.scaled_tolerance)
            if failure:
                return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=failure)
        return None

    # ---- the suggestion

    def confirm(self, built: Built) -> Evaluation:
        """Fresh seeds in every order, and the race detector."""
        assert self._original is not None
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, {})
        known, _ = self._prepare(self._original.extra, self._seeds(1))
        refused = self._screen(built, known, evaluation)
        if refused:
            return refused
        jobs = [
            self._job(built.launches[item.case], item.buffers, item.scalars, i % _ORDERS)
            for i, item in enumerate(known)
            if item.family == "declared"
        ]
        if not self._machine.degraded and self._builder.defences.races:
            findings = self._machine.races(built.extra, jobs)
            if findings and not self._races_itself(known):
                return _refused(evaluation, findings[0], "")
        measurement = self.speeds.predict(built)
        verdicts = (
            guardrails.timing(measurement, self._builder.limits),
            guardrails.spills(
                self._original.binary.resources, built.binary.resources, measurement, self._builder.limits
            ),
            guardrails.numeric(screened=True),
            Guardrail("races", "not checked", self._machine.degraded[0])
            if self._machine.degraded
            else Guardrail("races", "passed", "by ThreadSanitizer, on check shapes"),
        )
        evaluation = replace(evaluation, outcome=Outcome.SCREENED, measurement=measurement, guardrails=verdicts)
        failed = guardrails.broken(evaluation)
        if failed is not None:
            return replace(evaluation, outcome=Outcome.GUARDRAIL, failure=Failure(f"{failed.name}: {failed.detail}"))
        return evaluation

    def _races_itself(self, known: Sequence[_Known]) -> bool:
        """Whether the original has races too (threads that write the same value, say): then they refute nobody."""
        assert self._original is not None
        jobs = [
            self._job(self._original.launches[item.case], item.buffers, item.scalars, i % _ORDERS)
            for i, item in enumerate(known)
            if item.family == "declared"
        ]
        if not self._machine.races(self._original.extra, jobs):
            return False
        self._missing.append("the original itself has data races, so races in candidates are not held against them")
        return True

    def close(self) -> None:
        self._builder.close()
        pass


def _screening_set(known: Sequence[_Known]) -> list[_Known]:
    """Each shape with the declared inputs and with one further family, in turn: two runs a shape keep a screening short.

    What is suggested is run with all of them, on fresh seeds.
    """
    families = list(dict.fromkeys(item.family for item in known))
    chosen = []
    for item in known:
        further = families[1 + item.case % (len(families) - 1)] if len(families) > 1 else ""
        if item.family in ("declared", further):
            chosen.append(item)
    return chosen


def _refused(evaluation: Evaluation, finding: Finding, case: str) -> Evaluation:
    failure = Failure(finding.message, case=case, argument=finding.array or "", index=finding.index, line=finding.line)
    return replace(evaluation, outcome=_OUTCOMES[finding.kind], failure=failure)


def _not_built(outcome: Outcome, reason: str, built: Built) -> NotBuilt:
    evaluation = Evaluation(
        outcome, None, Failure(reason), built.binary.resources, built.binary.code_hash, dict(built.stage_s)
    )
    return NotBuilt(reason, evaluation=evaluation)
