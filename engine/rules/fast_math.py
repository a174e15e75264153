"""Use cheaper arithmetic where the tolerance may allow it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.cuda.math_functions import MATH_FUNCTIONS
from engine.cuda.syntax import called, children, inside, names, operands, root_name, strip, text, walk
from engine.rewrite import Edit, Node, Proposals, Site, Span, proposal, template
from engine.rewrite.helper_copies import helper_copies
from engine.rules.normal_form.normal_form import with_edits

# Errors of a few units in the last place near 1, by the CUDA C++ Programming Guide's table of intrinsic functions.
_INTRINSICS = {"expf": "__expf", "exp10f": "__exp10f", "logf": "__logf", "log2f": "__log2f", "log10f": "__log10f",
               "powf": "__powf"}  # fmt: skip
# Their error is absolute, 2^-21 within half a turn, and grows with the argument: a proposal of their own, that may be refused alone.
_ANGLES = {"sinf": "__sinf", "cosf": "__cosf", "sincosf": "__sincosf"}
# An instruction each, where the functions of the language take three more for subnormal numbers. Of square roots and of results of
# exponentials an error of 1e-19 or less remains; the logarithm and the reciprocal root of a subnormal number become infinite.
_ROOTS = {"sqrtf": "sqrtf"}
# By a fast exponential. The error of the tangent is absolute, 1e-7 or so: near zero it may be all of the result.
_HYPERBOLIC = {"tanhf": "tanhf", "coshf": "coshf"}
_RESULTS_FLUSHED = {"expf": "expf", "__expf": "expf"}
_ARGUMENTS_FLUSHED = {"logf": "logf", "__logf": "logf", "rsqrtf": "rsqrtf"}

# Divisors: the compiler multiplies by the reciprocals of powers of two, which are exact, and no others.
_DOUBLE = re.compile(r"\bdouble\b")
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fF]")
# Sine and cosine of multiples of pi need no reduction of their argument; a rounding error of pi is all that they differ by.
_OF_PI = {"sinf": "sinpif", "cosf": "cospif"}
_PI_ERROR = 1e-6
_KNOWN = frozenset({*_INTRINSICS, *_ANGLES, *_ROOTS, *_HYPERBOLIC, *_RESULTS_FLUSHED, *_ARGUMENTS_FLUSHED})


class FastMath:
    """Cheaper single-precision arithmetic: intrinsics, `rsqrtf`, `cospif`, approximations, reciprocals, quotients and sums.

    What they cost in accuracy is judged like any other change: against the tolerance, on fresh inputs.
    """

    name = "fast_math"
    summary = "Use cheaper single-precision arithmetic"

    def propose(self, site: Site) -> Proposals:
        if not site.sound:
            return
        edits = helper_copies(site, lambda f: any(called(n) in _KNOWN for n in walk(f.node)))
        own = with_edits(site, edits) if edits is not None else None
        found = {str(p.parameters["form"]): p for p in self._forms(own.site)} if own is not None else {}
        for plain in self._forms(site):
            other = found.get(str(plain.parameters["form"]))
            # What changes the kernel's own text alone needs no copies.
            if other is not None and sum(map(len, other.edits.values())) == sum(map(len, plain.edits.values())):
                del found[str(plain.parameters["form"])]
            if str(plain.parameters["form"]) not in found:
                yield plain
        for changed in found.values():
            if own is not None and (back := own.proposal(changed)) is not None:
                yield back

    def _forms(self, site: Site) -> Proposals:
        bodies = _bodies(site)
        # A division takes eight instructions and a branch; in double precision the factor would be too coarse.
        divisions = [
            d for body in bodies if not _DOUBLE.search(text(body.parent or body)) for d in _divisions(site, body)
        ]
        inverse = [e for body in bodies for e in _roots(body)]
        constant = [_reciprocal(d) for d in divisions if _FLOAT.fullmatch(text(strip(d.right)))]
        # Half the instructions of expf, a tenth of those of cosf; only kernels that compute more than they move notice.
        calls = [e for body in bodies for e in _renamed(body, _INTRINSICS)]
        angles = [e for body in bodies for e in _renamed(body, _ANGLES)]
        roots = _by_own(site, bodies, _ROOTS, inverse)
        flushed = _by_own(site, bodies, _RESULTS_FLUSHED)
        lost = _by_own(site, bodies, _ARGUMENTS_FLUSHED)
        lost = lost and _by_own(site, bodies, _RESULTS_FLUSHED | _ARGUMENTS_FLUSHED)
        hyperbolic = _by_own(site, bodies, _HYPERBOLIC)
        together = calls + angles + roots + constant
        one_kind = together in (calls, angles, roots, constant)
        forms = [
            ("rsqrt", "Use rsqrtf for reciprocal square roots", 0.2, inverse),
            ("pi", "Use sinpif and cospif for multiples of pi", 0.3, [e for b in bodies for e in _turns(site, b)]),
            ("reciprocal", "Multiply by reciprocals of constants", 0.2, constant),
            ("quotients", "Use approximate division", 0.15, [e for d in divisions for e in _approximate(d)]),
            ("intrinsics", "Use fast intrinsics for exponentials and logarithms", 0.15, calls),
            ("angles", "Use fast intrinsics for sines and cosines", 0.15, angles),
            ("roots", "Use approximate square roots", 0.15, roots),
            ("hyperbolic", "Use fast exponentials for hyperbolic functions", 0.3, hyperbolic),
            ("flush", "Use exponentials that flush subnormal results to zero", 0.15, flushed),
            ("flush_all", "Count subnormal arguments of logarithms and reciprocal roots as zero", 0.12, lost),
            ("sums", "Begin sums of products with what is no product", 0.1, [e for b in bodies for e in _sums(site, b)]),
            ("all", "Use fast functions and reciprocals of constants", 0.25, [] if one_kind else together),
        ]  # fmt: skip
        for form, summary, prior, edits in forms:
            if edits:
                yield from proposal(self.name, summary, site.in_file(*edits), prior, form=form)


def _bodies(site: Site) -> list[Node]:
    """The kernel's body and those of the functions of the file that only it calls."""
    mine = {f.name: f for f in site.unit.functions if f.qualifier == "device" and f.name in site.kernel.calls}
    others = [f for f in site.unit.functions if f.name not in mine and f.node != site.kernel.node]
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
        if node.type != "binary_expression":
            continue
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or text(sign) != "/":
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
        Edit.insert(start, "__fdividef("),
        Edit(Span(division.left.end_byte, division.right.start_byte), ", "),
        Edit.insert(end, ")"),
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
            edits.append(Edit.replace(function, _OF_PI[called(node)]))
            edits.append(Edit.replace(factor, f"{turns:.1f}f"))
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


def _renamed(body: Node, fast: Mapping[str, str]) -> Iterator[Edit]:
    """Calls of functions by the names of faster ones."""
    for node in walk(body):
        if node.type == "call_expression" and called(node) in fast:
            function = node.child_by_field_name("function")
            if function is not None and function.type == "identifier":
                yield Edit.replace(function, fast[text(function)])


def _by_own(site: Site, bodies: Sequence[Node], own: Mapping[str, str], other: Sequence[Edit] = ()) -> list[Edit]:
    """Calls of functions by approximations that the file gets as functions of its own, but for those that `other` replaces.

    `own` has the snippet's section for each function. With reciprocal roots among them, `1.0f / sqrtf(x)` is one as well.
    """
    found: list[Edit] = []
    start, given = site.declaration_start, {section: site.fresh(f"fast_{section}") for section in own.values()}
    needed = set[str]()
    for body in bodies:
        roots = [(e.span, e.text.removeprefix("rsqrtf"), "rsqrtf") for e in _roots(body) if "rsqrtf" in given]
        calls = [(e.span, "", e.text) for e in _renamed(body, own)]
        made = [one for one in [*calls, *roots] if not any(o.span.contains(one[0]) for o in other)]
        if made and body is not site.body:
            start = min(start, site.definition_start(body))
        needed |= {section for _, _, section in made}
        found += [Edit(span, given[section] + rest) for span, rest, section in made]
    snippets = template("engine.rules", "approximate").sections()
    defined = [snippets[section].render(name=name) for section, name in given.items() if section in needed]
    return [Edit.insert(start, "\n".join([*defined, ""])), *found] if found else []


def _sums(site: Site, body: Node) -> Iterator[Edit]:
    """`a * a + b * b + c` as `c + a * a + b * b`: two fused multiply-adds instead of a product, one of them and an addition."""
    for node in walk(body):
        terms = _terms(node)
        if not terms or (node.parent is not None and _terms(node.parent)):
            continue
        products = [t for t in terms if _operator(t) == "*"]
        rest = [t for t in terms if t not in products]
        # `a * a + c + b * b` has two already.
        if len(rest) != 1 or rest[0] in terms[:2] or not all(_is_float(site, t) for t in terms):
            continue
        if any(n.type == "comment" or _DOUBLE.search(text(n)) for n in walk(node)):
            continue
        shown = " + ".join(text(t) for t in (*rest, *products))
        yield Edit.replace(node, shown)


def _terms(node: Node) -> list[Node]:
    """What a chain of additions adds, from left to right; [] for what is none."""
    if _operator(node) != "+":
        return []
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    return [*(_terms(left) or [left]), right] if left is not None and right is not None else []


def _operator(node: Node) -> str:
    sign = node.child_by_field_name("operator")
    return text(sign) if node.type == "binary_expression" and sign is not None else ""


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
            edits.append(Edit.replace(node, f"rsqrtf{text(arguments)}"))
    return edits
