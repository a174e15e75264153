"""The size of a drafted buffer, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.model import Program
from engine.spec.drafted_parts import Part
from engine.spec.extents import Extent
from engine.spec.gaps import Gap
from engine.spec.indirect import ROWS, Indirect
from engine.spec.usage import Usage

_STRIDE = re.compile(r"stride|step|pitch", re.IGNORECASE)  # what is 1 where it is assumed, and mostly is not
COVERING = "assumed: the size (the end is not touched)"  # said of a size that only has room for what trials touched
FILLING = "assumed: the size, from the recorded allocation"
_BEYOND = re.compile(r"(?:reads|writes) ([\w.]+)\[-?\d+\], which has")
_MOST_SHOWN = 4  # names in a sentence
_ALLOCATION = re.compile(r"alloc|resize|vector|empty|zeros|\bnew\b|reserve", re.IGNORECASE)


@dataclass(frozen=True)
class Reach:
    """What is known of how far a kernel reaches into its buffers.

    `extents` are sizes that something explains, `tables` those of buffers whose indices come from others, `touched` the buffers
    that a trial touched. `tried`: there were trials; `ended` says what ended them early, "" where nothing did. `assumed` are
    numbers that the kernel was given as they were assumed.
    """

    extents: Mapping[str, Extent] = field(default_factory=dict)
    tables: Mapping[str, Indirect] = field(default_factory=dict)
    touched: Collection[str] = ()
    tried: bool = False
    ended: str = ""
    assumed: tuple[str, ...] = ()


def no_size(name: str, reach: Reach, untried: str, looked_up: bool) -> str:
    """Why a buffer has no size. `untried` says why nothing could be tried; `looked_up`: its indices come from another buffer."""
    if looked_up:
        return "its indices come from another buffer"
    if untried:
        return f"the text does not show it, and the kernel was not tried: {untried}"
    if not reach.tried:
        return "the text does not show it"
    if name in reach.touched:
        return f"no expression of the sizes explains what is touched{_as_assumed(reach.assumed)}"
    strides = [each for each in reach.assumed if _STRIDE.search(each)]
    return (
        f"trial runs end early: the kernel {reach.ended}{_as_assumed(strides)}"
        if reach.ended
        else "no trial run touches it"
    )


def set_extent(part: Part, reach: Reach, usage: Usage, missing: list[Gap], untried: str, offsets: list[str]) -> None:
    """Give a buffer the size that something explains, or add to `missing` why there is none. `offsets` are arrays of rows' ends."""
    name = part.argument.name
    extent, table = reach.extents.get(name), reach.tables.get(name)
    if part.extent:
        part.argument = replace(part.argument, size=part.extent)
        return
    if table is not None:
        part.argument = replace(part.argument, size=table.size)
        part.notes.append("assumed: the size" if table.high else f"assumed: a table of {ROWS} rows")
        return
    by = [other for other in usage.uses if name in usage.indexed_by(other)]
    looked_up = any(other not in offsets or not reach.tried for other in by)
    if extent is None or looked_up:
        asked = f"the size of '{name}': {no_size(name, reach, untried, looked_up)}"
        missing.append(Gap(asked, f"args.{name}", extent.text if extent is not None else ""))
        return
    part.argument = replace(part.argument, size=extent.text)
    if not extent.exact:
        part.notes.append(COVERING)
    elif not extent.measured:
        part.notes.append("assumed: the size, from the text")


def refuted(text: str, said: str) -> str:
    """The buffer of a draft's text whose size only covers what trials touched, where a check goes beyond it; "" for none."""
    name = left(said)
    return name if name and marked(text, name, COVERING) else ""


def left(said: str) -> str:
    """The buffer that a kernel goes beyond, in the words of a finding; "" where they say something else."""
    found = _BEYOND.search(said)
    return found[1] if found else ""


def marked(text: str, name: str, note: str) -> bool:
    """Whether a draft's text has a note on an argument."""
    return any(f"args.{name} =" in line and note in line for line in text.splitlines())


def _as_assumed(names: Sequence[str]) -> str:
    shown = "', '".join(names[:_MOST_SHOWN])
    return f" where '{shown}' {'are' if len(names) > 1 else 'is'} as assumed" if names else ""


def beyond(program: Program, usage: Usage, extents: Collection[str]) -> Iterator[Gap]:
    """Guards that let one thread too many through, where the buffers' sizes have room for it and no allocation of the host's has."""
    for number, size, line in usage.lets_through():
        name = size.rpartition(".")[2]
        more = re.compile(rf"\b{re.escape(name)}\s*\+\s*1\b|\b1\s*\+\s*{re.escape(name)}\b")
        if any(more.search(extent) for extent in extents) and not _allocated(program, more):
            yield Gap(
                f"the kernel goes beyond its buffers: '{number} > {size}' (line {line}) lets {number} == {size} through, and no"
                f" allocation is seen with room for that; fix the kernel: write '{number} >= {size}'"
            )


def _allocated(program: Program, more: re.Pattern[str]) -> bool:
    """Whether some line allocates memory for one more."""
    return any(
        _ALLOCATION.search(line) and more.search(line)
        for path, data in program.files.items()
        if not path.endswith(".toml")
        for line in data.decode("utf-8", "replace").splitlines()
    )
