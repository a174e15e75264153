"""Vectors of array elements for 64- and 128-bit loads and stores."""

import re
from collections.abc import Sequence

from engine.rewrite import Edit, OptimlError, Parameter, Site
from engine.spec.dtypes import parse_dtype

_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1, "std::int8_t": 1, "std::uint8_t": 1,
    "short": 2, "unsigned short": 2, "int16_t": 2, "uint16_t": 2,
    "half": 2, "__half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2,
    "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "long long": 8, "unsigned long long": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip
_OF_SEVERAL = {
    "half2": 4, "__half2": 4, "nv_half2": 4, "__nv_bfloat162": 4, "nv_bfloat162": 4, "float2": 8, "int2": 8, "uint2": 8,
    "short2": 4, "ushort2": 4, "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short4": 8, "ushort4": 8,
}  # fmt: skip
_PAIRS = ("half2", "bfloat162")  # as `engine.spec.dtypes` names them
_WHOLE = {16: "uint4", 8: "uint2"}
_WIDEST = 16
# A pair of halves has a copy constructor of its own: copied by that, four of them are four accesses.
_COPIES = """
    $name() = default;
    __device__ $name(const $name& other) {
        *this = other;
    }
    __device__ $name& operator=(const $name& other) {
        *reinterpret_cast<$whole*>(at) = *reinterpret_cast<const $whole*>(other.at);
        return *this;
    }"""


def element_size(site: Site, kind: str) -> int | None:
    """Bytes of an element of that type; None for types that are not known to be scalars (template types included)."""
    return _SIZES.get(kind) if kind not in site.type_names else None


def size_of(kind: str) -> int:
    """Bytes of an element of a type that `element_size` knows. Raises KeyError for others."""
    return _SIZES[kind]


def pack_size(site: Site, kind: str) -> int | None:
    """Bytes of an element of a type that vectors may be made of; None where it has no more than one per 128 bits.

    Other names for types, template parameters and CUDA's vector types have the size that the spec gives arrays of them.
    """
    known = _known_size(site, kind)
    if known is not None:
        return known
    step = site.spec.steps[site.step]
    sizes = set()
    for parameter, name in zip(site.kernel.parameters, step.arguments, strict=False):
        if parameter.pointer and parameter.base == kind:
            try:
                sizes.add(parse_dtype(site.spec.argument(name).type).itemsize)
            except (KeyError, OptimlError):
                return None
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size in (1, 2, 4, 8) and re.fullmatch(r"[A-Za-z_][\w:]*", kind) else None


def pack_bytes(site: Site, kind: str, count: int) -> int | str:
    """Bytes of a vector of `count` elements; a C expression for types that another build or instance may give another size."""
    known = _known_size(site, kind)
    return known * count if known is not None else f"sizeof({kind}) * {count}"


def _known_size(site: Site, kind: str) -> int | None:
    return element_size(site, kind) or (_OF_SEVERAL.get(kind) if kind not in site.type_names else None)


def _copies(site: Site, kind: str, count: int) -> str:
    """What makes a vector of pairs one access; "" for elements that are copied as they are."""
    size = _known_size(site, kind)
    try:
        pairs = size is not None and parse_dtype(kind).name in _PAIRS
    except OptimlError:
        return ""
    whole = _WHOLE.get(size * count) if pairs and size is not None else None
    return _COPIES.replace("$whole", whole) if whole is not None else ""


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
        base = "".join(part[0].upper() + part[1:] for part in re.findall(r"[A-Za-z0-9]+", kind)) + f"Pack{count}"
        written = f"struct alignas({pack_bytes(site, kind, count)}) {base} {{\n    {kind} at[{count}];"
        written += f"{_copies(site, kind, count)}\n}};".replace("$name", base)
        generic = kind in site.type_names
        if generic:
            written = f"template <typename {kind}>\n{written}"
        before = site.unit.data[:start].decode("utf-8", "replace").replace("\r\n", "\n")
        if re.sub(r"\s+", " ", written) in re.sub(r"\s+", " ", before):
            named[kind] = f"{base}<{kind}>" if generic else base
            continue
        name = site.fresh(base, taken)
        named[kind] = f"{name}<{kind}>" if generic else name
        definitions.append(re.sub(rf"\b{base}\b", name, written))
    joined = "\n\n".join(definitions).replace("\n", "\n" + indent)
    return named, [Edit.insert(start, joined + "\n\n" + indent)] if definitions else []


def aligned(pointers: Sequence[tuple[str, int | str]]) -> str:
    """A condition that holds when each pointer expression is a multiple of its number of bytes (a power of two)."""
    terms = []
    for size in sorted({s for _, s in pointers}, key=lambda s: (isinstance(s, int), s), reverse=True):
        casts = [f"reinterpret_cast<size_t>({p})" for p, s in pointers if s == size]
        whole = str(size) if isinstance(size, int) else f"({size})"
        terms.append(f"{casts[0]} % {whole} == 0" if len(casts) == 1 else f"({' | '.join(casts)}) % {whole} == 0")
    return " && ".join(terms)


def scalar_pointers(site: Site) -> dict[str, Parameter]:
    """The kernel's pointer parameters to elements that vectors may be made of, by name; not the volatile ones."""
    return {
        p.name: p
        for p in site.kernel.parameters
        if p.pointer and p.type.count("*") == 1 and "volatile" not in p.type and pack_size(site, p.base) is not None
    }
