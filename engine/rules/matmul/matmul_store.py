"""The store of a product's result, where a thread may store four neighbouring ones at once."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.syntax import children, names, text
from engine.rewrite import Node, Scope, Site
from engine.rewrite.wording import is_plain, replace_name
from engine.rules.matmul.matmul_form import Product

_VECTORS = {"float": "float4", "int": "int4", "unsigned": "uint4", "unsigned int": "uint4"}
WIDTH = 4


@dataclass(frozen=True)
class VectorStore:
    """`statement` stores `value` to `target`, an element of a matrix with its columns next to each other.

    `aligned` is C text for whether every fourth element of a row may be stored with its neighbours.
    """

    statement: Node
    target: Node
    value: Node
    type: str
    aligned: str

    @property
    def vector(self) -> str:
        """The vector's type."""
        return _VECTORS[self.type]

    def kept(self, to: str) -> tuple[int, int, str]:
        """The change that keeps the value instead of storing it."""
        return self.target.start_byte, self.target.end_byte, to

    def place(self, site: Site, column: str, first: str) -> str:
        """The address of the first of the neighbours, which stands in column `first`."""
        shown = site.render(self.target.start_byte, self.target.end_byte, replace_name(self.target, column, first))
        return f"reinterpret_cast<{self.vector}*>(&{shown})"


def vector_store(site: Site, form: Product, kept: list[Node]) -> VectorStore | None:
    """The last of the statements for a result, if it alone stores, to a row-major matrix; None where it has another form."""
    if not kept or kept[-1].type != "expression_statement" or len(children(kept[-1])) != 1:
        return None
    assignment = children(kept[-1])[0]
    sign, target, value = (assignment.child_by_field_name(f) for f in ("operator", "left", "right"))
    if assignment.type != "assignment_expression" or sign is None or target is None or value is None:
        return None
    if text(sign) != "=" or target.type != "subscript_expression":
        return None
    scope = Scope(site.unit, site.kernel, frozenset(i.name for i in form.map.indices))
    uses = scope.uses(site.body)
    origin = scope.element(target)
    if uses is None or origin is None or origin[1] is None or len([u for u in uses if u.array == origin[0]]) != 1:
        return None
    # Whatever else is stored would have to be so in the same order.
    if [u.node for u in uses if u.writes] != [u.node for u in uses if u.array == origin[0]]:
        return None
    array, kind = origin[0], scope.parameters[origin[0]].base
    along = origin[1].split(form.column.name)
    across = along[1].split(form.row.name) if along is not None else None
    if kind not in _VECTORS or along is None or across is None or along[0].constant != 1:
        return None
    stride, offset = across[0].render(), across[1].render()
    local = {n for same in scope.declared.values() for d in same for n in (d.name,)} - {
        n for node in form.map.invariant for n in names(node)
    }
    if (across[0].names() | across[1].names()) & local or {form.row.name, form.column.name} & across[1].names():
        return None
    base = array if offset == "0" else f"{array} + ({offset})"
    grouped = stride if is_plain(stride) else f"({stride})"
    aligned = f"{grouped} % {WIDTH} == 0 && reinterpret_cast<size_t>({base}) % ({WIDTH} * sizeof({kind})) == 0"
    return VectorStore(kept[-1], target, value, kind, aligned)


__all__ = ["WIDTH", "VectorStore", "vector_store"]
