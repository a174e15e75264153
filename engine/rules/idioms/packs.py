"""Vectors of array elements for 64- and 128-bit loads and stores."""

import re
from collections.abc import Sequence

from engine.cuda.kernel import Parameter
from engine.rewrite import Edit, Site, Span

_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1, "std::int8_t": 1, "std::uint8_t": 1,
    "short": 2, "unsigned short": 2, "int16_t": 2, "uint16_t": 2,
    "half": 2, "__half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2,
    "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "long long": 8, "unsigned long long": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip
_WIDEST = 16


def element_size(site: Site, kind: str) -> int | None:
    """Bytes of an element of that type; None for types that are not known to be scalars (template types included)."""
    return _SIZES.get(kind) if kind not in site.type_names else None


def size_of(kind: str) -> int:
    """Bytes of an element of a type that `element_size` knows. Raises KeyError for others."""
    return _SIZES[kind]


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
    start = site.declaration_start
    indent = site.indent_at(site.kernel.span.start)
    for kind in dict.fromkeys(kinds):
        base = "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", kind)) + f"Pack{count}"
        written = f"struct alignas({_SIZES[kind] * count}) {base} {{\n    {kind} at[{count}];\n}};"
        before = site.unit.data[:start].decode("utf-8", "replace").replace("\r\n", "\n")
        if re.sub(r"\s+", " ", written) in re.sub(r"\s+", " ", before):
            named[kind] = base
            continue
        named[kind] = site.fresh(base, taken)
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
