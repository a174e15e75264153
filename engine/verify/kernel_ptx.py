"""What nvcc hands to ptxas for one kernel, of a module's PTX.

ptxas gives the subroutine of a 64-bit division other registers where the module has another kernel, so machine code may differ where the
program is the same. Two builds by one nvcc with the same text here have the same program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.verify.host_object import public_name

_COMMENT = re.compile(r"//.*")
_NUMBERED = re.compile(r"(\$L__BB|__local_depot|prototype_)\d+")  # by the function's place in the module, or the call's
_MODULE = (".version", ".target", ".address_size", ".loc", ".file")
_HEAD = re.compile(r"\.(?:visible|weak|extern|common|internal|entry|func|global|const|shared|alias)\b")
_FUNCTION = re.compile(r"\.(?:entry|func)\s*(?:\([^)]*\)\s*)?([\w$.]+)")
_VARIABLE = re.compile(r"([\w$.]+)\s*(?:\[[^\]]*\]\s*)*(?:=|;)")
_WORD = re.compile(r"[\w$.]+")


def kernel_text(ptx: str, entry: str) -> str | None:
    """The kernel of this public name, with all functions and variables that it reaches by name; None where the module has none.

    Numbers that depend on what else stands in the module are left out. None too where a line of the module is of no known form.
    """
    items = dict(_items(ptx))
    name = next((n for n, text in items.items() if ".entry" in text and public_name(n) == entry), None)
    if name is None:
        return None
    found: dict[str, str] = {}
    open_ = [name]
    while open_:
        now = open_.pop()
        if now not in found:
            found[now] = items[now]
            open_ += [word for word in _WORD.findall(items[now]) if word in items]
    return "\n".join([found.pop(name), *(found[n] for n in sorted(found))])


def same_text(first: str, second: str, entry: str) -> bool:
    """Whether two modules have the same text of a kernel."""
    one = kernel_text(first, entry)
    return one is not None and one == kernel_text(second, entry)


def _items(ptx: str) -> Iterator[tuple[str, str]]:
    """The functions and variables of a module by name, without what is only declared; none where a line is of no known form."""
    found: dict[str, str] = {}
    lines: list[str] = []
    depth = 0
    for line in _NUMBERED.sub(r"\1", _COMMENT.sub("", ptx)).splitlines():
        line = " ".join(line.split())
        if not line or line.startswith(_MODULE):
            continue
        if not lines and not _HEAD.match(line):
            return
        lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and (line == "}" or line.endswith(";")):
            text = "\n".join(lines)
            match = _FUNCTION.search(text) or _VARIABLE.search(text)
            if match is None:
                return
            if line == "}" or match[1] not in found:  # a definition, which counts before what only declares it
                found[match[1]] = text
            lines = []
    yield from found.items()
