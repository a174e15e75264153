"""Recognises the work of a stencil's element that does not end early: a straight line behind tests of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cuda.declarations import declarators
from engine.cuda.effects import pure
from engine.cuda.syntax import children, inside, names, text, walk
from engine.rewrite import Node, Site
from engine.rules.coarsen import covered
from engine.rules.idioms.packs import element_size
from engine.rules.idioms.thread_index import ThreadMap
from engine.rules.stencil.stencil_block import may_repeat
from engine.rules.stencil.stencil_form import Stencil, patches, stencils

VECTOR_BYTES = 16
_BRANCHES = ("conditional_expression", "lambda_expression")


@dataclass(frozen=True)
class Exit:
    """A condition under which an element's work ends early; with `holds`, unless it holds."""

    condition: Node
    holds: bool


@dataclass(frozen=True)
class Work:
    """What one element does, in order: its declarations and statements, and before which of them it may end early."""

    kept: tuple[Node, ...]
    exits: tuple[tuple[int, Exit], ...]  # with the number of `kept` before it


@dataclass(frozen=True)
class Packed:
    """A kernel with an element for each thread, the arrays that it reads beside its element, and the work of an element inside."""

    site: Site
    map: ThreadMap
    work: Work
    read: tuple[Stencil, ...]
    stored: tuple[Stencil, ...]
    count: int  # elements of a vector
    deep: int  # threads of a block along z


def packed(site: Site) -> Packed | None:
    """The kernel whose elements inside have straight-line work; None for other kernels."""
    if not site.launch_visible or not stencils(site):
        return None
    found = patches(site)
    mapping = found.read[0].map
    sizes = {element_size(site, s.element) for s in (*found.read, *found.stored)}
    size = sizes.pop() if len(sizes) == 1 else None
    if not found.whole or not found.stored or size is None or VECTOR_BYTES // size < 2 or not may_repeat(site):
        return None
    if any(not i.alone for i in mapping.indices) or any(s.low[a] or s.high[a] for s in found.stored for a in s.axes):
        return None
    work = _work(site, mapping)
    if work is None or covered(site, mapping, site.configs_after({}) or ()) is None:
        return None
    read = tuple(s for s in found.read if any(inside(r.node, part) for r in s.reads for part in work.kept))
    deep = {c.block[2] for c in site.configs}
    match = Packed(site, mapping, work, read, found.stored, VECTOR_BYTES // size, max(deep))
    return match if len(deep) == 1 and _plain(match) else None


def _work(site: Site, mapping: ThreadMap) -> Work | None:
    """The work of an element that does not end early; None where it is no straight line."""
    kept: list[Node] = []
    exits: list[tuple[int, Exit]] = []
    drop = {i.declaration for i in mapping.indices}

    def take(statements: Sequence[Node]) -> bool:
        for k, statement in enumerate(statements):
            condition, then, other = (
                statement.child_by_field_name(f) for f in ("condition", "consequence", "alternative")
            )
            if statement in drop:
                continue
            if statement.type == "if_statement" and condition is not None and then is not None:
                if other is None and _leaves(then):
                    exits.append((len(kept), Exit(condition, holds=False)))
                    continue
                if k + 1 < len(statements):
                    return False
                # Of two branches the border's has fewer accesses.
                inner = children(other)[0] if other is not None and other.type == "else_clause" else other
                holds = inner is None or _accesses(then) >= _accesses(inner)
                exits.append((len(kept), Exit(condition, holds)))
                branch = then if holds or inner is None else inner
                return take(children(branch) if branch.type == "compound_statement" else [branch])
            if statement.type not in ("declaration", "expression_statement"):
                return False
            kept.append(statement)
        return True

    if not take(children(site.body)):
        return None
    # Nothing is done before the last early end but to declare.
    last = exits[-1][0] if exits else 0
    if any(part.type != "declaration" for part in kept[:last]):
        return None
    return Work(tuple(kept), tuple(exits))


def _accesses(statement: Node) -> int:
    return sum(n.type == "subscript_expression" for n in walk(statement))


def _leaves(statement: Node) -> bool:
    final = children(statement)[-1] if statement.type == "compound_statement" and children(statement) else statement
    return final.type == "return_statement"


def _plain(match: Packed) -> bool:
    """Whether early ends depend on whole numbers alone, each array is stored once, and no branch decides on a load."""
    reads = [r for s in match.read for r in s.reads if any(inside(r.node, part) for part in match.work.kept)]
    if any(d.constant is None for r in reads for d in r.distance.values()):
        return False
    for s in match.stored:
        mine = [r.node for r in s.reads if any(inside(r.node, part) for part in match.work.kept)]
        if len(mine) != 1 or not _statement_of(mine[0], match.work):
            return False
    for read in reads:
        above = read.node.parent
        while above is not None and above not in match.work.kept:
            sign = above.child_by_field_name("operator")
            if above.type in _BRANCHES or (sign is not None and text(sign) in ("&&", "||")):
                return False
            above = above.parent
    return all(conditions(match, number) is not None for number in range(len(match.work.exits)))


def _statement_of(target: Node, work: Work) -> bool:
    """Whether the access is what one of the statements assigns to, by `=`."""
    parent = target.parent
    sign = parent.child_by_field_name("operator") if parent is not None else None
    if parent is None or parent.type != "assignment_expression" or sign is None or text(sign) != "=":
        return False
    return parent.child_by_field_name("left") == target and parent.parent in work.kept


def conditions(match: Packed, number: int) -> list[Node] | None:
    """The declarations that an early end's condition needs, in order; None where it needs more than whole numbers."""
    before, end = match.work.exits[number]
    if not pure(end.condition) or _loads(end.condition):
        return None
    wanted = names(end.condition)
    needed = []
    for part in reversed(match.work.kept[:before]):
        if part.type == "declaration" and wanted & {name for name, _ in declarators(part)}:
            if _loads(part) or not pure(part):
                return None
            wanted |= names(part)
            needed.append(part)
    return needed[::-1]


def _loads(node: Node) -> bool:
    return any(n.type in ("subscript_expression", "pointer_expression", "call_expression") for n in walk(node))


__all__ = ["VECTOR_BYTES", "Exit", "Packed", "Work", "conditions", "packed"]
