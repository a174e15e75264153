"""Whether neighbouring elements of one array go with neighbouring elements of another: `b[i / n * m + i % n]` beside `a[i]`."""

from dataclasses import dataclass, field
from typing import Literal

from engine.cuda.definitions import expression
from engine.cuda.questions import Polynomial, polynomial, strip, text
from engine.rewrite import Node, Scope, Site

# Over the elements of one vector a part of an index stays, or goes up by one from a multiple of their number on.
_Course = Literal["same", "next"]


@dataclass
class _Walk:
    """What must be multiples of a vector's elements for an index to go along with another."""

    site: Site
    name: str
    count: int
    multiples: list[Polynomial] = field(default_factory=list)

    def course(self, index: Polynomial) -> _Course | None:
        """How the index goes; None for other courses."""
        rest: list[tuple[tuple[str, ...], int]] = []
        moving = 0
        for product, factor in index.terms.items():
            courses = [self._of_atom(a) for a in product]
            if None in courses:
                return None
            if "next" not in courses:
                rest.append((product, factor))
            elif len(product) == 1 and factor == 1:
                moving += 1
            else:
                return None
        if not moving:
            return "same"
        whole = moving == 1 and all(self._multiple(product, factor) for product, factor in rest)
        return "next" if whole else None

    def _of_atom(self, atom: str) -> _Course | None:
        if atom == self.name:
            return "next"
        node = expression(atom)
        node = strip(node) if node is not None else None
        if node is None:
            return None
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type == "binary_expression" and sign is not None and left is not None and right is not None:
            over, by = polynomial(left, _nothing), polynomial(right, _nothing)
            course = self.course(over) if over is not None else None
            if text(sign) not in ("/", "%") or by is None or self.name in by.names():
                return (
                    "same"
                    if over is not None and by is not None and self.name not in over.names() | by.names()
                    else None
                )
            if course == "next":
                if not all(self._multiple(product, factor) for product, factor in by.terms.items()):
                    return None
                return "next" if text(sign) == "%" else "same"
            return course
        polynomial_of = polynomial(node, _nothing)
        return "same" if polynomial_of is not None and self.name not in polynomial_of.names() else None

    def _multiple(self, product: tuple[str, ...], factor: int) -> bool:
        """Whether a term is a multiple of the vector's elements, or is so under a condition on the kernel's parameters."""
        if factor % self.count == 0:
            return True
        known = tuple(a for a in product if self._unchanging(a))
        if known:
            self.multiples.append(Polynomial({known: factor}))
        return bool(known)

    def _unchanging(self, name: str) -> bool:
        parameter = self.site.scope.parameters.get(name)
        plain = parameter is not None and not parameter.pointer
        return (
            (plain and name not in self.site.changed)
            or name in self.site.unit.macros
            or name in self.site.unit.constants
        )


def _nothing(node: Node) -> None:
    return None


def goes_along(site: Site, access: Node, name: str, count: int) -> tuple[str, ...] | None:
    """Conditions under which `count` elements of an access are neighbours for as many values of an index from a multiple on."""
    found = Scope(site.unit, site.kernel, frozenset({name})).element(access)
    if found is None or found[1] is None:
        return None
    walk = _Walk(site, name, count)
    if walk.course(found[1]) != "next":
        return None
    products = {tuple(sorted(product)): factor for each in walk.multiples for product, factor in each.terms.items()}
    least = [p for p in products if not any(q != p and _within(q, p) for q in products)]
    terms = [Polynomial({p: products[p]}).render() for p in sorted(least)]
    return tuple(f"{t} % {count} == 0" if t.isidentifier() else f"({t}) % {count} == 0" for t in terms)


def _within(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    return all(part.count(a) <= whole.count(a) for a in part)
