"""What rewrite rules share: walking the syntax tree, writing text in the author's style, changing the launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.arith import ArithmeticError_, Number, evaluate, evaluate_int
from engine.errors import OptimlError
from engine.rules.cases import visible
from engine.rules.clock import tick
from engine.rules.functions import MATH_FUNCTIONS
from engine.rules.model import Proposal, Site, once
from engine.source.model import Edit, Function, Span
from engine.source.parse import walk as every
from engine.spec.model import Case

if TYPE_CHECKING:
    from tree_sitter import Node

Edits = Mapping[str, tuple[Edit, ...]]

THREAD_NAMES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"})
_SAFE_WORD = re.compile(r"[A-Za-z_]\w*")
_UNSAFE_IN_MACRO = re.compile(
    r"[;{}#]|\b(?:threadIdx|blockIdx|blockDim|gridDim|warpSize|return|goto|break|continue|asm|__shared__|__sync\w*|__shfl\w*|"
    r"atomic\w*|if|for|while|do|switch)\b|(?<![=<>!])=(?!=)|\+\+|--"
)
_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast"})
_PRIMARY = frozenset({
    "identifier", "number_literal", "parenthesized_expression", "call_expression", "subscript_expression",
    "field_expression", "char_literal", "true", "false",
})  # fmt: skip


def text(node: Node) -> str:
    """The node's text as it stands in the file."""
    return (node.text or b"").decode("utf-8", "replace")


def span(node: Node) -> Span:
    """The node's range of bytes."""
    return Span(node.start_byte, node.end_byte)


def walk(node: Node) -> Iterable[Node]:
    """The node and all below it, in order of text."""
    tick(node.descendant_count)
    return every(node)


def names(node: Node) -> set[str]:
    """Every identifier below the node that may name a variable, function or macro (field names are left out)."""
    return {text(n) for n in walk(node) if n.type == "identifier"}


def children(node: Node) -> list[Node]:
    """The node's named children without comments."""
    return [c for c in node.named_children if c.type != "comment"]


def body_node(site: Site) -> Node:
    """The compound statement that is the kernel's body."""
    for node in walk(site.kernel.node):
        if node.type == "compound_statement":
            return node
    raise LookupError(f"no body in {site.kernel.name}")


def strip(node: Node) -> Node:
    """The expression inside parentheses and casts to integer types."""
    while True:
        if node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
            node = children(node)[0]
        elif node.type == "cast_expression" and _integer_type(node.child_by_field_name("type")):
            value = node.child_by_field_name("value")
            if value is None:
                return node
            node = value
        elif node.type == "call_expression":
            function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if function is None or arguments is None or len(children(arguments)) != 1:
                return node
            if function.type == "template_function":
                name, types = function.child_by_field_name("name"), function.child_by_field_name("arguments")
                if name is None or text(name) != "static_cast" or not _integer_type(types):
                    return node
            elif function.type != "primitive_type" or not _integer_type(function):
                return node
            node = children(arguments)[0]
        else:
            return node


_INTEGER = re.compile(
    r"<?\s*(?:const\s+)?(?:(?:std::)?(?:size_t|ptrdiff_t|u?int(?:32|64)_t)|uint|(?:unsigned|signed|long|int|\s)+)\s*>?\s*"
)


def _integer_type(node: Node | None) -> bool:
    return node is not None and bool(_INTEGER.fullmatch(text(node)))


def is_integer_type(written: str) -> bool:
    """Whether a type as written is an integer of at least 32 bits."""
    return bool(_INTEGER.fullmatch(written.strip()))


def operands(node: Node, operator: str) -> list[Node]:
    """The operands of a chain of one operator, parentheses and integer casts removed: `a + (b + c)` has three."""
    node = strip(node)
    if node.type == "binary_expression":
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is not None and left is not None and right is not None and text(sign) == operator:
            return operands(left, operator) + operands(right, operator)
    return [node]


def root_name(node: Node) -> str:
    """The variable that an lvalue belongs to: `a` for `a[i].x`, `*a`, `(a)`; "" where it cannot be told."""
    while node.type != "identifier":
        if node.type == "parenthesized_expression" and len(children(node)) == 1:
            node = children(node)[0]
        elif node.type in ("subscript_expression", "field_expression", "pointer_expression"):
            inner = node.child_by_field_name("argument")
            if inner is None:
                return ""
            node = inner
        else:
            return ""
    return text(node)


def written(node: Node) -> set[str]:
    """Names of variables (or arrays) that the code below the node may change; "" where a target cannot be told."""
    found: set[str] = set()
    for n in walk(node):
        if n.type == "assignment_expression":
            target = n.child_by_field_name("left")
        elif n.type == "update_expression":
            target = n.child_by_field_name("argument")
        elif n.type == "pointer_expression" and n.children and n.children[0].type == "&":
            target = n.child_by_field_name("argument")
            if n.parent is not None and _is_load_hint(n.parent):
                continue
        else:
            continue
        if target is not None:
            found.add(root_name(target))
    return found


def _is_load_hint(arguments: Node) -> bool:
    call = arguments.parent
    function = call.child_by_field_name("function") if call is not None and call.type == "call_expression" else None
    return function is not None and text(function) in ("__ldg", "__ldcs", "__ldca", "__ldcg")


def called(node: Node) -> str:
    """The name of the function that a call expression calls; "" where it is no plain name."""
    function = node.child_by_field_name("function")
    if function is None:
        return ""
    if function.type == "template_function":
        function = function.child_by_field_name("name") or function
    if function.type in ("identifier", "primitive_type", "qualified_identifier"):
        return text(function).removeprefix("std::").removeprefix("::")
    return ""


def function_macros(site: Site) -> dict[str, str]:
    """The function-like macros of the kernel's file: name to replacement text."""
    return _known(site.unit.data, site.unit.path)[0]


@lru_cache(maxsize=16)
def _known(data: bytes, path: str) -> tuple[dict[str, str], dict[str, Function]]:
    """Function-like macros and device functions of a file by name: asked for with every statement of a kernel."""
    from engine.source.parse import parse

    unit = parse(data, path)
    macros = {}
    for node in walk_directives(unit.root):
        if node.type == "preproc_function_def":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None:
                macros[text(name)] = text(value) if value is not None else ""
    return macros, {f.name: f for f in unit.functions if f.qualifier in ("device", "host device")}


def walk_directives(node: Node) -> Iterator[Node]:
    """The preprocessor directives below the node, function bodies left out."""
    for child in node.children:
        if child.type.startswith("preproc"):
            yield child
        if child.type not in ("compound_statement", "function_definition"):
            yield from walk_directives(child)


def local_only(site: Site, node: Node, allowed: frozenset[str] = frozenset()) -> bool:
    """Whether the code below the node does only what one thread can do alone.

    Holds where every call is a math function, a cast, one of `allowed`, or a function of the same file that is so;
    no barrier, shuffle, atomic, assembly, goto, lambda or shared memory occurs, and macros hold plain expressions.
    """
    macros, functions = _known(site.unit.data, site.unit.path)
    seen: set[str] = set()

    def fine(part: Node) -> bool:
        for n in walk(part):
            if n.type in (
                "lambda_expression",
                "goto_statement",
                "labeled_statement",
                "gnu_asm_expression",
            ):
                return False
            if n.type.startswith("preproc") and not _is_unroll(n):
                return False
            if n.type in ("identifier", "__shared__") and text(n) in ("__shared__", "asm", "__asm__"):
                return False
            if n.type == "identifier" and _UNSAFE_IN_MACRO.search(site.unit.macros.get(text(n), "")):
                return False
            if n.type == "call_expression":
                name = called(n)
                if name in MATH_FUNCTIONS or name in _CASTS or name in allowed:
                    continue
                if name in macros:
                    if _UNSAFE_IN_MACRO.search(macros[name]):
                        return False
                    continue
                if name not in functions:
                    return False
                if name not in seen:
                    seen.add(name)
                    if names(functions[name].node) & THREAD_NAMES or not fine(functions[name].node):
                        return False
        return True

    return fine(node) and "__shared__" not in text(node)


def _is_unroll(node: Node) -> bool:
    while node.type != "preproc_call":
        if node.parent is None or not node.type.startswith("preproc"):
            return False
        node = node.parent
    return bool(re.match(r"#\s*pragma\s+(?:GCC\s+)?unroll\b", text(node)))


def pure(node: Node) -> bool:
    """Whether evaluating the expression changes nothing: no assignment, and only math functions are called."""
    for n in walk(node):
        if n.type in (
            "assignment_expression",
            "update_expression",
            "lambda_expression",
            "new_expression",
            "comma_expression",
        ):
            return False
        if n.type == "call_expression" and called(n) not in MATH_FUNCTIONS and called(n) not in _CASTS:
            return False
    return True


@once
def sound(site: Site) -> bool:
    """Whether the kernel can be edited: nothing in or beside it unknown to the grammar, no `#if` in its body."""
    whole = Span(max(0, site.kernel.span.start - 1), site.kernel.span.end + 1)
    if any(error.overlaps(whole) or whole.contains(error) for error in site.unit.errors) or site.kernel.node.has_error:
        return False
    return not any(n.type.startswith("preproc") and not _is_unroll(n) for n in walk(site.kernel.node))


def render(site: Site, start: int, end: int, changes: Sequence[tuple[int, int, str]] = ()) -> str:
    """The file's text from `start` to `end` with `(start, end, replacement)` applied, newlines as `\\n`."""
    out, at = [], start
    for low, high, replacement in sorted(changes):
        if low < at or high > end:
            raise ValueError("changes overlap or leave the range")
        out += [site.unit.data[at:low].decode("utf-8"), replacement]
        at = high
    out.append(site.unit.data[at:end].decode("utf-8"))
    return "".join(out).replace("\r\n", "\n")


def replace_name(node: Node, name: str, replacement: str) -> list[tuple[int, int, str]]:
    """Changes for `render` that put `replacement` wherever the variable `name` stands below the node."""
    return [(n.start_byte, n.end_byte, replacement) for n in walk(node) if n.type == "identifier" and text(n) == name]


def grouped(node: Node) -> str:
    """The expression's text, in parentheses unless it binds tightest already."""
    return text(node) if node.type in _PRIMARY else f"({text(node)})"


def is_plain(written_text: str) -> bool:
    """Whether the text is one name or number, which needs no parentheses."""
    return bool(re.fullmatch(r"[\w.]+", written_text.strip()))


def fresh(site: Site, base: str, taken: Sequence[str] = ()) -> str:
    """A name made from `base` that occurs nowhere in the program's kernel file nor in `taken`."""
    used = _words(site.unit.data)
    names = (f"{base}{count}" if count > 1 else base for count in range(1, len(used) + len(taken) + 3))
    return next(name for name in names if name not in used and name not in taken)


@lru_cache(maxsize=64)  # a rule asks for several names in one text, and for the same ones at each point of a template
def _words(data: bytes) -> frozenset[str]:
    return frozenset(_SAFE_WORD.findall(data.decode("utf-8", "replace")))


def indent_at(site: Site, offset: int) -> str:
    """The white space that begins the line of a byte offset."""
    line = site.unit.data[site.unit.data.rfind(b"\n", 0, offset) + 1 : offset + 200]
    match = re.match(rb"[ \t]*", line)
    return match[0].decode() if match else ""


def indent_unit(site: Site) -> str:
    """One level of the kernel's indentation, as its author writes it; four spaces where that cannot be told."""
    outer = indent_at(site, body_node(site).start_byte)
    for statement in children(body_node(site)):
        inner = indent_at(site, statement.start_byte)
        if len(inner) > len(outer) and inner.startswith(outer):
            return inner[len(outer) :]
    return "    "


def reindent(block: str, old: str, new: str) -> str:
    """The lines of `block` with the leading `old` of each replaced by `new` (the first too; blank lines stay blank)."""
    lines = []
    for line in block.split("\n"):
        bare = line.removeprefix(old) if line.startswith(old) else line.lstrip()
        lines.append((new + bare).rstrip() if bare.strip() else "")
    return "\n".join(lines)


def line_span(site: Site, node: Node) -> Span:
    """The statement with its whole line where nothing else stands on it, so that deleting leaves no empty line."""
    data = site.unit.data
    start, end = node.start_byte, node.end_byte
    begin = data.rfind(b"\n", 0, start) + 1
    stop = data.find(b"\n", end)
    if stop >= 0 and not data[begin:start].strip() and not data[end:stop].strip():
        return Span(begin, stop + 1)
    return Span(start, end)


def pointers_distinct(site: Site) -> bool:
    """Whether no launch passes the same host expression for two pointers, and the spec passes no argument twice."""
    at = [k for k, p in enumerate(site.kernel.parameters) if p.pointer]
    for launch in site.launches:
        if len(launch.arguments) < len(site.kernel.parameters):
            return False
        # A host expression that shares a variable with another one may point into the same buffer (`buf`, `buf + n`).
        seen: set[str] = set()
        for k in at:
            used = set(_SAFE_WORD.findall(launch.arguments[k])) - {"nullptr", "NULL", "float", "int", "const", "double"}
            passed = {w for w in used if not re.search(rf"\b{w}\b\s*\(", launch.arguments[k])} or used
            if passed & seen:
                return False
            seen |= passed
    arguments = [site.spec.steps[site.step].arguments[k] for k in at if k < len(site.spec.steps[site.step].arguments)]
    return len(set(arguments)) == len(arguments)


def scalar_values(site: Site, case: Case) -> dict[str, Number]:
    """The values of the kernel's scalar parameters in one case, as far as they are numbers."""
    values: dict[str, Number] = {}
    for parameter, name in zip(site.kernel.parameters, site.spec.steps[site.step].arguments, strict=False):
        if not parameter.pointer:
            try:
                argument = site.spec.argument(name)
                values[parameter.name] = evaluate(argument.value or argument.name, case.sizes)
            except (KeyError, ArithmeticError_):
                continue
    return values


def value_in(site: Site, expression: str, case: Case) -> int | None:
    """The whole number that an expression over the kernel's parameters has in one case; None where it has none."""
    try:
        return evaluate_int(expression, scalar_values(site, case))
    except ArithmeticError_:
        return None


def ours_alone(site: Site, edits: Edits) -> bool:
    """Whether what is edited serves nothing but this spec's kernels and their launch: else no such edit would be let through."""
    from engine.source.edit import edit_program
    from engine.verify.screen import screen

    try:
        return screen(site.program, edit_program(site.program, edits), site.spec) is None
    except OptimlError:
        return False


def waves(site: Site) -> float:
    """How often the smallest launch of a timing case fills the target with threads; 0 where no launch is known."""
    resident = site.target.multiprocessors * site.target.max_threads_per_sm
    return min((c.blocks * c.threads / resident for c in site.configs), default=0.0)


def launch_edits(
    site: Site,
    *,
    grid: Sequence[str] | None = None,
    block: Sequence[str] | None = None,
    shared: str | None = None,
) -> dict[str, tuple[Edit, ...]] | None:
    """Edits that make every launch, and the spec's, use the given expressions over kernel parameters.

    None where the launch cannot be seen or rewritten. `grid` and `block` hold one to three expressions, `shared` bytes.
    """
    if not visible(site):
        return None
    from engine.source.launch import relaunch
    from engine.spec.rewrite import relaunch_spec

    try:
        host = relaunch(site.program, site.launches, site.kernel, grid=grid, block=block, shared=shared)
        spec = relaunch_spec(site.program, site.spec, site.step, grid=grid, block=block, shared=shared)
    except OptimlError:
        return None
    return merge(host, spec)


def merge(*parts: Edits | None) -> dict[str, tuple[Edit, ...]] | None:
    """All edits together; None where a part is None or two of them overlap."""
    merged: dict[str, list[Edit]] = {}
    for part in parts:
        if part is None:
            return None
        for path, edits in part.items():
            merged.setdefault(path, []).extend(e for e in edits if e not in merged.get(path, []))
    for found in merged.values():
        ordered = sorted(found, key=lambda e: e.span)
        if any(a.span.end > b.span.start or a.span == b.span for a, b in pairwise(ordered)):
            return None
    return {path: tuple(sorted(edits, key=lambda e: e.span)) for path, edits in merged.items() if edits}


def in_file(site: Site, *edits: Edit) -> dict[str, tuple[Edit, ...]]:
    """Edits of the kernel's own file, by path."""
    return {site.program.kernel_file: tuple(sorted(edits, key=lambda e: e.span))}


def proposal(rule: str, summary: str, edits: Edits | None, prior: float, **parameters: int | str) -> Iterator[Proposal]:
    """One proposal, or none where `edits` is None or empty."""
    if edits:
        yield Proposal("rules", rule, summary, edits, parameters, prior)


def declaration_start(site: Site) -> int:
    """Where something new may be defined before the kernel: above the comments that stand directly over it."""
    start = site.kernel.span.start
    node = site.kernel.node
    while node.parent is not None and node.parent.start_byte == start and node.parent.type != "translation_unit":
        node = node.parent
    above = node.prev_sibling
    while above is not None and above.type == "comment":
        between = site.unit.data[above.end_byte : start]
        begin = site.unit.data.rfind(b"\n", 0, above.start_byte) + 1
        if between.strip() or between.count(b"\n") != 1 or site.unit.data[begin : above.start_byte].strip():
            break
        start, above = above.start_byte, above.prev_sibling
    return start
