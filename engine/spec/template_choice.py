"""The template arguments that a draft names: the first concrete ones of a launch, else assumed ones, else a gap."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from engine.cuda.class_members import classes_with, members_used
from engine.cuda.declarations import variables
from engine.cuda.definitions import expression
from engine.cuda.enumerations import enumerators
from engine.cuda.host_scope import HostScope
from engine.cuda.instances import Instance, defined_names, function_objects, launched_instances, qualified
from engine.cuda.kernel import Kernel, LaunchSite, Unit
from engine.cuda.parse import parse, walk
from engine.cuda.records import parameter_name, records, split_arguments
from engine.errors import SourceError, SpecError
from engine.model import Program
from engine.spec.dtypes import parse_dtype
from engine.spec.gaps import Gap
from engine.spec.types import template_defaults

_KNOWN_WORDS = frozenset(
    {"true", "false", "unsigned", "signed", "long", "int", "const", "sizeof", "typename", "void", "nullptr"}
)
_NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_INDEX = re.compile(r"idx|index|offset|(?<!vo)id_?t(?:ype)?$", re.IGNORECASE)  # of a type's name: one of whole numbers
_LANES = re.compile(r"vec|ilp", re.IGNORECASE)  # of a number's name: how many elements a thread takes at a time
# Of the name of a type: of function objects, for which no number stands.
_CALLED = re.compile(
    r"(?:Fn|Fun|Func|Function|Functor|Op|Operator|Lambda|Callable|Callback|Pred|Predicate|Visitor|callback)$"
)
_CLASSES = re.compile(
    r"(?:[Tt]raits|TRAITS|Config|Policy)_?$"
)  # of the name of a type: of classes of constants and types
_MOST_SHOWN = 3  # of the program's own that may be written
_LETTERS = "xyzw"  # the elements of CUDA's vectors
_BYTES = ("uint8_t", "uchar", "unsigned char", "char", "int8_t")
_CAST = re.compile(r"\(([\w:]+(?:\s*<[\w:, ]*>)?)\)\s*[\w.]+")
_DATA = re.compile(r"\bdata_ptr\s*<\s*([\w:]+)\s*>")


def template_arguments(program: Program, unit: Unit, kernel: Kernel, notes: list[str], missing: list[Gap]) -> str:
    """The template arguments to write; a note where they are not those of a launch as it stands, a gap for each that is open."""
    if not kernel.template_parameters:
        return ""
    names, own = {_own(p) for p in kernel.template_parameters}, defined_names(program)
    for arguments, where in launched_arguments(program, kernel):
        if where:
            notes.append(f"assumed: template arguments <{arguments}>, those of {where}")
        return arguments
    open_ = [p for p in kernel.template_parameters if "=" not in p and "..." not in p]
    if not open_:
        return template_defaults(kernel)
    told, where = _partly(program, kernel, names, own)
    chosen = [
        told.get(_own(parameter))
        or _specialised(program, unit, kernel, parameter)
        or _assumed(program, unit, kernel, parameter)
        for parameter in open_
    ]
    # What the launch computes from those that are assumed: `16 / sizeof(T)` elements at a time.
    written = [told.get(f"={_own(p)}", "") for p in open_]
    given = {name: value for name, value in zip(written, chosen, strict=True) if name.isidentifier()}
    chosen = [_computed(program, where, told, _own(p), given) or v for p, v in zip(open_, chosen, strict=True)]
    such = {p: _candidates(program, unit, kernel, p) for p, value in zip(open_, chosen, strict=True) if value == "?"}
    guessed = [next(iter(such.get(p, ())), value) for p, value in zip(open_, chosen, strict=True)]
    for parameter, candidates in such.items():
        asked = f"the template argument for '{parameter[:60]}': write it in the kernel's name"
        asked += f", such as {', '.join(candidates[:_MOST_SHOWN])}" if candidates else ""
        missing.append(Gap(asked, "kernel", f'kernel = "{kernel.qualified}<{", ".join(guessed)}>"'))
    notes.append(f"assumed: template arguments <{', '.join(chosen)}>")
    return ", ".join(chosen)


def launched_arguments(program: Program, kernel: Kernel) -> Iterator[tuple[str, str]]:
    """The concrete template arguments that launches have, and where each comes from: "" where the launch itself names them."""
    names, own = {_own(p) for p in kernel.template_parameters}, defined_names(program)
    for instance in launched_instances(program, kernel.name, deduced=lambda site: _from_passed(program, kernel, site)):
        whole = _deduced(program, kernel, instance)
        if whole and _concrete(whole, names, own):
            stays = not instance.chained and whole == instance.arguments
            yield qualified(program, whole), "" if stays else instance.where


def _partly(program: Program, kernel: Kernel, names: set[str], own: frozenset[str]) -> tuple[dict[str, str], str]:
    """The template arguments that are concrete at a launch of which not all are, and its file: of the one with the most of them.

    Behind `=` and a parameter's name stands how the launch writes one that is not.
    """
    best, where = dict[str, str](), ""
    for instance in launched_instances(program, kernel.name, partly=True):
        given = [*zip(kernel.template_parameters, split_arguments(instance.arguments), strict=False)]
        found = {_own(p): qualified(program, a) for p, a in given if _concrete(a, names, own)}
        if len(found) > sum(not name.startswith("=") for name in best) or not where:
            best = {**found, **{f"={_own(p)}": a for p, a in given if _own(p) not in found}}
            where = instance.site.path
    return best, where


def _computed(program: Program, path: str, told: Mapping[str, str], own: str, given: Mapping[str, str]) -> str:
    """The number that a launch computes for a template argument from other ones; "" where it is none."""
    written = told.get(f"={own}", "")
    node = (
        expression(_NAME.sub(lambda m: given.get(m[0], m[0]), written))
        if written and not written.isidentifier()
        else None
    )
    if node is None:
        return ""
    try:
        found = HostScope(program, parse(program.files[path], path), {}).number(node)
    except SourceError:
        return ""
    return str(found) if isinstance(found, int) else ""


def _specialised(program: Program, unit: Unit, kernel: Kernel, parameter: str) -> str:
    """The first type for which a class is defined that the kernel names with the parameter, where it is for some types alone; else ""."""
    own, body = _own(parameter), unit.text(kernel.body)
    for name in dict.fromkeys(re.findall(rf"\b([A-Za-z_]\w*)\s*<\s*{re.escape(own)}\s*>", body)):
        found = [
            record
            for path, data in program.files.items()
            if not path.endswith(".toml")
            for record in records(data, path).get(name, ())
        ]
        if found and all(record.pattern for record in found):
            kinds = [record.pattern[0] for record in found if len(record.pattern) == 1 and _is_type(record.pattern[0])]
            if kinds:
                return kinds[0]
    return ""


def _assumed(program: Program, unit: Unit, kernel: Kernel, parameter: str) -> str:
    """What to assume for a template parameter that no launch gives; "?" where nothing can be."""
    kind, own = " ".join(parameter.split()[:-1]), _own(parameter)
    if kind in ("typename", "class"):
        if members := _members(unit, kernel, own):
            if members <= {*_LETTERS}:
                bytes_ = any(p.pointer and p.base in _BYTES for p in kernel.parameters)
                return f"{'uchar' if bytes_ else 'float'}{max(2, 1 + max(map(_LETTERS.index, members)))}"
            plain = [name for name, template in classes_with(program, members) if not template]
            return plain[0] if len(plain) == 1 else "?"
        within = re.search(rf"\b{re.escape(own)}\s*::", unit.text(kernel.span))
        if within or _CLASSES.search(own) or _is_called(unit, kernel, own):
            return "?"  # a class with members: no number stands for it
        return "int" if _INDEX.search(own) else "float"
    if kind == "bool":
        return "true"
    number = "4" if _LANES.search(own) else "256"
    return number if kind == "auto" or (_is_type(kind) and parse_dtype(kind).kind == "int") else "?"


def _members(unit: Unit, kernel: Kernel, own: str) -> set[str]:
    """The members that the kernel takes of its parameters and variables of a type."""
    named = [p.name for p in kernel.parameters if p.base == own and p.name]
    for node in walk(kernel.node):
        named += [v.name for v in variables(node) if _plain_type(v.type) == own] if node.type == "declaration" else []
    return members_used(unit.text(kernel.body), named)


def _plain_type(written: str) -> str:
    return " ".join(word for word in written.split() if word not in ("const", "constexpr", "static"))


def _is_called(unit: Unit, kernel: Kernel, own: str) -> bool:
    """Whether a type is one of function objects: by its name, or as the kernel calls a parameter of it."""
    passed = [p.name for p in kernel.parameters if p.base == own and not p.pointer and p.name]
    body = unit.text(kernel.body)
    return bool(passed) and (
        _CALLED.search(own) is not None or any(re.search(rf"\b{re.escape(p)}\s*\(", body) for p in passed)
    )


def _candidates(program: Program, unit: Unit, kernel: Kernel, parameter: str) -> list[str]:
    """What the program itself defines that a template parameter may stand for: an enumeration's values, its function objects."""
    kind, own = " ".join(parameter.split()[:-1]), _own(parameter)
    if kind in ("typename", "class"):
        if _is_called(unit, kernel, own):
            return function_objects(program)
        members = _members(unit, kernel, own)
        return (
            [f"{name}<?>" if template else name for name, template in classes_with(program, members, len(members) // 2)]
            if members
            else []
        )
    return [] if _is_type(kind) else enumerators(program, kind if "::" in kind else qualified(program, kind))


def _concrete(arguments: str, names: set[str], own: frozenset[str]) -> bool:
    """Whether the arguments name nothing but types, numbers, the program's own names, and what stands in namespaces of others."""
    for match in _NAME.finditer(arguments):
        word = match[0]
        if word not in names and (word in own or word in _KNOWN_WORDS or _is_type(word)):
            continue  # a name of a template's parameter may be that of something else, too
        if word in names or not arguments[match.end() :].lstrip().startswith("::"):
            return False
    return True


def _deduced(program: Program, kernel: Kernel, instance: Instance) -> str:
    """The instance's arguments, with those that the compiler finds from what is passed; "" where one is not seen."""
    given = split_arguments(instance.arguments)
    types: Mapping[str, str] | None = None
    for parameter in kernel.template_parameters[len(given) :]:
        if "=" in parameter or "..." in parameter:
            break
        types = _passed_types(program, kernel, instance.site) if types is None else types
        found = types.get(_own(parameter), "")
        if not found:
            found = "int" if _INDEX.search(_own(parameter)) else ""
        if not found:
            return ""
        given.append(found)
    return ", ".join(given)


def _from_passed(program: Program, kernel: Kernel, site: LaunchSite) -> str:
    """The template arguments of a launch that names none, by what it passes; "" where one is not seen."""
    types = _passed_types(program, kernel, site)
    found = [types.get(_own(p), "") for p in kernel.template_parameters if "=" not in p and "..." not in p]
    return ", ".join(found) if all(found) else ""


def _passed_types(program: Program, kernel: Kernel, site: LaunchSite) -> dict[str, str]:
    """The types of what a launch passes for parameters that name a template's type, by that name.

    Of a host function's own parameters and variables, of casts, and of `data_ptr<T>()`.
    """
    found = dict[str, str]()
    hosts = [f for f in parse(program.files[site.path], site.path).functions if f.name == site.function]
    told = {p.name: p.base for f in hosts for p in f.parameters}
    for host in hosts:
        for node in walk(host.node) if host.node is not None else ():
            if node.type == "declaration" and host.body.start <= node.start_byte < site.span.start:
                told |= {v.name: _plain_type(v.type) for v in variables(node)}
    names = {_own(p) for p in kernel.template_parameters}
    for parameter, passed in zip(kernel.parameters, site.arguments, strict=False):
        data, cast = _DATA.search(passed), _CAST.match(passed.strip())
        kind = data[1] if data else cast[1].strip() if cast else told.get(passed.strip(), "")
        match = re.fullmatch(_with_groups(parameter.base, names), kind) if kind else None
        for name, value in match.groupdict().items() if match else ():
            found.setdefault(name, value)
    return found


def _with_groups(written: str, names: Collection[str]) -> str:
    """A pattern for types that are written so, with a group for each of the names."""
    seen: set[str] = set()

    def group(match: re.Match[str]) -> str:
        if match[0] not in names:
            return match[0]
        known = match[0] in seen
        seen.add(match[0])
        return f"(?P={match[0]})" if known else rf"(?P<{match[0]}>[\w:<>, ]+)"

    return re.sub(r"[A-Za-z_]\w*", group, re.escape(written))


def _own(parameter: str) -> str:
    return parameter_name(parameter)


def _is_type(text: str) -> bool:
    try:
        parse_dtype(text)
    except SpecError:
        return False
    return True
