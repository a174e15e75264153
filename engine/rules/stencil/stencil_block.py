"""The threads of a block that compute a stencil, and several elements for each of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.cuda.syntax import children, walk
from engine.rewrite import Edit, Edits, Site, Span, ceil_div, merge, reindent
from engine.rules.idioms import AXES, Axis, Index, covered
from engine.rules.stencil.stencil_form import Stencil

_LOOPS = ("for_statement", "while_statement", "do_statement")


@dataclass(frozen=True)
class Shape:
    """Threads of a block by axis; how many elements along `along` each computes."""

    block: tuple[int, int, int]
    along: Axis
    per: int
    moved: bool  # whether the launch changes

    def threads(self, axis: Axis) -> int:
        return self.block[AXES.index(axis)]

    def covers(self, axis: Axis) -> int:
        return self.threads(axis) * (self.per if axis == self.along else 1)


@dataclass(frozen=True)
class Loop:
    """What stands around a repeated body, line by line: above the loop, on its head, and first in each step."""

    step: str
    before: Sequence[str] = ()
    head: Sequence[str] = ()
    inside: Sequence[str] = ()


def may_repeat(site: Site) -> bool:
    """Whether the statements may stand in a loop: every `return` can become `continue`."""
    for node in walk(site.body):
        if node.type == "return_statement":
            above = node.parent
            while above is not None and above != site.body:
                if above.type in (*_LOOPS, "switch_statement"):
                    return False
                above = above.parent
    return True


def repeated(
    site: Site,
    shape: Shape,
    index: Index,
    loop: Loop,
    reads: Mapping[tuple[int, int], str],
) -> list[Edit]:
    """The body in a loop over the thread's elements along one axis, with the text of its reads replaced by span."""
    body = site.body
    indent, unit = site.indent_at(children(body)[0].start_byte), site.indent_unit
    axis, step, threads = shape.along, loop.step, shape.threads(shape.along)
    own = f" + threadIdx.{axis} + {step} * {threads}" if threads > 1 else f" + {step}"
    first = f"blockIdx.{axis} * {shape.covers(axis)}{own}"
    drop = site.line_span(index.declaration)
    declarator = index.declaration.child_by_field_name("declarator") or index.declaration
    declared = site.render(index.declaration.start_byte, declarator.start_byte)
    start = body.start_byte + 1
    start += len(site.unit.data[start:].split(b"\n", 1)[0]) + 1  # from the next line
    end = children(body)[-1].end_byte
    changes = [(a, b, place) for (a, b), place in reads.items()]
    changes += [(n.start_byte, n.end_byte, "continue;") for n in walk(body) if n.type == "return_statement"]
    changes.append((drop.start, drop.end, ""))
    inner = reindent(site.render(start, end, changes), indent, indent + unit)
    lines = [
        *(indent + line for line in loop.before),
        *(indent + line for line in loop.head),
        f"{indent}for (int {step} = 0; {step} < {shape.per}; ++{step}) {{",
        f"{indent}{unit}{declared}{index.name} = {first};",
        *(indent + unit + line for line in loop.inside),
        inner,
        f"{indent}}}",
    ]
    return [Edit(Span(start, end), "\n".join(lines))]


def launched(site: Site, form: Stencil, shape: Shape, edits: list[Edit]) -> Edits | None:
    """The kernel's edits with the launch that the shape needs; None where it cannot be written or does not come out so."""
    launch = None
    if shape.moved:
        bounds = covered(site, form.map, site.configs_after({}) or ())
        if bounds is None:
            return None
        grid = [ceil_div(least(bounds[a]), shape.covers(a)) for a in AXES if a in bounds]
        launch = site.launch_edits(grid=grid, block=[str(shape.threads(a)) for a in AXES if a in bounds])
        if launch is None:
            return None
    merged = merge(site.in_file(*edits), launch or {})
    after = site.configs_after(merged) if merged is not None else None
    return merged if after is not None and {c.block for c in after} == {shape.block} else None


def least(bound: str) -> str:
    """An extent that covers the bound, and is not 0 where the array has elements: the `n` of `n - 1`."""
    inner = re.fullmatch(r"(\w+) - \d+", bound)
    return inner[1] if inner is not None else bound
