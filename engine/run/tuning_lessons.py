"""Lessons of one tuning run: what its best point and each parameter gained, and what earlier runs say of its templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import OptimlError
from engine.llm.lessons import Lessons
from engine.model import Outcome, Program, Target
from engine.rewrite.proposal import Proposal
from engine.search.tree import Node, Tree
from engine.settings.memory_settings import MemorySettings
from engine.spec.kernel_spec import KernelSpec
from engine.tune.evaluated_point import Tried
from engine.tune.template import Template, UnusableTemplate

_PROPOSER = "tuner"


class TuningLessons:
    """Reads and writes lessons about one original; without settings it does nothing.

    Raises MachineError where the file cannot be opened. `close` it.
    """

    def __init__(self, settings: MemorySettings | None, spec: KernelSpec, target: Target, original: Program) -> None:
        self._lessons = Lessons(settings, spec, target) if settings is not None else None
        self._original: Node = Tree(original, lambda of: [], 0).root

    def prior(self, rule: str, prior: float) -> float:
        """The prior of a rule's template, by what the rule did to kernels like this one."""
        return self._lessons.prior(self._original, rule, prior) if self._lessons is not None else prior

    def recall(self, node: Node) -> Sequence[str]:
        """Sentences for the question of a model that writes the template."""
        return self._lessons.recall(node) if self._lessons is not None else ()

    def learn(self, template: Template, tried: Sequence[Tried]) -> None:
        """Keep what the best of the points that passed gained over the original, and each parameter's value in it over another."""
        best = max((t for t in tried if t.value is not None), key=_value, default=None)
        if self._lessons is None or best is None:
            return
        predicted = best.evaluation.measurement is not None and best.evaluation.measurement.predicted
        try:
            edit = template.proposal(best.point)
        except OptimlError:
            return
        self._lessons.gained(self._original, edit, best.evaluation.outcome, 2 ** _value(best), predicted=predicted)
        for summary, name, gain in parameter_gains(template, tried):
            edit = Proposal(_PROPOSER, f"{template.name}:{name}", summary, {})
            self._lessons.gained(self._original, edit, Outcome.ACCEPTED, gain, predicted=predicted)

    def failed(self, template: Template, error: UnusableTemplate) -> None:
        """Keep that a template does not reproduce the original."""
        if self._lessons is not None and error.evaluation is not None:
            edit = Proposal(_PROPOSER, template.name, template.summary, {})
            self._lessons.gained(self._original, edit, error.evaluation.outcome, None, predicted=False)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The memory's part of the result; None without one."""
        return self._lessons.summary if self._lessons is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the result, where the memory failed."""
        return (self._lessons.trouble,) if self._lessons is not None and self._lessons.trouble else ()

    def close(self) -> None:
        """Close the file."""
        if self._lessons is not None:
            self._lessons.close()


def parameter_gains(template: Template, tried: Sequence[Tried]) -> list[tuple[str, str, float]]:
    """For each parameter whose value in the best point is another than the original's, or than the worst without one: a sentence,
    its name, and by what the best point is faster than the best with that other value."""
    space, default = template.space, template.default
    values = {one.point: one.value for one in tried if one.value is not None}
    if default is not None:
        values.setdefault(default, 0.0)  # the original, over itself
    best = max(values, key=values.__getitem__)
    found = []
    for index, name in enumerate(space.names):
        fastest: dict[int, float] = {}
        for point, value in values.items():
            fastest[point[index]] = max(value, fastest.get(point[index], value))
        other = default[index] if default is not None else min(fastest, key=fastest.__getitem__)
        if best[index] != other:
            summary = f"Of {template.name}: {name} = {best[index]} instead of {other}"
            found.append((summary, name, 2 ** (fastest[best[index]] - fastest[other])))
    return found


def _value(tried: Tried) -> float:
    assert tried.value is not None
    return tried.value
