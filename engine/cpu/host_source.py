"""CUDA source text made ready for a C++ compiler, line for line."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.cpu.inline_ptx import refusals, without_ptx
from engine.cpu.jobs import Unsupported
from engine.cuda.parse import syntax_tree
from engine.cuda.readable_text import readable

_SKIPPED = re.compile(
    r"//(?:\\\r?\n|[^\n])*"
    r"|/\*.*?(?:\*/|\Z)"
    r'|(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_'])'(?:\\.|[^'\\\n])*'",
    re.S,
)
_SPACE = re.compile(r"[^\n]")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|[^\s\w]")
ENTRIES = "optiml_entries"  # the file that the runtime's entries stand in
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.M)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_DROPPED = {"extern", "static", "__shared__"}


def without_comments(text: str) -> str:
    """The text with comments blanked and the contents of literals too; offsets and lines stay."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found.startswith(("//", "/*")):
            return _SPACE.sub(" ", found)
        inner = _SPACE.sub(" ", found[1:-1])
        # An include's name in quotes is no string.
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        return found if re.fullmatch(r"\s*#\s*include\s*", before) else found[0] + inner + found[-1]

    return _SKIPPED.sub(blank, text)


class _Token:
    __slots__ = ("end", "start", "text")

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end


def _tokens(plain: str, start: int) -> Iterator[_Token]:
    for match in _TOKEN.finditer(plain, start):
        yield _Token(match.group(), match.start(), match.end())


def _declaration(plain: str, start: int) -> list[_Token]:
    """Tokens from `__shared__` up to and with the semicolon that ends its declaration."""
    depth, found = 0, []
    for token in _tokens(plain, start):
        found.append(token)
        depth += token.text in _OPEN
        depth -= token.text in _CLOSE
        if token.text == ";" and depth == 0:
            return found
        if depth < 0 or len(found) > 4000:
            break
    raise Unsupported("an unsupported '__shared__' declaration", do="write one declaration per statement",
                      features=("a shared declaration of this form",))  # fmt: skip


def _attributes(tokens: list[_Token]) -> set[int]:
    """Positions of `alignas(…)`, `__align__(…)` and `__attribute__((…))`: the runtime aligns by itself."""
    found: set[int] = set()
    for i, token in enumerate(tokens):
        if token.text not in ("alignas", "__align__", "__attribute__") or tokens[i + 1].text != "(":
            continue
        depth = 0
        for j in range(i, len(tokens)):
            found.add(j)
            depth += (tokens[j].text == "(") - (tokens[j].text == ")")
            if j > i and depth == 0:
                break
    return found


def _names(tokens: list[_Token], skip: set[int]) -> list[int]:
    """Positions of the declared names: the last identifier before `[`, `,`, `=`, `{` or `;` outside all brackets."""
    found: list[int] = []
    depth = angle = 0
    last, waiting = -1, True
    for i, token in enumerate(tokens):
        if i in skip:
            continue
        text = token.text
        if text == "{" and depth == 0 and last >= 0 and waiting and angle == 0:
            # The braces of a struct or union written in place belong to the type.
            before = [t.text for j, t in enumerate(tokens[:i]) if j not in skip]
            if not {"struct", "union", "class"} & set(before):
                found.append(last)
                waiting = False
        if text in _OPEN:
            if text == "[" and depth == 0 and angle == 0 and waiting and last >= 0:
                found.append(last)
                waiting = False
            depth += 1
        elif text in _CLOSE:
            depth -= 1
        elif depth == 0 and waiting and text == "<":
            angle += 1
        elif depth == 0 and waiting and text == ">":
            angle -= 1
        elif depth == 0 and angle == 0:
            if text in (",", ";", "="):
                if waiting and last >= 0:
                    found.append(last)
                waiting = text == ","
            elif re.match(r"[A-Za-z_]", text):
                last = i
    return found


def place_shared(text: str) -> str:
    """Every `__shared__` declaration as a reference to an array that the runtime places by itself.

    `__shared__ float a[N], b[M];` becomes `float (&a)[N] = …, (&b)[M] = …;` on the same lines, so each array has red
    zones of its own, extents that depend on template arguments included. Raises Unsupported for a declaration inside a
    macro and for forms that are not understood.
    """
    plain = without_comments(text)
    directives = [match.span() for match in _DIRECTIVE.finditer(plain)]
    edits: list[tuple[int, int, str]] = []
    done = 0
    for match in re.finditer(r"\b__shared__\b", plain):
        if any(start <= match.start() < end for start, end in directives):
            raise Unsupported("'__shared__' inside a macro is not supported on the CPU", do="write the declaration without the macro",
                              features=("'__shared__' inside a macro",))  # fmt: skip
        if match.start() < done:
            continue
        # Specifiers may stand before the word: `extern __shared__`, `static __shared__`, `alignas(16) __shared__`.
        head = max(plain.rfind(c, 0, match.start()) for c in ";{}\n") + 1
        before = list(_tokens(plain[: match.start()], head))
        begin = head
        for position, token in enumerate(before):
            if token.text == ":" and token.end <= match.start():  # a label or an access specifier
                begin, before = token.end, before[position + 1 :]
        tokens = [*before, *_declaration(plain, match.start())]
        skip = _attributes(tokens)
        dynamic = any(t.text == "extern" for t in tokens)
        for i in sorted(skip | {j for j, t in enumerate(tokens) if t.text in _DROPPED}):
            edits.append((tokens[i].start, tokens[i].end, " " * (tokens[i].end - tokens[i].start)))
        skip |= {j for j, t in enumerate(tokens) if t.text in _DROPPED}
        names = _names(tokens, skip)
        if not names:
            raise Unsupported(
                "a '__shared__' declaration without a name", features=("a shared declaration of this form",)
            )
        for i in names:
            name = tokens[i].text
            place = f"OPTIML_DYNAMIC({name})" if dynamic else f"OPTIML_SHARED({name})"
            edits.append((tokens[i].start, tokens[i].end, f"(&{name})"))
            j, depth = i + 1, 0
            while not (depth == 0 and tokens[j].text in (",", ";", "=")) and not (depth == 0 and tokens[j].text == "{"):
                depth += tokens[j].text in _OPEN
                depth -= tokens[j].text in _CLOSE
                j += 1
            stop = j
            while not (depth == 0 and tokens[stop].text in (",", ";")):  # CUDA forbids initialisers; `= {}` is seen
                depth += tokens[stop].text in _OPEN
                depth -= tokens[stop].text in _CLOSE
                stop += 1
            edits.append((tokens[j].start, tokens[stop].start, f" = {place}"))
        done = tokens[-1].end
        del begin
    return _apply(text, edits)


def _apply(text: str, edits: list[tuple[int, int, str]]) -> str:
    out, at = [], 0
    for start, end, new in sorted(edits, key=lambda e: (e[0], e[1])):
        if start < at:
            continue
        kept = "\n" * text.count("\n", start, end)
        out += [text[at:start], new, kept]
        at = end
    return "".join([*out, text[at:]])


def mark_exits(text: str) -> str:
    """Kernels that say how a thread leaves: by a `return`, and from where, or off the end of the body.

    The runtime needs it to tell an early return before a barrier (legal) from a barrier that a thread has skipped. Each
    `return` passes the first line from which a barrier may still be reached again: its own, or that of the outermost loop
    around it.
    """

    data = text.encode()
    root = syntax_tree(readable(data))
    edits: list[tuple[int, int, str]] = []

    def line(node: Node) -> int:
        return int(node.start_point[0])

    def inside(node: Node, first: int, loop: int | None) -> None:
        for child in node.children:
            if child.type in ("lambda_expression", "function_definition"):
                continue
            if child.type == "return_statement":
                back = line(child) - (line(child) if loop is None else loop)
                mark = f"return optiml_leave(__LINE__ - {back}, __LINE__ - {line(child) - first}, __FILE__);"
                if data[child.start_byte : child.end_byte].decode().split() in (["return;"], ["return", ";"]):
                    edits.append((child.start_byte, child.end_byte, mark))
                continue
            is_loop = child.type in ("for_statement", "while_statement", "do_statement", "for_range_loop")
            inside(child, first, line(child) if is_loop and loop is None else loop)

    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
            head = data[node.start_byte : body.start_byte] if body else b""
            if body is not None and re.search(rb"\b__global__\b", head):
                inside(body, line(node), None)
                # Falling off the end lies behind every barrier.
                edits.append((body.end_byte - 1, body.end_byte - 1, " optiml_leave(0x7fffffff, 0, __FILE__);"))
                continue
        stack.extend(node.children)
    out, at = [], 0
    for start, end, new in sorted(edits):
        out += [data[at:start], new.encode(), b"\n" * data.count(b"\n", start, end)]
        at = end
    return b"".join([*out, data[at:]]).decode()


def without_errors(text: str) -> str:
    """The text without its `#error` lines: the device compiler has judged them, for the target that is asked for."""
    plain = without_comments(text)
    found = [match.span() for match in _DIRECTIVE.finditer(plain) if re.match(r"\s*#\s*error\b", match[0])]
    return _apply(text, [(start, end, "") for start, end in found])


def file_name(path: str) -> str:
    """The name under which the compiler knows the kernel's file."""
    return re.sub(r"[^\w./+ -]", "_", path) or "kernel.cu"


def prepare(text: str, path: str, expressions: list[str]) -> str:
    """The C++ file that is compiled: the kernels' text, and an entry for each expression: "k", "k<float, 256>", or "&v", a variable.

    Compiler messages and debug information speak of `path` and its lines.
    """
    text = without_ptx(text, without_comments(text))
    body = mark_exits(place_shared(without_errors(text)))
    lines = [*filter(None, [refusals(text)]), f'# 1 "{file_name(path)}"', body, f'# 1 "{ENTRIES}"']
    kernels = [e for e in expressions if not e.startswith("&")]
    variables = [e.removeprefix("&") for e in expressions if e.startswith("&")]
    lines += [f"OPTIML_ENTRY({step}, {expression})" for step, expression in enumerate(kernels)]
    lines += [f"OPTIML_CONSTANT({number}, {name})" for number, name in enumerate(variables)]
    return "\n".join(lines) + "\n"
