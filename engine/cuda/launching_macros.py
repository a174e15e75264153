"""Launches by macros, `LAUNCH(kernel, n, x, y)`: read in a text where the calls of such macros are written out."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tree_sitter import Node

from engine.cuda.brackets import closing
from engine.cuda.kernel import LaunchSite, Span, Unit
from engine.cuda.launch import has_its_own
from engine.cuda.macros import function_macros
from engine.cuda.parse import parse
from engine.cuda.readable_text import has_launch
from engine.cuda.records import split_arguments
from engine.model import Program
from engine.settings.suffixes import SOURCES

_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\(\s*\(?\s*((?:\w|::)+\s*(?:<[^;()]*>)?)\s*\)?\s*\)\s*<<<")  # `(kernel<T>)<<<`
_MOST_CALL = 4_000  # characters


@dataclass(frozen=True)
class _Macro:
    parameters: tuple[str, ...]
    body: str


@dataclass(frozen=True)
class _WrittenOut:
    """A macro's call in a file, and where the text that it stands for begins and ends in the text with all written out."""

    span: Span
    begin: int
    end: int


def macro_sites(program: Program, plain: str) -> Iterator[LaunchSite]:
    """The launches of a kernel (plain name) that a file makes by macros of the program."""
    macros = _launching(program)
    for path, data in program.files.items() if macros else ():
        if not path.endswith(SOURCES) or has_its_own(program, path, plain):
            continue
        if not any(name.encode() in data for name in macros):
            continue
        unit = parse(data, path)
        text, calls = _written_out(unit, macros)
        for site in parse(text, path).launches if calls else ():
            call = next((c for c in calls if c.begin <= site.span.start < c.end), None)
            if call is not None and site.kernel.rpartition("::")[2] == plain:
                yield replace(site, span=call.span, line=unit.line_of(call.span.start), read_in=text)


def _launching(program: Program) -> dict[str, _Macro]:
    """The macros with parameters that launch something, but those that have several definitions or put words together."""
    found: dict[str, set[_Macro]] = {}
    for path, data in program.files.items():
        if path.endswith(SOURCES) and b"define" in data and has_launch(data):
            for name, definitions in function_macros(data, path).items():
                found.setdefault(name, set()).update(_Macro(*definition) for definition in definitions)
    only = {name: next(iter(macros)) for name, macros in found.items() if len(macros) == 1}
    return {name: macro for name, macro in only.items() if "<<<" in macro.body and "#" not in macro.body}


def _written_out(unit: Unit, macros: Mapping[str, _Macro]) -> tuple[bytes, list[_WrittenOut]]:
    """The file with the macros' calls written out on the same lines."""
    # Positions are bytes: latin-1 keeps one character a byte.
    written = unit.data.decode("latin-1")
    names = re.compile(rf"\b({'|'.join(map(re.escape, macros))})\s*\(")
    out, calls, at, length = list[str](), list[_WrittenOut](), 0, 0
    for match in names.finditer(written):
        end = closing(written, match.end() - 1, most=_MOST_CALL) + 1
        if match.start() < at or not end or _defines(unit, match.start()):
            continue
        made = _body(macros[match[1]], written[match.end() : end - 1])
        if made is None:
            continue
        before = written[at : match.start()]
        begin = length + len(before)
        lines = "\n" * written.count("\n", match.start(), end)
        out += [before, made, lines]
        calls.append(_WrittenOut(Span(match.start(), end), begin, begin + len(made)))
        at, length = end, begin + len(made) + len(lines)
    return "".join([*out, written[at:]]).encode("latin-1"), calls


def _defines(unit: Unit, at: int) -> bool:
    """Whether the text there is part of a macro itself, or of a comment."""
    node: Node | None = unit.root.descendant_for_byte_range(at, at + 1)
    while node is not None and not (node.type.startswith("preproc") and "def" in node.type):
        if node.type == "comment":
            return True
        node = node.parent
    return node is not None and node.type in ("preproc_function_def", "preproc_def")


def _body(macro: _Macro, arguments: str) -> str | None:
    """What a call stands for, on one line; None where it is given too little."""
    given = [" ".join(a.split()) for a in split_arguments(arguments)]
    if len(given) < len(macro.parameters):
        return None
    values = dict(zip(macro.parameters, given, strict=False))
    values["__VA_ARGS__"] = ", ".join(given[len(macro.parameters) :])
    made = _WORD.sub(lambda word: values.get(word[0], word[0]), " ".join(macro.body.split()))
    made = _NAMED.sub(r"\1<<<", made)
    return made if made.endswith((";", "}")) else f"{made};"
