"""What a name in host code stands for at one place: the definitions before it, constants, macros, small functions."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tree_sitter import Node

from engine import arith
from engine.cuda.aliases import compiled_macro
from engine.cuda.definitions import definition_of, expression
from engine.cuda.host_definitions import Definition, LocalDefinition, only, uncommented
from engine.cuda.kernel import Unit
from engine.cuda.macros import function_macros, object_macros, parenthesised
from engine.cuda.parse import parse, text
from engine.cuda.typenames import TypeNames
from engine.errors import SourceError
from engine.model import Program

_CASTS = re.compile(r"^(?:static_cast|reinterpret_cast|const_cast)$")
_MAX_DEPTH = 40
_MAX_STEPS = 2_000  # of one scope: definitions that each use the one before twice take 2 to the power of their number
_OPEN = ("binary_expression", "unary_expression", "cast_expression", "conditional_expression", "field_expression")
_LOOSE = ("binary_expression", "unary_expression", "cast_expression", "conditional_expression")

# Functions of two numbers that projects define in headers of others: by the names that people give them.
_BY_NAME = (
    (
        re.compile(
            r"(?:i|u|int|get)?(?:divup|divideup|divroundup|divideroundup|ceildiv|cdiv|divceil|ceildivide|updiv)"
        ),
        "cdiv",
    ),
    (re.compile(r"(?:roundup|alignup|roundupto|roundupmultiple|padto)"), "round_up"),
)

_LIBRARY = {"C10_WARP_SIZE": "32"}  # macros of headers that no repository holds
_GRID_LIMIT = re.compile(r"(?:->|\.)maxGridSize\[([012])\]$")  # of cudaDeviceProp
_GRID_LIMITS = (
    "2147483647",
    "65535",
    "65535",
)  # of every device since sm_30 (CUDA C++ Programming Guide, Compute Capabilities)
Dims = tuple[arith.Number, ...]
_Body = tuple[tuple[str, ...], str, bool]  # parameters, text of the value, whether it is a macro


@dataclass
class UnknownHostName(SourceError):
    """A launch needs a name that nothing gives a value. `in_block`: the block's extents need it."""

    name: str = ""
    in_block: bool = False


@dataclass
class HostScope:
    """Evaluates host expressions of one program. `known` are values given from outside (sizes, kernel parameters), by name or
    by the expression without its spaces.

    `refused` are names whose value is in doubt, with the reason: an expression that needs one has no value.
    """

    program: Program
    unit: Unit
    known: Mapping[str, arith.Number]
    used: dict[str, Definition] = field(default_factory=dict)  # every definition an evaluation went through
    refused: Mapping[str, str] = field(default_factory=dict)
    types: TypeNames | None = None
    _depth: int = 0
    _anchor: Node | None = (
        None  # where the text stands that was read by itself: `dim3 grid(x, y);` looks like a function
    )
    _steps: list[int] = field(default_factory=lambda: [0])  # shared with the scopes of what is called

    def step(self, node: Node) -> None:
        """Counts one step of an evaluation. Raises SourceError where they are too many."""
        self._steps[0] += 1
        if self._steps[0] > _MAX_STEPS:
            raise self.fail(node, "it needs too many steps")

    def unknown(self, node: Node, name: str, what: str = "") -> UnknownHostName:
        """The error for a name, or an expression by the name that stands for it, that the text gives no value."""
        do = f"give '{name}' a value in every case, or declare 'launch'"
        error = self.fail(node, what or f"'{text(node)[:60]}' is not known", do)
        return UnknownHostName(error.what, error.where, error.do, name)

    def fail(self, node: Node, what: str, do: str = "declare 'launch' in the spec") -> SourceError:
        where = f"{self.unit.path}:{node.start_point[0] + 1}"
        return SourceError(f"the launch cannot be evaluated: {what}", where, do)

    # ---- values

    def dims(self, node: Node) -> Dims:
        """The extents that a launch argument evaluates to: one number, or the parts of a dim3."""
        while node.type == "parenthesized_expression":
            inside = only(node)
            if inside.type == "comma_expression" and self.unit.data[node.start_byte : node.start_byte + 1] == b"{":
                return tuple(self.number(part) for part in _listed(inside))
            node = inside
        kind = node.type
        if kind == "initializer_list" or (
            kind in ("call_expression", "compound_literal_expression") and called_name(node) == "dim3"
        ):
            inner = node if kind == "initializer_list" else node.child_by_field_name("arguments")
            inner = inner or node.child_by_field_name("value")
            parts = uncommented(inner) if inner is not None else []
            if len(parts) == 1 and kind == "call_expression":
                return self.dims(parts[0])
            return tuple(self.number(part) for part in parts) or (1,)
        if kind == "identifier" and text(node) not in self.known and text(node) not in self.refused:
            return self._named_dims(node)
        returned = self._returned_dims(node) if kind == "call_expression" else None
        return returned if returned is not None else (self.number(node),)

    def _returned_dims(self, node: Node) -> Dims | None:
        """The extents that a function without parameters, mostly a member of a class, returns as one `dim3(…)`; None where it does not."""
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None or uncommented(arguments) or self._depth > _MAX_DEPTH:
            return None
        owner = function.child_by_field_name("argument")
        named = re.split(r"::|\.|->", text(function))[-1]
        body = re.compile(rb"\b%s\s*\(\s*\)[\w\s]*\{\s*return\s+(dim3\s*\([^;]*\));\s*\}" % re.escape(named.encode()))
        returned = {match[1].decode(errors="replace") for unit in self._files() for match in body.finditer(unit.data)}
        parsed = expression(returned.pop()) if len(returned) == 1 else None
        if parsed is None:
            return None
        self.step(node)
        fields = f"{squeezed(owner)}." if owner is not None else ""
        # What is called sees the fields of its object and constants, not the caller's locals.
        known = {k.removeprefix(fields): v for k, v in self.known.items() if fields and k.startswith(fields)}
        inner = HostScope(self.program, self.unit, known, self.used, {}, self.types, self._depth + 1, None, self._steps)
        return inner.dims(parsed)

    def _named_dims(self, node: Node) -> Dims:
        name = text(node)
        definition, fields = self.local(name, node)
        if definition is None:
            return (self.number(node),)
        self.used[name] = definition
        is_dim3 = _declared_type(definition, self.unit) == "dim3"
        if definition.value is None and not is_dim3:
            raise self.fail(node, f"'{name}' has no value before it")
        if definition.value is None:
            between = self.unit.data[definition.statement.end : node.start_byte].decode("utf-8", "replace")
            if not fields and re.search(rf"[(,]\s*&?\s*{re.escape(name)}\s*[,)]", between):
                raise self.fail(node, f"'{name}' gets its value in a function that it is passed to")
            base: list[arith.Number] = [1, 1, 1]
        elif definition.value.type in ("argument_list", "initializer_list"):
            parts = uncommented(definition.value)
            base = list(self.dims(parts[0])) if len(parts) == 1 else [self.number(p) for p in parts]
        else:
            base = list(self._standing(definition).dims(definition.value))
        if fields:
            base += [1] * (3 - len(base))
        for part, value in fields:
            base["xyz".index(part)] = self.number(value)
        return tuple(base)

    def number(self, node: Node) -> arith.Number:
        """The number that an expression evaluates to. Raises SourceError saying what is in the way."""
        self.step(node)
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise self.fail(node, "its definitions are circular")
            try:
                written = self._expanded(node)
            except RecursionError:
                raise self.fail(node, "it is nested too deeply") from None
            try:
                return arith.evaluate(written, {})
            except arith.ArithmeticError_ as error:
                raise self.fail(node, error.what) from None
        finally:
            self._depth -= 1

    def _expanded(self, node: Node) -> str:
        """The expression with every name replaced by its value: plain arithmetic."""
        kind = node.type
        if kind in ("call_expression", "field_expression", "subscript_expression"):
            for key in (squeezed(node), given_name(node)):
                if key in self.known:
                    return _literal(self.known[key])
        if kind == "number_literal":
            return text(node).replace("'", "")
        if kind in ("true", "false"):
            return "1" if kind == "true" else "0"
        if kind == "parenthesized_expression":
            return f"({self._expanded(only(node))})"
        if kind == "binary_expression":
            whole = squeezed(node)
            if whole in self.known:
                return _literal(self.known[whole])
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            operator = node.child_by_field_name("operator")
            if left is not None and right is not None and operator is not None:
                return f"({self._expanded(left)} {text(operator)} {self._expanded(right)})"
        if kind == "unary_expression":
            operand, operator = node.child_by_field_name("argument"), node.child_by_field_name("operator")
            if operand is not None and operator is not None:
                return f"({text(operator)}{self._expanded(operand)})"
        if kind == "conditional_expression":
            parts = [node.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
            if all(parts):
                condition, then, otherwise = (p for p in parts if p is not None)
                chosen = then if self.number(condition) else otherwise
                return f"({self._expanded(chosen)})"
        if kind == "cast_expression":
            value, target = node.child_by_field_name("value"), node.child_by_field_name("type")
            if value is not None and target is not None:
                return self._cast(text(target), value)
        if kind == "sizeof_expression":
            return self._sizeof(node)
        if kind == "field_expression":
            return self._field(node)
        if kind in ("identifier", "qualified_identifier"):
            return self._name(node)
        if kind == "call_expression":
            return self._call(node)
        if kind == "subscript_expression":
            if limit := _GRID_LIMIT.search(squeezed(node)):
                return _GRID_LIMITS[int(limit[1])]
            raise self.unknown(node, given_name(node))
        raise self.fail(node, f"'{text(node)[:60]}' is not understood")

    def _cast(self, target: str, value: Node) -> str:
        inner = self.number(value)
        if re.search(r"\b(?:float|double)\b", target):
            return repr(float(inner))
        return str(int(inner))

    def _sizeof(self, node: Node) -> str:
        target = node.child_by_field_name("type") or node.child_by_field_name("value")
        name = " ".join(re.sub(r"\bconst\b", "", text(target)).strip("() ").split()) if target is not None else ""
        size = self._types.size(name)
        if size is None:
            raise self.fail(node, f"the size of '{self._types.plain(name)[:60]}' is not known")
        return str(size)

    def _field(self, node: Node) -> str:
        whole = text(node)
        if whole in self.refused:
            raise self.fail(node, self.refused[whole])
        if whole in self.known:
            return _literal(self.known[whole])
        base, part = node.child_by_field_name("argument"), node.child_by_field_name("field")
        axis = "xyz".find(text(part)) if part is not None and len(text(part)) == 1 else -1
        if base is not None and base.type == "identifier" and axis >= 0 and self.local(text(base), base)[0] is not None:
            return _literal((*self._named_dims(base), 1, 1)[axis])
        raise self.unknown(node, given_name(node))

    def _name(self, node: Node) -> str:
        name = text(node)
        if name in self.refused:
            raise self.fail(node, self.refused[name])
        if name in self.known:
            return _literal(self.known[name])
        definition, fields = self.local(name, node) if node.type == "identifier" else (None, [])
        if definition is not None and not fields:
            self.used[name] = definition
            if definition.value is None:
                raise self.unknown(node, name, f"'{name}' has no value before it")
            value = definition.value
            if value.type in ("argument_list", "initializer_list"):
                value = only(value)
            try:
                return _literal(self.number(value))
            except UnknownHostName as error:
                # What is read from a tensor, a command line or a device has the name of the variable that takes it.
                raise self.unknown(node, name, error.what) if error.name == given_name(value) else error from None
        if node.type == "qualified_identifier":
            member = self._member(name, node)
            if member is not None:
                return member
        found = self._file_scope(name, node)
        if found is not None:
            self.used[name] = found
            assert found.value is not None
            self._closed(name, found.value, node, name in self._macro_names)
            return _literal(self.number(found.value))
        if name in _LIBRARY:
            return _LIBRARY[name]
        if node.type == "identifier":
            raise self.unknown(node, name)
        raise replace(self.unknown(node, name), do="declare 'launch' in the spec")

    def _member(self, name: str, node: Node) -> str | None:
        """The value of a class's constant; None where the name is no such thing."""
        scope, _, short = name.rpartition("::")
        types = replace(self._types, value=self._constant)
        try:
            found = types.member(scope, short)
        except LookupError:
            raise self.fail(node, f"'{name[:60]}' is not known") from None
        if found is None:
            return None
        self.step(node)
        parsed = {each: expression(written) for each, written in (*found.values.items(), ("", found.value))}
        values = {each: self.number(value) for each, value in parsed.items() if each and value is not None}
        # A class sees its template's parameters, constants and macros, not what the host or the spec call so.
        bound = {**found.types, **{each: str(number) for each, number in values.items()}}
        types, known = self._types.within(bound), {**self._types.defined, **values}
        inner = HostScope(self.program, self.unit, known, self.used, {}, types, self._depth + 1, None, self._steps)
        value = parsed[""]
        if value is None or inner._depth > _MAX_DEPTH:
            raise self.fail(node, f"'{found.value[:60]}' is not understood")
        return _literal(inner.number(value))

    def _constant(self, written: str) -> arith.Number | None:
        """The number that a template argument of a class comes to, of constants alone; None where it is none."""
        parsed = expression(written) if self._depth <= _MAX_DEPTH else None
        if parsed is None or written in self._types.bound or self._types.size(written) is not None:
            return None
        known = self._types.defined
        inner = HostScope(self.program, self.unit, known, self.used, {}, self.types, self._depth + 1, None, self._steps)
        try:
            return inner.number(parsed)
        except SourceError:
            return None

    def _call(self, node: Node) -> str:
        called = called_name(node)
        arguments = node.child_by_field_name("arguments")
        operands = uncommented(arguments) if arguments is not None else []
        function = node.child_by_field_name("function")
        if function is not None and function.type == "template_function":
            inner, kind = function.child_by_field_name("name"), function.child_by_field_name("arguments")
            if inner is not None and _CASTS.match(text(inner)) and kind is not None and len(operands) == 1:
                return self._cast(text(kind), operands[0])
            called = text(inner) if inner is not None else called
        short = called.removeprefix("std::")
        if function is not None and function.type == "qualified_identifier" and "<" in short:
            short = short.split("<", 1)[0]
        if short in ("int", "unsigned", "size_t", "uint32_t", "int32_t", "float", "double") and len(operands) == 1:
            return self._cast(short, operands[0])
        body = self._small_function(short, len(operands))
        if body is not None:
            return self._inlined(node, body, operands)
        if short in ("min", "max", "ceil", "floor", "abs", "sqrt", "ceilf", "floorf", "sqrtf"):
            inner_text = ", ".join(_literal(self.number(o)) for o in operands)
            return f"{short.removesuffix('f')}({inner_text})"
        if short == "gcd" and len(operands) == 2:
            return str(math.gcd(*(int(self.number(o)) for o in operands)))
        if short in ("pow", "powf") and len(operands) == 2:
            return self._power(node, *(self.number(o) for o in operands))
        for pattern, name in _BY_NAME:
            if pattern.fullmatch(short.rpartition("::")[2].replace("_", "").lower()) and len(operands) == 2:
                return f"{name}({', '.join(_literal(self.number(o)) for o in operands)})"
        raise self.unknown(node, given_name(node), f"unsupported function '{called[:60]}'")

    def _power(self, node: Node, base: arith.Number, exponent: arith.Number) -> str:
        try:
            return repr(float(base) ** float(exponent))
        except (OverflowError, ZeroDivisionError, TypeError):
            raise self.fail(node, "a power has no value") from None

    def _closed(self, name: str, value: Node, at: Node, macro: bool) -> None:
        """Refuses a macro whose neighbours would bind tighter than what it stands for: it is text, not a value."""
        if macro and value.type in _LOOSE and at.parent is not None and at.parent.type in _OPEN:
            raise self.fail(at, f"the macro '{name}' stands for '{text(value)[:60]}', which lacks parentheses here")

    def _inlined(self, node: Node, body: _Body, operands: list[Node]) -> str:
        self.step(node)
        names, written, macro = body
        values = {name: self.number(operand) for name, operand in zip(names, operands, strict=True)}
        parsed = expression(written)
        if parsed is None:
            raise self.fail(node, f"'{written[:60]}' is not understood")
        self._closed(called_name(node), parsed, node, macro)
        for name, operand in zip(names, operands, strict=True):
            if macro and operand.type in _LOOSE and not parenthesised(name, written):
                raise self.fail(node, f"the macro '{called_name(node)[:60]}' lacks parentheses around '{name}'")
        # A macro or function sees its own parameters, constants and macros, not the caller's locals.
        known, refused = {**self.known, **values}, self._but(values)
        inner = HostScope(
            self.program, self.unit, known, self.used, refused, self.types, self._depth + 1, None, self._steps
        )
        if inner._depth > _MAX_DEPTH:
            raise self.fail(node, "its definitions are circular")
        return f"({inner._expanded(parsed)})"

    def _but(self, names: Collection[str]) -> dict[str, str]:
        return {name: reason for name, reason in self.refused.items() if name not in names}

    # ---- definitions

    @cached_property
    def _types(self) -> TypeNames:
        return self.types or TypeNames(self.program)

    @cached_property
    def _macro_names(self) -> frozenset[str]:
        return frozenset(name for unit in self._files() for name in unit.macros)

    def _files(self) -> Iterator[Unit]:
        yield self.unit
        for path, data in self.program.files.items():
            if path != self.unit.path and not path.endswith(".toml"):
                yield parse(data, path)

    def _file_scope(self, name: str, at: Node) -> Definition | None:
        short = name.rpartition("::")[2]
        for unit in self._files():
            for table, kind in ((unit.macros, "macro"), (unit.constants, "constant")):
                if table.get(short):
                    written: str | None = table[short]
                    if kind == "macro" and len(object_macros(unit.data, unit.path).get(short, ())) > 1:
                        written = compiled_macro(self.program, unit, short, self._types.defines)
                        if written is None:
                            raise self.fail(at, f"'{short}' is defined more than once")
                    node = expression(written)
                    if node is None:
                        return None
                    place, statement = definition_of(unit, short, kind)
                    return Definition(short, node, place, unit.path, statement)
        return None

    def _small_function(self, name: str, count: int) -> _Body | None:
        for unit in self._files():
            bodies = {b for b in function_macros(unit.data, unit.path).get(name, ()) if len(b[0]) == count and b[1]}
            if bodies:
                # Which of several holds depends on conditions that are not evaluated here.
                return (*bodies.pop(), True) if len(bodies) == 1 else None
            for function in unit.functions:
                if function.name == name and len(function.parameters) == count:
                    body = unit.text(function.body).strip()
                    match = re.fullmatch(r"\{\s*return\s+([^;]*);\s*\}", body, re.S)
                    if match:
                        return tuple(p.name for p in function.parameters), match[1], False
        return None

    def _standing(self, definition: Definition) -> HostScope:
        """This scope for the value of a local that may have been read apart from its statement."""
        value, place = definition.value, definition.statement
        if value is None or self._stands(value):
            return self
        return replace(self, _anchor=self.unit.root.descendant_for_byte_range(place.start, place.end))

    def _stands(self, node: Node) -> bool:
        """Whether a node is one of the file's."""
        top = node
        while top.parent is not None:
            top = top.parent
        return top == self.unit.root

    def local(self, name: str, at: Node) -> tuple[Definition | None, list[tuple[str, Node]]]:
        """The definition of a local that holds at `at`, and later assignments to its .x, .y, .z."""
        if self._anchor is not None and not self._stands(at):
            at = self._anchor
        return LocalDefinition(self.unit.path, name, at, self.number, self.unknown).find()


def given_name(node: Node) -> str:
    """The name by which a spec gives an expression its value: `input_size_0` for `input.size(0)`."""
    return re.sub(r"\W+", "_", text(node)).strip("_")


def _listed(node: Node) -> list[Node]:
    """The operands of a comma expression."""
    found: list[Node] = []
    while node.type == "comma_expression":
        left, right = uncommented(node)[0], uncommented(node)[-1]
        found, node = [*found, left], right
    return [*found, node]


def squeezed(node: Node) -> str:
    """The node's text without spaces: an expression that `known` gives a value stands there so."""
    return "".join(text(node).split())


def _declared_type(definition: Definition, unit: Unit) -> str:
    written = unit.text(definition.statement)
    return "dim3" if re.match(r"\s*(?:static\s+|const\s+|constexpr\s+)*dim3\b", written) else ""


def called_name(node: Node) -> str:
    function = node.child_by_field_name("function") or node.child_by_field_name("type")
    return text(function) if function is not None else ""


def _literal(value: arith.Number) -> str:
    return f"({value})" if value < 0 else repr(value) if isinstance(value, float) else str(value)
