"""The arguments of a host launch, put in terms of what is passed to the kernel."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from engine.cuda.brackets import closing
from engine.cuda.definitions import expression
from engine.cuda.host_definitions import Definition
from engine.cuda.host_scope import HostScope, called_name
from engine.cuda.kernel import Kernel, LaunchSite
from engine.cuda.parse import parse, text
from engine.errors import SourceError
from engine.model import Program

_MOST_DEPTH = 24
_MOST_TEXT = 1_000  # characters of one extent: definitions that use each other twice double at each step
_INTEGER = re.compile(
    r"(?:const )?(?:(?:std::)?(?:size_t|ptrdiff_t|u?int(?:32|64)_t)|uint|(?:unsigned|signed|long|int)(?: (?:long|int))*)"
)
_DIM3 = re.compile(r"\s*(?:(?:static|const|constexpr)\s+)*dim3\b")
_Meanings = Mapping[str, str]


def kernel_terms(
    program: Program, site: LaunchSite, kernel: Kernel, sizes: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    """The extents of each argument of a launch (grid, block, shared) as integer expressions over the kernel's parameters.

    Constants and macros become numbers, the host's locals what defines them; names among `sizes` stay. What the host writes may
    differ from C++ in range, so the values are for the caller to compare. Raises SourceError saying what cannot be put so.
    """
    unit = parse(program.files[site.path], site.path)
    passed = {
        _squeezed(argument): parameter.name
        for parameter, argument in zip(kernel.parameters, site.arguments, strict=False)
        if not parameter.pointer and re.search(r"[A-Za-z_]", argument)
    }
    terms = _Terms(HostScope(program, unit, {}), passed, frozenset(sizes))
    parts = []
    for part in site.parts[:3]:
        node = unit.root.descendant_for_byte_range(part.span.start, part.span.end)
        if node is None:
            raise SourceError("the launch cannot be read", f"{site.path}:{site.line}")
        try:
            parts.append(tuple(_bare(written) for written in terms.extents(node)))
        except RecursionError:
            raise SourceError("the launch is nested too deeply", f"{site.path}:{site.line}") from None
    return tuple(parts)


@dataclass
class _Terms:
    scope: HostScope
    passed: _Meanings  # what the launch passes, to the parameter that gets it
    sizes: frozenset[str]
    depth: int = 0

    def fail(self, node: Node, what: str) -> SourceError:
        return SourceError(what, f"{self.scope.unit.path}:{node.start_point[0] + 1}")

    def extents(self, node: Node) -> tuple[str, ...]:
        while node.type == "parenthesized_expression":
            node = _operands(node)[0]
        if node.type == "call_expression" and called_name(node) == "dim3":
            arguments = node.child_by_field_name("arguments")
            node = arguments if arguments is not None else node
        if node.type in ("argument_list", "initializer_list", "compound_literal_expression"):
            if node.type == "compound_literal_expression":
                node = node.child_by_field_name("value") or node
            return tuple(self.term(n) for n in _operands(node)) or ("1",)
        definition = self._local(node) if node.type == "identifier" else None
        if definition is not None and _DIM3.match(self.scope.unit.text(definition.statement)):
            return self.extents(self._value(definition, node))
        return (self.term(node),)

    def term(self, node: Node) -> str:
        """One integer expression. Raises SourceError."""
        self.scope.step(node)
        self.depth += 1
        try:
            if self.depth > _MOST_DEPTH:
                raise self.fail(node, "its definitions are nested too deeply")
            found = self._term(node)
            if len(found) > _MOST_TEXT:
                raise self.fail(node, "the expression is too long")
            return found
        finally:
            self.depth -= 1

    def _term(self, node: Node) -> str:
        meaning = self.passed.get(_squeezed(text(node)))
        if meaning is not None:
            return meaning
        if node.type == "identifier" and text(node) in self.sizes:
            return text(node)
        try:
            value = self.scope.number(node)
        except SourceError:
            return self._open(node)
        if not isinstance(value, int):
            raise self.fail(node, f"'{text(node)[:60]}' is not an integer")
        return str(value) if value >= 0 else f"({value})"

    def _open(self, node: Node) -> str:
        """What is no constant: it has to lead to parameters and sizes."""
        kind = node.type
        if kind == "parenthesized_expression":
            return _grouped(self.term(_operands(node)[0]))
        fields = ("condition", "consequence", "alternative") if kind == "conditional_expression" else ("left", "right")
        parts = [node.child_by_field_name(name) for name in fields]
        if kind in ("binary_expression", "conditional_expression") and all(parts):
            operator = node.child_by_field_name("operator")
            texts = [self.term(part) for part in parts if part is not None]
            if operator is not None and len(texts) == 2:
                return f"{texts[0]} {text(operator)} {texts[1]}"
            if len(texts) == 3:
                return f"{texts[0]} ? {texts[1]} : {texts[2]}"
        if kind == "cast_expression":
            target, value = node.child_by_field_name("type"), node.child_by_field_name("value")
            if target is not None and value is not None and _is_integer(text(target)):
                return _grouped(self.term(value))
        if kind == "call_expression":
            return self._call(node)
        definition = self._local(node) if kind == "identifier" else None
        if definition is not None:
            value = self._value(definition, node)
            inner = _operands(value) if value.type in ("argument_list", "initializer_list") else [value]
            if len(inner) == 1:
                return _grouped(self.term(inner[0]))
        raise self.fail(node, f"'{text(node)[:60]}' cannot be computed from the arguments of the kernel")

    def _call(self, node: Node) -> str:
        arguments, function = node.child_by_field_name("arguments"), node.child_by_field_name("function")
        operands = _operands(arguments) if arguments is not None else []
        name = called_name(node)
        cast = re.fullmatch(r"static_cast\s*<(.*)>", name, re.S)
        if len(operands) == 1 and function is not None and _is_integer(cast[1] if cast else name):
            return _grouped(self.term(operands[0]))
        short = name.removeprefix("std::").split("<", 1)[0]
        body = self.scope._small_function(short, len(operands))
        if body is not None:
            names, written, _ = body
            parsed = expression(written)
            if parsed is not None:
                # A function sees its own parameters and the file's constants, not the caller's locals.
                meanings = {n: _grouped(self.term(o)) for n, o in zip(names, operands, strict=True)}
                return _grouped(_Terms(self.scope, meanings, frozenset(), self.depth).term(parsed))
        if short in ("min", "max") and len(operands) == 2:
            return f"{short}({self.term(operands[0])}, {self.term(operands[1])})"
        raise self.fail(node, f"unsupported function '{name[:60]}'")

    def _local(self, node: Node) -> Definition | None:
        definition, later = self.scope.local(text(node), node)
        if later:
            raise self.fail(node, f"'{text(node)[:60]}' is changed after its definition")
        return definition

    def _value(self, definition: Definition, node: Node) -> Node:
        if definition.value is None:
            raise self.fail(node, f"'{definition.name[:60]}' has no value before it")
        return definition.value


def _operands(node: Node) -> list[Node]:
    return [n for n in node.named_children if n.type != "comment"]


def _is_integer(written: str) -> bool:
    return _INTEGER.fullmatch(" ".join(written[:200].split())) is not None


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({_bare(text)})"


def _bare(text: str) -> str:
    """The text without the parentheses around all of it."""
    while text.startswith("(") and closing(text, 0) == len(text) - 1:
        text = text[1:-1]
    return text
