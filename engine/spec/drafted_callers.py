"""What the callers of a kernel show of its drafted arguments: buffers passed twice, and numbers."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from engine.cuda.aliasing import shared_buffers
from engine.cuda.instances import launched_instances, qualified
from engine.cuda.kernel import Kernel
from engine.cuda.launch import sites
from engine.cuda.launch_reading import readable_sites
from engine.errors import SourceError
from engine.model import Program
from engine.spec.drafted_parts import Part

_NULL = ("nullptr", "NULL")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d*)?")


def note_shared(program: Program, kernel: Kernel, parts: list[Part]) -> None:
    """Note for each buffer that a caller passes for another parameter, too."""
    notes = {part.argument.name: part.notes for part in parts}
    with suppress(SourceError):
        for pair in shared_buffers(program, kernel, sites(program, kernel.name)) or ():
            notes[pair.second].append(f"assumed: a buffer of its own, but {pair.where} passes that of '{pair.first}'")


def passed_null(program: Program, kernel: Kernel, template_args: str) -> frozenset[str]:
    """The parameters for which every launch of the instance passes no buffer; every launch at all, where none is seen to be its own."""
    wanted = "".join(template_args.split())
    sites = readable_sites(program, kernel.name)
    own = {
        instance.site.span
        for instance in launched_instances(program, kernel.name)
        if "".join(qualified(program, instance.arguments).split()) == wanted
    }
    null = [
        {p.name for p, passed in zip(kernel.parameters, site.arguments, strict=False) if passed.strip() in _NULL}
        for site in sites
        if site.span in own or not own
    ]
    return frozenset(set.intersection(*null)) if null else frozenset()


def set_passed(program: Program, kernel: Kernel, parts: list[Part]) -> None:
    """Give scalars whose value nothing tells the number that the first launch passes for them."""
    assumed = {p.argument.name: p for p in parts if p.notes == ["assumed: the value"] and "." not in p.argument.name}
    for site in readable_sites(program, kernel.name) if assumed else ():
        for parameter, passed in zip(kernel.parameters, site.arguments, strict=False):
            value = {"true": "1", "false": "0"}.get(passed.strip(), passed.strip())
            part = assumed.pop(parameter.name, None) if _NUMBER.fullmatch(value) else None
            if part is not None:
                part.argument = replace(part.argument, value=value)
                part.notes = [f"assumed: the value, as {site.path}:{site.line} passes it"]
