"""Spans of a program that are marked in a prompt by name, so that an edit can say which of them it replaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.cuda.kernel import Span

if TYPE_CHECKING:
    from engine.llm.edits import Workplace

_MARK = re.compile(r"^[ \t]*// (?:\[S\d+|S\d+\])[ \t]*(?:\n|\Z)", re.M)
_MOST = 24  # spans of one program. Ours.


def spans_of(place: Workplace) -> Mapping[str, Span]:
    """The loops of the kernels that have their lines to themselves, by name in the order of the text: "S1", "S2", …"""
    unit = place.sites[0].unit
    loops = {loop.span for site in place.sites if site.unit.path == unit.path for loop in site.kernel.loops}
    whole = [span for span in sorted(loops) if _has_its_lines(unit.data, span)]
    return {f"S{number}": span for number, span in enumerate(whole[:_MOST], 1)}


def marked(data: bytes, begin: int, end: int, spans: Mapping[str, Span]) -> bytes:
    """The bytes from `begin` to `end` with a comment line before and after each span in them."""
    lines: list[tuple[int, int, int, bytes]] = []
    for order, (name, span) in enumerate(spans.items()):
        if begin <= span.start and span.end <= end:
            first, after = data.rfind(b"\n", 0, span.start) + 1, data.find(b"\n", span.end)
            indent, ends = data[first : span.start], after >= 0 and after < end
            tail = (b"" if ends else b"\n") + indent + b"// %s]\n" % name.encode()
            # At one place ends come before begins, and the end of an inner span before that of an outer one.
            lines.append((max(begin, first), 1, order, indent + b"// [%s\n" % name.encode()))
            lines.append((after + 1 if ends else end, 0, -order, tail))
    parts, at = [], begin
    for place, _, _, text in sorted(lines):
        parts += [data[at:place], text]
        at = place
    return b"".join((*parts, data[at:end]))


def _has_its_lines(data: bytes, span: Span) -> bool:
    first, after = data.rfind(b"\n", 0, span.start) + 1, data.find(b"\n", span.end)
    rest = data[span.end : len(data) if after < 0 else after]
    return not data[first : span.start].strip() and not rest.strip()


def without_marks(text: str) -> str:
    """A text of a model's without the marks of spans that it copied."""
    return _MARK.sub("", text)
