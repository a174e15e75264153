"""What a kernel's names stand for: declarations by scope, pointers by their array, array accesses by their index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from engine.cuda.declarations import Declared, variables
from engine.cuda.definitions import expression
from engine.cuda.effects import assigned
from engine.cuda.kernel import Function, Unit
from engine.cuda.macros import expansion
from engine.cuda.parse import once_a_node
from engine.cuda.polynomial import Polynomial, number, polynomial
from engine.cuda.syntax import called, children, inside, strip, text, walk

_LOAD_HINTS = ("__ldg", "__ldcs", "__ldca", "__ldcg")
_CONSTANT = re.compile(rb"\b__constant__\s[\w\s:]*?\b([A-Za-z_]\w*)\s*\[")
_PRODUCTS = ("__mul24", "__umul24")
_MAX_STEPS = 8


@dataclass(frozen=True)
class ElementAccess:
    """One access to an element of an array that a parameter points to.

    `index` counts elements from the parameter's value; None where it cannot be told.
    """

    array: str
    index: Polynomial | None
    writes: bool
    reads: bool
    node: Node


class Scope:
    """The names of the body of a kernel, or of another function."""

    def __init__(self, unit: Unit, kernel: Function, keep: frozenset[str] = frozenset()) -> None:
        """`keep` are names never replaced by their definition."""
        self.body = kernel.block
        self.keep = keep
        self.pointers = {p.name for p in kernel.parameters if p.pointer}
        self.parameters = {p.name: p for p in kernel.parameters}
        self.constant = {m[1].decode() for m in _CONSTANT.finditer(unit.data)}
        self.declared: dict[str, list[Declared]] = {}
        self._starts: dict[str, tuple[str, Polynomial | None] | None] = {}
        self._uses: dict[int, list[ElementAccess] | None] = {}
        self._source = unit.data, unit.path
        self._homes: dict[
            int, tuple[Node, Node]
        ] = {}  # an expanded macro by its root's id: where it is called, the root
        for node in walk(self.body):
            if node.type == "declaration":
                for found in variables(node):
                    self.declared.setdefault(found.name, []).append(found)

    def lookup(self, name: str, at: Node) -> Declared | None:
        """The declaration that the name means where `at` stands; None for parameters and what is declared outside."""
        fitting = [d for d in self.declared.get(name, []) if inside(at, d.scope) and d.node.start_byte <= at.start_byte]
        return max(fitting, key=lambda d: d.scope.start_byte, default=None)

    def same(self, declared: Declared | None, name: str, within: Node) -> list[Node]:
        """Every use of the variable below `within`: identifiers of that name that mean this declaration."""
        return [n for n in _identifiers(within).get(name, ()) if self.lookup(name, n) == declared]

    def changed(self, declared: Declared) -> bool:
        """Whether the variable is assigned after its declaration, or its address is taken."""
        return declared.name in _changed_names(declared.scope)

    def resolve(self, node: Node) -> Node | None:
        """What may stand in its place: the initialiser of a variable that never changes, the expression of a macro."""
        if node.type == "call_expression":
            arguments = node.child_by_field_name("arguments")
            given = [text(c) for c in children(arguments)] if arguments is not None else []
            expanded = expansion(called(node), given, *self._source)
            if called(node) in _PRODUCTS and len(given) == 2:  # of 24 bits, as numbers of threads have
                expanded = expression(f"({given[0]}) * ({given[1]})")
            if expanded is not None:
                root = _root(expanded)
                self._homes[root.id] = self._home(node), root
            return expanded
        name = text(node)
        if name in self.keep:
            return None
        found = self.lookup(name, self._home(node))
        if found is None or found.shape != "scalar" or found.value is None or self.changed(found):
            return None
        value = strip(found.value)
        # A float or a conversion to a narrower type must not be looked through.
        if value.type in ("initializer_list", "conditional_expression") or not _counts(found.type):
            return None
        return found.value

    def _home(self, node: Node) -> Node:
        """The place in the kernel: for a part of an expanded macro, where the macro is called."""
        return self._homes.get(_root(node).id, (node, node))[0] if self._homes else node

    def index(self, node: Node) -> Polynomial | None:
        """An index expression as a polynomial over what is not defined in the body."""
        return polynomial(node, self.resolve)

    def base(self, node: Node, steps: int = 0) -> tuple[str, Polynomial | None] | None:
        """Which parameter a pointer expression points into, and how many elements after its start."""
        node = strip(node)
        if steps > _MAX_STEPS:
            return None
        if node.type == "identifier":
            name = text(node)
            found = self.lookup(name, node)
            if found is None:
                return self._parameter(name) if name in self.pointers else None
            if found.shape != "pointer" or found.value is None or self.changed(found):
                return None
            return self.base(found.value, steps + 1)
        if node.type == "binary_expression" and text(node.child_by_field_name("operator") or node) == "+":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is None or right is None:
                return None
            for pointer, offset in ((left, right), (right, left)):
                origin = self.base(pointer, steps + 1)
                if origin is not None:
                    further = self.index(offset)
                    known = origin[1] is not None and further is not None
                    return origin[0], origin[1].plus(further) if known and origin[1] and further else None
            return None
        if node.type == "pointer_expression" and text(node).startswith("&"):
            target = node.child_by_field_name("argument")
            if target is not None and strip(target).type == "subscript_expression":
                return self.element(strip(target))
            return None
        # A cast to another element type: the array is known, the element is not.
        inner = node.child_by_field_name("value") if node.type == "cast_expression" else None
        if node.type == "call_expression" and "reinterpret_cast" in text(node)[:20]:
            arguments = node.child_by_field_name("arguments")
            inner = children(arguments)[0] if arguments is not None and children(arguments) else None
        origin = self.base(inner, steps + 1) if inner is not None else None
        return (origin[0], None) if origin is not None else None

    def _parameter(self, name: str) -> tuple[str, Polynomial | None] | None:
        """The array of a pointer parameter, without a place in it where the pointer moves; None where it may become another."""
        if name not in self._starts:
            uses = [n for n in self.same(None, name, self.body) if n.parent is not None]
            changes = [n.parent for n in uses if n.parent is not None and assigned(n.parent) == n]
            taken = any(
                n.parent is not None and n.parent.type == "pointer_expression" and text(n.parent)[0] == "&"
                for n in uses
            )
            other = taken or not all(_advances(change, name) for change in changes)
            self._starts[name] = None if other else (name, None if changes else number(0))
        return self._starts[name]

    def element(self, subscript: Node) -> tuple[str, Polynomial | None] | None:
        """Array and index of `p[i]` or `*p`; None where the array cannot be told."""
        pointer = subscript.child_by_field_name("argument")
        if pointer is None:
            return None
        origin = self.base(pointer)
        if origin is None or subscript.type == "pointer_expression":
            return origin
        indices = subscript.child_by_field_name("indices")
        if indices is None or len(children(indices)) != 1:
            return origin[0], None
        at = self.index(children(indices)[0])
        return origin[0], origin[1].plus(at) if origin[1] is not None and at is not None else None

    def uses(self, node: Node) -> list[ElementAccess] | None:
        """Every access below the node; None where one cannot be told (unknown array, a pointer handed on)."""
        if node.id not in self._uses:
            self._uses[node.id] = self._found(node)
        return self._uses[node.id]

    def _found(self, node: Node) -> list[ElementAccess] | None:
        found = []
        accounted: set[int] = set()  # where the names stand that an access starts from
        for n in walk(node):
            star = n.type == "pointer_expression" and text(n).startswith("*")
            if n.type != "subscript_expression" and not star:
                continue
            origin = self.element(n)
            pointer = n.child_by_field_name("argument")
            if origin is None and not (pointer is not None and self.apart(pointer)):
                return None
            accounted |= {i.start_byte for i in walk(pointer or n) if i.type == "identifier"}
            if origin is None:
                continue
            if n.parent is not None and n.parent.type == "pointer_expression" and self._defines(n):
                continue  # `&x[i]` that only starts another pointer touches nothing
            reads, writes = _direction(n)
            found.append(ElementAccess(origin[0], origin[1], writes, reads, n))
        for n in walk(node):
            if n.type != "identifier" or not self._pointer(n):
                continue
            if n.start_byte in accounted or self._defines(n) or _compared(n) or _declares_array(n):
                continue
            return None
        return found

    def apart(self, array: Node) -> bool:
        """Whether no parameter can point into it: the thread's own array, one in its own struct, or one in constant memory."""
        array = strip(array)
        while array.type == "subscript_expression":
            array = strip(array.child_by_field_name("argument") or array.children[0])
        if array.type == "field_expression":
            return self._own_field(array)
        found = self.lookup(text(array), array) if array.type == "identifier" else None
        if found is not None:
            return found.shape == "array" and "__shared__" not in text(found.node)
        return text(array) in self.constant and text(array) not in self.parameters

    def _own_field(self, field: Node) -> bool:
        """Whether it is an array of a local struct that the file defines: `pack.at`."""
        owner, member = field.child_by_field_name("argument"), field.child_by_field_name("field")
        found = self.lookup(text(owner), owner) if owner is not None and owner.type == "identifier" else None
        if found is None or member is None or found.shape != "scalar":
            return False
        kind = re.escape(found.type.split()[-1].encode())
        array = rb"\b%s\s*\{[^{}]*\b%s\s*\[" % (kind, re.escape(text(member).encode()))
        return re.search(array, self._source[0]) is not None

    def _pointer(self, identifier: Node) -> bool:
        name = text(identifier)
        found = self.lookup(name, identifier)
        return found.shape != "scalar" if found is not None else name in self.pointers

    def _defines(self, part: Node) -> bool:
        """Whether the node only defines another pointer (`const float* in = x + row * n`) or is declared here."""
        node: Node | None = part
        while node is not None and node.type not in ("declaration", "compound_statement"):
            node = node.parent
        if node is None or node.type != "declaration":
            return False
        return all(
            d.shape == "pointer" and d.value is not None and self.base(d.value) is not None and not self.changed(d)
            for d in variables(node)
        )


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _counts(written_type: str) -> bool:
    words = set(written_type.replace("std::", "").split()) - {"const", "constexpr", "unsigned", "signed"}
    return words <= {"int", "long", "size_t", "ptrdiff_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "uint", "auto"}


def _advances(change: Node, name: str) -> bool:
    """Whether an assignment moves a pointer within its array: `p += n`, `p++`, `p = p + n`."""
    sign, value = change.child_by_field_name("operator"), change.child_by_field_name("right")
    if value is None or sign is None or text(sign) != "=":
        return True
    node = strip(value)
    while node.type == "binary_expression" and text(node.child_by_field_name("operator") or node) in ("+", "-"):
        node = strip(node.child_by_field_name("left") or node.children[0])
    return node.type == "identifier" and text(node) == name


def _compared(pointer: Node) -> bool:
    """Whether the pointer is only compared, as in `bias != NULL`."""
    parent = pointer.parent
    sign = parent.child_by_field_name("operator") if parent is not None else None
    return parent is not None and sign is not None and parent.type == "binary_expression" and text(sign) in ("==", "!=")


def _declares_array(name: Node) -> bool:
    """Whether the name is that of an array where it is declared (`float best[8];`)."""
    at = name
    while (
        at.parent is not None
        and at.parent.type == "array_declarator"
        and at.parent.child_by_field_name("declarator") == at
    ):
        at = at.parent
    return at is not name


def _direction(access: Node) -> tuple[bool, bool]:
    """(reads, writes) of an access by where it stands."""
    node = access
    while node.parent is not None and node.parent.type in ("parenthesized_expression", "field_expression"):
        node = node.parent
    parent = node.parent
    if parent is None:
        return True, False
    if parent.type == "update_expression":
        return True, True
    if parent.type == "assignment_expression" and parent.child_by_field_name("left") == node:
        return text(parent.child_by_field_name("operator") or parent) != "=", True
    if parent.type == "pointer_expression" and text(parent).startswith("&"):
        call = parent.parent.parent if parent.parent is not None else None
        hint = call is not None and call.type == "call_expression"
        hint = hint and call is not None and text(call.child_by_field_name("function") or call) in _LOAD_HINTS
        return True, not hint
    return True, False


@once_a_node
def _identifiers(node: Node) -> Mapping[str, list[Node]]:
    """The identifiers at or below the node, by name."""
    found: dict[str, list[Node]] = {}
    for n in walk(node):
        if n.type == "identifier":
            found.setdefault(text(n), []).append(n)
    return found


@once_a_node
def _changed_names(scope: Node) -> frozenset[str]:
    """The variables that are assigned below the node, or whose address is taken."""
    found = set()
    for node in walk(scope):
        target = assigned(node)
        if node.type == "pointer_expression" and text(node).startswith("&"):
            target = node.child_by_field_name("argument")
        target = strip(target) if target is not None else None
        while target is not None and target.type == "field_expression":
            target = target.child_by_field_name("argument")
        if target is not None and target.type == "identifier":
            found.add(text(target))
    return frozenset(found)
