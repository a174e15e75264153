"""What the fields of well-known libraries' views of memory are to each other: rows, columns and steps, sizes and strides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.spec.struct_layout import Layout

_COLUMNS = re.compile(r"(?:\w*_)?(?:cols|columns|width|w)", re.IGNORECASE)
_ACCESSORS = ("HeaderOnlyGenericPackedTensorAccessor", "GenericPackedTensorAccessor", "PackedTensorAccessor32",
              "PackedTensorAccessor64")  # fmt: skip


@dataclass(frozen=True)
class View:
    """Of one parameter: the values of its whole numbers and the elements behind its pointer, as expressions.

    `sizes` are those that a value brings along, by the field; a field or pointer that is not here is like any other's.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def view_of(kind: str, layout: Layout, item: int, others: Sequence[str]) -> View | None:
    """The view that a class is, by its name without namespaces and template arguments; None for any other class.

    `item` are the bytes of an element, `others` the names of the kernel's whole numbers.
    """
    fields = {each.name for f in layout.fields for each in f.elements}
    if kind in ("PtrStepSz", "GlobPtrSz") and {"data", "step", "cols", "rows"} <= fields:
        values = {"cols": "cols", "rows": "rows", "step": f"cols*{item}"}
        sizes = {"cols": "cols", "rows": "rows", "step": "cols"}
        return View(values, sizes, {"data": "rows*cols"}, "assumed: rows without padding, matrices of one shape")
    if kind in ("PtrStep", "GlobPtr") and {"data", "step"} <= fields:
        columns = next((name for name in others if _COLUMNS.fullmatch(name)), "cols")
        return View({"step": f"{columns}*{item}"}, {"step": columns}, {}, f"assumed: rows of {columns} elements")
    if kind in ("BrdReplicate", "BrdReflect", "BrdReflect101", "BrdWrap") and {"last_row", "last_col"} <= fields:
        values = {"last_row": "rows - 1", "last_col": "cols - 1"}
        return View(
            values, {"last_row": "rows", "last_col": "cols"}, {}, "assumed: the border of a matrix of that shape"
        )
    if kind == "BrdConstant" and {"height", "width"} <= fields:
        sizes = {"height": "rows", "width": "cols"}
        return View(sizes, sizes, {}, "assumed: the border of a matrix of that shape")
    rank = sum(name.startswith("sizes_.") for name in fields) or ("sizes_" in fields)
    if kind in _ACCESSORS and rank:
        own = [f"size{i}" for i in range(rank)]
        at = [f".{i}" for i in range(rank)] if rank > 1 else [""]
        values = {f"sizes_{at[i]}": own[i] for i in range(rank)}
        values |= {f"strides_{at[i]}": "*".join(own[i + 1 :]) or "1" for i in range(rank)}
        sizes = {f"sizes_{at[i]}": own[i] for i in range(rank)}
        return View(values, sizes, {"data_": "*".join(own)}, "assumed: contiguous, tensors of one shape")
    return None
