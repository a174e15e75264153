"""Conditions in preprocessed device code, each marked so that runs report which of its two outcomes occurred."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cpu.counted_loops import constants, is_counted
from engine.cpu.grid_bounds import GridBound, grid_bound
from engine.cpu.restricted_pairs import restricted_pairs
from engine.cpu.settled_names import PARAMETER, settled
from engine.cuda.parse import syntax_tree

if TYPE_CHECKING:
    from tree_sitter import Node

MOST = 4096  # conditions of one object, as in runtime/screen.cpp
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "not_eq"})
_LOGICAL = frozenset({"&&", "||", "and", "or"})
_BITWISE = frozenset({"&", "|", "^", "bitand", "bitor", "xor"})
_TESTS = frozenset({"if_statement", "while_statement", "do_statement", "for_statement", "conditional_expression"})
_WRAPPED = ("condition_clause", "parenthesized_expression")
_CONSTANTS = frozenset({"number_literal", "true", "false", "char_literal"})
_DECLARES = frozenset({"declaration", "init_declarator"})
# Where only constants stand.
_SKIPPED = frozenset(
    {
        "template_argument_list", "template_parameter_list", "static_assert_declaration", "sizeof_expression", "alignof_expression",
        "decltype", "array_declarator", "attribute_specifier", "attribute_declaration", "alignas_qualifier", "enumerator",
        "requires_clause", "noexcept", "bitfield_clause",
    }
)  # fmt: skip
_MARKER = re.compile(rb'^# (\d+) "((?:[^"\\\n]|\\.)*)"[^\n]*$', re.M)
# Forms that hold, or do not, for every positive number.
_ZERO = re.compile(r"0 (?:<|!=|==|>=) (\w+)|1 (?:<=|>) (\w+)|(\w+) (?:>|!=|==|<=) 0|(\w+) (?:>=|<) 1")
_HELPERS = """\
extern "C" void optiml_seen(unsigned id, int outcome, int constant);
#define OPTIML_MARK static inline __attribute__((always_inline)) constexpr
OPTIML_MARK bool optiml_sees(unsigned id, bool outcome, bool constant) {
    if (!__builtin_is_constant_evaluated()) optiml_seen(id, outcome, constant);
    return outcome;
}
OPTIML_MARK void optiml_reaches(unsigned id) {
    if (!__builtin_is_constant_evaluated()) optiml_seen(id, 1, 0);
}
"""


@dataclass(frozen=True)
class MarkedCondition:
    """A condition: its line and its words. A label of a switch is only ever true.

    `marked` is false where runs cannot report it: it declares a variable, or there are too many. `positive` names the parameter
    that it compares with zero and that nothing changes or hides; `bound` is what the grid's extent makes impossible. `apart`: no
    condition, but that two restricted pointers are one, which must never be true.
    """

    line: int
    text: str
    label: bool = False
    marked: bool = True
    positive: str = ""
    bound: GridBound | None = None
    apart: bool = False


@dataclass(frozen=True)
class Marked:
    """A text whose conditions report by their number.

    `unread` is the first line that could not be parsed, 0 for none; `unread_in` the definitions in which such lines stand.
    """

    text: str
    conditions: tuple[MarkedCondition, ...]
    unread: int = 0
    unread_in: frozenset[str] = frozenset()


def mark_conditions(text: str, name: str, end: str) -> Marked:
    """Mark the conditions of the file `name` in what the preprocessor made of it, up to the line marker of `end`.

    What the compiler's options included before that file is left out. Code of included system files stays as it is.
    """

    data = text.encode()
    data = data[max(0, data.find(b'# 1 "%s"' % name.encode())) :]
    own, lines = _own(data, end)
    root = syntax_tree(own)
    conditions: list[MarkedCondition] = []
    fixed = {name for name, kind in settled(root).items() if kind == PARAMETER}
    edits: list[tuple[int, int, int, str]] = []  # place, order there, text
    for node in _found(root):
        words = " ".join(own[node.start_byte : node.end_byte].decode(errors="replace").split())
        number, label, size = len(conditions), node.type == "case_statement", node.end_byte - node.start_byte
        marked = number < MOST and node.type not in _DECLARES
        if label:
            colon = next(child for child in node.children if child.type == ":")
            words = " ".join(own[node.start_byte : colon.start_byte].decode(errors="replace").split())
            edits.append((colon.end_byte, 0, size, f" optiml_reaches({number});"))
        elif marked:
            constant = f"__builtin_constant_p(static_cast<bool>({words}))"
            edits.append((node.start_byte, 1, -size, f"(optiml_sees({number}, static_cast<bool>("))
            edits.append((node.end_byte, 0, size, f"), {constant}))"))
        bare = _ZERO.fullmatch(words)
        positive = next((name for name in bare.groups() if name in fixed), "") if bare else ""
        conditions.append(
            MarkedCondition(lines(node.start_byte), words, label, marked, positive, grid_bound(node, root))
        )
    for pair in restricted_pairs(root):
        number, one, other = len(conditions), pair.first, pair.second
        if number < MOST:
            same = f"{one} && (const volatile void*){one} == (const volatile void*){other}"
            edits.append((pair.body, 0, 0, f" optiml_sees({number}, {same}, false);"))
            conditions.append(MarkedCondition(lines(pair.body), pair.words, apart=True))
    out, at = [_HELPERS.encode()], 0
    for place, _, _, new in sorted(edits):
        out += [data[at:place], new.encode()]
        at = place
    wrong = list(_errors(root))
    return Marked(
        b"".join([*out, data[at:]]).decode(),
        tuple(conditions),
        lines(wrong[0].start_byte) if wrong else 0,
        frozenset(_definition(node) for node in wrong),
    )


class _SourceLines:
    """The line of its own file at a place of a preprocessed text."""

    def __init__(self, data: bytes, markers: list[tuple[int, int]]) -> None:
        self._data, self._markers = data, markers

    def __call__(self, at: int) -> int:
        start, first = next(((place, line) for place, line in reversed(self._markers) if place <= at), (0, 1))
        return first + self._data.count(b"\n", start, at)


def _own(data: bytes, end: str) -> tuple[bytes, _SourceLines]:
    """The text with blanks in the place of line markers and of what files of the system brought: as long as before."""
    out, at, foreign = [], 0, False
    markers: list[tuple[int, int]] = []
    for match in [*_MARKER.finditer(data), None]:
        part = data[at : match.start() if match else len(data)]
        out.append(_blank(part) if foreign else part)
        if match:
            name = match[2].decode(errors="replace")
            foreign = name.startswith(("/", "<")) or name == end
            markers.append((match.end() + 1, int(match[1])))
            out.append(_blank(match[0]))
            at = match.end()
    return b"".join(out), _SourceLines(data, markers)


def _blank(part: bytes) -> bytes:
    return re.sub(rb"[^\n]", b" ", part)


def _errors(node: Node) -> Iterator[Node]:
    if node.type == "ERROR" or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from _errors(child)


def _definition(node: Node) -> str:
    """The text of the definition that holds a node, without line breaks."""
    while node.parent is not None and node.parent.type not in ("translation_unit", "declaration_list"):
        node = node.parent
    return " ".join((node.text or b"").decode(errors="replace").split())


def _found(root: Node) -> list[Node]:
    """What functions test: conditions, their operands that are truth values, comparisons, labels of a switch. Each once."""
    found: dict[tuple[int, int], Node] = {}
    known = constants(root)
    stack = [(root, False)]
    while stack:
        node, inside = stack.pop()
        if node.type in _SKIPPED or _assumes(node):
            continue
        inside = inside or node.type == "compound_statement"
        if (value := _declared_value(node)) is not None:
            stack.append((value, inside))
            continue
        if is_counted(node, known):  # a mark would keep the compiler from unrolling it
            stack.append((node.child_by_field_name("body") or node, inside))
            continue
        if inside:
            for one in map(_bare, _tested(node)):
                if one.type not in _CONSTANTS:
                    found.setdefault((one.start_byte, one.end_byte), one)
        stack += [(child, inside) for child in reversed(node.children)]
    return list(found.values())


def _assumes(node: Node) -> bool:
    """Whether it is what `__builtin_assume` became: no condition, as nothing is done where it is false."""
    function = node.child_by_field_name("function") if node.type == "call_expression" else None
    return function is not None and (function.text or b"").lstrip(b":") == b"optiml::assume"


def _declared_value(node: Node) -> Node | None:
    """The value of a declaration `a<32> b = value` that the grammar took for comparisons: no operand of one is a bare assignment."""
    right = node.child_by_field_name("right")
    if node.type != "binary_expression" or _operator(node) != ">" or right is None:
        return None
    return right.child_by_field_name("right") if right.type == "assignment_expression" else None


def _tested(node: Node) -> Iterator[Node]:
    if node.type == "case_statement" and any(child.type == ":" for child in node.children):
        yield node
    if node.type in _TESTS and not any(child.type == "constexpr" for child in node.children):
        condition = node.child_by_field_name("condition")
        if condition is not None:
            yield condition
    if node.type == "unary_expression" and _operator(node) in ("!", "not"):
        yield from node.named_children[-1:]
    if node.type == "binary_expression" and _is_truth(node):
        yield node
        if _operator(node) in _LOGICAL:
            yield from node.named_children


def _is_truth(node: Node) -> bool:
    """Whether an expression is a truth value by its form."""
    node = _bare(node)
    operator = _operator(node)
    if node.type == "unary_expression":
        return operator in ("!", "not")
    if node.type != "binary_expression":
        return False
    return operator in _COMPARISONS | _LOGICAL or (operator in _BITWISE and all(map(_is_truth, node.named_children)))


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return operator.type if operator is not None else ""


def _bare(node: Node) -> Node:
    while node.type in _WRAPPED:
        inner = node.child_by_field_name("value") or next(iter(node.named_children), None)
        if inner is None:
            break
        node = inner
    return node
