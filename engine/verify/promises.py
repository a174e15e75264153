"""Assumptions that an edit hands to the compiler: allowed where they follow from what is taken for granted anyhow.

A false `__builtin_assume` is undefined behaviour, and need not show where it is checked. Two forms hold wherever the original is
defined: a size that is above zero in every case of the spec, as which launches none of no element could be checked either; and the
place of a thread in the grid, which is not negative. On the CPU path one that is false ends a run all the same.
"""

from __future__ import annotations

import re

from engine.cuda.items import Item
from engine.spec.data import scalars
from engine.spec.kernel_spec import KernelSpec

NAME = "__builtin_assume"
_SIZE = re.compile(r"(?:(\w+)(?:>0|>=1|!=0)|0<(\w+)|1<=(\w+))")
_PLACE = re.compile(r"(?:(\w+)>=0|0<=(\w+))")


def promises_hold(item: Item, spec: KernelSpec) -> bool:
    """Whether each assumption in an item, one of the spec's kernels, has such a form, of a name that nothing changes."""
    text = "".join(t.text + (" " if t.kind == "name" else "") for t in item.tokens if t.kind != "directive")
    code = re.sub(r" (?=\W)", "", text)
    arguments = re.findall(rf"\b{NAME}\(([^;]*?)\);", code)
    if len(arguments) != sum(t.text == NAME for t in item.tokens) or not set(item.defines) & {
        s.kernel for s in spec.steps
    }:
        return False
    if any(t.kind == "directive" for t in item.tokens):
        return False
    return all(_holds(argument, code, spec) for argument in arguments)


def _holds(argument: str, code: str, spec: KernelSpec) -> bool:
    if (size := _SIZE.fullmatch(argument)) is not None:
        name = next(group for group in size.groups() if group)
        parameters, _, body = code.partition("{")
        return name in _positive(spec) and len(re.findall(rf"\b{name}\b", parameters)) == 1 and _unchanged(name, body)
    if (place := _PLACE.fullmatch(argument)) is not None:
        name = next(group for group in place.groups() if group)
        declared = re.findall(rf"\bint {name}=blockIdx\.([xyz])\*blockDim\.\1\+threadIdx\.\1;", code)
        others = re.sub(rf"\bint {name}=blockIdx\.[xyz]\*blockDim\.[xyz]\+threadIdx\.[xyz];", "", code)
        return len(declared) == 1 and _unchanged(name, others)
    return False


def _positive(spec: KernelSpec) -> set[str]:
    cases = [scalars(spec, case) for case in (*spec.check, *spec.time)]
    whole = {name for name, value in cases[0].items() if not isinstance(value, bytes) and value.dtype.kind in "iu"}
    return {name for name in whole if all(int(case[name]) > 0 for case in cases)}


def _unchanged(name: str, code: str) -> bool:
    """Whether a name is neither assigned, declared again, nor handed on whole, as to a reference."""
    changed = (
        rf"\b{name}(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--|&)\s*{name}\b|\b\w+ {name}\b|[*&>(,=]{name}[=;,)]"
    )
    without = re.sub(rf"\b{NAME}\([^;]*?\);", "", code)
    return re.search(changed, re.sub(r"\b(?:return|case|else) ", "", without)) is None
