"""Launches that can be read though they are no `kernel<<<…>>>(…)`: through a pointer, by the runtime's functions, by a helper.

Also by what a function chooses, and by a macro. Edits of a launch do not reach these
(`engine.cuda.launch.sites` has those that they do).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tree_sitter import Node

from engine.cuda.kernel import LaunchPart, LaunchSite, Span, Unit
from engine.cuda.launch import has_its_own, sites
from engine.cuda.launching_macros import macro_sites
from engine.cuda.parse import parse, span, text, walk
from engine.cuda.readable_text import has_launch
from engine.model import Program
from engine.settings.suffixes import SOURCES

_POINTED = re.compile(
    r"([A-Za-z_]\w*)\s*=\s*(?:[^;{}]*[?:]\s*)?(?:\(\s*(?:const\s+)?void\s*\*\s*\)\s*)?&?\s*(?:[A-Za-z_]\w*::)*$"
)
_LISTED = re.compile(r"cudaLaunch(?:Cooperative)?Kernel$")  # (kernel, grid, block, arguments, shared, stream)
_CONFIGURED = re.compile(r"cudaLaunchKernelEx(C?)$")  # (&configuration, kernel, arguments…), or a list of them
_FIELDS = ("gridDim", "blockDim", "dynamicSmemBytes")
_ADDRESS = re.compile(r"^(?:\([^()]*\)\s*|(?:reinterpret|const|static)_cast\s*<[^<>]*>\s*)?\(?\s*&?\s*(.*?)\)?$", re.S)
_ENDS = re.compile(r"\s*(?:;|:[^;{}]*;)")  # of a pointer's value; `c ? &a : &b` is one
_MOST_BEFORE = 400  # characters of that value before and after the kernel's name
_RETURNED = re.compile(r"\breturn\s*&?\s*(?:[A-Za-z_]\w*::)*$")
_MOST_TEMPLATE = 4_000  # characters of a list of template arguments


@dataclass(frozen=True)
class _KernelReference:
    """A use of the kernel's name: where it stands, its template arguments, the pointer that it is a value of, the function it comes from.

    `scope` is where the pointer is known; `kept` where no other value counts: the cases of a `switch` are alternatives.
    """

    start: int
    end: int
    template_args: str
    pointer: str
    scope: Span
    kept: int
    chooser: str


def readable_sites(program: Program, kernel: str) -> tuple[LaunchSite, ...]:
    """Every launch of the kernel (plain or qualified name) that the text shows, in whatever form."""
    return _kept(_KernelOfProgram(f"{program.kernel_file} {program.digest}", kernel.rpartition("::")[2], program))


@dataclass(frozen=True)
class _KernelOfProgram:
    """What a kernel's launches are read for: one program, as file and digest say, is read once."""

    digest: str
    plain: str
    program: Program = field(compare=False, repr=False)


@lru_cache(maxsize=64)
def _kept(asked: _KernelOfProgram) -> tuple[LaunchSite, ...]:
    program, plain = asked.program, asked.plain
    return (*sites(program, plain), *_indirect(program, plain), *macro_sites(program, plain))


def closing(written: str, start: int) -> int:
    """Where the bracket stands that closes the list of template arguments which begins at `start`; -1 for none."""
    depth = round_ = 0
    for at in range(start, min(len(written), start + _MOST_TEMPLATE)):
        char = written[at]
        round_ += (char == "(") - (char == ")")
        depth += (char == "<") - (char == ">" and not round_)
        if char in ";{}":
            return -1
        if depth < 0:
            return at
    return -1


def _indirect(program: Program, plain: str) -> Iterator[LaunchSite]:
    for path, data in program.files.items():
        if not path.endswith(SOURCES) or plain.encode() not in data or has_its_own(program, path, plain):
            continue
        if not (has_launch(data) or b"aunch" in data or b"return" in data):
            continue
        unit = parse(data, path)
        for reference in _references(data, path, plain):
            yield from _of_reference(program, unit, plain, reference)
            if reference.chooser:
                yield from _chosen(program, plain, reference)


def _chosen(program: Program, plain: str, reference: _KernelReference) -> Iterator[LaunchSite]:
    """Launches by a variable that begins with what a function gives."""
    call = re.compile(rf"\b(\w+)\s*=\s*(?:\w+::)*{re.escape(reference.chooser)}\s*(?:<[^;<>]*>\s*)?\(")
    for path, data in program.files.items():
        if not path.endswith(SOURCES) or reference.chooser.encode() not in data or not has_launch(data):
            continue
        unit = parse(data, path)
        for match in call.finditer(data.decode("latin-1")):
            node = unit.root.descendant_for_byte_range(match.start(1), match.end(1) - 1)
            if node is None:
                continue
            scope, kept = _scope(node, match.end())
            variable = _KernelReference(match.start(), kept, reference.template_args, match[1], scope, kept, "")
            yield from _by_pointer(unit, plain, variable)


@lru_cache(maxsize=256)
def _references(data: bytes, path: str, plain: str) -> tuple[_KernelReference, ...]:
    return tuple(_each_reference(parse(data, path), plain))


def _each_reference(unit: Unit, plain: str) -> Iterator[_KernelReference]:
    # Positions are bytes: latin-1 keeps one character a byte.
    written = unit.data.decode("latin-1")
    for match in re.finditer(rf"\b{re.escape(plain)}\b", written):
        node = unit.root.descendant_for_byte_range(match.start(), match.end() - 1)
        if node is None or node.type not in ("identifier", "type_identifier", "namespace_identifier"):
            continue
        end, template = match.end(), ""
        if opened := re.match(r"\s*<(?![<=])", written[end : end + 20]):
            close = closing(written, end + opened.end())
            if close < 0:
                continue
            template, end = written[end + opened.end() : close].strip(), close + 1
        pointed = _POINTED.search(written[max(0, match.start() - _MOST_BEFORE) : match.start()])
        pointer = pointed[1] if pointed and _ENDS.match(written[end : end + _MOST_BEFORE]) else ""
        scope, kept = _scope(node, end)
        before = written[max(0, match.start() - _MOST_BEFORE) : match.start()]
        chooser = _function(unit, node) if _RETURNED.search(before) else ""
        yield _KernelReference(match.start(), end, template, pointer, scope, kept, chooser)


def _scope(node: Node, end: int) -> tuple[Span, int]:
    """The block around a pointer's value, or around the `switch` that chooses it, and from where another value counts."""
    above: Node | None = node
    while above is not None and above.type not in ("compound_statement", "translation_unit"):
        above = above.parent
        if above is not None and above.type == "case_statement":
            while above is not None and above.type != "switch_statement":
                above = above.parent
            end = above.end_byte if above is not None else end
    return span(above if above is not None else node), end


def _of_reference(program: Program, unit: Unit, plain: str, reference: _KernelReference) -> Iterator[LaunchSite]:
    if reference.pointer:
        yield from _by_pointer(unit, plain, reference)
    for call in _calls(unit, reference):
        function, given = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        if function is None or given is None or call.end_byte < reference.start:
            continue
        passed = [n for n in given.named_children if n.type != "comment"]
        at = next((k for k, n in enumerate(passed) if _is_kernel(n, reference)), None)
        if at is None or not _still(unit, reference, call.start_byte):
            continue
        parts, arguments = _launch_of(program, unit, text(function).split("<")[0].strip(), passed, at)
        if len(parts) >= 2:
            yield LaunchSite(
                path=unit.path,
                kernel=plain,
                template_args=reference.template_args,
                parts=tuple(LaunchPart(text(n), span(n)) for n in parts),
                arguments=arguments,
                span=span(call),
                line=call.start_point[0] + 1,
                function=_function(unit, call),
            )


def _by_pointer(unit: Unit, plain: str, reference: _KernelReference) -> Iterator[LaunchSite]:
    for site in unit.launches:
        inside = reference.kept <= site.span.start < reference.scope.end
        if inside and site.kernel == reference.pointer and _still(unit, reference, site.span.start):
            yield replace(site, kernel=plain, template_args=reference.template_args)


def _calls(unit: Unit, reference: _KernelReference) -> list[Node]:
    """The calls that may be given the kernel, in order of text: those around its name, or all where a pointer to it is known."""
    if reference.pointer:
        scope = reference.scope
        top = unit.root.descendant_for_byte_range(scope.start, max(scope.start, scope.end - 1))
        return [node for node in walk(top) if node.type == "call_expression"] if top is not None else []
    found: list[Node] = []
    node = unit.root.descendant_for_byte_range(reference.start, reference.end - 1)
    while node is not None and node.type not in ("compound_statement", "translation_unit"):
        if node.type == "call_expression":
            found.insert(0, node)
        node = node.parent
    return found


def _still(unit: Unit, reference: _KernelReference, at: int) -> bool:
    """Whether the pointer still has the value that it begins with."""
    between = unit.data[reference.kept : at].decode("latin-1")
    return not reference.pointer or re.search(rf"\b{re.escape(reference.pointer)}\s*=(?!=)", between) is None


def _is_kernel(node: Node, reference: _KernelReference) -> bool:
    if reference.pointer:
        return (
            re.fullmatch(
                rf"(?:\([^()]*\)\s*|\w+_cast\s*<[^<>]*>\s*\(\s*)?&?\s*{re.escape(reference.pointer)}\s*\)?", text(node)
            )
            is not None
        )
    return node.start_byte <= reference.start and reference.end <= node.end_byte and node.type != "lambda_expression"


def _launch_of(
    program: Program, unit: Unit, function: str, passed: list[Node], at: int
) -> tuple[list[Node], tuple[str, ...]]:
    """The parts of a launch (grid, block, shared) by a function that is given the kernel as argument `at`, and what it passes on."""
    plain = function.rpartition("::")[2]
    if _LISTED.search(plain) and at == 0 and len(passed) >= 4:
        return [*passed[1:3], *passed[4:5]], _list_of(unit, passed[3])
    if (found := _CONFIGURED.search(plain)) and at == 1:
        arguments = _list_of(unit, passed[2]) if found[1] and len(passed) > 2 else tuple(text(n) for n in passed[2:])
        return _configuration(unit, passed[0]), arguments
    if at == 0 and len(passed) > 1 and _launches(program, plain):
        return _configuration(unit, passed[1]), tuple(text(n) for n in passed[2:])
    return [], ()


def _launches(program: Program, function: str) -> bool:
    """Whether a function of the program, which is given a kernel, launches it."""
    return any(
        f.name == function and re.search(rb"<<<|cudaLaunchKernel", data[f.body.start : f.body.end])
        for path, data in program.files.items()
        if path.endswith(SOURCES) and function.encode() in data
        for f in parse(data, path).functions
    )


def _configuration(unit: Unit, node: Node) -> list[Node]:
    """Grid, block and shared memory of a configuration: what a variable begins with, or its fields are given."""
    name = text(node).lstrip("& ")
    if not name.isidentifier():
        return _listed_parts(node)
    fields: dict[str, Node] = {}
    listed: list[Node] = []
    for other in walk(_body(node)):
        if other.start_byte >= node.start_byte:
            break
        if other.type == "init_declarator":
            declared, value = other.child_by_field_name("declarator"), other.child_by_field_name("value")
            if declared is not None and value is not None and text(declared) == name:
                listed = _listed_parts(value)
        elif other.type == "assignment_expression":
            left, right = other.child_by_field_name("left"), other.child_by_field_name("right")
            if left is not None and right is not None and text(left).startswith(f"{name}."):
                fields[text(left).rpartition(".")[2]] = right
    if {*_FIELDS[:2]} <= fields.keys():
        return [fields[f] for f in _FIELDS if f in fields]
    return listed


def _listed_parts(value: Node) -> list[Node]:
    """The first three of what stands in the brackets of `T(grid, block, …)` or `{grid, block, …}`."""
    inner: Node | None = value
    if value.type in ("call_expression", "compound_literal_expression"):
        inner = value.child_by_field_name("arguments") or value.child_by_field_name("value")
    if inner is None or inner.type not in ("argument_list", "initializer_list"):
        return []
    return [n for n in inner.named_children if n.type != "comment"][:3]


def _body(node: Node) -> Node:
    """The function around a node."""
    above = node
    while above.parent is not None and above.type != "function_definition":
        above = above.parent
    return above


def _list_of(unit: Unit, node: Node) -> tuple[str, ...]:
    """What stands in `void* args[] = {&a, &b}`, without the addresses."""
    name = _ADDRESS.sub(r"\1", text(node)).strip()
    for other in walk(_body(node)):
        if other.type != "init_declarator" or other.start_byte >= node.start_byte:
            continue
        declared, value = other.child_by_field_name("declarator"), other.child_by_field_name("value")
        if declared is not None and value is not None and re.match(rf"\**\s*{re.escape(name)}\s*\[", text(declared)):
            return tuple(_ADDRESS.sub(r"\1", text(n)).strip() for n in value.named_children if n.type != "comment")
    return ()


def _function(unit: Unit, node: Node) -> str:
    return next(
        (f.name for f in unit.functions if f.qualifier != "global" and f.body.start <= node.start_byte < f.body.end), ""
    )
