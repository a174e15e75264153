"""The types that a program gives other names: typedefs, `using` and macros, of the branches that are compiled."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from tree_sitter import Node

from engine.arith import ArithmeticError_, evaluate
from engine.cuda.conditions import compilers_own
from engine.cuda.enumerations import underlying
from engine.cuda.kernel import Kernel, Unit
from engine.cuda.load import resolve_include
from engine.cuda.parse import parse, text
from engine.errors import SourceError
from engine.model import Program

_SCOPES = frozenset({"translation_unit", "declaration_list", "namespace_definition", "linkage_specification"})
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_TYPE = re.compile(r"(?:unsigned |signed |long |const )*[A-Za-z_][\w:]*")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_TYPE = re.compile(r"[A-Za-z_][\w:]*(?:\s+[A-Za-z_][\w:]*)*")
_MAX_HEADERS = 200
_MAX_DEPTH = 60  # of conditionals and namespaces in each other: what a stranger nests deeper is not read


def aliases(
    program: Program, defines: Iterable[str] = (), include: Iterable[str] = (), unit: str = ""
) -> Mapping[str, str]:
    """Other names for types in the kernel's file and its headers: name -> type as written.

    `defines` are what the compiler is told ("NAME" or "NAME=VALUE"), `include` folders that headers are looked for in, `unit` the
    file that a header is compiled through (without it the first source that includes it), whose names count as well. Of a name
    that means different types in branches that cannot be told apart, or in different scopes, nothing is said.
    """
    return _AliasReader(program, tuple(defines), tuple(include), unit).read()


def condition_around(program: Program, kernel: Kernel, defines: tuple[str, ...] = ()) -> str:
    """The first line of an `#if` or `#ifdef` that keeps the kernel from being compiled as it stands; "" where none does."""
    reader = _AliasReader(program, defines, (), "")
    node = kernel.node.parent
    while node is not None:
        if node.type in ("preproc_if", "preproc_ifdef") and not _is_guard(node) and reader._holds(node) is False:
            branch = node.child_by_field_name("alternative")
            if branch is None or branch.start_byte > kernel.node.start_byte:
                return text(node).splitlines()[0].strip()
        node = node.parent
    return ""


def compiled_macro(program: Program, unit: Unit, name: str, defines: tuple[str, ...] = ()) -> str | None:
    """The value, as text, of a macro that branches of a file define each in its way, in the one that is compiled; None where unclear."""
    reader = _AliasReader(program, defines, (), "")
    found = []
    for node in reader._active(unit.root):
        named = node.child_by_field_name("name") if node.type == "preproc_def" else None
        if named is not None and text(named) == name:
            value = node.child_by_field_name("value")
            found.append(text(value).strip() if value is not None else "")
    return found[0] if len(found) == 1 else None


class _AliasReader:
    def __init__(self, program: Program, defines: tuple[str, ...], include: tuple[str, ...], unit: str) -> None:
        self.units = list(included_units(program, include, unit))
        self.values = {name: value or "1" for name, _, value in (d.partition("=") for d in defines)}
        self.given = dict(self.values)
        self.doubtful: set[str] = set()  # macros that some branch defines
        for each in self.units:
            self._macros(each.root, False)

    def read(self) -> dict[str, str]:
        found: dict[str, set[str]] = {}
        for unit in self.units:
            for node in self._active(unit.root):
                name, kind = _named(node)
                if name and kind:
                    found.setdefault(name, set()).add(kind)
        own = {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}
        # What the compiler is told counts before anything in the text.
        return own | {name: kind for name, kind in self.given.items() if _TYPE.fullmatch(kind)}

    def _macros(self, scope: Node, conditional: bool, depth: int = 0) -> None:
        for node in scope.named_children if depth < _MAX_DEPTH else ():
            if node.type == "preproc_def":
                name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
                if name is not None and conditional:
                    self.doubtful.add(text(name))
                elif name is not None:
                    self.values.setdefault(text(name), text(value) if value is not None else "")
            elif node.type.startswith("preproc_") or node.type in _SCOPES:
                inside = conditional or (node.type.startswith("preproc_") and not _is_guard(node))
                self._macros(node, inside, depth + 1)

    def _active(self, scope: Node, depth: int = 0) -> Iterator[Node]:
        """What stands in the scopes and branches below the node that may be compiled."""
        for node in scope.named_children if depth < _MAX_DEPTH else ():
            if node.type in ("preproc_if", "preproc_ifdef"):
                for branch in self._branches(node):
                    yield from self._active(branch, depth + 1)
            elif node.type in _SCOPES:
                yield from self._active(node, depth + 1)
            elif not node.type.startswith("preproc_el"):
                yield node

    def _branches(self, node: Node | None) -> Iterator[Node]:
        """The branches of a conditional that may be compiled; what is inside them stands beside their own alternatives."""
        while node is not None:
            holds = True if node.type == "preproc_else" or _is_guard(node) else self._holds(node)
            if holds is not False:
                yield node
            if holds:
                return
            node = node.child_by_field_name("alternative")

    def _holds(self, node: Node) -> bool | None:
        """Whether a branch is compiled; None where that cannot be told."""
        name, condition = node.child_by_field_name("name"), node.child_by_field_name("condition")
        if name is not None:
            there = self._is_defined(text(name))
            negative = node.children[0].type in ("#ifndef", "#elifndef")
            return None if there is None else there != negative
        try:
            written = _DEFINED.sub(
                lambda m: str(int(self._certain(m[1] or m[2]))), text(condition) if condition else ""
            )
            for _ in range(4):  # macros of macros
                written = _NAME.sub(lambda m: f"({self.values[m[0]]})" if self._certain(m[0]) else "0", written)
            return bool(evaluate(written, {}))
        except (ArithmeticError_, LookupError):
            return None

    def _certain(self, name: str) -> bool:
        there = self._is_defined(name)
        if there is None:
            raise LookupError(name)
        return there

    def _is_defined(self, name: str) -> bool | None:
        if name in self.values:
            return True
        return None if name in self.doubtful or compilers_own(name) else False


def included_units(program: Program, include: tuple[str, ...], through: str) -> Iterator[Unit]:
    """The kernel's file, the one it is compiled through, and the headers of the program that these include."""
    starts = (program.kernel_file, through or _includer(program))
    waiting = [(path, program.files[path]) for path in starts if path in program.files]
    seen = {path for path, _ in waiting}
    while waiting and len(seen) <= _MAX_HEADERS:
        path, data = waiting.pop(0)
        unit = parse(data, path)
        yield unit
        for name, quoted, _ in unit.includes:
            try:
                found = resolve_include(name, quoted, path, files=program.files, root=None, include=include)
            except SourceError:
                continue
            if found is not None and found[0] not in seen:
                seen.add(found[0])
                waiting.append((found[0], program.files.get(found[0], found[1])))


def _includer(program: Program) -> str:
    """The first source of the program that includes the kernel's file: what it is compiled through where nobody says so; "" for none."""
    name = program.kernel_file.rpartition("/")[2]
    for path, data in program.files.items():
        if path != program.kernel_file and path.endswith(".cu") and name.encode() in data:
            for written, quoted, _ in parse(data, path).includes:
                with suppress(SourceError):
                    found = resolve_include(written, quoted, path, files=program.files, root=None)
                    if found is not None and found[0] == program.kernel_file:
                        return path
    return ""


def _is_guard(node: Node) -> bool:
    """Whether the condition is there only to include a header once."""
    name = node.child_by_field_name("name")
    first = next((c for c in node.named_children if c.type not in ("comment", "identifier")), None)
    own = first.child_by_field_name("name") if first is not None and first.type == "preproc_def" else None
    return name is not None and own is not None and node.children[0].type == "#ifndef" and text(own) == text(name)


def _named(node: Node) -> tuple[str, str]:
    """What a declaration or macro calls another type, and that type; "" where it does no such thing."""
    if node.type == "preproc_def":
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        written = re.split(r"//|/\*", text(value), maxsplit=1)[0].strip() if value is not None else ""
        return (text(name), written) if name is not None and _TYPE.fullmatch(written) else ("", "")
    if node.type == "enum_specifier" and (name := node.child_by_field_name("name")) is not None:
        return text(name), underlying(node)
    if node.type in ("type_definition", "alias_declaration"):
        kind = node.child_by_field_name("type")
        name = node.child_by_field_name("declarator") or node.child_by_field_name("name")
        if kind is not None and name is not None and name.type == "type_identifier":
            return text(name), underlying(kind) if kind.type == "enum_specifier" else text(kind)
    return "", ""
