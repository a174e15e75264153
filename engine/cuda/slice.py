"""The device slice: what a device compiler needs of a program for some kernels, and nothing of its host half."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from engine.cuda.closure import closure
from engine.cuda.conditions import Conditions, is_guarded
from engine.cuda.device_headers import FOREIGN, STD_NAMES, header_of, kept_header, prelude, torch_prelude, torch_type
from engine.cuda.items import Item, Token, directive_parts, items_of
from engine.cuda.load import read_below, resolve_include
from engine.cuda.members import Cut, cuts_of, foreign
from engine.cuda.pasted_names import pasted
from engine.cuda.standins import PREFIX, is_standin, names_of
from engine.errors import SourceError
from engine.model import Program

_DEVICE = frozenset({"__device__", "__global__", "constexpr", "consteval", "__constant__", "__shared__", "__managed__"})
_CONDITIONS = frozenset({"if", "ifdef", "ifndef", "else", "elif", "elifdef", "elifndef", "endif"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_QUALIFIED = re.compile(r"\bstd\s*::\s*([A-Za-z_]\w*)")
_MAX_INCLUSIONS = 2_000
_MAX_NESTED = 100
_MAX_CHARACTERS = 32 << 20
_PRAGMAS = re.compile(r"(?:nv_|push_macro|pop_macro|pack\b)")


@dataclass(frozen=True)
class DeviceSlice:
    """Text for a device compiler. Lines keep their numbers: what the kernels do not need is blank.

    `path` is the kernel's file, `expressions` the kernels asked for, `headers` the local headers that were flattened into
    the text, `system` the other headers that its files name, kept or not.
    """

    text: str
    path: str
    expressions: tuple[str, ...]
    headers: tuple[str, ...]
    system: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entry:
    """One item of one file."""

    path: str
    text: str = field(repr=False)  # of the whole file
    item: Item
    expand: Callable[[set[str]], set[str]]

    @property
    def defines(self) -> tuple[str, ...]:
        return self.item.defines

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """What is left out of it when it is kept. Only to be asked for when all macros are known."""
        return cuts_of(self.text, self.item, self.expand)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens that are left."""
        gone = [cut for cut in self.cuts if cut.end > cut.start]
        return tuple(t for t in self.item.tokens if not any(c.start <= t.start < c.end for c in gone))

    @cached_property
    def names(self) -> frozenset[str]:
        found: set[str] = set()
        for token in self.tokens:
            if token.kind == "name":
                found.add(token.text)
            elif token.kind == "directive":
                found.update(_NAME.findall(token.text))
        return frozenset(found)

    def between(self, start: int, end: int) -> str:
        """The text that is left of these characters."""
        parts: list[str] = []
        for cut in self.cuts:
            if start <= cut.start and cut.end <= end:
                parts += [self.text[start : cut.start], cut.text, _blank(self.text[cut.start : cut.end])]
                start = cut.end
        return "".join([*parts, self.text[start:end]])


@dataclass
class _File:
    """A file as it is included at one place: its items, and what stands for its local includes."""

    path: str
    text: str
    entries: list[_Entry]
    once: bool
    included: dict[int, _File] = field(default_factory=dict)  # by offset of the directive


def device_slice(
    program: Program, kernels: Sequence[str], *, root: Path | None, include: Sequence[str] = (), unit: str = ""
) -> DeviceSlice:
    """The kernels with all that they need, everything else blanked out; local headers in place, with `#line` markers.

    `kernels` may carry namespaces and template arguments; `&v` is a variable that is wanted too. Headers are looked for in the
    program, then below `root`; in `include`, folders relative to it, too. `unit` is the file that the kernel's file, a header,
    is compiled through; one that does not include it does not count. Raises SourceError for a kernel that is not there, an
    include that leads out of the repository, text that is no UTF-8, and a name whose namespace no header that a device compiler
    takes defines.
    """
    if unit and unit != program.kernel_file:
        data = program.files.get(unit) or (read_below(root, unit) if root is not None else None)
        if data is not None:
            slicer = _Slicer(program, root, include)
            main = slicer.read(unit, data)
            if program.kernel_file in slicer.headers:
                return slicer.run(main, tuple(kernels))
    slicer = _Slicer(program, root, include)
    return slicer.run(slicer.read(program.kernel_file, program.data), tuple(kernels))


class _Slicer:
    def __init__(self, program: Program, root: Path | None, include: Sequence[str]) -> None:
        self.program, self.root, self.include = program, root, include
        self.headers: dict[str, None] = {}
        self.system: dict[str, None] = {}
        self.macros: dict[str, set[str]] = {}
        self.bodies: dict[str, list[str]] = {}  # of macros, as text
        self.conditions = Conditions(self.macros, self._expanded)
        self.namespaces: set[str] = set()
        self.own_namespaces: set[str] = set()  # those that the repository's own files open
        self.stood_in: set[str] = set()  # the words of the stand-ins that were read
        self.asked: set[str] = set()  # names in conditions of the program's own
        self.seen: set[str] = set()  # files that are included for good: later includes of them give nothing
        self.inclusions = self.characters = 0
        self.needed: set[str] = set()
        self.constant = {
            "sizeof",
            "alignof",
            "static_cast",
            "int",
            "float",
            "unsigned",
            "size_t",
        }  # and constexpr functions
        self.kept: set[int] = set()  # id of entries
        self.entries: list[_Entry] = []

    def read(self, path: str, data: bytes) -> _File:
        """The file that is compiled, with all that it includes. Raises SourceError."""
        return self._read(path, data, (), 0)

    def run(self, main: _File, kernels: tuple[str, ...]) -> DeviceSlice:
        """The slice of what was read. Raises SourceError."""
        self._choose(main, kernels)
        qualified = self._qualified()
        body = "".join(self._render(main))
        before = prelude(self.needed, qualified, self.system, self._own()) + torch_prelude(self.needed, self._own())
        if before or main.path != self.program.kernel_file:  # the compiler is told the kernel's file
            body = f"{before}{_line_marker(1, main.path)}\n{body}"
        return DeviceSlice(body, self.program.kernel_file, kernels, tuple(self.headers), tuple(self.system))

    def _read(self, path: str, data: bytes, stack: tuple[str, ...], conditional: int) -> _File:
        text = _decode(data, path)
        self.inclusions += 1
        self.characters += len(text)
        if len(stack) > _MAX_NESTED or self.inclusions > _MAX_INCLUSIONS or self.characters > _MAX_CHARACTERS:
            raise SourceError("includes too much", self.program.kernel_file, "add include guards to the headers")
        items = items_of(text)
        guarded = is_guarded(items)
        once = any(i.word == "pragma" and i.rest == "once" for i in items)
        if (once or guarded) and conditional == 0:
            self.seen.add(path)
        file = _File(path, text, [_Entry(path, text, item, self._expanded) for item in items], once)
        self.entries += file.entries
        for item in items:
            if item.word == "include":
                self._include(file, item, (*stack, path), conditional + item.conditional - guarded)
            elif item.word == "define":
                self._define(item)
            elif item.word in _CONDITIONS:
                self.asked.update(() if is_standin(path) else _NAME.findall(item.rest))
            elif item.kind == "open":
                self.namespaces.update(item.defines)
                self.own_namespaces.update(() if is_standin(path) else item.defines)
            for token in item.tokens if item.kind != "directive" else ():
                if token.kind == "directive":
                    self._inner(file, item, token, (*stack, path))
        return file

    def _inner(self, file: _File, item: Item, token: Token, stack: tuple[str, ...]) -> None:
        """A directive inside an item: a table included in an initialiser, a macro defined in a body."""
        word, rest = directive_parts(token.text)
        line = item.line + file.text.count("\n", item.span.start, token.start)
        inner = Item("directive", item.span, line, (token,), conditional=1, word=word, rest=rest)
        if word == "include":
            self._include(file, inner, stack, 1)
        elif word == "define":
            self._define(inner)

    def _include(self, file: _File, item: Item, stack: tuple[str, ...], conditional: int) -> None:
        quoted, name = item.rest.startswith('"'), item.rest[1:-1]
        if item.rest[:1] not in ('"', "<") or not name:
            return
        where = f"{file.path}:{item.line}"
        try:
            found = resolve_include(
                name, quoted, file.path, files=self.program.files, root=self.root, include=self.include
            )
        except SourceError as error:
            raise SourceError(error.what, where, error.do) from None
        if found is None:
            self.system[name] = None
            return
        path, data = found
        if is_standin(path):
            self.system[name] = None  # the text names it all the same
            self.stood_in.update(names_of(path.removeprefix(PREFIX)))
        if path in stack or path in self.seen:
            return  # its guard would make it empty; without one it would never end
        if not is_standin(path):
            self.headers[path] = None
        file.included[item.tokens[0].start] = self._read(path, data, stack, max(0, conditional))

    def _define(self, item: Item) -> None:
        match = _NAME.match(item.rest)
        if match:
            body = item.rest[match.end() :]
            self.macros.setdefault(match[0], set()).update(_NAME.findall(body))
            self.bodies.setdefault(match[0], []).append(body)

    def _expanded(self, names: Collection[str]) -> set[str]:
        """The names and all that their macros bring."""
        return closure(names, lambda name: self.macros.get(name, ()))

    def _choose(self, main: _File, kernels: tuple[str, ...]) -> None:
        providers: dict[str, list[_Entry]] = {}
        always: list[_Entry] = []
        asserts: list[_Entry] = []
        operators: list[_Entry] = []
        types: set[str] = set()
        for entry in self.entries:
            if entry.item.kind == "function" and any(t.text in ("constexpr", "consteval") for t in entry.item.head):
                self.constant.update(entry.defines)
        for entry in self.entries:
            item = entry.item
            if item.kind in ("directive", "open", "close"):
                continue
            if item.head and item.head[0].text in ("static_assert", "_Static_assert"):
                asserts.append(entry)
            elif _is_using_directive(item):
                if entry.defines and (entry.defines[-1] in self.namespaces or self._has_header(entry.defines[-1])):
                    always.append(entry)
            elif self._eligible(item):
                for name in {*entry.defines, *pasted(item.tokens, self.bodies)} - {"operator"}:
                    providers.setdefault(name, []).append(entry)
                if item.kind in ("type", "typedef", "using"):
                    types.update(entry.defines)
                if "operator" in entry.defines:
                    operators.append(entry)
                elif not entry.defines and item.kind in ("other", "function"):
                    always.append(entry)
        for kernel in kernels:
            name = kernel.split("<", 1)[0].strip().rpartition("::")[2]
            if kernel.startswith("&"):
                self.needed.add(name.removeprefix("&"))
                continue
            if not any("__global__" in self._expanded(entry.names) for entry in providers.get(name, ())):
                raise SourceError(f"has no kernel '{name[:200]}'", main.path, "give the name of one of its kernels")
            self.needed.update([name, *_NAME.findall(kernel)])
        waiting = list(self.needed)
        for entry in always:
            self._keep(entry, waiting)
        while waiting or operators:
            if not waiting:
                # Nothing names an operator: it is needed where a class of its parameters is, or where it has none.
                due = [o for o in operators if not (own := _operands(o.item) & types) or own & self.needed]
                if not due:
                    break
                operators = [o for o in operators if o not in due]
                for entry in due:
                    self._keep(entry, waiting)
                continue
            name = waiting.pop()
            for entry in providers.get(name, ()):
                self._keep(entry, waiting)
            for other in self.macros.get(name, ()):
                if other not in self.needed:
                    self.needed.add(other)
                    waiting.append(other)
        known = {name for entry in self.entries if id(entry) in self.kept for name in entry.defines}
        for entry in asserts:
            used = {t.text for t in entry.item.tokens if t.kind == "name"} - {
                "static_assert",
                "_Static_assert",
                "sizeof",
            }
            if used <= known | set(self.macros):
                self._keep(entry, waiting)

    def _keep(self, entry: _Entry, waiting: list[str]) -> None:
        if id(entry) in self.kept:
            return
        self.kept.add(id(entry))
        for name in entry.names - self.needed:
            self.needed.add(name)
            waiting.append(name)

    def _has_header(self, namespace: str) -> bool:
        return namespace == "std" or any(header_of(name, namespace) for name in self.system)

    def _eligible(self, item: Item) -> bool:
        """Whether a device compiler could need the item at all."""
        head: set[str] = set()
        for token in item.head:
            if token.text == "{" and token.kind == "op":
                break
            if token.kind == "name":
                head.add(token.text)
        if item.kind == "function":
            return bool(self._expanded(head) & _DEVICE)
        if item.kind == "variable":
            words = self._expanded(head)
            if words & _DEVICE:
                return True
            if "const" in words:
                return "extern" not in words and not foreign(item.tokens) and not self._calls_host(item)
            return any(word in ("struct", "class", "union", "enum") for word in head)
        if item.kind in ("typedef", "using"):
            return not foreign(item.tokens, self.namespaces)
        if item.kind == "type":
            return True
        return bool(self._expanded(head) & (_DEVICE - {"constexpr"}))

    def _own(self) -> set[str]:
        """The names that the text defines itself."""
        return {*self.macros, *(name for entry in self.entries if id(entry) in self.kept for name in entry.defines)}

    def _calls_host(self, item: Item) -> bool:
        """Whether an initialiser calls something that is neither a macro nor `constexpr`: then it is no constant."""
        return any(
            name.kind == "name"
            and bracket.text == "("
            and name.text not in self.macros
            and name.text not in self.constant
            for name, bracket in pairwise(item.head)
        )

    def _qualified(self) -> set[str]:
        """Names used as `std::name` in what is kept. Raises SourceError for a namespace that is nowhere."""
        found: set[str] = set()
        bare = False
        for entry in self.entries:
            if id(entry) not in self.kept:
                continue
            if _is_using_directive(entry.item) and entry.defines[-1:] == ("std",):
                bare = True
            depth = 0
            tokens = entry.tokens
            for index, token in enumerate(tokens[:-2]):
                if token.kind == "directive":
                    word = directive_parts(token.text)[0]
                    depth += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
                    found.update(_QUALIFIED.findall(token.text))
                    continue
                if token.kind != "name" or tokens[index + 1].text != "::" or (index and tokens[index - 1].text == "::"):
                    continue
                if token.text == "std":
                    found.add(tokens[index + 2].text)
                elif (
                    token.text in FOREIGN
                    and token.text not in self.own_namespaces
                    and not (token.text in self.namespaces and tokens[index + 2].text in self.stood_in)
                    and not depth
                    and entry.item.kind == "function"
                    and not torch_type(token.text, tokens[index + 2].text)
                ):
                    line = entry.item.line
                    raise SourceError(
                        f"'{entry.defines[0] if entry.defines else entry.item.head[0].text}' needs "
                        f"{token.text}::{tokens[index + 2].text}, which no header for device code provides",
                        f"{entry.path}:{line}",
                        "use CUDA's own types in device code",
                    )
        for name in self.needed & self.bodies.keys():
            for body in self.bodies[name]:
                found.update(_QUALIFIED.findall(body))
        if bare:
            found |= self.needed & (STD_NAMES - _GLOBAL)
        return found

    def _render(self, file: _File) -> Iterator[str]:
        """The file's text with blanks for what is not kept."""
        text, at, line = file.text, 0, 1
        for entry in file.entries:
            item = entry.item
            start, end = item.span.start, item.span.end
            yield _blank(text[at:start])
            at = end
            if item.kind in ("open", "close"):
                yield text[start:end]
            elif item.kind == "directive":
                yield from self._render_directive(file, item.tokens[0], item.line)
            else:
                keep = id(entry) in self.kept
                inside = start
                for token in item.tokens:
                    if token.kind == "directive":
                        between = text[inside : token.start]
                        yield entry.between(inside, token.start) if keep else _blank(between)
                        line = item.line + text.count("\n", start, token.start)
                        yield from self._render_directive(file, token, line, keep)
                        inside = token.end
                yield entry.between(inside, end) if keep else _blank(text[inside:end])
        yield _blank(text[at:])

    def _taken(self, entry: _Entry) -> bool:
        """Whether the kernels take the entry, or a macro that it defines, or a condition asks for that."""
        name = _NAME.match(entry.item.rest) if entry.item.word == "define" else None
        return id(entry) in self.kept or (name is not None and name[0] in self.needed | self.asked)

    def _render_directive(self, file: _File, token: Token, line: int, inside: bool = False) -> Iterator[str]:
        word, rest = directive_parts(token.text)
        self.conditions.see(word, rest)
        if (
            word in _CONDITIONS
            or word in ("define", "undef")
            or (word == "error" and self.conditions.judged(self.system))
            or (word == "pragma" and (inside or _PRAGMAS.match(rest)))
        ):
            yield token.text
        elif word == "include":
            header = file.included.get(token.start)
            if header is not None and is_standin(header.path) and not any(map(self._taken, header.entries)):
                header, rest = None, ""  # nothing of it is needed
            if header is not None:
                # Inside an item, as a table in an initialiser, the header's text is part of that item.
                body = header.text if inside else "".join(self._render(header))
                if header.once:
                    guard = "OPTIML_ONCE_" + "".join(
                        c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in header.path
                    )
                    body = f"{_line_marker(1, header.path)}\n{body}\n#endif"
                    body = f"#ifndef {guard}\n#define {guard}\n{body}"
                else:
                    body = f"{_line_marker(1, header.path)}\n{body}"
                yield f"{body}\n{_line_marker(line + token.text.count(chr(10)) + 1, file.path)}"
                return
            if rest[:1] in ('"', "<") and kept_header(rest[1:-1], self.needed):
                yield token.text
                return
            yield _blank(token.text)
        else:
            yield _blank(token.text)


# Names that mean the same without `std::`: the compiler or CUDA defines them.
_GLOBAL = frozenset({"min", "max", "move", "forward", "get", "swap", "array", "abs"})


def _decode(data: bytes, path: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceError("is not UTF-8 text", f"{path}:{line}", "convert the file to UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", " ").replace("\0", " ")


def _operands(item: Item) -> set[str]:
    """The names behind the word `operator` in an item's head."""
    words = [token.text for token in item.head]
    return {*words[words.index("operator") + 1 :]} if "operator" in words else set()


def _is_using_directive(item: Item) -> bool:
    words = [token.text for token in item.head[:2]]
    return words == ["using", "namespace"]


def _blank(text: str) -> str:
    """The text's newlines, and its last line's width: what follows keeps its line and column."""
    lines = text.count("\n")
    return "\n" * lines + " " * (len(text) - text.rfind("\n") - 1)


def _line_marker(line: int, path: str) -> str:
    """A `#line` that survives any file name."""
    name = re.sub(r'[\x00-\x1f"\\\x7f]', "_", path)
    return f'#line {line} "{name}"'
