"""An evaluator whose answers are computed from the text: each `// speed X` or `speed(X);` of a program multiplies its speed by X."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.compile.built import Built, NotBuilt
from engine.cuda.kernel import Edit, Span
from engine.evaluate.evaluator import Signals, nothing
from engine.model import Binary, Evaluation, Failure, LaunchConfig, Measurement, Outcome, Program, Resources
from engine.rewrite.proposal import Proposal

LAUNCHES = ((LaunchConfig((1, 1, 1), (32, 1, 1)),),)


def program(text: str = "kernel\n") -> Program:
    return Program({"k.cu": text.encode()}, "k.cu")


def speed(text: str) -> float:
    value = 1.0
    for factor in re.findall(r"(?:// speed |\bspeed\()([\d.]+)", text):
        value *= float(factor)
    return value


def edit(of: Program, line: str, prior: float = 0.5, rule: str = "fake") -> Proposal:
    at = len(of.data)
    return Proposal("rules", rule, f"Add {line}", {"k.cu": (Edit(Span(at, at), line + "\n"),)}, {"line": line}, prior)


@dataclass
class Factors:
    """Proposes each factor once per path."""

    factors: tuple[str, ...]
    priors: dict[str, float] = field(default_factory=dict)

    def __call__(self, of: Program) -> list[Proposal]:
        text = of.data.decode()
        return [
            edit(of, f"// speed {f} #{i}", self.priors.get(f, 0.5))
            for i, f in enumerate(self.factors)
            if f"#{i}" not in text
        ]


@dataclass
class FakeEvaluator:
    """Follows the Evaluator protocol. A text with `wrong` fails verification, with `broken` does not compile."""

    evaluated: list[str] = field(default_factory=list)
    gate: threading.Event | None = None

    @property
    def signals(self) -> Signals:
        return Signals("measured", {"name": "fake"})

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        built = self.build(original)
        return built, self._evaluation(built)

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        text = program.data.decode()
        if "broken" in text:
            raise NotBuilt("broken", evaluation=Evaluation(Outcome.COMPILE_ERROR, failure=Failure("broken")))
        code = "|".join(sorted(re.findall(r"\b(?:speed[ (][\d.]+|wrong)\b", text)))
        binary = Binary(b"", "sm_90", ("k",), (Resources(32, 0, 0, 0, 0),), code_hash=code)
        return Built(program, text, ("k",), binary, LAUNCHES, by_rules=by_rules)

    def _evaluation(self, built: Built) -> Evaluation:
        ratio = speed(built.text)
        outcome = Outcome.ACCEPTED if ratio > 1 else Outcome.SLOWER if ratio < 1 else Outcome.NO_DIFFERENCE
        return Evaluation(
            outcome,
            Measurement((), ratio, ratio * 0.99, ratio * 1.01),
            None,
            built.binary.resources,
            built.binary.code_hash,
        )

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        if self.gate is not None:
            self.gate.wait()
        self.evaluated.append(built.text)
        if "wrong" in built.text:
            failure = Failure("differs", case="c", index=3, expected=1.0, got=2.0)
            return Evaluation(Outcome.WRONG_RESULT, failure=failure, code_hash=built.binary.code_hash), None
        against = speed(built.text) / speed(incumbent.text) if incumbent else None
        return self._evaluation(built), against

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        return self._evaluation(built)

    def close(self) -> None:
        pass
