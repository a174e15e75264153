"""Evaluation without a GPU: screened on the CPU, speed predicted from machine code and counted accesses."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.compile.built import Built
from engine.cpu import CpuMachine, Unsupported
from engine.errors import CompileError, OptimlError, RefusedError
from engine.evaluate import guardrails
from engine.evaluate.build import Builder
from engine.evaluate.contained import contained_build, contained_evaluation
from engine.evaluate.cpu_failures import not_built
from engine.evaluate.cpu_screen import CpuScreen
from engine.evaluate.evaluator import Signals, nothing
from engine.evaluate.speeds import Speeds
from engine.model import Evaluation, Failure, Measurement, Outcome, Program, Target
from engine.predict.predictor import Predictor
from engine.process.sandbox import NoSandbox, Sandbox
from engine.spec.kernel_spec import Case, KernelSpec


class CpuEvaluator:
    """The predicted path: candidates are refuted on the check shapes, never verified."""

    def __init__(
        self, spec: KernelSpec, builder: Builder, machine: CpuMachine, target: Target, box: Sandbox | NoSandbox
    ) -> None:  # fmt: skip
        self._builder, self._target = builder, target
        self._random = random.Random(secrets.randbits(64))
        self._screen = CpuScreen(spec, builder, machine, self._random)
        self._original: Built | None = None
        self._twins: dict[tuple[object, ...], Any] = {}  # code for the CPU by machine code and launches
        self.speeds = Speeds(spec, builder, machine, Predictor(target.arch, sandbox=box, cache=machine.cache / "sass"))

    @property
    def signals(self) -> Signals:
        missing = ("no GPU: candidates are screened on the CPU, speeds are predicted", *self._screen.missing)
        return Signals(
            "predicted", {"arch": self._target.arch, "name": f"none (predicted for {self._target.arch})"}, missing
        )

    def seed(self, secret: int) -> None:
        """Draw what every other device of a search draws; before `open`."""
        self._random.seed(secret)
        self.speeds.seed(secret)

    @property
    def secret_cases(self) -> tuple[Case, ...]:
        return self._screen.secret_cases

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        begin = time.perf_counter()
        built = self._builder.original(original)
        ready()
        self._original = built = self._screen.open(built)
        stages = {**built.stage_s, "validate": time.perf_counter() - begin}
        return built, Evaluation(
            Outcome.SCREENED, self.speeds.predict(built), None, built.binary.resources, built.binary.code_hash, stages
        )

    # ---- candidates

    @contained_build
    def build(self, program: Program, *, by_rules: bool) -> Built:
        built = self._builder.candidate(program, by_rules=by_rules)
        twin = self._twins.get(built.identity)
        if twin is not None:  # nothing is run of it: what its machine code does is known, or about to be
            return replace(built, extra=twin)
        complete = self.complete(built)
        self._twins.setdefault(built.identity, complete.extra)
        return complete

    @contained_build
    def complete(self, built: Built) -> Built:
        """Add the code for the CPU to a candidate built elsewhere. Raises NotBuilt."""
        begin = time.perf_counter()
        try:
            complete = self._screen.complete(built)
        except Unsupported as error:
            reason = f"the CPU path cannot run {', '.join(error.features)}"
            raise not_built(Outcome.SCREENED_OUT, reason, built) from None
        except CompileError as error:
            raise not_built(Outcome.COMPILE_ERROR, error.what, built) from None
        except RefusedError as error:
            raise not_built(Outcome.SCREENED_OUT, error.what, built) from None
        compiled = time.perf_counter()
        self.speeds.predictor.code(built.binary)  # disassembled here, beside what runs, and kept
        stages = {
            **built.stage_s,
            "compile for the CPU": compiled - begin,
            "disassemble": time.perf_counter() - compiled,
        }
        return replace(complete, stage_s=stages)

    @contained_evaluation
    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        begin = time.perf_counter()
        failed = self._screen.screen(built, evaluation)
        stages["screen"] = time.perf_counter() - begin
        if failed:
            return failed, None
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

    @contained_evaluation
    def retime(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    # ---- the suggestion

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Nothing: the search has the cores."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        """See `CpuScreen.confirm`; then the predicted speed and what else keeps a suggestion back."""
        assert self._original is not None
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, {})
        wrong, checked = self._screen.confirm(built, evaluation)
        if wrong:
            return wrong
        measurement = self.speeds.predict(built)
        verdicts = (
            guardrails.timing(measurement, self._builder.limits),
            guardrails.spills(
                self._original.binary.resources, built.binary.resources, measurement, self._builder.limits
            ),
            guardrails.numeric(screened=True),
            *checked,
        )
        passed = replace(evaluation, outcome=Outcome.SCREENED, measurement=measurement, guardrails=verdicts)
        return guardrails.applied(passed)

    def close(self) -> None:
        self._builder.close()
