"""How a program's text is changed: what a rule imports, with `engine.cuda.syntax` for nodes.

- what it sees: `Site`, `Node`, `Span`, `Scope`, `ElementAccess`, `Declared`, `Function`, `Parameter`, `SharedArray`, `LaunchConfig`,
  `Case`; `once` for what many rules ask; `Namer`
- what it finds by pattern: `Pattern`, `MatchedRule`, `Space`, `Values`
- what it gives: `Rule`, `Proposal`, `Proposals`, `proposal`; `Parametric`, `Family`, `Families`, `Point`; `Edit`, `Edits`, `Change`,
  `merge`; `OptimlError` where it cannot
- text it writes: `template`, `reindent`, `added`, `addends`, `ceil_div`, `factor_text`, `grouped`, `grouped_text`, `is_plain`,
  `replace_name`, `term_text`
"""

from __future__ import annotations

from tree_sitter import Node

from engine.cuda.declarations import Declared
from engine.cuda.kernel import Edit, Function, Parameter, SharedArray, Span
from engine.cuda.kernel_scope import ElementAccess, Scope
from engine.errors import OptimlError
from engine.model import LaunchConfig
from engine.rewrite.matched_rule import Change, MatchedRule, Space, Values
from engine.rewrite.pattern import Pattern
from engine.rewrite.proposal import (
    Edits,
    Families,
    Family,
    Parametric,
    Point,
    Proposal,
    Proposals,
    Rule,
    merge,
    proposal,
)
from engine.rewrite.site import Namer, Site, once
from engine.rewrite.snippet_template import template
from engine.rewrite.wording import (
    added,
    addends,
    ceil_div,
    factor_text,
    grouped,
    grouped_text,
    is_plain,
    reindent,
    replace_name,
    term_text,
)
from engine.spec.kernel_spec import Case

__all__ = [
    "Case", "Change", "Declared", "Edit", "Edits", "ElementAccess", "Families", "Family", "Function", "LaunchConfig", "MatchedRule",
    "Namer", "Node", "OptimlError", "Parameter", "Parametric", "Pattern", "Point", "Proposal", "Proposals", "Rule", "Scope",
    "SharedArray", "Site", "Space", "Span", "Values", "added", "addends", "ceil_div", "factor_text", "grouped",
    "grouped_text", "is_plain", "merge", "once", "proposal", "reindent", "replace_name", "template", "term_text",
]  # fmt: skip
