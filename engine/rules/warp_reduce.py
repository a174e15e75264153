"""A reduction tree in shared memory becomes shuffles between registers.

Source of the method: CUDA C++ Programming Guide, "Warp Shuffle Functions", and M. Harris, "Optimizing Parallel Reduction
in CUDA": the tree passes one barrier at each of its levels, shuffles need two or three in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.rules.blocks import SHUFFLED, WARP, compact, is_barrier, is_block, is_thread
from engine.rules.cases import configs_of
from engine.rules.common import (
    body_node,
    called,
    children,
    declaration_start,
    fresh,
    in_file,
    indent_at,
    proposal,
    sound,
    strip,
    text,
    walk,
)
from engine.rules.model import Proposal, Site
from engine.rules.reduction import tokens
from engine.rules.register_accumulate import with_pragma
from engine.rules.scope import inside, manageable, type_names
from engine.rules.threads import declarators, definition
from engine.source.model import Edit, Span

if TYPE_CHECKING:
    from tree_sitter import Node

Operation = Literal["sum", "max", "min"]
_LARGER, _SMALLER = ("fmaxf", "fmax", "max"), ("fminf", "fmin", "min")


@dataclass(frozen=True)
class Combined:
    """`array[place] = array[place] (op) array[place + distance]`. `function` is the author's, "" for operators."""

    array: str
    operation: Operation
    function: str


@dataclass(frozen=True)
class Tree:
    """A loop that reduces the block's elements of some arrays into their first elements.

    `live`: elements that are left when the loop ends (1: the result). `tail`: the statement that reduces those.
    """

    loop: Node
    combined: tuple[Combined, ...]
    live: int
    descending: bool
    barrier_first: bool
    condition: Node
    variable: str
    tail: Node | None


class WarpReduce:
    """Reduction trees over shared memory by warp shuffles: all levels, or the last five."""

    name = "warp_reduce"
    summary = "Reduce in registers by warp shuffles instead of a tree in shared memory"

    def propose(self, site: Site) -> Iterator[Proposal]:
        shared = {s.name: s for s in site.kernel.shared if len(s.extents) == 1}
        if not shared or not sound(site) or not manageable(site):
            return
        every = configs_of(site, {}) or site.configs
        if not every or any(c.block[1:] != (1, 1) or not _whole(c.block[0]) for c in every):
            return
        blocks = {c.block[0] for c in every}
        types = SHUFFLED | type_names(site)
        trees = []
        for node in walk(body_node(site)):
            tree = reduction_tree(site, node, blocks)
            if tree is not None and all(c.array in shared and shared[c.array].type in types for c in tree.combined):
                trees.append(tree)
        kinds = {name: array.type for name, array in shared.items()}
        trees = [t for t in trees if _only_first_used(site, t, trees)]
        for form, prior in (("registers", 0.6), ("tail", 0.45)):
            chosen = [t for t in trees if form == "registers" or (t.descending and min(blocks) >= 2 * WARP)]
            if not chosen or (form == "tail" and all(t.live == 1 and t.tail is not None for t in chosen)):
                continue
            what = "whole reduction" if form == "registers" else "last levels of the reduction"
            yield from proposal(
                self.name,
                f"Do the {what} by warp shuffles",
                in_file(site, *_edits(site, chosen, kinds, form)),
                prior,
                form=form,
                trees=len(chosen),
            )


def _whole(threads: int) -> bool:
    return threads >= WARP and threads & (threads - 1) == 0


def reduction_tree(site: Site, node: Node, blocks: set[int]) -> Tree | None:
    """The `for` statement as a reduction tree over the block; None for other statements."""
    parts = [node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")]
    if node.type != "for_statement" or any(p is None for p in parts):
        return None
    initializer, condition, update, body = (p for p in parts if p is not None)
    if initializer.type != "declaration" or body.type != "compound_statement":
        return None
    declared = declarators(initializer)
    s, start = declared[0] if len(declared) == 1 else ("", None)
    if start is None or not s:
        return None
    step, until = compact(update), re.sub(r"(?<=\d)u$", "", compact(strip(condition)))
    if step in (f"{s}>>=1", f"{s}/=2", f"{s}={s}>>1", f"{s}={s}/2"):
        ends = {f"{s}>0": 1, f"{s}>=1": 1, f"{s}!=0": 1, s: 1, f"0<{s}": 1}
        ends |= {f"{s}>32": 64, f"{s}>=64": 64, f"{s}>16": 32, f"{s}>=32": 32}
        live = ends.get(until)
        if live is None or not is_block(site, start, blocks, 2) or min(blocks) < 2 * live:
            return None
        found = _levels(site, body, s, descending=True)
    elif step in (f"{s}*=2", f"{s}<<=1", f"{s}={s}*2", f"{s}+={s}"):
        limit = strip(condition)
        sign, left, right = (limit.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or text(sign) != "<" or text(left) != s:
            return None
        if compact(start) not in ("1", "1u") or not is_block(site, right, blocks):
            return None
        live, found = 1, _levels(site, body, s, descending=False)
    else:
        return None
    if found is None:
        return None
    combined, barrier_first = found
    tail = _tail(site, node, combined, live) if live > 1 else None
    if live > 1 and tail is None:
        return None
    descending = ">" in step or "/" in step
    return Tree(node, combined, live, descending, barrier_first, condition, s, tail)


def _levels(site: Site, body: Node, s: str, *, descending: bool) -> tuple[tuple[Combined, ...], bool] | None:
    """What a level of the tree combines, and whether its barrier comes before it."""
    statements = children(body)
    barriers = [k for k, n in enumerate(statements) if is_barrier(site, n)]
    if len(barriers) != 1 or barriers[0] not in (0, len(statements) - 1):
        return None
    work = [n for n in statements if not is_barrier(site, n)]
    place = ""
    if len(work) == 2 and work[0].type == "declaration" and not descending:
        declared = declarators(work[0])
        factors = re.sub(r"[()\s]", "", text(declared[0][1])) if len(declared) == 1 and declared[0][1] else ""
        parts = sorted(factors.split("*"))
        if len(parts) != 3 or "2" not in parts or s not in parts:
            return None
        thread = next(p for p in parts if p not in ("2", s))
        if thread != "threadIdx.x" and compact(definition(site, thread)) != "threadIdx.x":
            return None
        place, work = declared[0][0], work[1:]
    if len(work) != 1 or work[0].type != "if_statement" or work[0].child_by_field_name("alternative") is not None:
        return None
    condition, inner = work[0].child_by_field_name("condition"), work[0].child_by_field_name("consequence")
    if condition is None or inner is None:
        return None
    bare = strip(condition)
    sign, left, right = (bare.child_by_field_name(f) for f in ("operator", "left", "right"))
    if bare.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    if place:
        if text(sign) != "<" or text(left) != place:
            return None
    elif descending:
        lower, upper = (left, right) if text(sign) == "<" else (right, left)
        if text(sign) not in ("<", ">") or compact(strip(upper)) != s or not is_thread(site, lower):
            return None
        place = tokens(lower)
    else:
        remainder = strip(left)
        if text(sign) != "==" or compact(right) != "0" or remainder.type != "binary_expression":
            return None
        numerator, by = remainder.child_by_field_name("left"), remainder.child_by_field_name("right")
        doubled = re.sub(r"[()\s]", "", text(by)) if by is not None else ""
        if numerator is None or not is_thread(site, numerator) or "%" not in [text(c) for c in remainder.children]:
            return None
        if doubled not in (f"2*{s}", f"{s}*2", f"{s}<<1"):
            return None
        place = tokens(strip(numerator))
    parts_ = children(inner) if inner.type == "compound_statement" else [inner]
    combined = [_combined(n, place, s) for n in parts_]
    if not combined or any(c is None for c in combined):
        return None
    return tuple(c for c in combined if c is not None), barriers[0] == 0


def _combined(statement: Node, place: str, distance: str) -> Combined | None:
    """The statement as one step of a reduction between two elements of one array."""
    condition = ""
    if statement.type == "if_statement" and statement.child_by_field_name("alternative") is None:
        tested, inner = statement.child_by_field_name("condition"), statement.child_by_field_name("consequence")
        if tested is None or inner is None:
            return None
        condition = tokens(strip(tested))
        statement = children(inner)[0] if inner.type == "compound_statement" and len(children(inner)) == 1 else inner
    inner_nodes = children(statement)
    if statement.type != "expression_statement" or len(inner_nodes) != 1:
        return None
    left, sign, right = (inner_nodes[0].child_by_field_name(f) for f in ("left", "operator", "right"))
    if left is None or sign is None or right is None or left.type != "subscript_expression":
        return None
    array = left.child_by_field_name("argument")
    if array is None or array.type != "identifier" or tokens(left) != f"{text(array)} [ {place} ]":
        return None
    name, operator = text(array), text(sign)
    others = (f"{name} [ {place} + {distance} ]", f"{name} [ {distance} + {place} ]")

    def short(written: str) -> str:
        for other in others:
            written = written.replace(other, "b")
        return written.replace(f"{name} [ {place} ]", "a").replace(" ", "")

    value, test = short(tokens(strip(right))), short(condition)
    if test:
        if operator != "=" or value != "b":
            return None
        bare = test.replace("=", "")
        if bare not in ("b>a", "a<b", "b<a", "a>b"):
            return None
        return Combined(name, "max" if bare in ("b>a", "a<b") else "min", "")
    if (operator == "+=" and value == "b") or (operator == "=" and value in ("a+b", "b+a")):
        return Combined(name, "sum", "")
    if operator != "=":
        return None
    call = re.fullmatch(r"(?:::)?(?:std::)?(\w+)\((?:a,b|b,a)\)", value)
    if call and call[1] in _LARGER + _SMALLER:
        return Combined(name, "max" if call[1] in _LARGER else "min", call[1])
    choice = re.fullmatch(r"\(?([ab])([<>])=?([ab])\)?\?([ab]):([ab])", value)
    if choice and choice[1] != choice[3] and choice[4] != choice[5]:
        larger = (choice[2] == ">") == (choice[1] == choice[4])
        return Combined(name, "max" if larger else "min", "")
    return None


def _tail(site: Site, loop: Node, combined: tuple[Combined, ...], live: int) -> Node | None:
    """The statement after the loop in which the first warp reduces what is left, without barriers."""
    statement = loop.next_named_sibling
    while statement is not None and (statement.type == "comment" or is_barrier(site, statement)):
        statement = statement.next_named_sibling
    if statement is None or statement.type != "if_statement" or len(combined) != 1:
        return None
    condition, inner = statement.child_by_field_name("condition"), statement.child_by_field_name("consequence")
    if condition is None or inner is None or statement.child_by_field_name("alternative") is not None:
        return None
    bare = strip(condition)
    sign, left, right = (bare.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or text(sign) != "<" or not is_thread(site, left) or compact(right) not in ("32", "warpSize"):
        return None
    parts = children(inner) if inner.type == "compound_statement" else [inner]
    thread = tokens(left) if left is not None else ""
    array = combined[0].array
    call = children(parts[0])[0] if len(parts) == 1 and children(parts[0]) else None
    if call is not None and call.type == "call_expression":
        function = next((f for f in site.unit.functions if f.name == called(call)), None)
        listed = call.child_by_field_name("arguments")
        given = [tokens(a) for a in children(listed)] if listed is not None else []
        if function is None or given not in ([array, thread], [array]):
            return None
        pointers = [p.name for p in function.parameters if p.pointer]
        others = [p.name for p in function.parameters if not p.pointer]
        block = next((n for n in function.node.children if n.type == "compound_statement"), None)
        if len(pointers) != 1 or block is None or (len(given) == 2) != (len(others) == 1):
            return None
        array, thread, parts = pointers[0], others[0] if others else "threadIdx.x", children(block)
    elif parts and parts[0].type == "declaration":
        match = re.fullmatch(r"volatile\w+\*(\w+)=(\w+);", compact(parts[0]))
        if not match or match[2] != array:
            return None
        array, parts = match[1], parts[1:]
    distance = live // 2
    for part in parts:
        if compact(part) == "__syncwarp();":
            continue
        step = _combined(part, thread, str(distance))
        if step is None or step.operation != combined[0].operation or step.array != array:
            return None
        distance //= 2
    return statement if distance == 0 else None


def _only_first_used(site: Site, tree: Tree, trees: list[Tree]) -> bool:
    """Whether nothing reads other elements of the arrays after the tree: those come out otherwise."""
    around: Node = tree.loop
    while around.parent is not None and around.parent != body_node(site):
        around = around.parent
        if around.type in ("for_statement", "while_statement", "do_statement"):
            break
    again = around.type in ("for_statement", "while_statement", "do_statement") and around != tree.loop
    end = tree.tail.end_byte if tree.tail is not None else tree.loop.end_byte
    covered = [n for t in trees for n in (t.loop, t.tail) if n is not None]
    for node in walk(body_node(site)):
        if node.type != "identifier" or text(node) not in {c.array for c in tree.combined}:
            continue
        if any(inside(node, c) for c in covered) or (node.start_byte < end and not (again and inside(node, around))):
            continue
        access = node.parent
        if access is None or access.type != "subscript_expression":
            return False
        index = access.child_by_field_name("indices")
        at = children(index)[0] if index is not None and len(children(index)) == 1 else None
        if compact(at) == "0" or (is_thread(site, at) and _by_first(site, access)):
            continue
        above = access.parent
        if above is None or above.type != "assignment_expression" or above.child_by_field_name("left") != access:
            return False
        if text(above.child_by_field_name("operator") or above) != "=":
            return False
    return True


def _by_first(site: Site, node: Node) -> bool:
    """Whether only the first thread comes here."""
    above = node.parent
    while above is not None and above != body_node(site):
        condition = above.child_by_field_name("condition") if above.type == "if_statement" else None
        consequence = above.child_by_field_name("consequence")
        if condition is not None and consequence is not None and inside(node, consequence):
            bare = strip(condition)
            sign, left, right = (bare.child_by_field_name(f) for f in ("operator", "left", "right"))
            if sign is not None and text(sign) == "==" and compact(right) == "0" and is_thread(site, left):
                return True
            if compact(bare)[:1] == "!" and is_thread(site, bare.child_by_field_name("argument")):
                return True
        above = above.parent
    return False


def _edits(site: Site, trees: list[Tree], kinds: dict[str, str], form: str) -> list[Edit]:
    helpers: dict[tuple[str, str, str], str] = {}
    written: list[str] = []
    edits: list[Edit] = []
    for tree in trees:
        indent = indent_at(site, tree.loop.start_byte)
        calls = []
        for combined in tree.combined:
            kind = kinds[combined.array]
            generic = kind in type_names(site)
            key = (combined.operation, "" if generic else kind, combined.function)
            if key not in helpers:
                base = f"block_{combined.operation}" if form == "registers" else f"warp_{combined.operation}"
                helpers[key] = fresh(site, base, list(helpers.values()))
                written.append(_helper(helpers[key], combined, kind, generic=generic, form=form))
            calls.append(f"{helpers[key]}({combined.array});")
        lines = ["__syncthreads();", *calls] if tree.barrier_first else calls
        after = ("\n" + indent).join(lines)
        if form == "registers":
            end = tree.tail.end_byte if tree.tail is not None else tree.loop.end_byte
            edits.append(Edit(Span(with_pragma(tree.loop), end), after))
            continue
        condition = strip(tree.condition)
        edits.append(Edit(Span(condition.start_byte, condition.end_byte), f"{tree.variable} >= {WARP}"))
        if tree.tail is not None:
            edits.append(Edit(Span(tree.tail.start_byte, tree.tail.end_byte), after))
        else:
            edits.append(Edit(Span(tree.loop.end_byte, tree.loop.end_byte), f"\n{indent}{after}"))
    start = declaration_start(site)
    return [Edit(Span(start, start), "".join(written)), *edits]


def _helper(name: str, combined: Combined, kind: str, *, generic: bool, form: str) -> str:
    """A device function that reduces the block's elements (or the first 32) of an array into its first element."""
    combine = {"sum": "value + other", "max": "other > value ? other : value", "min": "other < value ? other : value"}
    step = f"{combined.function}(value, other)" if combined.function else combine[combined.operation]
    what = {"sum": "Adds up", "max": "Finds the largest of", "min": "Finds the smallest of"}[combined.operation]
    # Combining an element twice changes a sum, and nothing else.
    first = (
        f"threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : static_cast<{kind}>(0)"
        if combined.operation == "sum"
        else "part[threadIdx.x < blockDim.x / 32 ? threadIdx.x : 0]"
    )

    def shuffles(indent: str) -> str:
        return (
            f"{indent}for (int offset = 16; offset > 0; offset /= 2) {{\n"
            f"{indent}    const {kind} other = __shfl_down_sync(0xffffffffu, value, offset);\n"
            f"{indent}    value = {step};\n"
            f"{indent}}}\n"
        )

    head = ("template <typename " + kind + ">\n" if generic else "") + (
        f"__device__ __forceinline__ void {name}({kind}* part) {{\n"
    )
    last = f"{shuffles('        ')}        if (threadIdx.x == 0) {{\n            part[0] = value;\n        }}\n    }}\n"
    if form == "tail":
        return (
            f"// {what} part[0] to part[31] into part[0], for the whole block.\n{head}"
            f"    if (threadIdx.x < 32) {{\n        {kind} value = part[threadIdx.x];\n{last}    __syncthreads();\n}}\n\n"
        )
    return (
        f"// {what} the block's elements of `part` into part[0]. Blocks hold whole warps.\n{head}"
        f"    {kind} value = part[threadIdx.x];\n{shuffles('    ')}"
        "    __syncthreads();\n"
        "    if (threadIdx.x % 32 == 0) {\n        part[threadIdx.x / 32] = value;\n    }\n"
        "    __syncthreads();\n"
        f"    if (threadIdx.x < 32) {{\n        value = {first};\n{last}    __syncthreads();\n}}\n\n"
    )


__all__ = ["Combined", "Tree", "WarpReduce", "reduction_tree"]
