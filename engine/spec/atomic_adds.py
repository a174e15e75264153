"""What a kernel adds to atomically: itself, in functions that it calls, and by macros. Floats differ from run to run there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from engine.cuda.declarations import variables
from engine.cuda.kernel import Function
from engine.cuda.macros import function_macros
from engine.cuda.parse import parse, text, walk
from engine.cuda.records import split_arguments
from engine.cuda.syntax import ancestors
from engine.errors import SourceError
from engine.model import Program
from engine.settings.suffixes import SOURCES

# With those of libraries: gpuAtomicAdd, fastAtomicAdd, atomicAddNoRet.
_ADD = re.compile(r"\w*[aA]tomic_?(?:[aA]dd|[sS]ub)\w*")
_EXCHANGE = re.compile(r"\w*atomicCAS\w*")  # of a loop that adds
_METHODS = frozenset({"fetch_add", "fetch_sub"})  # of cuda::atomic_ref
_INSTRUCTION = re.compile(r"\b(?:red|atom)\.[\w.]*\badd\b[\w.]*")
_MACRO_CALL = re.compile(r"\b(\w+)\s*(?:<[^<>;]*>\s*)?\(")
_LOOPS = ("do_statement", "while_statement", "for_statement", "function_definition")
_MOST_DEPTH = 8  # functions and macros that hand a pointer on. Ours


def atomic_adds(program: Program, kernel: Function) -> frozenset[str]:
    """The pointers that a kernel adds to atomically: its parameters, fields of these ("p.x"), and its shared arrays, by name."""
    return _AtomicAdds(program).of(kernel)


@dataclass
class _AtomicAdds:
    program: Program
    functions: dict[str, list[Function]] = field(default_factory=dict)
    macros: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = field(default_factory=dict)
    known: dict[int, frozenset[str]] = field(default_factory=dict)  # by where a function's node is
    depth: int = 0  # of macros

    def __post_init__(self) -> None:
        for path, data in self.program.files.items():
            if not path.endswith(SOURCES):
                continue
            try:
                unit = parse(data, path)
            except SourceError:
                continue
            for function in unit.functions:
                if function.qualifier != "global":
                    self.functions.setdefault(function.name, []).append(function)
            self.macros.update(function_macros(data, path))

    def of(self, function: Function) -> frozenset[str]:
        """The pointers that a function adds to."""
        if function.node.id not in self.known:
            self.known[function.node.id] = frozenset()  # of one that calls itself
            self.known[function.node.id] = self._of(function)
        return self.known[function.node.id]

    def _of(self, function: Function) -> frozenset[str]:
        body = function.node.child_by_field_name("body")
        if body is None:
            return frozenset()
        made = {
            v.name: v.value for n in walk(body) if n.type == "declaration" for v in variables(n) if v.value is not None
        }
        found: set[str] = set()
        for node in walk(body):
            for target in self._targets(node):
                root = _root(target)
                for _ in range(_MOST_DEPTH):  # pointers made of pointers
                    found.add(root)
                    if (value := made.get(root)) is None or (inner := _root(value)) in ("", root):
                        break
                    root = inner
        return frozenset(found - {""})

    def _targets(self, node: Node) -> Iterator[Node]:
        """What an expression adds to atomically."""
        if node.type == "gnu_asm_expression" and _INSTRUCTION.search(text(node)):
            operands = [n.named_children for n in walk(node) if n.type == "gnu_asm_input_operand"]
            yield from (parts[-1] for parts in operands if parts and text(parts[0]) == '"l"')  # an address
        if node.type != "call_expression":
            return
        function, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or given is None:
            return
        if function.type == "field_expression":
            method, what = function.child_by_field_name("field"), function.child_by_field_name("argument")
            if method is not None and what is not None and text(method) in _METHODS:
                inner = what.child_by_field_name("arguments")
                yield from inner.named_children[:1] if inner is not None else [what]
            return
        name = re.split(r"<", text(function), maxsplit=1)[0].rpartition("::")[2].strip()
        passed = [n for n in given.named_children if n.type != "comment"]
        for position in self._positions(name, node):
            yield from passed[position : position + 1]

    def _positions(self, name: str, call: Node | None) -> set[int]:
        """Which arguments of a call something is added to."""
        if _EXCHANGE.fullmatch(name):
            return {0} if call is not None and _adds(call) else set()
        if self.depth >= _MOST_DEPTH:
            return set()
        found: set[int] = set()
        for function in self.functions.get(name, ()):
            added = self.of(function)
            found |= {at for at, parameter in enumerate(function.parameters) if parameter.name in added}
        self.depth += 1
        for parameters, written in self.macros.get(name, ()):
            found |= {at for at, parameter in enumerate(parameters) if parameter in self._in_macro(name, written)}
        self.depth -= 1
        return found or ({0} if _ADD.fullmatch(name) else found)

    def _in_macro(self, name: str, written: str) -> Iterator[str]:
        """The names in what a macro adds to."""
        for match in _MACRO_CALL.finditer(written):
            positions = self._positions(match[1], None) if match[1] != name else set[int]()
            given = split_arguments(_until_closed(written[match.end() :])) if positions else []
            for at in positions:
                yield from re.findall(r"\w+", given[at]) if at < len(given) else ()


def _adds(call: Node) -> bool:
    """Whether the loop around an exchange makes a sum."""
    node = next((above for above in ancestors(call) if above.type in _LOOPS), None)
    return node is not None and re.search(r"(?<!\+)\+=?(?!\+)|\w*add\w*\s*\(", text(node)) is not None


def _until_closed(written: str) -> str:
    depth = 1
    for at, char in enumerate(written):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            return written[:at]
    return written


def _root(node: Node) -> str:
    """The pointer or array that an expression reaches into: `y` of `&y[i]`, `(int*)(y + i)`, `*y`; "p.y" of `p.y + i`."""
    while True:
        inner: Sequence[Node] = ()
        if node.type in ("parenthesized_expression", "cast_expression"):
            inner = node.named_children[-1:]
        elif node.type in ("subscript_expression", "pointer_expression"):
            argument = node.child_by_field_name("argument")
            inner = [argument] if argument is not None else []
        elif node.type == "binary_expression":
            inner = node.named_children[:1]
        elif node.type == "call_expression":  # reinterpret_cast<int*>(y)
            arguments = node.child_by_field_name("arguments")
            inner = arguments.named_children[:1] if arguments is not None and "_cast" in text(node) else []
        elif node.type == "field_expression":
            return text(node).replace("->", ".")
        if not inner:
            return text(node) if node.type == "identifier" else ""
        node = inner[0]
