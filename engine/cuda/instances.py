"""The template arguments that a program launches a kernel with: followed through the host's code up to one that is concrete.

What stands in a launch's `<…>` may be a template's parameter, a local `using` or `constexpr`, or a name that a dispatch macro
defines; a host template gets its own from explicit instantiations, from calls, and from macros that make these.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.kernel import Function, LaunchSite
from engine.cuda.launch_conditions import asks_for_optional, conditions_at
from engine.cuda.launch_reading import closing, readable_sites
from engine.cuda.macros import function_macros
from engine.cuda.parse import parse, text, walk
from engine.cuda.records import parameter_name, split_arguments, substituted
from engine.cuda.standins import standins_of
from engine.errors import SourceError
from engine.model import Program

_NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MOST_STEPS = 12  # of names replaced by what they stand for
_MOST_TEXT = 1_000  # characters of template arguments: names that each use the one before twice double them
_MOST_MACROS = 4  # macros that call each other
_MOST_FOUND = 200  # uses of one template, and places of one launch's arguments, that are looked at
_NAMED = (
    "class_specifier",
    "struct_specifier",
    "union_specifier",
    "enum_specifier",
    "alias_declaration",
    "type_definition",
)
# PyTorch's and their like define `scalar_t`, in headers of others
_TYPE_DISPATCH = re.compile(r"\b\w*DISPATCH\w*\s*\(")
_ACCUMULATED = re.compile(
    r"(?:typename\s+)?(?:at::)?acc_type\s*<\s*(float|double|(?:at::|c10::)\w+)\s*,\s*\w+\s*>(?:::type)?"
)
_ASKED = re.compile(r"\bif\s*(?:constexpr\s*)?\(([^;{}]*)\)\s*\{[^{}]*$")
_SUM = re.compile(r"(?<=[<,])[\d ()]*\d[ )]*[*/+-][\d ()*/+-]*(?=[,>])")  # a template argument
_MACRO_CALL = r"(?<![\w#])({})\s*\("


@dataclass(frozen=True)
class Instance:
    """Template arguments of a launch, and where they come from. `chained`: the launch itself names others.

    `holds` are conditions of the host's under which it is launched so, with the template arguments of host functions in place.
    """

    arguments: str
    where: str  # path:line
    site: LaunchSite
    chained: bool = False
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Place:
    """Where template arguments are written: the names known there are those of the functions around it, and of the text before it."""

    path: str
    at: int  # byte


@dataclass(frozen=True)
class _Written:
    """Template arguments as written somewhere, where, and the host's conditions so far."""

    arguments: str
    where: str
    holds: tuple[str, ...] = ()
    left_open: bool = False  # it names parameters of a host template


@dataclass(frozen=True)
class _Template:
    """A host function, or a class around it, with the parameters of its template, () for none."""

    name: str
    parameters: tuple[str, ...]
    is_class: bool = False

    @property
    def names(self) -> list[str]:
        return [parameter_name(p) for p in self.parameters]


def launched_instances(
    program: Program, kernel: str, *, partly: bool = False, deduced: Callable[[LaunchSite], str] | None = None
) -> Iterator[Instance]:
    """The template arguments at each launch, as far as the text shows; names that stay are in no function's own.

    `partly`: those too that name parameters of host templates which nothing uses. `deduced` gives those of a launch that names none.
    """
    try:
        found = readable_sites(program, kernel)
    except SourceError:
        return
    for site in found:
        given = site.template_args or (deduced(site) if deduced is not None else "")
        if given:
            where, place = f"{site.path}:{site.line}", _Place(site.path, _start(program, site))
            plain = _COMMENT.sub(" ", given)
            for each in _followed(program, _Written(plain, where), place, set()):
                arguments = _squeezed(each.arguments)
                if each.left_open and not partly:
                    continue
                yield Instance(arguments, each.where, site, arguments != _squeezed(plain), each.holds)


def qualified(program: Program, arguments: str) -> str:
    """The arguments with the namespaces of the program's own classes, constants and functions, as the file's end has to write them."""
    spaces = _spaces(program)
    return _NAME.sub(lambda m: f"{spaces[m[0]]}::{m[0]}" if spaces.get(m[0]) else m[0], arguments)


def defined_names(program: Program) -> frozenset[str]:
    """The names of the program's own classes, aliases, constants and functions."""
    return frozenset(_spaces(program))


def function_objects(program: Program) -> list[str]:
    """The program's classes whose objects can be called, with their namespaces; no templates."""
    found = []
    for path, data in program.files.items():
        if path.endswith(".toml") or b"operator()" not in data:
            continue
        for node in walk(parse(data, path).root):
            above, name = node.parent, node.child_by_field_name("name")
            if node.type not in ("class_specifier", "struct_specifier") or name is None or above is None:
                continue
            body = node.child_by_field_name("body")
            own = " ".join(text(m).partition("{")[0] for m in body.named_children) if body is not None else ""
            space = _space(node)
            if above.type != "template_declaration" and space is not None and re.search(r"\boperator\s*\(\s*\)", own):
                found.append(f"{space}::{text(name)}" if space else text(name))
    return found


def _start(program: Program, site: LaunchSite) -> int:
    """Where a launch's template arguments stand: at the launch, or where its pointer gets its value."""
    before = program.files[site.path].rfind(site.template_args.encode(), 0, site.span.end)
    return site.span.start if before < 0 or not site.template_args else before


def _followed(program: Program, written: _Written, place: _Place, seen: set[tuple[str, _Place]]) -> Iterator[_Written]:
    arguments = written.arguments
    if (arguments, place) in seen or len(seen) >= _MOST_FOUND:
        return  # templates that call each other
    seen.add((arguments, place))
    data = program.files[place.path]
    hosts = [f for f in parse(data, place.path).functions if f.qualifier != "global" and _around(f, place.at)]
    around = [*(_Template(f.name, f.template_parameters) for f in reversed(hosts)), *_classes_around(data, place)]
    own = {name for template in around for name in template.names}
    holds = [*written.holds, *(_settled(program, h, place, hosts) for h in conditions_at(data, place.path, place.at))]
    done: set[str] = set()  # `using Traits = Traits<T>`: what is inside is another one
    for _ in range(_MOST_STEPS):
        open_ = [n for n in dict.fromkeys(_NAME.findall(arguments)) if n not in own | done]
        meanings = {n: m for n in open_ if (m := _local(program, n, place, hosts)) is not None}
        if not meanings or len(arguments) > _MOST_TEXT:
            break
        values = {n: m.arguments for n, m in meanings.items()}
        holds += [h for m in meanings.values() for h in m.holds]
        done |= {n for n, v in values.items() if n in _NAME.findall(v)}
        arguments = substituted(arguments, values)
    if not own & {*_NAME.findall(arguments)}:
        yield replace(written, arguments=arguments, holds=tuple(holds))
        return
    host = next((each for each in around if {*each.names} & {*_NAME.findall(arguments)}), None)
    if host is None:
        return
    followed = False
    inside = [f for f in hosts if f.name == host.name]
    for given, origin, caller in _uses(program, host):
        if origin.path == place.path and any(_around(f, origin.at) for f in inside):
            continue  # by itself, or one of the same name in another namespace
        bound = _bound(host, given)
        if bound is not None:
            line = f"{origin.path}:{program.files[origin.path].count(bytes([10]), 0, origin.at) + 1}"
            made = _Written(substituted(arguments, bound), line, tuple(substituted(h, bound) for h in holds))
            for each in _followed(program, made, origin, seen) if caller else (made,):
                followed = True
                yield each
    if not followed:  # some arguments may be known all the same
        yield replace(written, arguments=arguments, holds=tuple(holds), left_open=True)


def _settled(program: Program, condition: str, place: _Place, hosts: list[Function]) -> str:
    """A condition with the constants around it in place."""
    values = {n: m.arguments for n in _NAME.findall(condition) if (m := _local(program, n, place, hosts)) is not None}
    return substituted(condition, values)


def _local(program: Program, name: str, place: _Place, hosts: list[Function]) -> _Written | None:
    """What a name stands for that the functions around a place define before it, themselves or by a dispatch macro; else None."""
    start = min([f.body.start for f in hosts], default=place.at)
    before = program.files[place.path][start : place.at].decode("utf-8", "replace")
    before = _COMMENT.sub(" ", before)
    patterns = (
        rf"\busing\s+{name}\s*=\s*([^;]+);",
        rf"\bconstexpr\s+(?:static\s+)?(?:auto|[\w:]+)\s+{name}\s*=\s*([^;]+);",
        rf"\bconst\s+(?:bool|int|unsigned|size_t)\s+{name}\s*=\s*(\w+)\s*;",
    )
    for pattern in patterns:
        if found := re.findall(pattern, before):
            return _Written(str(found[-1]).strip(), "")
    return _dispatched(program, name, before)


def _dispatched(program: Program, name: str, before: str) -> _Written | None:
    """The first value that a macro around a place gives a name: `SWITCH(x, NAME, …)` with `constexpr bool NAME = true;` in it.

    The one behind `else` where the first asks for something optional.
    """
    for path, data in program.files.items():
        for macro, definitions in function_macros(data, path).items() if path.rpartition(".")[2] != "toml" else ():
            for parameters, body in definitions:
                if not re.search(r"\b(?:using|constexpr|typedef)\b", body):
                    continue
                for call in reversed(list(re.finditer(_MACRO_CALL.format(re.escape(macro)), before))):
                    given = _arguments(before, call.end(), len(parameters))
                    expanded = _expanded(body, parameters, given)
                    if values := _defined_in(expanded, name):
                        return _branch(expanded, values, before)
    return _Written("float", "") if name == "scalar_t" and _TYPE_DISPATCH.search(before) else None


def _defined_in(expanded: str, name: str) -> list[tuple[str, int]]:
    """(value, where it stands) of each definition of a name in a macro's text."""
    pattern = rf"\b(?:using\s+{name}|constexpr\s+(?:static\s+)?[\w:]+\s+{name})\s*=\s*([^;]+);"
    found = [*re.finditer(pattern, expanded)] or [*re.finditer(rf"\btypedef\s+([^;]+?)\s+{name}\s*;", expanded)]
    return [(match[1].strip(), match.start()) for match in found]


def _branch(expanded: str, values: list[tuple[str, int]], before: str) -> _Written:
    """Which of the values of a macro's branches to take, with the condition that holds there."""
    first, at = values[0]
    asked = _ASKED.search(expanded[:at])
    if asked is None:
        return _Written(first, "")
    condition = asked[1].strip()
    named = (
        re.findall(rf"\b(?:bool|auto)\s+{re.escape(condition)}\s*=\s*([^;]+);", before)
        if condition.isidentifier()
        else []
    )
    condition = named[-1].strip() if named else condition
    if asks_for_optional(condition) and len(values) > 1 and "else" in expanded[at : values[1][1]]:
        return _Written(values[1][0], "")
    return _Written(first, "", (condition,))


def _arguments(written: str, start: int, most: int) -> list[str]:
    """The first arguments of a macro's call that begin at `start`, as far as the text goes."""
    parts, depth, current = list[str](), 0, ""
    for char in written[start:]:
        if depth == 0 and (char == ")" or len(parts) >= most):
            break
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()]


def _expanded(body: str, parameters: tuple[str, ...], given: list[str]) -> str:
    """A macro's text with its arguments put in; what it passes through as a whole stays out."""
    values = {p: given[k] for k, p in enumerate(parameters) if p != "..." and k < len(given)}
    put = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: values.get(m[0], m[0]), body)
    return re.sub(r"\s*##\s*", "", put)


def _classes_around(data: bytes, place: _Place) -> Iterator[_Template]:
    """The class templates around a place, the innermost first."""
    node = parse(data, place.path).root.descendant_for_byte_range(place.at, place.at + 1)
    while node is not None and node.parent is not None:
        node, inside = node.parent, node
        name = inside.child_by_field_name("name")
        listed = node.child_by_field_name("parameters") if node.type == "template_declaration" else None
        if inside.type in _NAMED[:2] and name is not None and name.type == "type_identifier" and listed is not None:
            yield _Template(
                text(name), tuple(text(each) for each in listed.named_children if each.type != "comment"), True
            )


def _uses(program: Program, host: _Template) -> Iterator[tuple[list[str], _Place, bool]]:
    """The template arguments that a host template is used with, the place of each, and whether a function is around it."""
    named = re.compile(rf"(?<![\w.])(?<!struct )(?<!class ){re.escape(host.name)}\s*<")
    behind = re.compile(r">\s*(?:::|[\w{(;,)&])" if host.is_class else r">\s*[(,;)&]")
    count = 0
    for path, data in program.files.items():
        written = data.decode("latin-1")
        if path.endswith(".toml") or host.name not in written:
            continue
        plain = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), written)
        plain = re.sub(r"\\(?=\r?\n)", " ", plain)  # as in the text of a macro
        for match in named.finditer(plain):
            close = closing(plain, match.end())
            if close < 0 or not behind.match(plain[close : close + 20]):
                continue
            count += 1
            if count > _MOST_FOUND:
                return
            given = split_arguments(plain[match.end() : close])
            macro = _macro_around(written, match.start())
            if macro is None:
                functions = [f for f in parse(data, path).functions if _around(f, match.start())]
                yield given, _Place(path, match.start()), bool(functions)
                continue
            yield from _by_macro(program, macro, given)


def _macro_around(written: str, at: int) -> tuple[str, tuple[str, ...]] | None:
    """The macro in whose text a place is: its name and parameters; None where it is in none."""
    start = written.rfind("\n", 0, at) + 1
    while start > 1 and written[:start].rstrip("\r\n").endswith("\\"):
        start = written.rfind("\n", 0, start - 1) + 1
    found = re.match(r"[ \t]*#[ \t]*define[ \t]+(\w+)\(([^()]*)\)", written[start:at].replace("\\\n", " "))
    return (found[1], tuple(p.strip() for p in found[2].split(","))) if found else None


def _by_macro(
    program: Program, macro: tuple[str, tuple[str, ...]], given: list[str], depth: int = _MOST_MACROS
) -> Iterator[tuple[list[str], _Place, bool]]:
    """The uses of a template that calls of a macro make, whose text has the arguments `given`."""
    name, parameters = macro
    for path, data in program.files.items():
        written = data.decode("latin-1")
        for call in re.finditer(_MACRO_CALL.format(re.escape(name)), written):
            if re.search(r"#[ \t]*(?:define|undef)[ \t]+$", written[: call.start()][-40:]):
                continue
            passed = _arguments(written, call.end(), len(parameters))
            expanded = [_expanded(g, parameters, passed) for g in given]
            outer = _macro_around(written, call.start())
            if outer is not None:
                if depth > 1 and outer[0] != name:
                    yield from _by_macro(program, outer, expanded, depth - 1)
                continue
            around = any(_around(f, call.start()) for f in parse(data, path).functions)
            yield expanded, _Place(path, call.start()), around


def _bound(host: _Template, given: list[str]) -> dict[str, str] | None:
    """A host template's parameters with what they are given, or their defaults; None where one has neither."""
    bound: dict[str, str] = {}
    for at, parameter in enumerate(host.parameters):
        head, _, default = parameter.partition("=")
        if "..." in head:
            continue
        value = given[at] if at < len(given) else default.strip()
        if value:
            bound[parameter_name(parameter)] = value
    return bound if len(given) <= len(host.parameters) else None


def _around(function: Function, at: int) -> bool:
    return function.qualifier != "global" and function.body.start <= at < function.body.end


def _squeezed(text: str) -> str:
    plain = _ACCUMULATED.sub(lambda m: "double" if m[1] == "double" else "float", text)
    plain = re.sub(r"\s+", " ", plain).strip()
    return _SUM.sub(lambda m: _folded(m[0]), f",{plain},")[1:-1].strip()


def _folded(written: str) -> str:
    """The number that arithmetic of plain numbers comes to; else the text."""
    try:
        return f" {evaluate_int(written, {})}"
    except ArithmeticError_:
        return written


def _spaces(program: Program) -> dict[str, str]:
    """The namespace of each name that the program defines outside of functions and classes, "" for none; the first counts.

    What stands in for a library counts as well.
    """
    found: dict[str, str] = {}
    for path, data in (*program.files.items(), *standins_of(program.files)):
        for name, space in _defined(data, path) if not path.endswith(".toml") else ():
            found.setdefault(name, space)
    return found


@lru_cache(maxsize=256)
def _defined(data: bytes, path: str) -> tuple[tuple[str, str], ...]:
    unit = parse(data, path)
    found = [(f.name, f.qualified.rpartition("::")[0]) for f in unit.functions if "::" not in f.name]
    for node in walk(unit.root):
        if node.type in _NAMED:
            name = node.child_by_field_name("name") or node.child_by_field_name("declarator")
            if name is not None and (space := _space(node)) is not None and text(name).isidentifier():
                found.append((text(name), space))
        elif node.type == "enumerator" and (name := node.child_by_field_name("name")) is not None:
            above = node.parent.parent if node.parent is not None else None
            if (
                above is not None
                and not any(c.type == "class" for c in above.children)
                and (space := _space(above)) is not None
            ):
                found.append((text(name), space))
        elif node.type == "init_declarator" and node.parent is not None and node.parent.type == "declaration":
            name = node.child_by_field_name("declarator")
            if name is not None and text(name) in unit.constants and (space := _space(node)) is not None:
                found.append((text(name), space))
    found += [(name, "") for name in (*unit.constants, *unit.macros) if name not in dict(found)]
    return tuple(found)


def _space(node: object) -> str | None:
    """The namespaces around a definition; None inside of a function or a class."""
    names: list[str] = []
    above = getattr(node, "parent", None)
    while above is not None:
        if above.type in ("function_definition", "class_specifier", "struct_specifier", "field_declaration_list"):
            return None
        if above.type == "namespace_definition" and (name := above.child_by_field_name("name")) is not None:
            names.append(text(name))
        above = above.parent
    return "::".join(reversed(names))
