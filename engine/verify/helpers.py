"""Device functions with external linkage that an edit changes: other files may call them, and no caller of theirs is seen.

Such a function must go on to compute what it did. Whether it does shows in the original kernel with the edit's version of it: an edit
that moves a factor from the function to its caller is right as a whole, and wrong for every other caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.cuda.items import items_of
from engine.cuda.kernel import Function
from engine.cuda.parse import parse
from engine.cuda.phases import NVCC, form_of
from engine.cuda.syntax import in_unnamed_namespace
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec

NAME = "functions that other files may call"
_LOCAL = re.compile(r"\b(?:static|inline|__inline__|__forceinline__|constexpr|template)\b")
_Key = tuple[str, tuple[tuple[str, bool], ...]]


def with_new_helpers(original: Program, candidate: Program, spec: KernelSpec) -> tuple[Program, tuple[str, ...]] | None:
    """The original with the edit's versions of such functions, and their names. None: it changes none. Raises SourceError."""
    path, kernels = original.kernel_file, {step.kernel.rpartition("::")[2] for step in spec.steps}
    before, after = original.data, candidate.files.get(path, b"")
    old, new = _external(before, path, kernels), _external(after, path, kernels)
    changed = {
        key: new[key]
        for key, function in old.items()
        if key in new and _code(before, function) != _code(after, new[key])
    }
    if not changed:
        return None
    text, first = before, min(old[key].span.start for key in changed)
    for key in sorted(changed, key=lambda key: -old[key].span.start):
        span, own = old[key].span, changed[key].span
        text = text[: span.start] + after[own.start : own.end] + text[span.end :]
    text = text[:first] + _added(before.decode(), after.decode(), kernels).encode() + text[first:]
    return original.replace({path: text}), tuple(sorted({function.name for function in changed.values()}))


def _external(data: bytes, path: str, kernels: set[str]) -> Mapping[_Key, Function]:
    unit = parse(data, path)
    return {
        (function.qualified, tuple((p.base, p.pointer) for p in function.parameters)): function
        for function in unit.functions
        if function.qualifier in ("device", "host device")
        and function.name not in kernels
        and not _LOCAL.search(unit.text(function.signature))
        and not in_unnamed_namespace(function.node)
    }


def _code(data: bytes, function: Function) -> str:
    return "".join(form_of(data[function.span.start : function.span.end].decode(), NVCC).code.split())


def _added(before: str, after: str, kernels: set[str]) -> str:
    """The items that the edit adds, which its functions may need: by names that the original does not have."""
    known = {name for item in items_of(before) for name in item.defines} | kernels
    lines = {item.rest for item in items_of(before) if item.kind == "directive"}
    found = []
    for item in items_of(after):
        is_new = item.defines and not set(item.defines) & known
        if item.kind == "directive":
            is_new = item.word in ("include", "define") and item.rest not in lines
        if is_new and item.kind not in ("open", "close"):
            found.append(after[item.span.start : item.span.end])
    return "".join(f"{text}\n" for text in found)
