"""The templates of a program with what is known of them before anything is compiled: analysis of text, fit for any process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from engine.errors import OptimlError
from engine.model import Program, Target
from engine.rewrite.proposal import Family, Proposal
from engine.rules import families, make_site
from engine.spec.kernel_spec import KernelSpec
from engine.tune.declare import declared
from engine.tune.feasible import Feasible, feasible
from engine.tune.space import Condition, ParameterSpace, TuneParameter
from engine.tune.template import RuleTemplate, Template, tunable

_LEAST = 3  # a rule's templates of fewer points are left to its own proposals
_OWN_PRIOR = 0.6  # a template that a person declared: they know what is worth a look. Ours


@dataclass(frozen=True)
class SearchPlace:
    """Where a rule's template comes from: the step of the spec, and the number of its family among those of its rule."""

    step: int
    number: int


@dataclass(frozen=True)
class Offer:
    """A template, its feasible points, and the edit of the first of them that is not the program as it is.

    `place` is None for a declared template.
    """

    template: Template
    points: Feasible
    first: Proposal
    prior: float
    place: SearchPlace | None = None


def offers(program: Program, spec: KernelSpec, spec_path: str | None, target: Target) -> list[Offer]:
    """The templates worth a search that the program declares or a rule can write for it, with their feasible points.

    A program whose text no longer holds a template has none, and a declared one that cannot be used is passed over.
    """
    templates: list[tuple[Template, float, SearchPlace | None]] = []
    with suppress(OptimlError):
        own = declared(program, spec, spec_path)
        if own is not None:
            templates.append((own, _OWN_PRIOR, None))
    with suppress(OptimlError, KeyError):
        templates += [(t, t.family.prior, place) for t, place in _placed(program, spec, target)]
    found: list[Offer] = []
    for template, prior, place in templates:
        with suppress(OptimlError):
            points = feasible(template, target)
            if place is None or len(points.points) >= _LEAST:
                first = next(point for point in points.points if point != template.default)
                found.append(Offer(template, points, template.proposal(first), prior, place))
    return found


def check_declared(program: Program, spec: KernelSpec, spec_path: str | None, target: Target) -> None:
    """Raises what is wrong with the template that a program declares, as `engine.run.template_run.tune` does: UsageError, SpecError,
    RefusedError (a constant that other code uses, an empty feasible set)."""
    own = declared(program, spec, spec_path)
    if own is not None:
        tunable(own)
        feasible(own, target)


def rule_templates(program: Program, spec: KernelSpec, target: Target) -> list[RuleTemplate]:
    """The templates that rules write for a program, the most promising first. Raises KeyError, SourceError (the kernel is gone)."""
    return [template for template, _ in _placed(program, spec, target)]


def _placed(program: Program, spec: KernelSpec, target: Target) -> list[tuple[RuleTemplate, SearchPlace]]:
    found = []
    for step in range(len(spec.steps)):
        numbers: dict[str, int] = {}
        for family in families(make_site(program, spec, step, target)):
            number = numbers[family.rule] = numbers.get(family.rule, -1) + 1
            found.append((rule_template(program, family), SearchPlace(step, number)))
    return sorted(found, key=lambda pair: -pair[0].family.prior)


def rule_template(program: Program, family: Family) -> RuleTemplate:
    """The template of a rule's family of proposals."""
    parameters = tuple(TuneParameter(name, values) for name, values in family.parameters.items())
    return RuleTemplate(
        program, family, ParameterSpace(parameters, tuple(Condition(text) for text in family.conditions))
    )


def family_at(
    program: Program,
    spec: KernelSpec,
    target: Target,
    rule: str,
    place: SearchPlace,
    parameters: Mapping[str, tuple[int, ...]],
) -> Family:
    """The family of proposals that a rule has there, found anew. Raises OptimlError where it has none with these parameters."""
    try:
        site = make_site(program, spec, place.step, target)
    except KeyError:
        raise OptimlError("the kernel no longer exists") from None
    found = families(site, only=[rule])
    family = found[place.number] if place.number < len(found) else None
    if family is None or family.parameters != parameters:
        raise OptimlError(f"the rule {rule} cannot write this template again")
    return family
