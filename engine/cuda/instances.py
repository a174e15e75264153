"""The template arguments that a program launches a kernel with, through host templates that it instantiates or calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from engine.cuda.kernel import Function
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.typenames import split_arguments
from engine.errors import SourceError
from engine.model import Program

_NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MOST_TEXT = 300  # characters of a list of template arguments
_MOST_HOSTS = 3  # templates that call each other


def launched_instances(program: Program, kernel: str) -> Iterator[str]:
    """The template arguments at each launch, as text; a host template's own parameters replaced by what it is used with."""
    try:
        found = sites(program, kernel)
    except SourceError:
        return
    for site in found:
        if not site.template_args:
            continue
        path = next((p for p in program.files if site in parse(program.files[p], p).launches), program.kernel_file)
        hosts = [f for f in parse(program.files[path], path).functions if _around(f, site.span.start)]
        yield from _instances(program, site.template_args, hosts, _MOST_HOSTS)


def _instances(program: Program, arguments: str, hosts: list[Function], depth: int) -> Iterator[str]:
    own = [p.partition("=")[0].replace("...", " ").split()[-1] for host in hosts for p in host.template_parameters]
    if not {*own} & {*_NAME.findall(arguments)}:
        yield arguments
        return
    host = hosts[-1]  # the innermost: a lambda is none
    if depth == 0 or len(host.template_parameters) != len(own):
        return
    for path, data in program.files.items():
        written = _COMMENT.sub(" ", data.decode("utf-8", "replace"))
        for match in re.finditer(rf"(?<![\w.])(?:template\b[^;{{}}()=]*?\b)?{re.escape(host.name)}\s*<", written):
            given = _list(written, match.end())
            if given is None or not re.match(r">\s*\(", written[match.end() + len(given) :]):
                continue
            values = split_arguments(given)
            if len(values) == len(own):
                bound = dict(zip(own, values, strict=True))
                # Of a call in another template only that one's arguments are known.
                callers = [
                    f
                    for f in (parse(data, path).functions if not match[0].startswith("template") else ())
                    if f.template_parameters and f.name != host.name and _calls(f, data, match[0], given)
                ]
                text = _replaced(arguments, bound)
                yield from _instances(program, text, callers[:1], depth - 1) if callers else iter((text,))


def _calls(function: Function, data: bytes, opened: str, given: str) -> bool:
    return f"{opened}{given}>".encode() in data[function.body.start : function.body.end]


def _around(function: Function, at: int) -> bool:
    return function.qualifier != "global" and function.body.start <= at < function.body.end


def _replaced(text: str, bound: Mapping[str, str]) -> str:
    return _NAME.sub(lambda m: bound.get(m[0], m[0]), text)


def _list(text: str, start: int) -> str | None:
    """The text up to the bracket that closes the list of template arguments which begins here."""
    depth = 1
    for at in range(start, min(len(text), start + _MOST_TEXT)):
        depth += {"<": 1, ">": -1}.get(text[at], 0)
        if text[at] in ";{}":
            return None
        if depth == 0:
            return text[start:at]
    return None
