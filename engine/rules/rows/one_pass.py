"""Two passes over the same elements become one.

A sum of exponentials is kept relative to the largest value so far and rescaled when that grows (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). A sum of squared deviations is kept around the mean so
far (Welford, 1962) or around the first value. What a thread has is then moved to the reference that the second pass
used, whatever lies between the passes: nothing, or a reduction over the threads that share the row.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.cuda.syntax import span, text
from engine.rewrite import Edit, Proposal, Site, Span, proposal, template
from engine.rules.rows.passes import Passes, passes


class OnePass:
    """Maximum and sum of exponentials, or mean and variance, in one loop over the row."""

    name = "one_pass"
    summary = "Merge two passes over a row into one"

    def propose(self, site: Site) -> Iterator[Proposal]:
        for number, found in enumerate(passes(site)):
            if found.kind == "exponentials":
                summary = "Online softmax: maximum and sum of exponentials in one pass"
                forms: tuple[tuple[str, str, float], ...] = (("online", "online_exponentials", 0.6),)
            else:
                summary = "Sum values and squared deviations in one pass"
                # One thread's long sum loses more digits around a first value than it may.
                long = 0.3 if text(found.first.start).isdigit() else 0.0
                forms = (("shifted", "shifted_squares", 0.6 - long), ("welford", "welford", 0.5 - long))
            for form, snippet, prior in forms:
                edits = site.in_file(*_rewrite(site, found, snippet))
                yield from proposal(self.name, summary, edits, prior, form=form, loop=number)


def _rewrite(site: Site, found: Passes, snippet: str) -> list[Edit]:
    first, second, unit = found.first, found.second, site.indent_unit
    before, each, after, instead = _written(site, found, snippet)
    inner = site.indent_at(first.statement.start_byte)
    outer = site.indent_at(first.node.start_byte)
    statement = text(first.statement) if found.kind == "squares" else ""
    lines = ([site.render(first.statement.start_byte, first.statement.end_byte)] if statement else []) + each
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
        edits.append(Edit(site.line_span(pragma), ""))
    edits.append(Edit(span(second.node), f"\n{site.indent_at(second.node.start_byte)}".join(instead)))
    return edits


def _written(site: Site, found: Passes, snippet: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """Lines before the first loop, in it, after it, and instead of the second loop."""
    single = found.type == "float"
    form = template("engine.rules", snippet)
    values = {f"{name}": number + "f" * single for name, number in (("zero", "0.0"), ("one", "1.0"), ("two", "2.0"))}
    values |= {"T": found.type, "element": found.value, "reference": found.reference, "target": found.second.target}
    values |= {"open": "(" if found.factor else "", "close": f"){found.factor}" if found.factor else ""}
    values |= {"largest": found.first.target, "smaller": "", "moved": ""} if found.kind == "exponentials" else {}
    for hole in form.holes:
        if hole not in values:
            values[hole] = site.fresh(hole, list(values.values()))
    after = []
    if found.kind == "exponentials":
        value, largest, f = values["value"], values["largest"], "f" * single
        # Equal infinities, which would make their difference no number, are told apart; minima and maxima would drop a NaN.
        values["smaller"] = _exponential(found, f"-fabs{f}({value} - {largest})")
        own = largest if found.kept else site.fresh("own", list(values.values()))
        after = [] if found.kept else [f"const {found.type} {own} = {largest};"]
        values["moved"] = "" if own == found.reference else f" * {_exponential(found, f'{own} - {found.reference}')}"
    parts = {name: part.render(**values).splitlines() for name, part in form.sections().items()}
    return parts["before"], parts["each"], after, parts["instead"]


def _exponential(found: Passes, difference: str) -> str:
    return f"{found.function}({difference if found.scale == '@' else found.scale.replace('@', f'({difference})')})"
