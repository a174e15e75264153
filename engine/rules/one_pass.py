"""Two passes over the same elements become one.

A sum of exponentials is kept relative to the largest value so far and rescaled when that grows (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). A sum of squared deviations is kept around the mean so
far (Welford, 1962) or around the first value. What a thread has is then moved to the reference that the second pass
used, whatever lies between the passes: nothing, or a reduction over the threads that share the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.rules.common import fresh, in_file, indent_at, indent_unit, line_span, proposal, render, span, text
from engine.rules.model import Proposal, Site
from engine.rules.passes import Passes, passes
from engine.source.model import Edit, Span

_Written = tuple[list[str], list[str], list[str], list[str]]


class OnePass:
    """Maximum and sum of exponentials, or mean and variance, in one loop over the row."""

    name = "one_pass"
    summary = "Compute in one pass over the row what takes two"

    def propose(self, site: Site) -> Iterator[Proposal]:
        for number, found in enumerate(passes(site)):
            if found.kind == "exponentials":
                summary = "Find the maximum and the sum of exponentials in one pass, rescaling as the maximum grows"
                forms: tuple[tuple[str, Callable[..., _Written], float], ...] = (("online", _online, 0.6),)
            else:
                summary = "Sum values and squared deviations in one pass"
                # One thread's long sum loses more digits around a first value than it may.
                long = 0.3 if text(found.first.start).isdigit() else 0.0
                forms = (("shifted", _shifted, 0.6 - long), ("welford", _welford, 0.5 - long))
            for form, write, prior in forms:
                edits = in_file(site, *_rewrite(site, found, write))
                yield from proposal(self.name, summary, edits, prior, form=form, loop=number)


def _rewrite(site: Site, found: Passes, write: Callable[..., _Written]) -> list[Edit]:
    first, second, unit = found.first, found.second, indent_unit(site)
    taken: list[str] = []

    def name(base: str) -> str:
        taken.append(fresh(site, base, taken))
        return taken[-1]

    before, each, after, instead = write(found, name)
    inner = indent_at(site, first.statement.start_byte)
    outer = indent_at(site, first.node.start_byte)
    statement = text(first.statement) if found.kind == "squares" else ""
    lines = ([render(site, first.statement.start_byte, first.statement.end_byte)] if statement else []) + each
    body = first.statement.parent
    if body is not None and body.type == "compound_statement":
        loop = Edit(span(first.statement), f"\n{inner}".join(lines))
    else:
        deep = outer + unit
        loop = Edit(span(first.statement), "{\n" + "".join(f"{deep}{x}\n" for x in lines) + f"{outer}}}")
    start = first.node.start_byte
    above = first.node.prev_sibling
    if above is not None and above.type == "preproc_call":  # an unroll pragma
        start = above.start_byte
    edits = [
        Edit(Span(start, start), "".join(f"{x}\n{outer}" for x in before)),
        Edit(span(first.start), text(second.start)),
        loop,
    ]
    if after:
        edits.append(Edit(Span(first.node.end_byte, first.node.end_byte), "".join(f"\n{outer}{x}" for x in after)))
    pragma = second.node.prev_sibling
    if pragma is not None and pragma.type == "preproc_call":
        edits.append(Edit(line_span(site, pragma), ""))
    edits.append(Edit(span(second.node), f"\n{indent_at(site, second.node.start_byte)}".join(instead)))
    return edits


def _zero(kind: str) -> str:
    return "0.0f" if kind == "float" else "0.0"


def _one(kind: str) -> str:
    return "1.0f" if kind == "float" else "1.0"


def _online(found: Passes, name: Callable[[str], str]) -> _Written:
    kind, largest = found.type, found.first.target
    partial, value, ratio = name("partial"), name("value"), name("ratio")
    f = "f" if kind == "float" else ""

    def exponential(difference: str) -> str:
        shown = difference if found.scale == "@" else found.scale.replace("@", f"({difference})")
        return f"{found.function}({shown})"

    each = [
        f"const {kind} {value} = {found.value};",
        # Equal infinities would make their difference no number.
        f"const {kind} {ratio} = {value} == {largest} ? {_one(kind)} : "
        + exponential(f"fmin{f}({value}, {largest}) - fmax{f}({value}, {largest})")
        + ";",
        f"{partial} = {value} > {largest} ? {partial} * {ratio} + {_one(kind)} : {partial} + {ratio};",
        f"{largest} = {value} > {largest} ? {value} : {largest};",
    ]
    own, after = largest, []
    if not found.kept:
        own = name("own")
        after = [f"const {kind} {own} = {largest};"]
    moved = "" if own == found.reference else f" * {exponential(f'{own} - {found.reference}')}"
    return [f"{kind} {partial} = {_zero(kind)};"], each, after, [f"{found.second.target} += {partial}{moved};"]


def _shifted(found: Passes, name: Callable[[str], str]) -> _Written:
    kind, two = found.type, "2.0f" if found.type == "float" else "2.0"
    shift, count, offsets, squares = name("shift"), name("count"), name("offsets"), name("squares")
    value, offset, moved = name("value"), name("offset"), name("moved")
    before = [
        f"{kind} {shift} = {_zero(kind)}, {offsets} = {_zero(kind)}, {squares} = {_zero(kind)};",
        f"int {count} = 0;",
    ]
    each = [
        f"const {kind} {value} = {found.value};",
        f"{shift} = {count} == 0 ? {value} : {shift};",
        f"++{count};",
        f"const {kind} {offset} = {value} - {shift};",
        f"{offsets} += {offset};",
        f"{squares} += {offset} * {offset};",
    ]
    total = f"{squares} - {two} * {moved} * {offsets} + {count} * {moved} * {moved}"
    instead = [
        f"const {kind} {moved} = {found.reference} - {shift};",
        f"{found.second.target} += " + (f"({total}){found.factor};" if found.factor else f"{total};"),
    ]
    return before, each, [], instead


def _welford(found: Passes, name: Callable[[str], str]) -> _Written:
    kind = found.type
    average, count, squares = name("average"), name("count"), name("squares")
    value, delta, moved = name("value"), name("delta"), name("moved")
    before = [f"{kind} {average} = {_zero(kind)}, {squares} = {_zero(kind)};", f"int {count} = 0;"]
    each = [
        f"const {kind} {value} = {found.value};",
        f"++{count};",
        f"const {kind} {delta} = {value} - {average};",
        f"{average} += {delta} / {count};",
        f"{squares} += {delta} * ({value} - {average});",
    ]
    total = f"{squares} + {count} * {moved} * {moved}"
    instead = [
        f"const {kind} {moved} = {average} - {found.reference};",
        f"{found.second.target} += " + (f"({total}){found.factor};" if found.factor else f"{total};"),
    ]
    return before, each, [], instead
