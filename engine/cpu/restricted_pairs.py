"""Pointer parameters of functions that promise by `__restrict__` to lead to different memory, of which one may be written through."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cpu.settled_names import PARAMETER, below, node_text

if TYPE_CHECKING:
    from tree_sitter import Node

_RESTRICT = re.compile(r"\b__restrict(?:__)?\b")
_CONST = re.compile(r"\bconst\b")


@dataclass(frozen=True)
class RestrictedPair:
    """Two parameters of a function; `body` is where its own code begins."""

    function: str
    first: str
    second: str
    body: int

    @property
    def words(self) -> str:
        """How the pair is named."""
        return f"{self.first} and {self.second} of {self.function}"


def restricted_pairs(root: Node) -> Iterator[RestrictedPair]:
    """The pairs of every function below a node of preprocessed code."""
    for function in below(root):
        body = function.child_by_field_name("body")
        if function.type != "function_definition" or body is None or body.type != "compound_statement":
            continue
        declarator = function.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator")
        parameters = declarator.child_by_field_name("parameters") if declarator is not None else None
        if declarator is None or parameters is None:
            continue
        pointers = [found for one in parameters.named_children if (found := _pointer(one)) is not None]
        for (first, promised, read), (second, promises, reads) in itertools.combinations(pointers, 2):
            if (promised or promises) and not (read and reads):
                name = node_text(declarator.child_by_field_name("declarator"))
                yield RestrictedPair(name, first, second, body.start_byte + 1)


def _pointer(parameter: Node) -> tuple[str, bool, bool] | None:
    """A pointer parameter's name, whether it is restricted, and whether it is only read through."""
    declarator = parameter.child_by_field_name("declarator")
    if parameter.type != PARAMETER or declarator is None or declarator.type != "pointer_declarator":
        return None
    name = declarator.child_by_field_name("declarator")
    if name is None or name.type != "identifier":
        return None
    before, _, after = node_text(parameter).rpartition("*")
    return node_text(name), bool(_RESTRICT.search(after)), bool(_CONST.search(before))
