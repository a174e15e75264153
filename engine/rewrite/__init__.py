"""How a program's text is changed: what a rule imports."""

from __future__ import annotations

from tree_sitter import Node

from engine.cuda.declarations import Declared
from engine.cuda.kernel import Edit, Span
from engine.cuda.kernel_scope import Scope, Use
from engine.rewrite.matched_rule import Change, MatchedRule, Space, Values
from engine.rewrite.pattern import Pattern
from engine.rewrite.proposal import Edits, Family, Parametric, Proposal, Rule, merge, proposal
from engine.rewrite.site import Site, once
from engine.rewrite.snippet_template import template

__all__ = [
    "Change", "Declared", "Edit", "Edits", "Family", "MatchedRule", "Node", "Parametric", "Pattern", "Proposal", "Rule", "Scope",
    "Site", "Space", "Span", "Use", "Values", "merge", "once", "proposal", "template",
]  # fmt: skip
