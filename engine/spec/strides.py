"""Strides among a kernel's whole numbers: of memory without gaps, where the names say which dimensions they are of."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_FAMILY = re.compile(r"(?P<of>(?:\w+?_)?)stride_(?P<dim>[A-Za-z]\w{0,15})")
# ggml's: of which tensor, of which dimension, the innermost first. `nb` counts bytes, `s` elements; `ne` are the extents.
_GGML = re.compile(r"(?P<what>nb|s)(?P<of>\d?)(?P<dim>\d)")
_EXTENT = re.compile(r"ne(?P<of>\d?)\d")
_SINGLE = re.compile(r"(?:\w+_)?(?:stride|pitch|ld)|\w+_s0|ld[abcd]")
_INNERMOST = re.compile(r"d|dim|w|x|k|e|c|cols?|hidden|head_dim", re.IGNORECASE)  # its elements lie beside each other
_MOST_SIZES = 6  # that a row may be as long as the largest of


def strides(
    names: Sequence[str], sizes: Sequence[str], item: int = 4, scaling: Collection[str] = ()
) -> Mapping[str, str]:
    """The values of those among a kernel's whole numbers that are strides, in elements and over its sizes.

    `names` are all of them in order, fields without what they are of; `sizes` those that count something. A family
    (`stride_b`, `stride_h`, `stride_d`) is that of a tensor with these dimensions, outermost first; where the size of one is not
    known nothing is said. A single stride is as long as the largest size: no two rows overlap then. `item` are the bytes of an
    element, for strides that count bytes; `scaling` are names that the kernel multiplies something by, as strides are.
    """
    found: dict[str, str] = {}
    families: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        if match := _FAMILY.fullmatch(name):
            families.setdefault(match["of"], []).append((name, match["dim"]))
    other = _GGML if any(map(_EXTENT.fullmatch, sizes)) else _SINGLE
    counted = [s for s in sizes if not any(p.fullmatch(s) for p in (_FAMILY, _SINGLE, other))]
    longest = counted[0] if len(counted) == 1 else f"max({', '.join(counted)})"
    if not counted or len(counted) > _MOST_SIZES:
        return found
    for of, members in families.items():
        value = "1" if _INNERMOST.fullmatch(members[-1][1]) else longest
        values = {members[-1][0]: value}
        for (name, _), (_, inner) in zip(reversed(members[:-1]), reversed(members[1:]), strict=True):
            size = _size(of, inner, counted)
            if not size:
                break
            value = size if value == "1" else f"{size}*{value}"
            values[name] = value
        if len(values) == len(members):
            found |= values
    found |= _of_ggml(names, counted, item, scaling)
    found |= {name: longest for name in names if _SINGLE.fullmatch(name) and name not in found}
    return found


def _of_ggml(names: Sequence[str], counted: Sequence[str], item: int, scaling: Collection[str]) -> dict[str, str]:
    """Those by ggml's names: each is what all dimensions within take, of the same tensor or else of another one."""
    found: dict[str, str] = {}
    extents = {match["of"]: None for match in map(_EXTENT.fullmatch, counted) if match}
    for match in filter(None, map(_GGML.fullmatch, names)):
        if match["of"] not in extents and ((not match["of"] and match[0] not in scaling) or not extents):
            continue  # `s1` is many things elsewhere
        tensors = [t for t in (match["of"], *extents) if t in extents]
        within = [
            next((name for t in tensors if (name := f"ne{t}{dim}") in counted), "") for dim in range(int(match["dim"]))
        ]
        factors = [str(item)] if match["what"] == "nb" else []
        if all(within):
            found[match[0]] = "*".join([*factors, *within]) or "1"
    return found


def _size(of: str, dimension: str, counted: Sequence[str]) -> str:
    """The size of a dimension by its letter or word; "" where no name says it."""
    for name in (dimension, f"{of}{dimension}", f"num_{dimension}", f"n_{dimension}", f"{dimension}s"):
        if name in counted:
            return name
    return ""
