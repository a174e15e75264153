"""Use cheaper arithmetic where the tolerance may allow it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.cuda.math_functions import MATH_FUNCTIONS
from engine.cuda.syntax import called, children, inside, names, operands, root_name, strip, text, walk
from engine.rewrite import Edit, Node, Proposal, Site, Span, proposal

# Errors of a few units in the last place near 1, by the CUDA C++ Programming Guide's table of intrinsic functions. Sine and
# cosine are left out: their error is absolute and grows with the argument.
_INTRINSICS = {"expf": "__expf", "exp10f": "__exp10f", "logf": "__logf", "log2f": "__log2f", "log10f": "__log10f",
               "powf": "__powf"}  # fmt: skip


# Divisors: the compiler multiplies by the reciprocals of powers of two, which are exact, and no others.
_DOUBLE = re.compile(r"\bdouble\b")
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fF]")
# Sine and cosine of multiples of pi need no reduction of their argument; a rounding error of pi is all that they differ by.
_OF_PI = {"sinf": "sinpif", "cosf": "cospif"}
_PI_ERROR = 1e-6


class FastMath:
    """Cheaper single-precision arithmetic: intrinsics, `rsqrtf`, `cospif`, reciprocals and approximate quotients.

    What they cost in accuracy is judged like any other change: against the tolerance, on fresh inputs.
    """

    name = "fast_math"
    summary = "Use cheaper single-precision arithmetic"

    def propose(self, site: Site) -> Iterator[Proposal]:
        if not site.sound:
            return
        bodies = _bodies(site)
        roots = [e for body in bodies for e in _roots(body)]
        yield from (
            proposal(self.name, "Use rsqrtf for reciprocal square roots", site.in_file(*roots), 0.2, form="rsqrt")
            if roots
            else ()
        )
        turns = [e for body in bodies for e in _turns(site, body)]
        if turns:
            yield from proposal(
                self.name, "Use sinpif and cospif for multiples of pi", site.in_file(*turns), 0.3, form="pi"
            )
        # A division takes eight instructions and a branch; in double precision the factor would be too coarse.
        divisions = [
            d for body in bodies if not _DOUBLE.search(text(body.parent or body)) for d in _divisions(site, body)
        ]
        constant = [_reciprocal(d) for d in divisions if _FLOAT.fullmatch(text(strip(d.right)))]
        if constant:
            yield from proposal(
                self.name, "Multiply by reciprocals of constants", site.in_file(*constant), 0.2, form="reciprocal"
            )
        if divisions:
            quotients = [e for d in divisions for e in _approximate(d)]
            yield from proposal(
                self.name,
                "Use approximate division",
                site.in_file(*quotients),
                0.15,
                form="quotients",
            )
        calls = [e for body in bodies for e in _intrinsics(body)]
        # Half the instructions of expf; only kernels that compute more than they move notice.
        yield from (
            proposal(
                self.name,
                "Use fast intrinsics for exponentials and logarithms",
                site.in_file(*calls),
                0.15,
                form="intrinsics",
            )
            if calls
            else ()
        )


def _bodies(site: Site) -> list[Node]:
    """The kernel's body and those of the functions of the file that only it calls."""
    mine = {f.name: f for f in site.unit.functions if f.qualifier == "device" and f.name in site.kernel.calls}
    others = [f for f in site.unit.functions if f.name not in mine and f.name != site.kernel.name]
    private = [f for n, f in mine.items() if not any(n in names(o.node) for o in others)]
    found = [site.body]
    for function in private:
        if not function.node.has_error:
            found += [n for n in walk(function.node) if n.type == "compound_statement"][:1]
    return found


@dataclass(frozen=True)
class _Quotient:
    """`left / right`."""

    node: Node
    left: Node
    right: Node


def _divisions(site: Site, body: Node) -> list[_Quotient]:
    """The divisions in single precision that are neither of nor by another one, and not by a power of two."""
    found: list[_Quotient] = []
    for each in _quotients(body):
        if any(inside(each.node, d.node) for d in found):
            continue
        if not (_is_float(site, each.left) or _is_float(site, each.right)):
            continue
        divisor = text(strip(each.right))
        if _FLOAT.fullmatch(divisor) and _FLOAT.fullmatch(text(strip(each.left))):
            continue
        if not (_FLOAT.fullmatch(divisor) and math.frexp(float(divisor[:-1]))[0] in (0.5, 0.0)):
            found.append(each)
    return found


def _quotients(body: Node) -> Iterator[_Quotient]:
    """Every `left / right`, of any type."""
    for node in walk(body):
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type != "binary_expression" or sign is None or left is None or right is None or text(sign) != "/":
            continue
        yield _Quotient(node, left, right)


def _is_float(site: Site, node: Node) -> bool:
    """Whether the expression certainly is a `float`; in a helper only literals and calls tell."""
    node = strip(node)
    if node.type == "number_literal":
        return bool(_FLOAT.fullmatch(text(node)))
    if node.type == "call_expression":
        return called(node) in MATH_FUNCTIONS and called(node).endswith("f")
    if node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        return text(node.child_by_field_name("operator") or node) in "+-*/" and any(
            _is_float(site, part) for part in (left, right) if part is not None
        )
    if node.type == "identifier" and inside(node, site.body):
        declared = site.scope.lookup(text(node), node)
        if declared is not None:
            return declared.shape == "scalar" and declared.type.split()[-1:] == ["float"]
    name = root_name(node)
    parameter = site.scope.parameters.get(name) if inside(node, site.body) else None
    if parameter is None or parameter.base != "float" or site.scope.lookup(name, node) is not None:
        return False
    return node.type == ("subscript_expression" if parameter.pointer else "identifier")


def _reciprocal(division: _Quotient) -> Edit:
    written = f" * (1.0f / {text(strip(division.right))})"
    return Edit(Span(division.left.end_byte, division.right.end_byte), written)


def _approximate(division: _Quotient) -> list[Edit]:
    start, end = division.node.start_byte, division.node.end_byte
    return [
        Edit(Span(start, start), "__fdividef("),
        Edit(Span(division.left.end_byte, division.right.start_byte), ", "),
        Edit(Span(end, end), ")"),
    ]


def _turns(site: Site, body: Node) -> list[Edit]:
    """`cosf(6.2831853f * x)` as `cospif(2.0f * x)`."""
    edits = []
    for node in walk(body):
        function, arguments = (node.child_by_field_name(f) for f in ("function", "arguments"))
        if node.type != "call_expression" or called(node) not in _OF_PI or function is None or arguments is None:
            continue
        factors = operands(strip(children(arguments)[0]), "*") if len(children(arguments)) == 1 else []
        multiples = [(factor, turns) for factor in factors if (turns := _of_pi(site, factor)) is not None]
        if len(factors) > 1 and len(multiples) == 1:
            factor, turns = multiples[0]
            edits.append(Edit(Span(function.start_byte, function.end_byte), _OF_PI[called(node)]))
            edits.append(Edit(Span(factor.start_byte, factor.end_byte), f"{turns:.1f}f"))
    return edits


def _of_pi(site: Site, factor: Node) -> float | None:
    """How many halves of pi a constant is, in units of pi; None for what is no such constant."""
    written = text(strip(factor))
    written = site.unit.macros.get(written, site.unit.constants.get(written, written)).strip("() ")
    try:
        ratio = float(written.rstrip("fF")) / math.pi
    except ValueError:
        return None
    near = round(ratio * 2) / 2
    return near if near and abs(ratio - near) < _PI_ERROR * near else None


def _intrinsics(body: Node) -> list[Edit]:
    edits = []
    for node in walk(body):
        if node.type == "call_expression" and called(node) in _INTRINSICS:
            function = node.child_by_field_name("function")
            if function is not None and function.type == "identifier":
                edits.append(Edit(Span(function.start_byte, function.end_byte), _INTRINSICS[text(function)]))
    return edits


def _roots(body: Node) -> list[Edit]:
    """`1.0f / sqrtf(x)` as `rsqrtf(x)`."""
    edits: list[Edit] = []
    for quotient in _quotients(body):
        node, left, right = quotient.node, quotient.left, quotient.right
        one = re.fullmatch(r"1(?:\.0*)?f", text(strip(left)))
        if (
            not one
            or right.type != "call_expression"
            or called(right) != "sqrtf"
            or any(e.span.contains(Span(node.start_byte, node.end_byte)) for e in edits)
        ):
            continue
        arguments = right.child_by_field_name("arguments")
        if arguments is not None and len(children(arguments)) == 1:
            edits.append(Edit(Span(node.start_byte, node.end_byte), f"rsqrtf{text(arguments)}"))
    return edits
