"""Elements that a function takes by a reference through which it may write: `f(x[i])` with `float& v`."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from engine.cuda.kernel import Kernel, Unit
from engine.cuda.parse import text, walk


def referred(unit: Unit, body: Node) -> Iterator[str]:
    """The arrays whose elements functions of the file may write so, as they are named in a kernel's body."""
    changing = {
        f.name: [at for at, p in enumerate(f.parameters) if "&" in p.type and not p.const]
        for f in unit.functions
        if not isinstance(f, Kernel)
    }
    for call in walk(body):
        name, given = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        if call.type != "call_expression" or name is None or given is None:
            continue
        values = [n for n in given.named_children if n.type != "comment"]
        for at in changing.get(text(name).partition("<")[0].rpartition("::")[2], ()):
            value = values[at] if at < len(values) else None
            array = value.child_by_field_name("argument") if value is not None else None
            if value is not None and value.type == "subscript_expression" and array is not None:
                yield text(array)
