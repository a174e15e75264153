"""The loop of a product over tiles in shared memory, told as the plain loop over the depth."""

import re
from collections.abc import Mapping, Sequence

from engine.cuda.questions import Polynomial, assigned, atom, number, pure
from engine.cuda.syntax import called, children, inside, root_name, strip, text, walk
from engine.rewrite import Node, reindent
from engine.rules.idioms import StrideLoop, stride_loop
from engine.rules.matmul import matmul_staging
from engine.rules.matmul.matmul_staging import Frame, Tile

_FLOATING = re.compile(r"\(\s*(?:float|double)\s*\)|static_cast\s*<\s*(?:float|double)\s*>")


def shared_tiles(frame: Frame) -> dict[str, Tile] | None:
    """The kernel's two arrays in shared memory by name; None where they are no tiles with an element for each thread."""
    found = {}
    for array in frame.site.kernel.shared:
        extents: list[int] = []
        declared = frame.scope.declared.get(array.name, [])
        if array.dynamic or len(declared) != 1 or "volatile" in declared[0].type:
            return None
        for node in walk(declared[0].node):
            size = node.child_by_field_name("size") if node.type == "array_declarator" else None
            if size is None or _root_array(node) != array.name:
                continue
            value = frame.value(size)
            if value is None or value.constant is None:
                return None
            extents.insert(0, value.constant)
        tile = Tile(array.name, array.type, tuple(extents))
        if not matmul_staging.holds_block(tile, frame.extent):
            return None
        found[array.name] = tile
    return found if len(found) == 2 else None


def plain_loop(frame: Frame, loop: StrideLoop, tiles: dict[str, Tile], bounds: Mapping[str, Polynomial]) -> str | None:
    """The loop over tiles as a plain loop over the depth; None where it is another loop, or that cannot be proven.

    `bounds` are those of the row and the column by name: a guard of the staging must be one of them, or end the depth.
    """
    statements = [s for s in children(loop.body) if not s.type.startswith("preproc")]
    barriers = [k for k, s in enumerate(statements) if _is_barrier(s)]
    if len(barriers) != 2 or barriers[1] != len(statements) - 1 or barriers[1] != barriers[0] + 2:
        return None
    inner = stride_loop(statements[barriers[0] + 1])
    first = [s for s in statements[: barriers[0]] if s.type != "declaration"]
    declared = [s for s in statements[: barriers[0]] if s.type == "declaration"]
    if inner is None or not all("__shared__" in text(s) or pure(s) for s in declared):
        return None
    stages = matmul_staging.staged(frame, tiles, first)
    start, last = frame.value(inner.start), frame.value(inner.bound)
    if stages is None or len(stages) != 2 or start != number(0) or last != number(frame.extent):
        return None
    counted = _counted(frame, loop)
    if inner.step != "1" or counted is None:
        return None
    offset, depths = counted
    changes, ends = [], []
    for read in _reads(inner, tiles):
        one = stages[root_name(read)]
        place = matmul_staging.tile_place(frame, one.tile, read)
        at = matmul_staging.solved(one, place) if place is not None else None
        if place is None or at is None or not _within(place, inner.variable):
            return None
        numbers = {**at, inner.variable: atom(inner.variable).plus(offset, -1)}
        index = _at(frame, one.index, numbers, loop.variable)
        if index is None:
            return None
        end: Polynomial | None = None
        for what, bound in one.guards:
            told, limit = (_at(frame, v, numbers, loop.variable) for v in (what, bound))
            if told == atom(inner.variable) and limit is not None and end in (None, limit):
                end = limit
            elif told is None or limit is None or told.render() not in bounds or bounds[told.render()] != limit:
                return None
        ends.append(end)
        changes.append((read.start_byte, read.end_byte, matmul_staging.plain(frame.site, one, index)))
    depth = _depth(frame, depths, ends)
    if depth is None or not _told(frame, tiles, _targets(first, tiles), changes, inner):
        return None
    shown = frame.site.render(inner.body.start_byte, inner.body.end_byte, changes)
    i = inner.variable
    own = frame.site.indent_at(inner.node.start_byte)
    return reindent(f"{own}for ({inner.type} {i} = 0; {i} < {depth.render()}; ++{i}) {shown}", own, "")


def _at(frame: Frame, value: Polynomial, numbers: Mapping[str, Polynomial], variable: str) -> Polynomial | None:
    found = frame.index_of(value, numbers)
    return found if found is not None and variable not in found.names() else None


def _within(place: Sequence[Polynomial], variable: str) -> bool:
    """Whether what is read lies in the tile: a thread's own number along one side, the inner loop's along the other."""
    sides = [p for p in place if p in (atom(matmul_staging.THREAD_X), atom(matmul_staging.THREAD_Y))]
    return len(sides) == 1 and atom(variable) in place


def _reads(inner: StrideLoop, tiles: Mapping[str, Tile]) -> list[Node]:
    found = []
    for node in walk(inner.body):
        outermost = node.parent is None or node.parent.type != "subscript_expression"
        if node.type == "subscript_expression" and outermost and root_name(node) in tiles:
            found.append(node)
    return found


def _told(
    frame: Frame,
    tiles: Mapping[str, Tile],
    stores: Sequence[Node],
    changes: Sequence[tuple[int, int, str]],
    inner: StrideLoop,
) -> bool:
    """Whether the tiles are used in no other way, and the inner loop's variable for nothing but their places."""
    known = [(s.start_byte, s.end_byte) for s in stores] + [(a, b) for a, b, _ in changes]
    for node in walk(frame.site.body):
        if node.type != "identifier":
            continue
        apart = not any(a <= node.start_byte < b for a, b in known)
        if text(node) in tiles and apart and _root_array(node.parent) != text(node):
            return False
        if text(node) == inner.variable and inside(node, inner.body) and apart:
            return False
    return len(changes) == 2


def _counted(frame: Frame, loop: StrideLoop) -> tuple[Polynomial, list[Polynomial]] | None:
    """Where a tile starts in the depth, by the loop's variable; and what the depth may be, most demanding first."""
    variable = atom(loop.variable)
    if frame.value(loop.start) != number(0):
        return None
    if loop.step == "1":
        count = _quotient(frame, loop.bound)
        if count is None:
            return None
        return number(frame.extent).times(variable), [count.plus(number(frame.extent - 1), -1), count]
    update = loop.node.child_by_field_name("update")
    right = update.child_by_field_name("right") if update is not None else None
    sign = update.child_by_field_name("operator") if update is not None else None
    if right is None or sign is None or text(sign) != "+=" or frame.value(right) != number(frame.extent):
        return None
    bound = frame.value(loop.bound)
    return (variable, [bound]) if bound is not None else None


def _quotient(frame: Frame, node: Node, steps: int = 0) -> Polynomial | None:
    """The dividend of a division by the tile's extent, one further quotient counted as one extent."""
    node = strip(node)
    if node.type == "call_expression" and called(node) in ("ceil", "ceilf"):
        # Exact for what a float counts: a quotient that is no whole number lies further from one than its rounding error.
        whole = _floating_quotient(frame, node)
        return whole.plus(number(frame.extent - 1)) if whole is not None else None
    if node.type in ("identifier", "call_expression"):
        value = frame.scope.resolve(node)
        return _quotient(frame, value, steps + 1) if value is not None and steps < 8 else None
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if node.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    if text(sign) == "/":
        by = frame.value(right)
        return frame.value(left) if by == number(frame.extent) else None
    if text(sign) == "+":
        for one, other in ((left, right), (right, left)):
            if frame.value(one) == number(1):
                inner = _quotient(frame, other, steps + 1)
                return inner.plus(number(frame.extent)) if inner is not None else None
    return None


def _floating_quotient(frame: Frame, call: Node) -> Polynomial | None:
    """The dividend of `ceil(k / (float)16)`."""
    arguments = call.child_by_field_name("arguments")
    given = strip(children(arguments)[0]) if arguments is not None and len(children(arguments)) == 1 else call
    sign, left, right = (given.child_by_field_name(f) for f in ("operator", "left", "right"))
    if given.type != "binary_expression" or sign is None or left is None or right is None or text(sign) != "/":
        return None
    sides = [_converted(left), _converted(right)]
    values = [frame.value(side) for side in sides]
    if sides == [left, right] or values[1] != number(frame.extent):
        return None
    return values[0]


def _converted(node: Node) -> Node:
    """What is converted to a floating-point number; the expression itself where it is none of such a conversion."""
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    if not _FLOATING.match(text(node)):
        return node
    if node.type == "cast_expression":
        return node.child_by_field_name("value") or node
    arguments = node.child_by_field_name("arguments") if node.type == "call_expression" else None
    return children(arguments)[0] if arguments is not None and len(children(arguments)) == 1 else node


def _depth(frame: Frame, candidates: Sequence[Polynomial], ends: Sequence[Polynomial | None]) -> Polynomial | None:
    """The depth: where a tile's end is not guarded, it must be whole in every case."""
    for depth in candidates:
        told = frame.grid(depth)
        if told is None or any(end not in (None, depth) for end in ends):
            continue
        # The last of the candidates of a count is that of a quotient rounded down.
        whole = all(end == depth for end in ends) and (depth == candidates[0])
        values = [frame.site.value_in(depth.render(), case) for case in frame.site.cases]
        if whole or all(v is not None and v % frame.extent == 0 for v in values):
            return depth
    return None


def _is_barrier(node: Node) -> bool:
    return node.type == "expression_statement" and "".join(text(node).split()) == "__syncthreads();"


def _root_array(node: Node | None) -> str:
    """The name that an array declarator declares; "" for other nodes."""
    while node is not None and node.type == "array_declarator":
        inner = node.child_by_field_name("declarator")
        if inner is not None and inner.type == "identifier":
            return text(inner)
        node = inner
    return ""


def _targets(statements: Sequence[Node], tiles: Mapping[str, Tile]) -> list[Node]:
    """The elements of tiles that statements assign."""
    targets = [assigned(n) for s in statements for n in walk(s)]
    return [t for t in targets if t is not None and root_name(t) in tiles]
