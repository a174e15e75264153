"""Index expressions as polynomials over names, so that two spellings of one index compare equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from engine.cuda.clock import tick
from engine.cuda.syntax import strip, text

_WORD = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")  # the parser takes the sign of `-1` for a part of it
_MAX_TERMS = 64
_MAX_DEPTH = 40
_MAX_TEXT = 2000  # characters of one atom

Resolve = Callable[["Node"], "Node | None"]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products with integer factors: `row * n + 2 * j` is {("n", "row"): 1, ("j",): 2}.

    A part that is no sum or product (a division, a call, an array element) is one atom, spelled as C text.
    """

    terms: Mapping[tuple[str, ...], int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and dict(self.terms) == dict(other.terms)

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def plus(self, other: Polynomial, sign: int = 1) -> Polynomial:
        """The sum, or the difference where `sign` is -1."""
        terms = dict(self.terms)
        for product, factor in other.terms.items():
            terms[product] = terms.get(product, 0) + sign * factor
        return Polynomial({p: f for p, f in terms.items() if f})

    def times(self, other: Polynomial) -> Polynomial:
        """The product."""
        terms: dict[tuple[str, ...], int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product = tuple(sorted(left + right))
                terms[product] = terms.get(product, 0) + a * b
        return Polynomial({p: f for p, f in terms.items() if f})

    def names(self) -> frozenset[str]:
        """Every identifier in it, those inside atoms too."""
        return frozenset(w for product in self.terms for atom in product for w in _WORD.findall(atom))

    def split(self, name: str) -> tuple[Polynomial, Polynomial] | None:
        """(factor, rest) with self = factor * name + rest; None where `name` enters in another way."""
        factor: dict[tuple[str, ...], int] = {}
        rest: dict[tuple[str, ...], int] = {}
        for product, count in self.terms.items():
            others = list(product)
            if name in others:
                others.remove(name)
                factor[tuple(others)] = count
            else:
                rest[product] = count
            if any(name in _WORD.findall(atom) for atom in others):
                return None
        return Polynomial(factor), Polynomial(rest)

    def renamed(self, old: str, new: str) -> Polynomial:
        """The same with an atom of one name under another."""
        return Polynomial({tuple(sorted(new if a == old else a for a in p)): f for p, f in self.terms.items()})

    @property
    def constant(self) -> int | None:
        """The value where no name enters."""
        if not self.terms:
            return 0
        return self.terms[()] if set(self.terms) == {()} else None

    def render(self) -> str:
        """C text: `n * row + 2 * j`."""
        parts: list[str] = []
        for product, factor in sorted(self.terms.items(), key=lambda t: (-len(t[0]), t[0])):
            body = " * ".join(([str(abs(factor))] if abs(factor) != 1 or not product else []) + list(product))
            sign = "-" if factor < 0 else "+"
            parts.append(f"{sign} {body}" if parts else (f"-{body}" if factor < 0 else body))
        return " ".join(parts) or "0"


def number(value: int) -> Polynomial:
    """The polynomial of a constant."""
    return Polynomial({(): value} if value else {})


def atom(name: str) -> Polynomial:
    """The polynomial of one name."""
    return Polynomial({(name,): 1})


def polynomial(node: Node, resolve: Resolve, depth: int = 0) -> Polynomial | None:
    """The expression as a polynomial; None where it is too large.

    `resolve` gives, for an identifier or a call, the expression that may stand in its place.
    """
    if depth > _MAX_DEPTH:
        return None
    tick()
    node = strip(node)
    match = _INTEGER.fullmatch(text(node))
    if match:
        digits = match[2]
        count = int(digits, 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10)
        return number(-count if match[1] else count)
    if node.type in ("identifier", "call_expression"):
        value = resolve(node)
        if value is not None:
            return polynomial(value, resolve, depth + 1)
        if node.type == "identifier":
            return atom(text(node))
    if node.type == "field_expression":
        return atom(re.sub(r"\s+", "", text(node)))
    if node.type == "unary_expression" and text(node)[:1] in ("-", "+"):
        inner = node.child_by_field_name("argument")
        value_of = polynomial(inner, resolve, depth + 1) if inner is not None else None
        return value_of and (number(-1).times(value_of) if text(node)[0] == "-" else value_of)
    if node.type == "binary_expression":
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None:
            return None
        a = polynomial(left, resolve, depth + 1)
        b = polynomial(right, resolve, depth + 1) if a is not None else None
        if a is None or b is None or len(a.terms) * len(b.terms) > _MAX_TERMS:
            return None
        match text(sign):
            case "+":
                return a.plus(b)
            case "-":
                return a.plus(b, -1)
            case "*":
                return a.times(b)
        return _limited(f"(({a.render()}) {text(sign)} ({b.render()}))")
    try:
        return _limited(_spelled(node, resolve, depth))
    except _TooLong:
        return None


class _TooLong(Exception):
    """Definitions that stand in each other double in length each time."""


def _limited(name: str) -> Polynomial | None:
    return atom(name) if len(name) <= _MAX_TEXT else None


def _spelled(node: Node, resolve: Resolve, depth: int) -> str:
    """The tokens of a node with defined names replaced, so that what it depends on stands in its text."""
    tick()
    if node.type == "identifier":
        value = resolve(node)
        if value is not None and depth < _MAX_DEPTH:
            return f"({_spelled(value, resolve, depth + 1)})"
    if not node.children:
        return text(node)
    spelled = " ".join(_spelled(c, resolve, depth) for c in node.children if c.type != "comment")
    if len(spelled) > _MAX_TEXT:
        raise _TooLong
    return spelled
