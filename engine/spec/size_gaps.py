"""Why a draft cannot give a buffer its size, and what its kernel reads that no spec can give."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.cuda.kernel import Kernel, Unit
from engine.model import Program
from engine.spec.extents import Extent
from engine.spec.indirect import Indirect

_CONSTANT = re.compile(rb"\b__constant__\b[^;={}()]*?([A-Za-z_]\w*)\s*((?:\[[^\]\n]*\]\s*)*);")
_WORD = re.compile(r"[A-Za-z_]\w*")
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """What is known of how far a kernel reaches into its buffers.

    `extents` are sizes that something explains, `tables` those of buffers whose indices come from others, `touched` the buffers
    that a trial touched. `tried`: there were trials; `ended` says what ended them early, "" where nothing did.
    """

    extents: Mapping[str, Extent] = field(default_factory=dict)
    tables: Mapping[str, Indirect] = field(default_factory=dict)
    touched: Collection[str] = ()
    tried: bool = False
    ended: str = ""


def no_size(name: str, reach: Reach, untried: str, looked_up: bool) -> str:
    """Why a buffer has no size. `untried` says why nothing could be tried; `looked_up`: its indices come from another buffer."""
    if looked_up:
        return "its indices come from another buffer"
    if untried:
        return f"the text does not show it, and the kernel was not tried: {untried}"
    if not reach.tried:
        return "the text does not show it"
    if name in reach.touched:
        return "no expression of the sizes explains what is touched"
    return f"trial runs end early: the kernel {reach.ended}" if reach.ended else "no trial run touches it"


def unfilled_constants(program: Program, unit: Unit, kernel: Kernel) -> tuple[str, ...]:
    """The `__constant__` variables without a value in the text that the kernel, or a function that it calls, reads."""
    declared = {m[1].decode() for data in program.files.values() for m in _CONSTANT.finditer(data)}
    if not declared:
        return ()
    functions = {f.name: f for f in unit.functions}
    seen, open_, words = {kernel.name}, [kernel.span], set[str]()
    while open_:
        found = set(_WORD.findall(unit.text(open_.pop())))
        words |= found
        for name in found & functions.keys() - seen:
            seen.add(name)
            open_.append(functions[name].span)
    own = {p.name for p in kernel.parameters}
    return tuple(sorted(words & declared - own))


def constants_gap(names: Collection[str]) -> str:
    """The sentence for constants that only host code fills."""
    shown = "', '".join([*names][:_MOST_SHOWN])
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"the contents of '{shown}'{more}: host code fills this __constant__ memory, and a spec cannot give its contents"
