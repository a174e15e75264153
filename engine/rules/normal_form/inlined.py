"""Functions that do a kernel's work on its arrays, in the kernel itself."""

import re
from dataclasses import dataclass

from engine.cuda.questions import called, children, compact, inside, names, pure, text, variables, walk, written
from engine.rewrite import Edit, Edits, Function, Node, Site, grouped, reindent

_MAX_LINES = 150
_VIEW = re.compile(r"(\w+)\s+(\w+)\s*[({]([\w\s,]+)[)}]\s*;")
_PRIMARY = ("subscript_expression", "call_expression", "pointer_expression", "identifier", "number_literal")
_WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")


@dataclass(frozen=True)
class _WorkCall:
    """A statement that calls a function: `f(…);` or `T name = f(…);`."""

    statement: Node
    call: Node
    function: Function
    result: str  # "T name", "" without


def inlined(site: Site) -> Edits | None:
    """Calls, as statements at the top of the body, of functions that are given arrays, by what these do."""
    edits = []
    for statement in children(site.body):
        found = _call(site, statement)
        written_out = _body(site, found) if found is not None else None
        if written_out is not None:
            edits.append(Edit.replace(statement, written_out))
    return site.in_file(*edits) if edits else None


def views(site: Site) -> Edits | None:
    """Methods of a local object that only name elements of the arrays it is made of, by what they return: `&x[row * width + column]`."""
    edits: list[Edit] = []
    for statement in children(site.body):
        made = _VIEW.fullmatch(text(statement)) if statement.type == "declaration" else None
        if made is None or (found := _class(site, made[1])) is None:
            continue
        given = [part.strip() for part in made[3].split(",")]
        members = _members(found, made[1], given)
        if members is None or any(name in site.changed for name in given):
            continue
        uses = [
            n for n in walk(site.body) if n.type == "identifier" and text(n) == made[2] and not inside(n, statement)
        ]
        written_out = [_returned(found, use, members) for use in uses]
        if written_out and None not in written_out:
            edits += [Edit(site.line_span(statement), ""), *(e for e in written_out if e is not None)]
    return site.in_file(*edits) if edits else None


def _class(site: Site, name: str) -> Node | None:
    """The one class of that name in the file and its headers."""
    units = [u for u in (site.unit, *site.headers) if name.encode() in u.data]
    kinds = ("class_specifier", "struct_specifier")
    found = [
        n for u in units for n in walk(u.root) if n.type in kinds and compact(n.child_by_field_name("name")) == name
    ]
    bodies = [body for n in found if (body := n.child_by_field_name("body")) is not None]
    return bodies[0] if len(bodies) == 1 and not bodies[0].has_error else None


def _members(body: Node, name: str, given: list[str]) -> dict[str, str] | None:
    """What a constructor that only keeps its arguments gives each member."""
    for made in body.named_children:
        declarator = made.child_by_field_name("declarator") if made.type == "function_definition" else None
        if declarator is None or compact(declarator.child_by_field_name("declarator")) != name:
            continue
        parameters, block = _parameter_names(declarator), made.child_by_field_name("body")
        kept = [n for n in made.named_children if n.type == "field_initializer_list"]
        if len(parameters) != len(given) or not kept or block is None or children(block):
            continue
        pairs = re.findall(r"(\w+)\s*[({]\s*(\w+)\s*[)}]", text(kept[0]))
        passed = dict(zip(parameters, given, strict=True))
        if len(pairs) == len(children(kept[0])) and all(value in passed for _, value in pairs):
            return {member: passed[value] for member, value in pairs}
    return None


def _parameter_names(declarator: Node) -> list[str]:
    listed = declarator.child_by_field_name("parameters")
    return (
        [next((text(n) for n in reversed(list(walk(c))) if n.type == "identifier"), "") for c in children(listed)]
        if listed
        else []
    )


def _returned(body: Node, use: Node, members: dict[str, str]) -> Edit | None:
    """`view.at(i, j)` by what the method returns; None for any other use."""
    field = use.parent
    call = field.parent if field is not None and field.type == "field_expression" else None
    arguments = call.child_by_field_name("arguments") if call is not None and call.type == "call_expression" else None
    if field is None or call is None or arguments is None or call.child_by_field_name("function") != field:
        return None
    name, given = compact(field.child_by_field_name("field")), children(arguments)
    for method in body.named_children if all(pure(a) for a in given) else ():
        declarator = method.child_by_field_name("declarator") if method.type == "function_definition" else None
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator") or next(iter(children(declarator)), None)
        block = method.child_by_field_name("body")
        if declarator is None or block is None or compact(declarator.child_by_field_name("declarator")) != name:
            continue
        statements, parameters = children(block), _parameter_names(declarator)
        if len(parameters) != len(given) or len(statements) != 1 or statements[0].type != "return_statement":
            return None
        value = children(statements[0])[0] if children(statements[0]) else None
        types = {**members, **{p: grouped(a) for p, a in zip(parameters, given, strict=True)}}
        if value is None or not pure(value) or not names(value) <= set(types):
            return None
        written_out = _typed(text(value), types)
        return Edit.replace(call, written_out if value.type in _PRIMARY else f"({written_out})")
    return None


def _call(site: Site, statement: Node) -> _WorkCall | None:
    result, call = "", None
    if statement.type == "expression_statement" and children(statement):
        call = children(statement)[0]
    elif statement.type == "declaration":
        declared = list(variables(statement))
        if len(declared) == 1 and declared[0].shape == "scalar" and declared[0].value is not None:
            call, result = declared[0].value, f"{declared[0].type} {declared[0].name}"
    if call is None or call.type != "call_expression":
        return None
    name = called(call).rpartition("::")[2]
    units = (site.unit, *site.headers)
    defined = [f for unit in units for f in unit.functions if f.name == name and f.qualifier != "host"]
    if len(defined) != 1 or not any(p.pointer for p in defined[0].parameters) or defined[0].node.has_error:
        return None
    return _WorkCall(statement, call, defined[0], result)


def _body(site: Site, found: _WorkCall) -> str | None:
    """The function's statements with its parameters declared; None where they cannot stand in the kernel."""
    function, arguments = found.function, found.call.child_by_field_name("arguments")
    given = children(arguments) if arguments is not None else []
    try:
        statements = children(function.block)
    except LookupError:
        return None
    if len(given) != len(function.parameters) or not all(pure(a) for a in given) or not statements:
        return None
    returns = [n for s in statements for n in walk(s) if n.type == "return_statement"]
    value = statements.pop() if found.result else None
    if returns != ([value] if value is not None else []) or not statements:
        return None
    start, end = statements[0].start_byte, statements[-1].end_byte
    source = (function.node.text or b"")[start - function.node.start_byte : end - function.node.start_byte].decode()
    types = _types(site, found, given)
    if types is None or source.count("\n") > _MAX_LINES or re.search(r"^\s*#\s*(?!pragma)", source, re.M):
        return None
    # What the function declares and the kernel names as well would become the same.
    own = {d.name for s in statements for n in walk(s) if n.type == "declaration" for d in variables(n)}
    own |= {p.name for p, a in zip(function.parameters, given, strict=True) if p.name != text(a)}
    taken = own & {n for s in children(site.body) for n in names(s) if s != found.statement}
    taken |= own & ({p.name for p in site.kernel.parameters} | set().union(*(names(a) for a in given)))
    # And what it means by a name of the file must not become a variable of the kernel.
    declared = {d.name for n in walk(site.body) if n.type == "declaration" for d in variables(n)}
    declared |= {p.name for p in site.kernel.parameters}
    free = {n for s in statements for n in names(s)} - own - {p.name for p in function.parameters}
    if free & declared:
        return None
    fresh = site.fresh_names()
    types |= {name: fresh(name) for name in sorted(taken)}
    lines = _parameters(function, given, types)
    if lines is None:
        return None
    indent = site.indent_at(found.statement.start_byte)
    line = _line_indent(function, start)
    text_of_body = reindent(_typed(source, types), line, indent).lstrip()
    result = children(value)[0] if value is not None and children(value) else None
    last = [f"{found.result} = {_typed(text(result), types)};"] if result is not None else []
    if value is not None and result is None:
        return None
    return f"\n{indent}".join([*lines, text_of_body, *last])


def _line_indent(function: Function, offset: int) -> str:
    """The white space before a statement of the function, in its own file."""
    before = (function.node.text or b"")[: offset - function.node.start_byte].decode()
    line = before.rpartition("\n")[2]
    return line if not line.strip() else ""


def _parameters(function: Function, given: list[Node], types: dict[str, str]) -> list[str] | None:
    """The declarations of the parameters that have another name in the kernel; None where one changes what is given for it."""
    changed = written(function.block)
    lines = []
    for parameter, argument in zip(function.parameters, given, strict=True):
        if not parameter.name or "&" in parameter.type:
            return None
        if parameter.name == text(argument):
            if parameter.name in changed and not parameter.pointer:
                return None
            continue
        kind = re.sub(r"\s*\b__restrict(?:__)?\b", "", parameter.type)
        name = types.get(parameter.name, parameter.name)
        lines.append(f"{_typed(kind, types)} {name} = {text(argument)};")
    return lines


def _types(site: Site, work: _WorkCall, given: list[Node]) -> dict[str, str] | None:
    """What the function's template parameters stand for: as the call says, or by the arrays that it is given; None where one stays open."""
    function, called_as = work.function, work.call.child_by_field_name("function")
    while called_as is not None and called_as.type == "qualified_identifier":
        called_as = called_as.child_by_field_name("name")
    listed = called_as.child_by_field_name("arguments") if called_as is not None else None
    wanted = [p.split("=")[0].split()[-1] for p in function.template_parameters if p.split("=")[0].split()]
    arrays = {p.name: p for p in site.kernel.parameters if p.pointer}
    found = dict(zip(wanted, (text(a) for a in children(listed)), strict=False)) if listed is not None else {}
    for parameter, argument in zip(function.parameters, given, strict=True):
        roots = [arrays[n] for n in names(argument) if n in arrays]
        told = parameter.base in wanted and parameter.pointer and len(roots) == 1
        if told and found.setdefault(parameter.base, roots[0].base) != roots[0].base:
            return None
    return found if set(found) == set(wanted) else None


def _typed(source: str, types: dict[str, str]) -> str:
    """The text with template parameters and names replaced."""
    return _WORD.sub(lambda m: types.get(m[0], m[0]), source) if types else source
