"""Host launches: where a kernel is launched, and edits of the launch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.cuda.definitions import declarators
from engine.cuda.host_definitions import Definition
from engine.cuda.host_scope import HostScope
from engine.cuda.items import tokens_of
from engine.cuda.kernel import Edit, Kernel, LaunchPart, LaunchSite, Span, Unit
from engine.cuda.macros import object_macros
from engine.cuda.parse import parse, text, walk
from engine.cuda.plain_arithmetic import plain_arithmetic
from engine.cuda.readable_text import has_launch
from engine.errors import SourceError
from engine.model import Program
from engine.settings.suffixes import SOURCES

_ASKING = re.compile(r"cudaFunc(?:Set|Get)|cudaOccupancy|cuFunc|cuOccupancy|hipFunc")  # use a kernel, launch none


# What an expression holds that may not stand twice: a call, an element of an array, an assignment.
_EFFECT = re.compile(r"\w\s*\(|>\s*\(|\[|\+\+|--|(?<![=<>!])=(?!=)|[\"'{;]")
_PLAIN_CALL = re.compile(
    r"\b(?:(?:std::)?(?:min|max)|sizeof|int|unsigned|size_t|float|double|u?int(?:32|64)_t|static_cast\s*<[\w\s:]+>)\s*\("
)


@dataclass(frozen=True)
class BlockConstant:
    """An integer constant that a launch's block depends on."""

    name: str
    path: str
    value: int
    span: Span  # of the value's text
    in_kernel: bool  # the kernel's body uses the name too


def sites(program: Program, kernel: str) -> tuple[LaunchSite, ...]:
    """Every launch of the kernel (plain or qualified name) in the program's files, but for files with a kernel of that name themselves."""
    plain = kernel.rpartition("::")[2]
    return tuple(
        site
        for path, data in program.files.items()
        if path.endswith(SOURCES) and has_launch(data) and not has_its_own(program, path, plain)
        for site in parse(data, path).launches
        if site.kernel.rpartition("::")[2] == plain
    )


def has_its_own(program: Program, path: str, kernel: str) -> bool:
    """Whether a file beside the kernel's defines a kernel of that name too: what it launches is that one."""
    if path == program.kernel_file:
        return False
    here, there = parse(program.data, program.kernel_file), parse(program.files[path], path)
    return all(any(k.name == kernel for k in unit.kernels) for unit in (here, there))


def part_node(unit: Unit, part: LaunchPart) -> Node:
    """The syntax node of one part of a launch. Raises SourceError."""
    node = unit.root.descendant_for_byte_range(part.span.start, part.span.end)
    if node is None:
        raise SourceError("the launch cannot be read", unit.path)
    return node


def launch_statement(unit: Unit, site: LaunchSite) -> Node | None:
    """The statement of a launch, where that is a statement of a block; else None."""
    node: Node | None = unit.root.descendant_for_byte_range(site.span.start, site.span.end)
    while node is not None and node.type != "expression_statement":
        node = node.parent
    if node is None or node.parent is None or node.parent.type != "compound_statement":
        return None
    return node


def selected(data: bytes, statement: Node, branches: Sequence[tuple[str, Sequence[str]]]) -> Edit:
    """The statement replaced by a selection: conditions with the lines that each stands for; one without condition is the last."""
    margin = data[data.rfind(b"\n", 0, statement.start_byte) + 1 : statement.start_byte].decode()
    lines: list[str] = []
    for condition, body in branches:
        lines.append(("} else " if lines else "") + (f"if ({condition}) {{" if condition else "{"))
        lines += [f"    {line}" for line in body]
    text = f"\n{margin if not margin.strip() else ''}".join([*lines, "}"])
    return Edit.replace(statement, text)


def relaunch(
    program: Program,
    launches: Sequence[LaunchSite],
    kernel: Kernel,
    *,
    grid: Sequence[str] | None = None,
    block: Sequence[str] | None = None,
    shared: str | None = None,
) -> Mapping[str, tuple[Edit, ...]]:
    """Edits that make every launch use the given expressions, which are in terms of the kernel's parameters.

    Where a launch argument is a variable that serves nothing else, its definition is rewritten; else the argument itself.
    Raises SourceError where a parameter cannot be expressed in the host's terms, and where the kernel is used in a way that
    may launch it unseen (in a macro, through cudaLaunchKernel, by its address): that launch would stay as it was.
    """
    unseen = hidden_launch(program, kernel.name)
    if unseen:
        raise SourceError(f"'{kernel.name}' may be launched here in a way that cannot be edited", unseen)
    edits: dict[str, list[Edit]] = {}
    rewritten: dict[tuple[str, Span], str] = {}
    for site in launches:
        unit = parse(program.files[site.path], site.path)
        wanted = {0: grid, 1: block, 2: [shared] if shared is not None else None}
        own = [site.parts[i].span for i, value in wanted.items() if value is not None and i < len(site.parts)]
        for index, value in wanted.items():
            if value is None:
                continue
            texts = [_in_host_terms(written, kernel, site, unit.data) for written in value]
            if index >= len(site.parts):
                if index > len(site.parts):
                    raise SourceError("a launch needs a grid and a block", f"{site.path}:{site.line}")
                end = site.parts[-1].span.end
                edits.setdefault(site.path, []).append(Edit.insert(end, f", {texts[0]}"))
                continue
            place, written = _placed(unit, site, index, texts, own)
            own.append(place)
            key = (site.path, place)
            if rewritten.setdefault(key, written) != written:
                raise SourceError(
                    "two launches share a definition but need different values", f"{site.path}:{site.line}"
                )
            edits.setdefault(site.path, []).append(Edit(place, written))
    return {path: tuple(dict.fromkeys(listed)) for path, listed in edits.items()}


def extents(program: Program, site: LaunchSite, index: int) -> tuple[str, ...] | None:
    """What the host's text has for each extent of a launch's grid (0) or block (1); None where one may not stand twice."""
    unit = parse(program.files[site.path], site.path)
    node = part_node(unit, site.parts[index])
    called = node.child_by_field_name("function") if node.type == "call_expression" else None
    listed = node.child_by_field_name("arguments") if called is not None and text(called) == "dim3" else None
    if listed is not None:
        found = [text(n) for n in listed.named_children if n.type != "comment"]
    elif node.type == "identifier":
        definition, fields = HostScope(Program({unit.path: unit.data}, unit.path), unit, {}).local(text(node), node)
        is_dim3 = definition is not None and unit.text(definition.statement).split()[:1] == ["dim3"]
        found = [f"{text(node)}.{axis}" for axis in "xyz"] if is_dim3 or fields else [text(node)]
    else:
        found = [text(node)]
    plain = [part if re.fullmatch(r"\w+(?:\.\w+)*", part) else f"({part})" for part in found]
    return tuple(plain) if plain and not any(_EFFECT.search(_PLAIN_CALL.sub("(", part)) for part in found) else None


def hidden_launch(program: Program, kernel: str) -> str:
    """`path:line` of the first use of a kernel that may launch it and is no visible launch; "" where there is none."""
    name = kernel.rpartition("::")[2]
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for path, data in program.files.items():
        if not path.endswith(SOURCES) or not word.search(data) or has_its_own(program, path, name):
            continue
        unit = parse(data, path)
        for match in word.finditer(data):
            node = unit.root.descendant_for_byte_range(match.start(), match.end())
            if node is not None and _may_launch(node, name, data):
                return f"{path}:{unit.line_of(match.start())}"
    return ""


def _may_launch(node: Node, name: str, data: bytes) -> bool:
    if node.type == "preproc_arg":
        return (
            re.search(rb"\b%s\b[^;]*<<\s*<" % re.escape(name.encode()), data[node.start_byte : node.end_byte])
            is not None
        )
    if node.type != "identifier":
        return False
    inside: Node | None = node
    while inside is not None and inside.type not in ("function_definition", "translation_unit"):
        parent = inside.parent
        if parent is not None and parent.type == "call_expression" and parent.child_by_field_name("function") == inside:
            return False  # a visible launch, or a call of a function of the same name
        if parent is not None and parent.type == "call_expression" and _ASKING.match(text(parent)):
            return False
        declares = parent is not None and parent.child_by_field_name("declarator") == inside
        if declares and inside.type in ("identifier", "function_declarator"):
            return False
        inside = parent
    if inside is None or inside.type != "function_definition":
        return False
    body = inside.child_by_field_name("body")
    in_body = body is not None and body.start_byte <= node.start_byte
    local = any(d[0] == name for n in walk(inside) if n.type == "declaration" for d in declarators(n))
    passed = any(
        text(n) == name
        for n in walk(inside)
        if n.type == "identifier" and n.parent and n.parent.type == "parameter_declaration"
    )
    return in_body and not local and not passed


def _in_host_terms(text: str, kernel: Kernel, site: LaunchSite, data: bytes) -> str:
    passed = {p.name: a for p, a in zip(kernel.parameters, site.arguments, strict=False)}
    if len(site.arguments) != len(kernel.parameters):
        raise SourceError(f"the launch passes {len(site.arguments)} arguments", f"{site.path}:{site.line}")

    def replace(match: re.Match[str]) -> str:
        name, field = match[1], match[2]
        if name not in passed:
            return match[0]
        expression = passed[name].strip()
        # What is converted to another struct has the field itself, where the host's text says so.
        converted = re.fullmatch(r"\([\w:<>, ]+\)\s*([A-Za-z_]\w*)", expression) if field else None
        if converted and re.search(rb"\b%s\b" % re.escape(f"{converted[1]}{field}".encode()), data):
            return f"{converted[1]}{field}"
        return f"{plain(expression)}{field}"

    def plain(expression: str) -> str:
        if _EFFECT.search(_PLAIN_CALL.sub("(", expression)):
            raise SourceError(
                f"the launch passes '{expression[:60]}', which cannot be duplicated", f"{site.path}:{site.line}"
            )
        return expression if re.fullmatch(r"\w+(?:(?:\.|->|::)\w+)*", expression) else f"({expression})"

    return re.sub(r"(?<![\w.])([A-Za-z_]\w*)((?:\.\w+)*)", replace, text)


def _placed(unit: Unit, site: LaunchSite, index: int, texts: Sequence[str], own: Sequence[Span]) -> tuple[Span, str]:
    """Where to write the new extents of one launch argument, and as what. `own` are the places that are rewritten anyway."""
    part = site.parts[index]
    plain = texts[0] if len(texts) == 1 else f"dim3({', '.join(texts)})"
    if not re.fullmatch(r"[A-Za-z_]\w*", part.text):
        return part.span, plain
    node = part_node(unit, part)
    definition, fields = HostScope(Program({unit.path: unit.data}, unit.path), unit, {}).local(part.text, node)
    if (
        definition is None
        or not definition.declaration
        or fields
        or definition.value is None
        or definition.span is None
    ):
        return part.span, plain
    function = node
    while function.parent is not None and function.type != "function_definition":
        function = function.parent
    for use in walk(function):
        if use.type == "identifier" and text(use) == part.text:
            place = Span(use.start_byte, use.end_byte)
            declares = use.parent is not None and use.parent.child_by_field_name("declarator") == use
            if declares and definition.statement.contains(place):
                continue
            if not any(span.contains(place) for span in own):
                return part.span, plain  # the variable serves something else as well
    if any(name not in _visible_before(unit, function, definition) for name in _identifiers(texts)):
        return part.span, plain  # what the new value needs is declared only after the variable
    if not plain_arithmetic(tokens_of(unit.text(definition.span))):
        return part.span, plain  # what a call of the author's does besides stays
    statement = unit.text(definition.statement)
    is_dim3 = re.match(r"\s*(?:static\s+|const\s+|constexpr\s+)*dim3\b", statement) is not None
    if re.match(r"\s*(?:static\s+|const\s+)*constexpr\b", statement):
        return part.span, plain
    if is_dim3:
        if definition.value.type in ("argument_list", "initializer_list"):
            opening, closing = ("(", ")") if definition.value.type == "argument_list" else ("{", "}")
            return definition.span, f"{opening}{', '.join(texts)}{closing}"
        written = unit.data[definition.span.start : definition.span.start + 4] == b"dim3"
        if (
            definition.value.type == "call_expression"
            and definition.value.start_byte == definition.span.start
            and written
        ):
            return definition.span, f"dim3({', '.join(texts)})"
        return part.span, plain
    return (definition.span, texts[0]) if len(texts) == 1 else (part.span, plain)


def _identifiers(texts: Sequence[str]) -> set[str]:
    return {name for written in texts for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", written)} - {
        "dim3",
        "size_t",
        "sizeof",
        "float",
    }


def _visible_before(unit: Unit, function: Node, definition: Definition) -> set[str]:
    """Names that can be used in the definition's value: everything but locals declared at or after it."""
    names: set[str] = {text(n) for n in walk(unit.root) if n.type == "identifier"}
    late: set[str] = set()
    early: set[str] = set()
    for node in walk(function):
        if node.type == "declaration":
            for name, _ in declarators(node):
                (late if node.start_byte >= definition.statement.start else early).add(name)
    return names - (late - early)


def block_constants(program: Program, site: LaunchSite) -> tuple[BlockConstant, ...]:
    """The integer constants (macro, file-scope or local) that the block's extents depend on, as far as they are plain numbers.

    None where branches of the file define one of them each in its way: another value of the others is tried in one branch alone.
    """
    if len(site.parts) < 2:
        return ()
    unit = parse(program.files[site.path], site.path)
    scope = HostScope(program, unit, {})
    try:
        scope.dims(part_node(unit, site.parts[1]))
    except SourceError:
        return ()
    if any(len(object_macros(unit.data, unit.path).get(name, ())) > 1 for name in scope.used):
        return ()
    kernels = {
        k.name: k for path, data in program.files.items() if path.endswith(SOURCES) for k in parse(data, path).kernels
    }
    kernel = kernels.get(site.kernel.rpartition("::")[2])
    found = []
    for name, definition in scope.used.items():
        if definition.value is None or definition.span is None or not definition.declaration:
            continue
        owner = parse(program.files[definition.path], definition.path)
        written = owner.text(definition.span).strip()
        if re.fullmatch(r"\d+[uU]?", written):
            used = kernel is not None and name in kernel.names
            found.append(BlockConstant(name, definition.path, int(written.rstrip("uU")), definition.span, used))
    return tuple(found)


def set_constant(program: Program, path: str, name: str, value: str) -> tuple[Edit, ...] | None:
    """The edit that gives a constant of `block_constants` another value; None where its definition is not unique."""
    for launches in {site.kernel for site in parse(program.files[path], path).launches} | _all_launched(program):
        for site in sites(program, launches):
            for constant in block_constants(program, site):
                if (constant.name, constant.path) == (name, path):
                    return (Edit(constant.span, value),)
    return None


def _all_launched(program: Program) -> set[str]:
    return {
        site.kernel
        for path, data in program.files.items()
        if path.endswith(SOURCES) and has_launch(data)
        for site in parse(data, path).launches
    }
