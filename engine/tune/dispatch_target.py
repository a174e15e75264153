"""Which instance generated dispatch code launches for a shape, read from its text by what evaluates launches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from engine.arith import ArithmeticError_, Number, evaluate
from engine.cuda.host_scope import HostScope
from engine.cuda.kernel import LaunchSite
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.typenames import split_arguments
from engine.errors import RefusedError, SourceError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.tune.dispatch import Selection

if TYPE_CHECKING:
    from tree_sitter import Node


def holds(program: Program, spec: KernelSpec, selection: Selection) -> None:
    """Raises RefusedError where a timing case's sizes do not lead to the launch of its branch, and to that alone."""
    head = parse(program.data, program.kernel_file).kernel(spec.kernel).template_parameters
    names = [p.split()[-1] for p in head]
    for case in spec.time:
        branch = next(b for b in selection.branches if case.name in b.cases)
        wanted = [str(branch.values[n]) for n in names]
        found = [split_arguments(s.template_args) for s in reached(program, spec, case.sizes)]
        if found != [wanted]:
            said = " and ".join(f"{spec.kernel}<{', '.join(a)}>" for a in found) or "nothing"
            raise RefusedError(
                f"the dispatch code launches {said} for {case.name}, where {spec.kernel}<{', '.join(wanted)}> is the best",
                do="use the general configuration, and please report it",
            )


def reached(program: Program, spec: KernelSpec, sizes: Mapping[str, Number]) -> list[LaunchSite]:
    """The launches of a spec's kernel that these sizes lead to; a condition that cannot be evaluated bars none."""
    return [
        site for site in sites(program, spec.kernel) if all(_true(*c) for c in _conditions(program, spec, site, sizes))
    ]


def _conditions(
    program: Program, spec: KernelSpec, site: LaunchSite, sizes: Mapping[str, Number]
) -> Iterator[tuple[HostScope, Node, bool]]:
    """The conditions that a launch stands under, each with whether it must hold or fail."""
    unit = parse(program.files[site.path], site.path)
    known: dict[str, Number] = {}
    for name, passed in zip(spec.steps[0].arguments, site.arguments, strict=False):
        argument = spec.argument(name)
        if argument.role == "scalar" and re.fullmatch(r"[A-Za-z_]\w*", passed.strip()):
            try:
                known[passed.strip()] = evaluate(argument.value or argument.name, sizes)
            except ArithmeticError_:
                continue
    scope = HostScope(program, unit, known)
    node = unit.root.descendant_for_byte_range(site.span.start, site.span.end)
    while node is not None and node.parent is not None:
        above = node.parent
        condition = above.child_by_field_name("condition") if above.type == "if_statement" else None
        inner = condition.child_by_field_name("value") if condition is not None else None
        if inner is not None and node == above.child_by_field_name("consequence"):
            yield scope, inner, True
        if inner is not None and node == above.child_by_field_name("alternative"):
            yield scope, inner, False
        node = above


def _true(scope: HostScope, condition: Node, wanted: bool) -> bool:
    try:
        return bool(scope.number(condition)) is wanted
    except SourceError:
        return True
