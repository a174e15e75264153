"""Loads of arrays that a kernel never writes go through the read-only data cache.

Source: CUDA C++ Programming Guide, "Read-Only Data Cache Load Function". The compiler does it by itself where every
pointer is `const` and `__restrict__`; it cannot where a pointer is made in the body or a parameter is not marked.
"""

from engine.cuda.syntax import text
from engine.rewrite import Edit, Node, Proposals, Scope, Site, proposal

# Types that __ldg takes.
_HINTED = frozenset({
    "float", "double", "int", "unsigned int", "unsigned", "char", "signed char", "unsigned char",
    "short",
    "unsigned short", "long long", "unsigned long long", "float2", "float4", "double2", "int2", "int4", "uint2",
    "uint4",
    "__half", "half", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t",
})  # fmt: skip
# Of these the extension to 32 bits is written in another way.
_NARROW = frozenset({
    "char", "signed char", "unsigned char", "short", "unsigned short", "__half", "half", "int8_t", "uint8_t", "int16_t", "uint16_t",
})  # fmt: skip


class ReadOnly:
    """`__ldg` around every load of a parameter's elements that the kernel never writes, also by local pointers."""

    name = "read_only"
    summary = "Load inputs through the read-only data cache"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.manageable or not site.pointers_distinct:
            return
        if any("volatile" in p.type for p in site.kernel.parameters):
            return
        loads = _loads(site)
        if not loads or all(_done_anyway(site, node) for node in loads):
            return
        edits = []
        for node in loads:
            edits += [Edit.insert(node.start_byte, "__ldg(&"), Edit.insert(node.end_byte, ")")]
        # sm_35 and later choose this path themselves where const and __restrict__ allow: rarely a gain.
        yield from proposal(self.name, self.summary, site.in_file(*edits), 0.12, loads=len(loads))


def _loads(site: Site) -> list[Node]:
    """The subscripts that may be hinted; none where an access cannot be told."""
    scope, body = site.scope, site.body
    uses = scope.uses(body)
    if uses is None:
        return []
    written = {u.array for u in uses if u.writes}
    found = []
    for use in uses:
        array, above = use.node.child_by_field_name("argument"), use.node.parent
        if use.writes or use.array in written or use.node.type != "subscript_expression" or array is None:
            continue
        if array.type != "identifier" or _type(scope, array) not in _HINTED:
            continue
        # `&x[i]` is an address, or hinted already; `x[i].y` loads a part.
        if above is None or above.type in ("pointer_expression", "field_expression", "parenthesized_expression"):
            continue
        found.append(use.node)
    return found


def _done_anyway(site: Site, load: Node) -> bool:
    """Whether the compiler takes that path for a load by itself: of a `__restrict__` parameter, in straight code.

    In loops and across barriers it does so, too, but orders the loads in another way.
    """
    if site.kernel.loops or any("sync" in name for name in site.kernel.names):
        return False
    array = load.child_by_field_name("argument")
    marked = {p.name for p in site.kernel.parameters if p.restrict and p.base not in _NARROW}
    return array is not None and text(array) in marked


def _type(scope: Scope, pointer: Node) -> str:
    """The type of the element that the pointer points to; "" where it is no plain pointer."""
    declared = scope.lookup(text(pointer), pointer)
    if declared is not None:
        kind = declared.type if declared.shape == "pointer" else ""
    else:
        parameter = scope.parameters.get(text(pointer))
        kind = parameter.base if parameter is not None and parameter.type.count("*") == 1 else ""
    return " ".join(w for w in kind.replace("std::", "").split() if w != "const")
