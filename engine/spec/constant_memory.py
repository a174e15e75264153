"""`__constant__` variables of a program, which host code fills: where they are declared, how large they are, what a kernel reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.closure import closure
from engine.cuda.constants import integers, words
from engine.cuda.items import ATTRIBUTES, Item, Token, items_of, past_call
from engine.cuda.kernel import Kernel, Parameter, Span, Unit
from engine.cuda.parse import parse
from engine.cuda.typenames import TypeNames
from engine.errors import SpecError
from engine.model import Program
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.places import FieldError, Place, StructFields
from engine.spec.struct_layout import Layout, Unclear, layout

_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_TYPE = frozenset(
    {"static", "extern", "const", "volatile", "inline", "constexpr", "struct", "class", "typename", "__constant__", "__device__"}
)  # fmt: skip
_OPEN, _CLOSE = ("(", "[", "{", "<"), (")", "]", "}", ">")
_KEYS = ("type", "fill", "value")  # of a constant in a spec, beside the fields of a struct


@dataclass(frozen=True)
class ConstantVariable:
    """One variable: its type and extents as text. `initialised`: the text gives it a value."""

    name: str
    qualified: str
    kind: str
    extents: tuple[str, ...]
    initialised: bool
    external: bool  # declared here, defined elsewhere
    path: str

    @property
    def parameter(self) -> Parameter:
        """As the parameter that it would be if the launch passed it."""
        nowhere = Span(0, 0)
        base = self.kind.rstrip("* ")
        return Parameter(self.name, nowhere, nowhere, self.kind, base, self.pointer, True, False)

    @property
    def pointer(self) -> bool:
        """Whether it holds an address by itself."""
        return self.kind.endswith("*")


def constant_variables(program: Program) -> tuple[ConstantVariable, ...]:
    """All of the program's files, each declaration once; one that is also defined counts as defined."""
    found: dict[tuple[str, str, tuple[str, ...]], ConstantVariable] = {}
    for path, data in program.files.items():
        if b"__constant__" in data and not path.endswith(".toml"):
            for variable in _of_file(path, data):
                key = (variable.qualified, variable.kind, variable.extents)
                if key not in found or found[key].external:
                    found[key] = variable
    return tuple(found.values())


def unfilled_constants(program: Program, unit: Unit, kernel: Kernel) -> tuple[ConstantVariable, ...]:
    """Those without a value in the text that the kernel, or a function of its file that it calls, reads; by name."""
    declared = {v.name: v for v in constant_variables(program) if not v.initialised}
    if not declared:
        return ()
    own = {p.name for p in kernel.parameters}
    return tuple(declared[name] for name in sorted((names_reached(unit, kernel) & declared.keys()) - own))


def names_reached(unit: Unit, kernel: Kernel) -> set[str]:
    """The words of a kernel and of the functions of its file that it calls, directly or not."""
    spans = {**{f.name: f.span for f in unit.functions}, kernel.name: kernel.span}
    return closure([kernel.name], lambda name: _WORD.findall(unit.text(spans[name])) if name in spans else ())


@dataclass(frozen=True)
class ConstantType:
    """What stands in a variable: elements of `dtype`, `count` of them in an array; `layout` of a class."""

    dtype: DType
    count: int | None
    layout: Layout | None = None


def type_of(program: Program, variable: ConstantVariable) -> ConstantType:
    """The type of one variable. Raises Unclear where the text does not show it, or no spec can say what it holds."""
    if variable.pointer:
        raise Unclear("it is a pointer, and a spec gives the contents of memory, not an address")
    count = _count(program, variable) if variable.extents else None
    try:
        return ConstantType(parse_dtype(TypeNames(program).plain(variable.kind)), count)
    except SpecError:
        found = layout(program, variable.kind, {})
    if count is not None and found.pointers:
        raise Unclear(f"its elements contain pointers ('{found.pointers[0]}')")
    return ConstantType(parse_dtype(f"struct:{found.size}"), count, found)


@dataclass(frozen=True)
class GivenConstant:
    """A variable of a program, and the table that a spec has for it."""

    program: Program
    variable: ConstantVariable

    def places(self, data: Mapping[str, Any]) -> list[tuple[Place, dict[str, Any], tuple[str, ...]]]:
        """The variable, or the struct and its fields, each with its table and the keys that lead to it. Raises FieldError."""
        variable = self.variable
        name, program = variable.name, self.program
        if variable.external:
            raise FieldError(
                f"'{name}' is declared and defined in no file of this one's", "omit it: nothing can fill it"
            )
        within = {key: part for key, part in data.items() if isinstance(part, dict) and key not in ("fill", "type")}
        own = {key: part for key, part in data.items() if key not in within}
        for key in own:
            if key not in _KEYS:
                raise FieldError(
                    f"'{key}' does not apply to the __constant__ variable '{name}'", "write fill, or value", key
                )
        if within and not variable.extents and not variable.pointer:
            whole, fields = StructFields(program, variable.parameter, {}).places(own, within)
            zeros = {"value": f"hex:{'00' * whole.dtype.itemsize}"}
            leaves = [(p, {k: v for k, v in part.items() if k != "offset"}, path) for p, part, path in fields]
            return [
                (whole, zeros, ()),
                *((p, {"value": path[-1], **t} if not p.pointer else t, path) for p, t, path in leaves),
            ]
        try:
            found = type_of(program, variable)
        except Unclear as why:
            raise FieldError(f"what '{name}' holds is not known: {why}", "omit it") from None
        if "type" in own:
            declared = _declared(own.pop("type"))
            if declared.itemsize != found.dtype.itemsize or (
                "bytes" not in (declared.kind, found.dtype.kind) and declared != found.dtype
            ):
                raise FieldError(f"'{name}' is {found.dtype.name}, not {declared.name}", "correct the type", "type")
        array = found.count is not None
        if array:
            own = {"size": str(found.count), **own}
        return [(Place(name, found.dtype, array, True), own, ())]


def constant_named(program: Program, name: str) -> ConstantVariable | None:
    """The variable of that name. Raises FieldError where the program has several."""
    found = [v for v in constant_variables(program) if v.name == name]
    if len(found) > 1:
        raise FieldError(f"'{name}' is defined more than once", "the kernel must see one variable of that name")
    return found[0] if found else None


def changed_declaration(before: Program, after: Program, names: Collection[str]) -> str:
    """The first of these variables whose declarations two programs have differently; "" where there is none."""
    old, new = constant_variables(before), constant_variables(after)
    for name in names:
        a, b = ([replace(v, path="") for v in each if v.name == name] for each in (old, new))
        if a != b:
            return name
    return ""


def _declared(value: object) -> DType:
    if not isinstance(value, str):
        raise FieldError("a type is not a string", 'write type = "float" or the like', "type")
    try:
        return parse_dtype(value)
    except SpecError as error:
        raise FieldError(error.what, error.do, "type") from None


def _count(program: Program, variable: ConstantVariable) -> int:
    """The elements of an array, over integer constants of the program, those of its own file first."""
    named = [word for extent in variable.extents for word in words(extent)]
    values: dict[str, int] = {}
    for path in (*(p for p in program.files if not p.endswith(".toml")), variable.path) if named else ():
        values |= integers(parse(program.files[path], path), named)
    count = 1
    for extent in variable.extents:
        try:
            count *= evaluate_int(extent, values)
        except ArithmeticError_:
            raise Unclear(f"its extent '{extent[:60]}' is not known") from None
    if count < 1:
        raise Unclear("it has no elements")
    return count


@lru_cache(maxsize=64)
def _of_file(path: str, data: bytes) -> tuple[ConstantVariable, ...]:
    found: list[ConstantVariable] = []
    scopes: list[tuple[str, ...]] = []
    text = data.decode("utf-8", "replace")
    for item in items_of(text):
        if item.kind == "open":
            scopes.append(item.defines)
        elif item.kind == "close":
            scopes = scopes[:-1]
        elif item.kind in ("variable", "type") and any(t.text == "__constant__" for t in item.head):
            around = [name for scope in scopes for name in scope]
            found += _declarators(item, text, path, "::".join(around))
    return tuple(found)


def _declarators(item: Item, text: str, path: str, scope: str) -> Iterator[ConstantVariable]:
    """The variables of one declaration: `__constant__ T a[2], *b;`."""
    kind: list[str] = []
    for position, part in enumerate(_parts([t for t in item.tokens if t.kind != "directive"])):
        ends = [i for i, token in enumerate(part) if token.text in ("[", "=", "{")]
        head = part[: ends[0]] if ends else part
        names = [i for i, token in enumerate(head) if token.kind == "name"]
        if not names or (position == 0 and len(head) < 2):
            return
        if position == 0:
            kind = [t.text for t in head[: names[-1]] if t.text not in _NO_TYPE]
        stars = [t.text for t in head[: names[-1]] if t.text == "*"] if position else []
        base = [word for word in kind if word != "*"] if position else kind
        name = head[names[-1]].text
        yield ConstantVariable(
            name, f"{scope}::{name}" if scope else name, _joined([*base, *stars]), tuple(_extents(part[len(head) :], text)),
            any(t.text in ("=", "{") for t in part[len(head) :]), any(t.text == "extern" for t in item.head), path,
        )  # fmt: skip


def _parts(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The declarators, the type before the first one, without attributes and the semicolon."""
    part: list[Token] = []
    depth, at = 0, 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "name" and token.text in ATTRIBUTES:
            at = past_call(tokens, at) + 1
            continue
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth == 0 and token.text in (",", ";"):
            yield part
            part = []
        else:
            part.append(token)
        at += 1


def _extents(tokens: Sequence[Token], text: str) -> Iterator[str]:
    """What stands in the brackets before an initialiser; "" in empty ones."""
    depth, start = 0, 0
    for token in tokens:
        if depth == 0 and token.text in ("=", "{"):
            return
        if token.text == "[":
            start = token.end if depth == 0 else start
            depth += 1
        elif token.text == "]":
            depth -= 1
            if depth == 0:
                yield text[start : token.start].strip()


def _joined(words_: Sequence[str]) -> str:
    written = " ".join(words_)
    return re.sub(r"\s*(::|[<>*,])\s*", lambda m: ", " if m[1] == "," else m[1], written).replace(">*", "> *").strip()
