"""Vectors of array elements for 64- and 128-bit loads and stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.rules.common import children, declaration_start, fresh, indent_at, text, walk
from engine.rules.model import Site
from engine.source.model import Edit, Parameter, Span

if TYPE_CHECKING:
    from tree_sitter import Node

_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1, "std::int8_t": 1, "std::uint8_t": 1,
    "short": 2, "unsigned short": 2, "int16_t": 2, "uint16_t": 2,
    "half": 2, "__half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2,
    "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "long long": 8, "unsigned long long": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip
_WIDEST = 16
_BRANCHES = frozenset(
    {"if_statement", "conditional_expression", "switch_statement", "for_statement", "while_statement", "do_statement"}
)
_JUMPS = frozenset({"continue_statement", "break_statement", "return_statement"})


def element_size(site: Site, kind: str) -> int | None:
    """Bytes of an element of that type; None for types that are not known to be scalars (template types included)."""
    return _SIZES.get(kind) if kind not in template_types(site) else None


def size_of(kind: str) -> int:
    """Bytes of an element of a type that `element_size` knows. Raises KeyError for others."""
    return _SIZES[kind]


def template_types(site: Site) -> frozenset[str]:
    """The type parameters of the kernel's template header."""
    heads = (t.split("=")[0].strip() for t in site.kernel.template_parameters)
    found = (re.fullmatch(r"(?:typename|class)\s+(\w+)", head) for head in heads)
    return frozenset(m[1] for m in found if m)


def widths(sizes: Sequence[int]) -> tuple[int, ...]:
    """Elements per vector worth trying for arrays with these element sizes: 128 bits of the widest type, then 64."""
    widest = max(sizes)
    return tuple(n for n in (_WIDEST // widest, _WIDEST // widest // 2) if n >= 2)


def packs(site: Site, kinds: Sequence[str], count: int, taken: Sequence[str] = ()) -> tuple[dict[str, str], list[Edit]]:
    """A name for the vector of `count` elements of each type, and the edits that define those that are not there yet.

    A vector is an aggregate with the array `at`, aligned to its size, so that it is loaded and stored at once.
    """
    named: dict[str, str] = {}
    definitions: list[str] = []
    start = declaration_start(site)
    indent = indent_at(site, site.kernel.span.start)
    for kind in dict.fromkeys(kinds):
        base = "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", kind)) + f"Pack{count}"
        written = f"struct alignas({_SIZES[kind] * count}) {base} {{\n    {kind} at[{count}];\n}};"
        before = site.unit.data[:start].decode("utf-8", "replace").replace("\r\n", "\n")
        if re.sub(r"\s+", " ", written) in re.sub(r"\s+", " ", before):
            named[kind] = base
            continue
        named[kind] = fresh(site, base, taken)
        definitions.append(written.replace(base, named[kind], 1))
    joined = "\n\n".join(definitions).replace("\n", "\n" + indent)
    return named, [Edit(Span(start, start), joined + "\n\n" + indent)] if definitions else []


def aligned(pointers: Sequence[tuple[str, int]]) -> str:
    """A condition that holds when each pointer expression is a multiple of its number of bytes."""
    terms = []
    for size in sorted({s for _, s in pointers}, reverse=True):
        casts = [f"reinterpret_cast<size_t>({p})" for p, s in pointers if s == size]
        terms.append(f"{casts[0]} % {size} == 0" if len(casts) == 1 else f"({' | '.join(casts)}) % {size} == 0")
    return " && ".join(terms)


def scalar_pointers(site: Site) -> dict[str, Parameter]:
    """The kernel's pointer parameters to elements of known size, by name; not the volatile ones."""
    return {
        p.name: p
        for p in site.kernel.parameters
        if p.pointer and p.type.count("*") == 1 and "volatile" not in p.type and element_size(site, p.base) is not None
    }


def subscripts(node: Node, array: str) -> list[Node] | None:
    """The accesses `array[index]` below the node; None where the array is used in another way."""
    found = []
    for n in walk(node):
        if n.type != "identifier" or text(n) != array:
            continue
        parent = n.parent
        if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != n:
            return None
        above = parent.parent
        if above is not None and above.type == "pointer_expression" and text(above).startswith("&"):
            return None
        found.append(parent)
    return found


def index_of(access: Node) -> Node | None:
    """The index of a subscript expression with one index."""
    listed = access.child_by_field_name("indices")
    parts = children(listed) if listed is not None else []
    return parts[0] if len(parts) == 1 else None


def is_target(access: Node) -> bool:
    """Whether the access is assigned to or updated."""
    parent = access.parent
    while parent is not None and parent.type == "parenthesized_expression":
        parent = parent.parent
    if parent is None:
        return False
    if parent.type == "assignment_expression":
        left = parent.child_by_field_name("left")
        return left is not None and left.start_byte <= access.start_byte < left.end_byte
    return parent.type == "update_expression"


def unconditional(access: Node, body: Node) -> bool:
    """Whether every run of `body` reaches the access below it: under no condition and behind no jump.

    Only then is there an element for every index, and one that may be stored: what a condition keeps from an access can be
    the end of the array, or an element that another thread stores.
    """
    if any(n.type in _JUMPS and n.start_byte < access.start_byte for n in walk(body)):
        return False
    node = access
    while node != body:
        above = node.parent
        if above is None:
            return False
        if above.type in _BRANCHES and above.child_by_field_name("condition") != node:
            return False
        sign = above.child_by_field_name("operator") if above.type == "binary_expression" else None
        if sign is not None and text(sign) in ("&&", "||") and above.child_by_field_name("right") == node:
            return False
        node = above
    return True
