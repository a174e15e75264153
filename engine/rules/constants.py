"""What an integer expression is worth where the text alone tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.arith import ArithmeticError_, evaluate_int
from engine.rules.common import names, text
from engine.rules.model import Site

if TYPE_CHECKING:
    from tree_sitter import Node


def constant(site: Site, node: Node) -> int | None:
    """The value of an expression over literals, constants, macros and the spec's template arguments; None for others."""
    values: dict[str, int | float] = {}
    given = [a.strip() for a in site.spec.steps[site.step].template_args.split(",")]
    parameters = [p.split("=")[0].split() for p in site.kernel.template_parameters]
    arguments = {p[-1]: a for p, a in zip(parameters, given, strict=False) if p}
    for name in names(node):
        written = arguments.get(name, site.unit.macros.get(name, site.unit.constants.get(name)))
        if not written:
            return None
        try:
            values[name] = evaluate_int(written, {})
        except ArithmeticError_:
            return None
    try:
        return evaluate_int(text(node), values)
    except ArithmeticError_:
        return None
