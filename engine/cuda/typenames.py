"""What the types that host code names come to: their sizes, and the constants that classes hold (`Packed<T>::size`)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from engine.arith import ArithmeticError_, Number, evaluate
from engine.cuda.aliases import aliases
from engine.cuda.records import Record, matching, records, split_arguments, substituted
from engine.cuda.standins import standins_of
from engine.model import Program

_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "unsigned short": 2,
    "half": 2, "__half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int16_t": 2, "uint16_t": 2, "int": 4, "unsigned": 4,
    "unsigned int": 4, "float": 4, "int32_t": 4, "uint32_t": 4, "half2": 4, "__half2": 4, "long": 8, "unsigned long": 8,
    "long long": 8, "unsigned long long": 8, "double": 8, "size_t": 8, "int64_t": 8, "uint64_t": 8, "float2": 8, "int2": 8,
    "uint2": 8, "float3": 12, "int3": 12, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
_MAX_ALIASES = 16  # typedefs of typedefs; also ends a cycle
_WORDS = re.compile(r"\b(?:const|volatile|typename|struct|class)\b")
_Instance = tuple[Record, Mapping[str, str]]  # a class, and what its template's parameters stand for

__all__ = ["Member", "TypeNames", "split_arguments"]


@dataclass(frozen=True)
class Member:
    """A constant of a class: the text of its value, and what the template's parameters stand for there, types and others."""

    value: str
    types: Mapping[str, str]
    values: Mapping[str, str]


def _plain_number(written: str) -> Number | None:
    with contextlib.suppress(ArithmeticError_):
        return evaluate(written, {})
    return None


@dataclass
class TypeNames:
    """The types of one program. `bound` are names that stand for types at one place: a template's parameters.

    `defines` and `include` are what the compiler is told, as in `aliases`. `value` gives a template argument that is a number.
    """

    program: Program
    defines: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    bound: Mapping[str, str] = field(default_factory=dict)
    value: Callable[[str], Number | None] = _plain_number
    depth: int = 0  # of classes whose arguments name classes

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return aliases(self.program, self.defines, self.include)

    @cached_property
    def defined(self) -> Mapping[str, Number]:
        """The macros that the compiler is told, as far as they are numbers."""
        found: dict[str, Number] = {}
        for name, _, written in (define.partition("=") for define in self.defines):
            with contextlib.suppress(ArithmeticError_):
                found[name] = evaluate(written or "1", {})
        return found

    def within(self, bound: Mapping[str, str]) -> TypeNames:
        """The same program at another place."""
        other = replace(self, bound=bound)
        other.__dict__["_aliases"] = self._aliases
        return other

    def plain(self, text: str) -> str:
        """The type that a name stands for in the end, as text; what is no other name for a type stays."""
        for _ in range(_MAX_ALIASES):
            text = " ".join(_WORDS.sub(" ", text).split())
            following = self.bound.get(text) or (None if text in _SIZES else self._aliased(text))
            if not following or following == text:
                return text
            text = following
        return text

    def size(self, text: str) -> int | None:
        """Of a type, in bytes; None where it is not known."""
        plain = self.plain(text)
        return 8 if plain.endswith("*") else _SIZES.get(plain)

    def member(self, scope: str, name: str) -> Member | None:
        """The constant `scope::name`; None where `scope` names no class of the program.

        Raises LookupError where it names several, or one without such a constant.
        """
        instance = self._instance(scope)
        if instance is None:
            return None
        owner = self._owner(instance, lambda record: name in record.constants)
        if owner is None:
            raise LookupError(f"{scope}::{name}")
        record, bound = owner
        types = {n: self.plain(v) for n, v in bound.items() if n in record.types}
        return Member(record.closed(name), types, {n: v for n, v in bound.items() if n not in types})

    def _aliased(self, text: str) -> str | None:
        """What a name for a type, perhaps one of a class, stands for directly; None where it is no such name."""
        scope, name = _scoped(text)
        if scope and name.isidentifier():
            with contextlib.suppress(LookupError):
                instance = self._instance(scope)
                owner = self._owner(instance, lambda record: name in record.kinds) if instance is not None else None
                if owner is not None:
                    return substituted(owner[0].closed(name), owner[1])
        return self._aliases.get(text.split("::")[-1])

    def _instance(self, scope: str) -> _Instance | None:
        """The class that a text names, with what its template's parameters stand for; None where it is none of the program.

        Raises LookupError where several may be meant.
        """
        if self.depth > _MAX_ALIASES:
            raise LookupError(scope)
        inner = replace(self, depth=self.depth + 1)
        inner.__dict__["_aliases"] = self._aliases
        base, _, rest = _scoped(inner.plain(scope))[1].partition("<")
        found = [
            record
            for path, data in (*self.program.files.items(), *standins_of(self.program.files))
            if not path.endswith(".toml")
            for record in records(data, path).get(base.strip(), ())
        ]
        if not found:
            return None
        given = [inner._settled(a) for a in split_arguments(rest.strip().removesuffix(">"))] if rest else []
        if len(found) == 1 and not found[0].pattern:
            return found[0], matching(found[0], given) or {}
        primary = [record for record in found if not record.pattern]
        if len(primary) == 1:  # with its defaults, for which a specialisation may be
            bound = matching(primary[0], given) or {}
            given = [inner._settled(value) for value in bound.values()]
            defaults = tuple(default for _, default in primary[0].parameters)
            found = [replace(r, pattern=(*r.pattern, *defaults[len(r.pattern) :])) if r.pattern else r for r in found]
        special = [(r, b) for r in found if r.pattern and (b := matching(r, given, inner._normal(r))) is not None]
        if special:
            least = min(len(bound) for _, bound in special)
            closest = [each for each in special if len(each[1]) == least]
        else:
            closest = [(record, matching(record, given) or {}) for record in primary]
        if len(closest) != 1 or not (primary or special):
            raise LookupError(scope)
        return closest[0]

    def _owner(self, instance: _Instance, holds: Callable[[Record], bool], depth: int = 0) -> _Instance | None:
        """The class itself or the base of it for which that holds."""
        record, bound = instance
        if holds(record):
            return instance
        for base in record.bases if depth < _MAX_ALIASES else ():
            above = self._instance(substituted(record.closed(base), bound))
            if above is not None and (owner := self._owner(above, holds, depth + 1)) is not None:
                return owner
        return None

    def _settled(self, argument: str) -> str:
        """A template argument without names that stand for others here: a number, or a type."""
        closed = substituted(argument, self.bound)
        number = self.value(closed)
        return self.plain(closed) if number is None else str(number)

    def _normal(self, record: Record) -> dict[str, str]:
        own = {parameter for parameter, _ in record.parameters}
        return {e: self.within({})._settled(e) for e in record.pattern if e not in own}


def _scoped(text: str) -> tuple[str, str]:
    """What stands before the last `::` outside of brackets, and behind it."""
    depth = round_ = 0
    for at in range(len(text) - 1, 0, -1):
        round_ += (text[at] == ")") - (text[at] == "(")
        depth += (text[at] == ">" and not round_) - (text[at] == "<" and not round_)
        if depth == 0 == round_ and text[at - 1 : at + 1] == "::":
            return text[: at - 1], text[at + 1 :].strip()
    return "", text
