"""How large an expression of device code can become, and the largest value that its type holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.clock import tick
from engine.cuda.definitions import expression
from engine.cuda.kernel import Unit
from engine.cuda.kernel_scope import Scope
from engine.cuda.syntax import called, children, compact, operands, root_name, strip, text

THREADS = 1024  # of a block, in all its axes together
LONGEST = (1 << 63) - 1  # of 64 bits, signed or not: no memory has more elements. Floats count as such
INT, UNSIGNED = (1 << 31) - 1, (1 << 32) - 1
_BUILT_IN = {
    "blockDim": THREADS, "threadIdx": THREADS - 1, "gridDim.x": INT, "blockIdx.x": INT - 1,
    "gridDim": 65535, "blockIdx": 65534, "warpSize": 32,
}  # fmt: skip
_BITS = {
    "char": 8,
    "int8_t": 8,
    "short": 16,
    "int16_t": 16,
    "long": 64,
    "int64_t": 64,
    "size_t": 64,
    "ptrdiff_t": 64,
    "ssize_t": 64,
}
_MOST = 24  # definitions that stand in each other


@dataclass(frozen=True)
class Ranges:
    """Of the expressions of one function: `known` are the largest values of parameters, gridDim.x and blockDim that its callers show."""

    unit: Unit
    scope: Scope
    known: Mapping[str, int] = field(default_factory=dict)

    def largest(self, node: Node, depth: int = 0) -> int:
        """No value of the expression, computed without an end of its type, is above it."""
        tick()
        node, most = strip(node), LONGEST
        if depth > _MOST:
            return most
        if node.type == "number_literal":
            return _value(text(node), most)
        if node.type in ("identifier", "field_expression", "qualified_identifier"):
            return self._named(node, depth)
        if node.type == "sizeof_expression":
            return 64
        if node.type == "conditional_expression":
            arms = [node.child_by_field_name(f) for f in ("consequence", "alternative")]
            values = [self.largest(arm, depth + 1) for arm in arms if arm is not None]
            return min(values) if _is_smaller(node, *arms) else max(values, default=most)
        if node.type == "call_expression":
            return self._called(node, depth)
        if node.type == "subscript_expression":
            # An element that a caller fills is no number of threads.
            return 0 if root_name(node) in self.scope.pointers else LONGEST
        return self._binary(node, depth) if node.type == "binary_expression" else most

    def _called(self, node: Node, depth: int) -> int:
        name, arguments = called(node), node.child_by_field_name("arguments")
        parts = [self.largest(a, depth + 1) for a in children(arguments)] if arguments is not None else []
        if name.removeprefix("u") in ("min", "max") and parts:
            return min(parts) if name.endswith("min") else max(parts)
        value = self.scope.resolve(node)
        if value is not None:
            return self.largest(value, depth + 1)
        return 0 if name.startswith(("__", "atomic")) else LONGEST

    def _binary(self, node: Node, depth: int) -> int:
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None:
            return LONGEST
        if text(sign) == "*":
            return self._product(node, depth)
        a, b = self.largest(left, depth + 1), self.largest(right, depth + 1)
        known = _value(text(strip(right)), 0)
        match text(sign):
            case "+":
                return a + b
            case "-":
                return a
            case "/":
                return a // known if known else a
            case "%":
                return min(a, b)
            case ">>":
                return a >> min(known, 64)
            case "<<":
                return a << min(known, 64) if known or text(strip(right)) == "0" else LONGEST
            case "&":
                return min(a, b)
            case "|" | "^":
                return a + b
        return 1

    def _product(self, node: Node, depth: int) -> int:
        """The sides of a block count as one factor: together they have no more than so many threads."""
        found, block = 1, False
        waiting = operands(node, "*")
        while waiting and depth <= _MOST:
            part = waiting.pop()
            value = self._definition(part)
            if value is not None and (factors := operands(value, "*")) and depth < _MOST:
                waiting += factors
                depth += 1
            elif compact(part).startswith("blockDim."):
                block = True
            else:
                found *= self.largest(part, depth + 1)
        return found * (self.known.get("blockDim", THREADS) if block else 1)

    def _named(self, node: Node, depth: int) -> int:
        value = self._definition(node)
        if value is not None:
            return self.largest(value, depth + 1)
        name = compact(node)
        for written in (name, name.partition(".")[0]):
            if (found := self.known.get(written, _BUILT_IN.get(written))) is not None:
                return found
        own = name in self.scope.parameters or self.scope.lookup(name, node) is not None
        return self.holds(node) if own or node.type == "field_expression" else self._elsewhere(name, depth)

    def _elsewhere(self, name: str, depth: int) -> int:
        """A constant of a struct in the file; what stands in a header or is a template's argument is taken for a block's share."""
        constant = rb"\bconst(?:expr)?\b[^;={}()]*\b%s\s*=\s*([^;{}]+);" % re.escape(name.rpartition("::")[2].encode())
        values = [expression(found.decode()) for found in re.findall(constant, self.unit.data)]
        return max((self.largest(value, depth + 1) for value in values if value is not None), default=THREADS)

    def _definition(self, node: Node) -> Node | None:
        """What a name stands for: a variable that never changes, a macro, a constant of the file."""
        if node.type != "identifier":
            return None
        found = self.scope.resolve(node)
        if found is not None:
            return found
        name = text(node)
        if name in self.scope.parameters or self.scope.lookup(name, node) is not None:
            return None
        written = self.unit.macros.get(name) or self.unit.constants.get(name)
        return expression(written) if written else None

    def holds(self, node: Node, depth: int = 0) -> int:
        """The largest value of the expression's type; of an int where the type is not known."""
        tick()
        if depth > _MOST:
            return INT
        if node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
            return self.holds(children(node)[0], depth + 1)
        if node.type == "cast_expression":
            return self.of_type(text(node.child_by_field_name("type") or node))
        if node.type == "number_literal":
            suffix = re.sub(r"^(?:0[xX][0-9a-fA-F']+|[\d']+)", "", text(node)).lower()
            return LONGEST if "l" in suffix else UNSIGNED if "u" in suffix else INT
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            named = function.child_by_field_name("arguments") if function is not None else None
            if named is not None and called(node) == "static_cast":
                return self.of_type(text(named).strip("<> "))
            if function is not None and function.type == "primitive_type":
                return self.of_type(text(function))
            arguments = node.child_by_field_name("arguments")
            parts = [self.holds(a, depth + 1) for a in children(arguments)] if arguments is not None else []
            return max(parts, default=INT)
        if node.type == "field_expression":
            return UNSIGNED if compact(node).partition(".")[0] in _BUILT_IN else INT
        if node.type == "identifier":
            return self._declared(node, depth)
        if node.type in ("subscript_expression", "pointer_expression"):
            argument = node.child_by_field_name("argument")
            return self.holds(argument, depth + 1) if argument is not None else INT
        sides = [node.child_by_field_name(f) for f in ("left", "right", "consequence", "alternative", "argument")]
        sign = node.child_by_field_name("operator")
        if sign is not None and text(sign) in ("<<", ">>"):
            sides = sides[:1]
        # What is narrower becomes an int before it is computed with.
        return max([INT, *(self.holds(side, depth + 1) for side in sides if side is not None)])

    def _declared(self, node: Node, depth: int) -> int:
        name = text(node)
        found = self.scope.lookup(name, node)
        if found is not None:
            if found.type.replace("const", "").strip() in ("auto", "auto&") and found.value is not None:
                return self.holds(found.value, depth + 1)
            return self.of_type(found.type)
        if name in self.scope.parameters:
            return self.of_type(self.scope.parameters[name].base)
        value = self._definition(node)
        return self.holds(value, depth + 1) if value is not None else INT

    def of_type(self, written: str, depth: int = 0) -> int:
        """The largest value of a type as written, aliases of the file looked through."""
        words = re.findall(r"\w+", written.replace("std::", ""))
        if "decltype" in words:
            value = expression(written.partition("(")[2].rpartition(")")[0])
            return self.holds(value) if value is not None and depth < 4 else INT
        if any(re.search(r"float|double|half|real|scalar", w) for w in words):
            return LONGEST
        signed = not any(
            w.startswith(("unsigned", "uint", "u_int", "size_t", "uchar", "ushort", "ulong")) for w in words
        )
        plain = [w.removeprefix("u") if w != "unsigned" else w for w in words]
        bits = next((_BITS[w] for w in plain if w in _BITS), 0)
        if not bits and set(plain) & {"int", "int32_t", "unsigned", "signed"}:
            bits = 32
        if not bits:
            alias = re.search(
                rb"\busing\s+%(name)s\s*=\s*([\w\s:]+);|\btypedef\s+([\w\s:]+?)\s+%(name)s\s*;"
                % {b"name": re.escape(words[-1].encode() if words else b" ")},
                self.unit.data,
            )
            given = (alias[1] or alias[2]).decode() if alias is not None else ""
            return self.of_type(given, depth + 1) if given and depth < 4 else INT
        return LONGEST if bits == 64 else (1 << (bits - signed)) - 1


def _is_smaller(choice: Node, taken: Node | None, otherwise: Node | None) -> bool:
    """Whether `a < b ? a : b` takes the smaller of two."""
    condition = choice.child_by_field_name("condition")
    condition = strip(condition) if condition is not None else choice
    sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or taken is None or otherwise is None:
        return False
    sides = (left, right) if text(sign) in ("<", "<=") else (right, left) if text(sign) in (">", ">=") else ()
    return [compact(strip(s)) for s in sides] == [compact(strip(a)) for a in (taken, otherwise)]


def _value(written: str, otherwise: int) -> int:
    try:
        return evaluate_int(written.replace("'", ""), {})
    except ArithmeticError_:
        return otherwise
