"""How the results of a tiled product are used: the loops around the author's statements, and stores of four neighbours at once."""

from dataclasses import dataclass

from engine.cuda.syntax import children, names, text
from engine.rewrite import Namer, Node, Scope, Site, grouped_text, replace_name
from engine.rules.matmul import matmul_code, matmul_form, matmul_tensor
from engine.rules.matmul.matmul_loads import Tiling, indented

_VECTORS = {"float": "float4", "int": "int4", "unsigned": "uint4", "unsigned int": "uint4"}
WIDTH = 4


@dataclass(frozen=True)
class Result:
    """Where one result is used: the loops around it, what is declared in them, and C text of its row, its column and its sum."""

    opening: tuple[str, ...]
    row: str
    column: str
    value: str
    depth: int  # how many loops


def result(t: Tiling, name: Namer, unit: str, group: int = 1) -> Result:
    """The loops over a thread's results, or over each `group` of neighbours (that is the last loop's `e`).

    Where a thread has neighbouring ones, its warp exchanges them in shared memory first: then the threads of a warp use neighbouring
    results together, and what they load and store for them is coalesced.
    """
    if t.tensor:
        lines, own_row, own_column, value = matmul_tensor.results(name, unit)
        return Result(tuple(lines), own_row, own_column, value, 2)
    i, j, e, at = name("i"), name("j"), name("e"), name("at")
    opening = ["#pragma unroll", f"for (int {i} = 0; {i} < {name('thread_m')}; ++{i}) {{"]
    if not t.exchanged:
        step, own = (f"{j} += {group}", f"{j} + {e}") if group > 1 else (f"++{j}", j)
        opening += [f"{unit}#pragma unroll", f"{unit}for (int {j} = 0; {j} < {name('thread_n')}; {step}) {{"]
        places = (
            matmul_code.local_place(t, "a", i, name("thread_row")),
            matmul_code.local_place(t, "b", j, name("thread_col")),
        )
        return Result(tuple(opening), *places, f"{name('sums')}[{i}][{own}]", 2)
    tid, out = name("tid"), f"{name('out_tile')}[{name('tid')} / 32]"
    each = t.exchanged
    inner = [
        "#pragma unroll",
        f"for (int {j} = 0; {j} < {name('thread_n')}; {j} += {each}) {{",
        f"{unit}__syncwarp();  // neighbouring threads take on neighbouring results",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {each}; ++{e}) {{",
        f"{unit}{unit}{out}[{tid} % 32 * {each} + {e}] = {name('sums')}[{i}][{j} + {e}];",
        f"{unit}}}",
        f"{unit}__syncwarp();",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {each}; ++{e}) {{",
        f"{unit}{unit}const int {at} = {tid} % 32 + {e} * 32;",
    ]
    columns = 8 if t.squared else min(32, t.across)
    run = columns * each
    down = "" if columns == 32 else f" + {at} / {run}"
    if t.squared:
        warps = t.across // 8
        row, column = f"({tid} / {32 * warps} * 4{down})", f"{tid} / 32 % {warps} * {run}"
    elif t.across >= 32:
        row, column = f"{tid} / {t.across}", f"{tid} / 32 % {t.across // 32} * {run}"
    else:
        row, column = f"({tid} / 32 * {32 // columns}{down})", ""
    spread = f"{j} / {each} * {t.across * each}" if t.tn > each else ""
    along = " + ".join(part for part in (spread, column, f"{at} % {run}") if part)
    return Result(
        (*opening, *indented(inner, unit)), matmul_code.local_place(t, "a", i, row), along, f"{out}[{at}]", 3
    )  # fmt: skip


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


def vector_store(site: Site, form: matmul_form.Product, kept: list[Node]) -> VectorStore | None:
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
    aligned = (
        f"{grouped_text(stride)} % {WIDTH} == 0 && reinterpret_cast<size_t>({base}) % ({WIDTH} * sizeof({kind})) == 0"
    )
    return VectorStore(kept[-1], target, value, kind, aligned)


__all__ = ["WIDTH", "Result", "VectorStore", "result", "vector_store"]
