"""The template that a tuning run is asked for: a rule's, the file's own, or the one of the rules that promises most."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.model import Program, Target
from engine.rules import rules
from engine.spec.kernel_spec import KernelSpec
from engine.tune.declare import declared
from engine.tune.offers import rule_templates
from engine.tune.space import Condition
from engine.tune.template import Template, tunable

if TYPE_CHECKING:
    from engine.tune.tune_options import TuneOptions


class NoTemplate(UsageError):
    """Nothing is declared, and the rules write none, or not the one that was asked for."""


def make_template(
    options: TuneOptions, program: Program, spec: KernelSpec, spec_path: str | None, target: Target,
    prior: Callable[[str, float], float] = lambda rule, prior: prior,
) -> tuple[Template, tuple[str, ...]]:  # fmt: skip
    """The template that is asked for or declared, else the one of the rules that promises most; and notes. Raises UsageError.

    `prior` gives what a rule's template promises from the rule's own prior, where more is known of it.
    """
    if options.rule is None:
        own = declared(program, spec, spec_path, parameters=options.parameters, where=options.where)
        if own is not None:
            tunable(own)
            return own, ()
    elif options.parameters:
        raise UsageError("--rule and --param exclude each other", do="a rule has its own parameters: omit --param")
    found = rule_templates(program, spec, target)
    there = ", ".join(dict.fromkeys(t.name for t in found)) or "none"
    if options.rule is None:
        if not found:
            raise NoTemplate(
                "no template: the file declares none, and no rule can write one for this kernel", str(options.path),
                "declare one with // optiml: tune NAME = 64, 128",
            )  # fmt: skip
        found = sorted(found, key=lambda t: -prior(t.name, t.family.prior))
        others = dict.fromkeys(t.summary for t in found[1:])
        note = f"the file declares no template; the rule {found[0].name} wrote one"
        return found[0], (f"{note}; others would be: {'; '.join(others)}" if others else note,)
    name, _, place = options.rule.partition("/")
    if name not in [rule.name for rule in rules()]:
        do = f"those that write a template for this kernel: {there}"
        raise UsageError(f"unknown rule '{name[:40]}'", "--rule", do)
    forms = [t for t in found if t.name == name]
    if not forms:
        raise NoTemplate(
            f"the rule '{name[:40]}' writes no template for this kernel", "--rule", f"those that do: {there}"
        )
    number = int(place) if place.isdecimal() else 1 if not place else 0
    if not 1 <= number <= len(forms):
        raise UsageError(f"the rule '{name}' has {len(forms)} forms here", "--rule", f"write {name}/1")
    form = forms[number - 1]
    where = tuple(Condition(text, "--where") for text in options.where)
    space = dataclasses.replace(form.space, conditions=(*form.space.conditions, *where))
    return dataclasses.replace(form, space=space), ()
