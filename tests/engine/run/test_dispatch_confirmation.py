"""Dispatch code is confirmed branch by branch, on a GPU as the code of the generated file itself."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.compile.built import Built
from engine.evaluate.secret_cases import SecretCases
from engine.model import CaseTiming, Evaluation, Measurement, Outcome, Program
from engine.run.dispatch_confirmation import Confirming
from engine.run.machine import Machine
from engine.settings.config import Guardrails
from tests.adversarial.conftest import cpu as cpu
from tests.engine.tune.kernels import SAXPY, template
from tests.engine.tune.test_dispatch import shapes


class OnDevice:
    """Stands in for a GPU's evaluator: takes what it confirms through every size that it would be checked at."""

    signals = SimpleNamespace(mode="measured")

    def __init__(self, spec: Any, builder: Any) -> None:
        self._spec, self._builder, self._secret = spec, builder, SecretCases(spec, builder, random.Random(1))
        self.confirmed: list[Built] = []

    def open(self, original: Program) -> tuple[Built, Evaluation]:
        self._secret.draw(original)
        return self._builder.original(original), self._passed(1.0)

    def build(self, program: Program, *, by_rules: bool) -> Built:
        built: Built = self._builder.candidate(program, by_rules=by_rules)
        return built

    def confirm(self, built: Built) -> Evaluation:
        self.confirmed.append(self._secret.whole(built))
        return self._passed(2.0)

    def close(self) -> None: ...

    def _passed(self, ratio: float) -> Evaluation:
        cases = tuple(CaseTiming(c.name, 1.0, ratio, 1.0, ratio, ratio, ratio, 9) for c in self._spec.time)
        return Evaluation(Outcome.ACCEPTED, Measurement(cases, ratio, ratio, ratio))


def test_an_instance_is_checked_at_sizes_that_its_branch_does_not_launch(
    cpu: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU no dispatch code was ever suggested: at a drawn size the branches of the generated file launch differently."""
    made = template(SAXPY)
    small, large = {"BLOCK": 128, "ITEMS": 2}, {"BLOCK": 256, "ITEMS": 4}
    devices: list[OnDevice] = []

    def evaluator(spec: Any, *_: Any, **__: Any) -> OnDevice:
        devices.append(OnDevice(spec, cpu.builder(spec, tmp_path, None, limits=Guardrails())))
        return devices[-1]

    machine = SimpleNamespace(mode="measured", compiler=cpu.compiler, target=cpu.target, evaluator=evaluator)
    monkeypatch.setattr(
        "engine.run.dispatch_confirmation.Gate",
        lambda *_: SimpleNamespace(judge=lambda evaluation, original, built: evaluation, whole=lambda *_: ()),
    )
    found = SimpleNamespace(
        best=None,
        original=Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0)),
        shapes=shapes(made, small, large),
        mode="measured",
    )
    confirming = Confirming(cast(Any, machine), made.spec, tmp_path, None, Guardrails(), ())
    dispatch, _ = confirming.dispatch(made, cast(Any, found))
    assert dispatch.refused == ""
    confirmed = [built for device in devices for built in device.confirmed]
    assert len(confirmed) == 2
    for built in confirmed:
        assert len(built.launches) > len(made.spec.check) + 1  # the drawn sizes too
