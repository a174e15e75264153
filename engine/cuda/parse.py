"""Reads a CUDA file with tree-sitter: kernels, parameters, loops, accesses, launches, and where the grammar gave up."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Literal, TypeVar

import tree_sitter
import tree_sitter_cuda
from tree_sitter import Node

from engine.cuda.clock import tick
from engine.cuda.kernel import (
    Function,
    Kernel,
    LaunchPart,
    LaunchSite,
    Parameter,
    Span,
    Unit,
)
from engine.cuda.readable_text import HEAD_ATTRIBUTES, readable
from engine.errors import SourceError

T = TypeVar("T")

_LANGUAGE = tree_sitter.Language(tree_sitter_cuda.language())
_BOM = b"\xef\xbb\xbf"
_MAX_BYTES = 16 << 20
# Of nodes in nodes. Much here follows the tree by calls, of which Python allows a thousand: 1,100 terms or 1,100 `else if` ended a run.
# Files that people write have some 30. Ours.
_MOST_DEPTH = 250
_MOST_ERRORS = 512  # files of which it is kept
_errors: OrderedDict[tuple[bytes, str], tuple[Span, ...]] = OrderedDict()
_CALLS = frozenset({"call_expression"})
_CONTAINERS = frozenset(
    {
        "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "template_declaration",
        "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef", "ERROR",
    }
)  # fmt: skip
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|__restrict__|__restrict|restrict|static|extern|__grid_constant__)\b|[*&]"
    r"|\b(?:enum|struct|class|union)\s+(?=\w)"
)


# Where the nodes below a node stand in a list of a tree's nodes in order of text. Rules ask for the same ones hundreds of times,
# and making their wrappers is what a walk costs.
_PLACES: dict[Node, tuple[list[Node], int, int]] = {}
_MOST_PLACES = 200_000
_MOST_SAID = 20_000


def once_a_node(say: Callable[[Node], T]) -> Callable[[Node], T]:
    """Have what a function says of a node worked out once."""
    said: dict[Node, T] = {}

    @wraps(say)
    def known(node: Node) -> T:
        try:
            return said[node]
        except KeyError:
            found = say(node)
        if len(said) >= _MOST_SAID:
            said.clear()
        said[node] = found
        return found

    return known


def walk(node: Node) -> Iterable[Node]:
    """The node and everything below it, in order of text."""
    tick(node.descendant_count)
    place = _PLACES.get(node)
    if place is None:
        if node.descendant_count > _MOST_PLACES // 4:
            return _each(node)
        place = _note_places(node)
    nodes, start, end = place
    return nodes[start:end]


def _each(top: Node) -> Iterator[Node]:
    """As `walk`, one by one: what a huge file has is not held all at once."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _note_places(top: Node) -> tuple[list[Node], int, int]:
    if len(_PLACES) > _MOST_PLACES:
        _PLACES.clear()
    nodes: list[Node] = []
    open_at: list[int] = []  # nodes whose end is not known yet
    cursor = top.walk()
    found: dict[Node, tuple[list[Node], int, int]] = {}
    while True:
        current = cursor.node
        assert current is not None
        open_at.append(len(nodes))
        nodes.append(current)
        if cursor.goto_first_child():
            continue
        while True:
            start = open_at.pop()
            found[nodes[start]] = (nodes, start, len(nodes))
            if not open_at:
                _PLACES.update(found)
                return found[top]
            if cursor.goto_next_sibling():
                break
            cursor.goto_parent()


def span(node: Node) -> Span:
    """The node's bytes."""
    return Span(node.start_byte, node.end_byte)


def text(node: Node) -> str:
    """The node's text as written."""
    return (node.text or b"").decode("utf-8", "replace")


def names_in(node: Node) -> set[str]:
    """Every identifier, type name and field-free name used at or below the node."""
    wanted = ("identifier", "type_identifier", "namespace_identifier")
    return {text(n) for n in walk(node) if n.type in wanted}


@lru_cache(maxsize=512)
def syntax_tree(text: bytes) -> Node:
    """The root of a text's tree, errors and all."""
    return tree_sitter.Parser(_LANGUAGE).parse(text).root_node


@lru_cache(maxsize=512)
def parse(data: bytes, path: str = "") -> Unit:
    """Parse one file. Raises SourceError with `path:line` for what is not UTF-8 text, or nested too deeply.

    What the grammar does not know is in `errors`; everything else is there all the same. Cached by content.
    """
    _check_text(data, path)
    read = readable(data)
    root = syntax_tree(read)
    _check_depth(root, path)
    reader = _Reader(data, path)
    reader.read(root, _launch_calls(root, read))
    windows = data.count(b"\r\n")
    return Unit(
        path=path,
        data=data,
        functions=tuple(reader.functions),
        kernels=tuple(f for f in reader.functions if isinstance(f, Kernel)),
        launches=tuple(reader.launches),
        macros=reader.macros,
        constants=reader.constants,
        includes=tuple(reader.includes),
        errors=tuple(reader.errors),
        newline="\r\n" if windows * 2 > data.count(b"\n") else "\n",
        bom=data.startswith(_BOM),
        root=root,
    )


def not_understood(data: bytes, path: str = "") -> tuple[Span, ...]:
    """The `errors` of a file, where that is all that is asked for: a file without one is not read any further. Raises as `parse`."""
    errors = _errors.get((data, path))
    if errors is None:
        _check_text(data, path)
        read = syntax_tree(readable(data))
        errors = parse(data, path).errors if read.has_error else ()
        note_errors(data, path, errors)
    return errors


def note_errors(data: bytes, path: str, errors: tuple[Span, ...]) -> None:
    """Take from another process what `not_understood` said there of a file, so that it is not read here as well."""
    _errors[data, path] = errors
    if len(_errors) > _MOST_ERRORS:
        _errors.popitem(last=False)


def _check_text(data: bytes, path: str) -> None:
    if len(data) > _MAX_BYTES:
        raise SourceError(f"a file of {len(data)} bytes exceeds the limit of {_MAX_BYTES}", path)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceError("is not UTF-8 text", f"{path}:{line}", "convert the file to UTF-8") from None
    zero = data.find(b"\0")
    if zero >= 0:
        raise SourceError(
            "contains a NUL byte", f"{path}:{data.count(bytes([10]), 0, zero) + 1}", "is this a text file?"
        )


def _launch_calls(root: Node, read: bytes) -> list[Node]:
    """The launches below the node, in order of text. Going through all nodes for them took half the time of reading a file."""
    found = []
    for match in re.finditer(b"<<<", read):
        token = root.descendant_for_byte_range(*match.span())
        syntax = token.parent if token is not None else None
        if syntax is not None and syntax.type == "kernel_call_syntax" and syntax.parent is not None:
            found.append(syntax.parent)
    return found


def _check_depth(root: Node, path: str) -> None:
    """Raises SourceError where nodes stand too deep; conditions of the preprocessor do not count, as nothing follows them by calls."""
    waiting = [(root, 0)]
    while waiting:
        node, above = waiting.pop()
        depth = above + (not node.type.startswith("preproc_"))
        if depth > _MOST_DEPTH:
            raise SourceError(
                f"an expression or a statement is nested more than {_MOST_DEPTH} deep", f"{path}:{node.start_point.row + 1}",
                "split it: each term of a sum and each 'else if' counts as one",
            )  # fmt: skip
        # What has fewer nodes below it than levels are left goes deep enough nowhere.
        if depth + node.descendant_count > _MOST_DEPTH:
            waiting += [(child, depth) for child in reversed(node.children)]


class _Reader:
    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path = data, path
        self.functions: list[Function] = []
        self.launches: list[LaunchSite] = []
        self.macros: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.includes: list[tuple[str, bool, Span]] = []
        self.errors: list[Span] = []
        self._calls: Sequence[Node] = ()

    def read(self, root: Node, calls: Sequence[Node]) -> None:
        """Read the whole file, of which `calls` are the launches."""
        if root.has_error:
            self.errors = [span(n) for n in walk(root) if n.type == "ERROR" or n.is_missing]
        self._calls = calls
        self._level(root)
        # Those that stand in no function read so far: in a member function, an ERROR node, a lambda at file scope.
        known = {site.span for site in self.launches}
        for call in calls:
            if span(call) not in known:
                self._launch(call, "")

    def _level(self, top: Node) -> None:
        waiting: list[tuple[Node, tuple[str, ...]]] = [(c, ()) for c in reversed(top.children)]
        while waiting:
            child, scope = waiting.pop()
            inside: tuple[str, ...] | None = None  # the scope of what is below
            match child.type:
                case "function_definition":
                    self._function(child, scope)
                case "namespace_definition":
                    name = child.child_by_field_name("name")
                    inside = (*scope, text(name)) if name is not None else scope
                case "preproc_def":
                    name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                    if name is not None:
                        self.macros[text(name)] = _without_comment(text(value)) if value is not None else ""
                case "preproc_include":
                    target = child.child_by_field_name("path")
                    if target is not None:
                        written = text(target)
                        self.includes.append((written[1:-1], written.startswith('"'), span(child)))
                case "declaration":
                    self._constants(child)
                case "enum_specifier":
                    self._enumerators(child)
                case _ if child.type in _CONTAINERS or child.type == "type_definition":
                    inside = scope
            if inside is not None:
                waiting += [(c, inside) for c in reversed(child.children)]

    def _constants(self, node: Node) -> None:
        for child in node.children:
            if child.type == "enum_specifier":
                self._enumerators(child)
        qualifiers = {text(c) for c in node.children if c.type == "type_qualifier"}
        if not qualifiers & {"const", "constexpr"}:
            return
        for declarator in node.children_by_field_name("declarator"):
            if declarator.type == "init_declarator":
                name, value = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("value")
                if name is not None and value is not None and name.type == "identifier":
                    self.constants[text(name)] = text(value)

    def _enumerators(self, node: Node) -> None:
        previous: str | None = None
        for child in walk(node):
            if child.type != "enumerator":
                continue
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is None:
                continue
            self.constants[text(name)] = text(value) if value is not None else f"({previous})+1" if previous else "0"
            previous = text(name)

    def _function(self, node: Node, scope: tuple[str, ...]) -> None:
        body = node.child_by_field_name("body")
        declarator = _function_declarator(node)
        if body is None or declarator is None:
            return
        named = declarator.child_by_field_name("declarator")
        parameters = declarator.child_by_field_name("parameters")
        if named is None or parameters is None:
            return
        name = text(named)
        outer = node
        if node.parent is not None and node.parent.type in ("template_declaration", "linkage_specification"):
            outer = node.parent
        template = outer.child_by_field_name("parameters") if outer.type == "template_declaration" else None
        head = self.data[outer.start_byte : body.start_byte]
        words = set(re.findall(rb"__global__|__device__|__host__", _without_comments(head)))
        qualifier: Literal["global", "device", "host", "host device"] = "host"
        if b"__global__" in words:
            qualifier = "global"
        elif b"__device__" in words:
            qualifier = "host device" if b"__host__" in words else "device"
        plain = name.rpartition("::")[2]
        kind = Kernel if b"__global__" in words else Function
        function = kind(
            name=plain,
            qualified="::".join((*scope, name)),
            qualifier=qualifier,
            span=span(outer),
            signature=Span(outer.start_byte, body.start_byte),
            name_span=span(named),
            body=span(body),
            parameters=tuple(_parameters(parameters)),
            template_parameters=tuple(text(c) for c in template.named_children if c.type != "comment")
            if template
            else (),
            line=outer.start_point[0] + 1,
            node=node,
            attributes=frozenset(m[0].decode() for m in HEAD_ATTRIBUTES.finditer(_without_comments(head))),
        )
        self.functions.append(function)
        for call in self._calls:
            if body.start_byte <= call.start_byte < body.end_byte:
                self._launch(call, plain)

    def _launch(self, call: Node, function: str) -> None:
        called, syntax = call.child_by_field_name("function"), None
        for child in call.children:
            if child.type == "kernel_call_syntax":
                syntax = child
        arguments = call.child_by_field_name("arguments")
        if called is None or syntax is None or arguments is None:
            return
        name, template = text(called), ""
        for inner in walk(called):
            if inner.type in ("template_function", "template_method"):
                args = inner.child_by_field_name("arguments")
                if args is not None:
                    template = text(args)[1:-1].strip()
                    name = text(called)[: args.start_byte - called.start_byte]
                break
        self.launches.append(
            LaunchSite(
                path=self.path,
                kernel=name.strip().removeprefix("::"),
                template_args=template,
                parts=tuple(LaunchPart(text(n), span(n)) for n in _operands(syntax)),
                arguments=tuple(text(n) for n in _operands(arguments)),
                span=span(call),
                line=call.start_point[0] + 1,
                function=function,
            )
        )


def _operands(node: Node) -> list[Node]:
    return [n for n in node.named_children if n.type != "comment"]


def _without_comment(value: str) -> str:
    return re.split(r"//|/\*", value, maxsplit=1)[0].strip()


def _without_comments(head: bytes) -> bytes:
    return re.sub(rb"//[^\n]*|/\*.*?\*/", b" ", head, flags=re.S)


def _function_declarator(node: Node) -> Node | None:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or next(
            (c for c in declarator.named_children if c.type.endswith("declarator")), None
        )
    return declarator


def _parameters(node: Node) -> Iterator[Parameter]:
    for child in node.named_children:
        if child.type not in (
            "parameter_declaration",
            "optional_parameter_declaration",
            "variadic_parameter_declaration",
        ):
            continue
        declarator = child.child_by_field_name("declarator")
        kind = child.child_by_field_name("type")
        name = declared(declarator)
        written = text(child)
        end = child.end_byte
        if name is not None:
            # The type is everything but the name; an array parameter is a pointer.
            before = written[: len((child.text or b"")[: name.start_byte - child.start_byte].decode())]
            after = (child.text or b"")[name.end_byte - child.start_byte :].decode()
            written = before.rstrip()
            if after.lstrip().startswith("["):
                written += "*"
        pointer = "*" in written
        if name is None and not pointer and written == "void":
            continue  # `f(void)`
        base = _QUALIFIERS.sub(" ", text(kind)) if kind is not None else _QUALIFIERS.sub(" ", written)
        pointee = written.split("*", 1)[0]
        yield Parameter(
            name=text(name) if name is not None else "",
            span=Span(child.start_byte, end),
            name_span=span(name) if name is not None else Span(end, end),
            type=" ".join(written.split()),
            base=" ".join(base.split()),
            pointer=pointer,
            const=bool(re.search(r"\bconst\b", pointee)),
            restrict="restrict" in written,
        )


def declared(node: Node | None) -> Node | None:
    """The identifier that a declarator declares."""
    while node is not None and node.type != "identifier":
        node = node.child_by_field_name("declarator") or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type == "identifier"), None
        )
    return node
