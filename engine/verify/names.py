"""Names that an edit introduces at file scope, compared with the names that other code of the include graph uses.

C++ looks a name up where it is used: a new overload, type, macro or `using` changes code whose text stays as it is. The whole build
shows this in machine code; this needs no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from engine.cuda.items import Item, Token, directive_parts, items_of, tokens_of
from engine.cuda.phases import NVCC, form_of
from engine.cuda.records import split_arguments
from engine.model import Guardrail, Program
from engine.spec.kernel_spec import KernelSpec

NAMES = "no new name is used by other code"
_NUMBERS_AND_TYPES = frozenset(
    {"bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "half", "__half", "__nv_bfloat16",
     "true", "false", "const"}
)  # fmt: skip


def names_problem(original: Program, candidate: Program, around: Mapping[str, bytes], spec: KernelSpec) -> str | None:
    """Why an edit is refused for a name that it introduces at file scope; None where no other code uses one.

    `around` are further files of the include graph by path, such as those that include a changed header.
    """
    files = {path: data for path, data in {**around, **original.files}.items() if not path.endswith(".toml")}
    kernels = {step.kernel.rpartition("::")[2] for step in spec.steps}
    for path in sorted(path for path in files if candidate.files.get(path, files[path]) != files[path]):
        old, new = _items(files[path]), _items(candidate.files[path])
        if reason := _namespaces(old, new) or _before_include(old, new):
            return reason
        macros = _macros(new) - _macros(old)
        names = {name for item in new for name in item.defines if item.kind not in ("open", "close")}
        names -= {name for item in old for name in item.defines}
        for where, data in sorted(files.items()):
            for item in _items(data):
                if item.kind in ("function", "directive") and set(item.defines) & kernels:
                    continue
                if found := _used(item.tokens, names, macros):
                    return f"introduces '{found[:60]}', which {where}:{item.line} uses"
    return None


def names(original: Program, candidate: Program, around: Mapping[str, bytes], spec: KernelSpec) -> Guardrail:
    """The verdict on new names."""
    problem = names_problem(original, candidate, around, spec)
    return Guardrail(NAMES, "failed", problem) if problem else Guardrail(NAMES, "passed")


def visible_instances(
    original: Program, candidate: Program, around: Mapping[str, bytes], spec: KernelSpec
) -> tuple[str, ...]:
    """The name expressions of other visible instances of a template that the edit changes.

    Only instances whose arguments are numbers and built-in types are found: others depend on where they are named.
    """
    found: dict[str, None] = {}
    files = {path: data for path, data in {**around, **original.files}.items() if not path.endswith(".toml")}
    for step in spec.steps:
        kernel, ours = step.kernel.rpartition("::")[2], _arguments(step.template_args)
        if ours is None or not ours or not _changed(original, candidate, kernel):
            continue
        for path in sorted(files):
            for tokens in (item.tokens for item in _items(files[path])):
                for i, token in enumerate(tokens):
                    if token.text != kernel or i + 1 >= len(tokens) or tokens[i + 1].text != "<":
                        continue
                    named = _between(tokens, i + 1)
                    other = _arguments(named)
                    if other and other != ours:
                        found[f"{step.kernel}<{', '.join(split_arguments(named))}>"] = None
    return tuple(found)


def _items(data: bytes) -> tuple[Item, ...]:
    return items_of(form_of(data.decode("utf-8", "replace"), NVCC).code)


def _directives(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    for item in items:
        for token in item.tokens:
            if token.kind == "directive":
                yield directive_parts(token.text)


def _macros(items: Iterable[Item]) -> set[str]:
    return {match[0] for word, rest in _directives(items) if word == "define" and (match := re.match(r"\w+", rest))}


def _namespaces(old: Sequence[Item], new: Sequence[Item]) -> str | None:
    def of(items: Sequence[Item]) -> list[str]:
        return [
            " ".join(t.text for t in item.head) for item in items if [t.text for t in item.head[:2]] == ["using", "namespace"]
        ]  # fmt: skip

    for text in of(new):
        if text not in of(old):
            return f"adds '{text[:80]}' at file scope, which changes the meaning of names in other code"
    return None


def _before_include(old: Sequence[Item], new: Sequence[Item]) -> str | None:
    """A macro that comes in before an `#include` is part of that header's text."""
    known, added = _macros(old), ""
    for word, rest in _directives(new):
        if word == "define" and (match := re.match(r"\w+", rest)) and match[0] not in known:
            added = added or match[0]
        elif word == "include" and added:
            return f"defines the macro '{added[:60]}' before the header {rest[:60]}, which may use it"
    return None


def _used(tokens: Sequence[Token], names: set[str], macros: set[str]) -> str | None:
    """The first new name among the tokens. A member is no use of a function or type, but a macro replaces it too."""
    before = ""
    for token in tokens:
        if token.kind == "directive":
            word, rest = directive_parts(token.text)
            for inner in tokens_of(rest) if word != "include" else ():
                if inner.text in names or inner.text in macros:
                    return inner.text
        elif token.text in macros or (token.kind == "name" and token.text in names and before not in (".", "->")):
            return token.text
        before = before + token.text if (before, token.text) == ("-", ">") else token.text
    return None


def _changed(original: Program, candidate: Program, kernel: str) -> bool:
    def text(program: Program) -> list[list[str]]:
        return [
            [t.text for t in item.tokens]
            for path, data in sorted(program.files.items())
            if not path.endswith(".toml")
            for item in _items(data)
            if item.kind == "function" and kernel in item.defines
        ]

    return text(original) != text(candidate)


def _between(tokens: Sequence[Token], at: int) -> str:
    """The text between the `<` at `at` and its `>`; empty for a launch without arguments."""
    depth, inside = 0, list[str]()
    for token in tokens[at : at + 64]:
        depth += (token.text == "<") - (token.text == ">")
        if depth == 0:
            return " ".join(inside[1:])
        inside.append(token.text)
    return ""


def _arguments(text: str) -> tuple[str, ...] | None:
    """The tokens of template arguments that are numbers and built-in types; None for others."""
    tokens = tokens_of(text)
    plain = all(t.kind == "number" or t.text in _NUMBERS_AND_TYPES or t.text in (",", "*") for t in tokens)
    return tuple(t.text for t in tokens) if plain else None
