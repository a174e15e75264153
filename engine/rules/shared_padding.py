"""Rows of a shared array get one more column, so that the elements of a column lie in different banks.

Source of the method: CUDA C++ Best Practices Guide, "Shared Memory in Matrix Multiplication (C=AAᵀ)".
"""

from math import gcd

from engine.cuda.questions import index_of, text, walk
from engine.rewrite import Edit, Node, Proposals, Scope, SharedArray, Site, Span, is_plain, proposal
from engine.rules.idioms import element_size

_BANKS, _BANK_BYTES = 32, 4
_MAX_DEPTH = 8


class SharedPadding:
    """`__shared__ T a[N][M]` that a warp walks down a column of becomes `a[N][M + 1]`."""

    name = "shared_padding"
    summary = "Pad rows in shared memory against bank conflicts"

    def propose(self, site: Site) -> Proposals:
        arrays = [s for s in site.kernel.shared if len(s.extents) >= 2 and not s.dynamic]
        if not arrays or not site.sound or not site.manageable:
            return
        scope = site.scope
        found = [(array, *padded) for array in arrays if (padded := _padding(site, scope, array)) is not None]
        used = sum(b for s in site.kernel.shared if (b := _bytes(site, s)) is not None)
        if not found or used + sum(extra for _, _, _, extra in found) > site.target.shared_per_block:
            return
        edits = []
        for _, extent, pad, _ in found:
            start, end = extent.start_byte, extent.end_byte
            if is_plain(text(extent)):
                edits.append(Edit.insert(end, f" + {pad}"))
            else:
                edits.append(Edit(Span(start, end), f"({text(extent)}) + {pad}"))
        listed = " and ".join(array.name for array, *_ in found)
        # A warp down a column of 32 words waits for one bank 32 times.
        yield from proposal(
            self.name, f"Pad the rows of {listed} against bank conflicts", site.in_file(*edits), 0.6, arrays=len(found)
        )


def wider(site: Site, array: SharedArray, by: int) -> tuple[Node, str]:
    """The last extent of a static array, and its text with so many more elements."""
    declarator = _declarator(site, array)
    assert declarator is not None  # it is one of the kernel's arrays
    extent = _extents(declarator)[-1]
    return extent, f"{text(extent)} + {by}" if is_plain(text(extent)) else f"({text(extent)}) + {by}"


def _padding(site: Site, scope: Scope, array: SharedArray) -> tuple[Node, int, int] | None:
    """Extent to edit, elements to add, and bytes that costs; None where rows need none or the array's shape is used."""
    declarator = _declarator(site, array)
    extents = _extents(declarator) if declarator is not None else []
    sizes = [site.constant(e) for e in extents]
    size = _element_bytes(site, array)
    if declarator is None or size is None or len(extents) != len(array.extents) or any(not s for s in sizes):
        return None
    words = (sizes[-1] or 0) * size
    if words % _BANK_BYTES or gcd(words // _BANK_BYTES, _BANKS) < 2:
        return None
    columns = False
    for node in walk(site.body):
        if node.type != "identifier" or text(node) != array.name or _within(node, declarator):
            continue
        indices: list[Node] = []
        access = node
        while access.parent is not None and access.parent.type == "subscript_expression":
            index = index_of(access.parent)
            if access.parent.child_by_field_name("argument") != access or index is None:
                return None
            indices.append(index)
            access = access.parent
        if len(indices) != len(extents):
            return None  # a row, or the whole array, goes somewhere that may count its columns
        if access.parent is not None and text(access.parent).startswith("&"):
            return None
        by_lane = [_by_lane(scope, i) for i in indices]
        columns |= any(by_lane[:-1]) and not by_lane[-1]
    pad = max(1, _BANK_BYTES // size)
    rows = 1
    for s in sizes[:-1]:
        rows *= s or 1
    return (extents[-1], pad, rows * pad * size) if columns else None


def _element_bytes(site: Site, array: SharedArray) -> int | None:
    # A template's element is one word in most instances; the number of banks is what decides.
    return _BANK_BYTES if array.type in site.type_names else element_size(site, array.type)


def _bytes(site: Site, array: SharedArray) -> int | None:
    declarator = _declarator(site, array)
    size = _element_bytes(site, array)
    total = size or 0
    for extent in _extents(declarator) if declarator is not None else []:
        total *= site.constant(extent) or 0
    return total


def _declarator(site: Site, array: SharedArray) -> Node | None:
    """The outermost array declarator of the name within its declaration."""
    for node in walk(site.body):
        if node.type != "array_declarator" or (node.parent is not None and node.parent.type == "array_declarator"):
            continue
        inner: Node | None = node
        while inner is not None and inner.type == "array_declarator":
            inner = inner.child_by_field_name("declarator")
        within = array.span.start <= node.start_byte and node.end_byte <= array.span.end
        if inner is not None and text(inner) == array.name and within:
            return node
    return None


def _extents(declarator: Node) -> list[Node]:
    """The extents in the order in which they are written."""
    found: list[Node] = []
    node: Node | None = declarator
    while node is not None and node.type == "array_declarator":
        size = node.child_by_field_name("size")
        if size is None:
            return []
        found.insert(0, size)
        node = node.child_by_field_name("declarator")
    return found


def _within(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def _by_lane(scope: Scope, node: Node, depth: int = 0) -> bool:
    """Whether the expression differs between the lanes of a warp, through threadIdx.x."""
    for n in walk(node):
        if n.type == "field_expression" and text(n).replace(" ", "") == "threadIdx.x":
            return True
        if n.type == "identifier" and depth < _MAX_DEPTH:
            declared = scope.lookup(text(n), n)
            value = declared.value if declared is not None else None
            if value is not None and not _within(n, value) and _by_lane(scope, value, depth + 1):
                return True
    return False
