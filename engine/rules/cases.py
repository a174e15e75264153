"""The launches of a site at the cases of its spec, before and after an edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.errors import OptimlError
from engine.model import LaunchConfig, Program
from engine.rules.model import Site, once
from engine.source.edit import edit_program
from engine.source.launch import evaluate
from engine.source.model import Edit
from engine.spec.model import Case


def all_cases(site: Site) -> tuple[Case, ...]:
    """Timing cases first, in the spec's order, then check cases."""
    return site.spec.time + site.spec.check


def visible(site: Site) -> bool:
    """Whether edits may change the launch: every launch is seen, and its figures are known for every timing case."""
    return bool(site.launches) and len(site.configs) == len(site.spec.time) > 0


def configs_of(site: Site, edits: Mapping[str, Sequence[Edit]]) -> tuple[LaunchConfig, ...] | None:
    """The launches of all cases (as in `all_cases`) after the edits; None where one cannot be evaluated."""
    if not edits:
        return _configs(site)
    try:
        return _launched(site, edit_program(site.program, edits))
    except OptimlError:
        return None


@once
def _configs(site: Site) -> tuple[LaunchConfig, ...] | None:
    try:
        return _launched(site, site.program)
    except OptimlError:
        return None


def _launched(site: Site, program: Program) -> tuple[LaunchConfig, ...]:
    # The host's text alone: a launch that the spec declares is still the one before the edits here.
    spec = replace(site.spec, steps=tuple(replace(step, launch=None) for step in site.spec.steps))
    return tuple(evaluate(program, spec, site.step, case.sizes) for case in all_cases(site))
