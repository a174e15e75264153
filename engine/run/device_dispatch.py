"""Dispatch by device: the original with the best kernel of each kind of device, and launches that select by compute capability.

A variant's kernel, and what it changes or adds at file scope, are copied under names of their own behind the original's kernel. The
original's text stays, so other code, the spec and devices that nobody searched have what they had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, NoReturn

from engine.cuda.definitions import declarators
from engine.cuda.edit import apply
from engine.cuda.items import Item, items_of, pieces_of
from engine.cuda.kernel import Edit, LaunchSite, Span, Unit
from engine.cuda.launch import hidden_launch, launch_statement, selected, sites
from engine.cuda.parse import parse, text, walk
from engine.errors import RefusedError, SourceError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.verify.launched import uninstantiated, unlaunched

if TYPE_CHECKING:
    from tree_sitter import Node

DO = "apply the patch of each device in its own build"
_NEWLINE = "\r\n"
_BOM = b"\xef\xbb\xbf"
_EFFECTS = ("assignment_expression", "update_expression", "pointer_expression")  # may change what they name
_EXTERN_SHARED = re.compile(r"\bextern\s[^;{}]*?\b(\w+)\s*\[\s*\]\s*;")
_CAPABILITY = """\
// The compute capability of the current device, 90 for 9.0; 0 where it cannot be read.
static inline int NAME() {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        return 0;
    }
    return 10 * major + minor;
}
"""
_COMPILED = """\
// Whether a kernel was compiled for at least this virtual architecture: a build for older ones leaves its body out.
template <typename Kernel>
static inline bool NAME(Kernel* kernel, int architecture) {
    cudaFuncAttributes found;
    return cudaFuncGetAttributes(&found, kernel) == cudaSuccess && found.ptxVersion >= architecture;
}
"""


@dataclass(frozen=True)
class Variant:
    """One kind of device that was searched, and the program that is suggested for it; None: the original is the best."""

    device: str
    arch: str
    program: Program | None

    @property
    def capability(self) -> int:
        """Its compute capability: 90 for 9.0."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))


@dataclass(frozen=True)
class DeviceDispatch:
    """The program with dispatch code, and the copied kernels' names by compute capability."""

    program: Program
    kernels: Mapping[int, str]


def write_dispatch(
    original: Program, spec: KernelSpec, variants: Sequence[Variant], guarded: Iterable[int] = ()
) -> DeviceDispatch:
    """The original with the variants' kernels, selected at each launch.

    Copies for the capabilities in `guarded` are left out of builds for older architectures, where they do not compile; such a build
    uses the original on every device. Raises RefusedError saying what is in the way.
    """
    seen: dict[int, str] = {}
    for variant in variants:
        if variant.capability in seen:
            devices = f"{seen[variant.capability]} and {variant.device}"
            refuse(f"{devices} have the same compute capability ({dotted(variant.capability)})")
        seen[variant.capability] = variant.device
    if len(spec.steps) != 1:
        refuse("the spec is a chain of kernels", spec.origin)
    before = _Text(original, spec, "the original")
    parts = [
        _DispatchPart(before, _Text(v.program, spec, f"the suggestion for {v.device}"), v.capability)
        for v in sorted(variants, key=lambda v: -v.capability)
        if v.program is not None
    ]
    if not parts:
        refuse("no device has a suggestion", spec.origin)
    return _joined(before, parts, frozenset(guarded))


def refuse(what: str, where: str = "") -> NoReturn:
    """Raise the error of a dispatch that cannot be written."""
    raise RefusedError(what, where, DO)


class _Text:
    """The kernel's file in one version. Offsets are bytes: its items are read from text with one character per byte."""

    def __init__(self, program: Program, spec: KernelSpec, said: str) -> None:
        self.program, self.spec, self.said, self.path = program, spec, said, program.kernel_file
        self.kernel = spec.steps[0].kernel.rpartition("::")[2]
        self.data = program.data.replace(_BOM, b"   ", 1) if program.data.startswith(_BOM) else program.data
        self.unit: Unit = parse(program.data, self.path)
        self.items = items_of(self.data.decode("latin-1"))
        if hidden := hidden_launch(program, self.kernel):
            refuse(f"'{self.kernel}' may be launched in a way that cannot be analysed", hidden)

    def at(self, offset: int) -> str:
        return f"{self.path}:{self.unit.line_of(offset)}"

    def of(self, item: Item) -> str:
        return self.data[item.span.start : item.span.end].decode("utf-8")

    @cached_property
    def definition(self) -> Item:
        """The kernel's only definition."""
        found = [i for i in self.items if "__global__" in _words(i) and self.kernel in i.defines and _has_body(i)]
        if len(found) != 1:
            count = "no definition" if not found else f"{len(found)} definitions"
            refuse(f"the file has {count} of '{self.kernel}' in {self.said}", self.path)
        return found[0]

    @cached_property
    def launches(self) -> list[tuple[LaunchSite, Node]]:
        """Each launch of the kernel with its statement, in order."""
        found: list[tuple[LaunchSite, Node]] = []
        for site in sites(self.program, self.kernel):
            where = f"{site.path}:{site.line}"
            if site.path != self.path:
                refuse(f"'{self.kernel}' is launched in another file", where)
            node = launch_statement(self.unit, site)
            if node is None or (found and found[-1][1].end_byte > node.start_byte):
                refuse("the launch is not a separate statement", where)
            if not any(_is_host(i) and i.span.start <= node.start_byte < i.span.end for i in self.items):
                refuse("the launch is not in a function at file scope", where)
            if node.start_byte < self.definition.span.end:
                refuse(f"'{self.kernel}' is launched before its definition", where)
            found.append((site, node))
        if not found:
            refuse(f"no launch of '{self.kernel}' was found in host code", self.spec.origin or self.path)
        return found

    def changed_from(self, other: _Text) -> list[Item]:
        """The items that `other` does not have, in order."""
        own, theirs = ([tuple(t.text for t in i.tokens) for i in text.items] for text in (self, other))
        blocks = SequenceMatcher(None, theirs, own, autojunk=False).get_opcodes()
        return [item for tag, _, _, first, last in blocks if tag != "equal" for item in self.items[first:last]]


class _DispatchPart:
    """What one variant adds to the original: items under new names, includes, and for each launch its own statements."""

    def __init__(self, before: _Text, after: _Text, capability: int) -> None:
        self.before, self.after, self.capability = before, after, capability
        self.includes: list[str] = []
        self._same_elsewhere()
        if len(before.launches) != len(after.launches):
            count = f"{len(after.launches)} instead of {len(before.launches)}"
            refuse(f"{after.said} has {count} launches of '{before.kernel}'", after.at(after.definition.span.start))
        self.copied = self._copied()
        names = [n for item in self.copied for n in _names(item)]
        self._file_names = set(names)
        names += [
            m[1]
            for item in self.copied
            for m in _EXTERN_SHARED.finditer(after.of(item))
            if m[0].encode() not in before.data
        ]
        self.names = _fresh(dict.fromkeys(names), f"sm{capability}", (before.program, after.program))
        changed = {n for item in before.items for n in _names(item)} & self.names.keys()
        self._host_unchanged(changed)
        self.statements = [self._launch(k, changed) for k in range(len(after.launches))]

    def _same_elsewhere(self) -> None:
        before, after = self.before, self.after
        for path in sorted({*before.program.files, *after.program.files} - {before.path}):
            if before.program.files.get(path) != after.program.files.get(path) and not path.endswith(".toml"):
                refuse(f"{after.said} changes another file", path)

    def _copied(self) -> list[Item]:
        """The kernel, the items that the variant changed or added, and those that use a changed one."""
        before, after = self.before, self.after
        added = after.changed_from(before)
        for version, items in ((after, added), (before, before.changed_from(after))):
            for item in items:
                if not _may_differ(item, before.kernel):
                    what = item.defines[0] if item.defines else version.of(item).splitlines()[0][:60]
                    where = version.at(item.span.start)
                    refuse(f"{after.said} changes more than the kernel and its launches: '{what}'", where)
        self.includes = [after.of(i) for i in added if i.word == "include"]
        there = {id(i) for i in added if i.word != "include" and not _is_host(i)} | {id(after.definition)}
        others = [i for i in after.items if i.defines and not _is_host(i) and "__global__" not in _words(i)]
        others += [i for i in after.items if i.kind == "directive" and i.word not in ("include", "pragma")]
        known = 0
        while known < len(there):
            known = len(there)
            names = {n for i in after.items if id(i) in there for n in _names(i)} - {before.kernel}
            using = [i for i in others if id(i) not in there and names & _used(i)]
            if odd := next((i for i in using if not _may_differ(i, "")), None):
                what = odd.defines[0] if odd.defines else f"#{odd.word}"
                refuse(f"{after.said} changes what '{what}' depends on", after.at(odd.span.start))
            there |= {id(i) for i in using}
        found = [i for i in after.items if id(i) in there and (i is after.definition or before.kernel not in i.defines)]
        for item in found:
            if item.conditional != after.definition.conditional:
                refuse(f"{after.said} changes what stands under an #if", after.at(item.span.start))
        return found

    def _host_unchanged(self, changed: set[str]) -> None:
        """Refuses host code that differs in more than the launch, or uses otherwise what the variant changed."""
        old, new = ([i for i in version.items if _is_host(i)] for version in (self.before, self.after))
        kernels = {self.before.kernel}
        for first, item in zip_longest(old, new):
            if first is None or item is None or not self._alike(first, item):
                odd = item or new[-1]
                name = odd.defines[-1] if odd.defines else ""
                refuse(f"{self.after.said} changes the host code of '{name}'", self.after.at(odd.span.start))
            rest = {t.text for t in unlaunched(item, kernels)}
            if used := sorted((changed - kernels) & rest):
                where = self.after.at(item.span.start)
                refuse(f"{self.after.said} changes '{used[0]}', which other host code uses", where)

    def _alike(self, old: Item, new: Item) -> bool:
        """Whether a host function is the original's but for figures of launches and declarations that stand before these."""
        if [t.text for t in old.tokens] == [t.text for t in new.tokens]:
            return True
        outside: list[list[str]] = []
        figures: list[list[str]] = []
        for version, item in ((self.before, old), (self.after, new)):
            nodes = [n for _, s in version.launches for n in (s, *_before(s))]
            spans = [Span(n.start_byte, n.end_byte) for n in nodes]
            outside.append([t.text for t in item.tokens if not any(s.contains(Span(t.start, t.end)) for s in spans)])
            rest = uninstantiated(unlaunched(item, {version.kernel}), version.spec)
            figures.append([t.text for t in rest])
        return outside[0] == outside[1] and figures[0] == figures[1]

    def _launch(self, index: int, changed: set[str]) -> list[str]:
        """The variant's launch with the declarations before it that differ from the original's, under the new names."""
        (_, old), (_, new) = self.before.launches[index], self.after.launches[index]
        declared = {_code(node) for node in _before(old)}
        seeds = changed - {self.before.kernel}
        moved: list[Node] = []
        for node in _before(new):
            if _code(node) not in declared or seeds & _words_of(node):
                moved.append(node)
                seeds |= {n for n, _ in declarators(node)}
        wanted = _words_of(new)
        kept: list[Node] = []
        for node in reversed(moved):
            if wanted & {n for n, _ in declarators(node)}:
                kept.insert(0, node)
                wanted |= _words_of(node)
        for node in kept:
            self._still_same(node, new, {n for n, _ in declarators(node)})
        return [self.host(new, text(node)) for node in (*kept, new)]

    def _still_same(self, declaration: Node, launch: Node, own: set[str]) -> None:
        """Refuses a declaration that may have another value at the launch."""
        function = launch
        while function.parent is not None and function.type != "function_definition":
            function = function.parent
        stop = launch.start_byte if declaration.parent == launch.parent else function.end_byte
        for node in walk(function):
            if node.type in _EFFECTS and declaration.end_byte <= node.start_byte < stop:
                target = node.child_by_field_name("left") or node.child_by_field_name("argument")
                if target is not None and text(target) in _words_of(declaration):
                    name = next(iter(own))
                    refuse(f"'{text(target)}' may change after '{name}' is computed", self.after.at(node.start_byte))

    def host(self, statement: Node, content: str) -> str:
        """Text of the host's under the new names, but for what is declared in its function."""
        at = Span(statement.start_byte, statement.end_byte)
        local = {p.name for f in self.after.unit.functions if f.span.contains(at) for p in f.parameters}
        local |= {n for node in _before(statement) for n, _ in declarators(node)}
        shared = {n for n in self.names if n not in self._file_names}
        return _renamed(content, {n: new for n, new in self.names.items() if n not in local | shared})

    def copies(self, guarded: bool) -> str:
        """The copied items under the new names."""
        parts: list[str] = []
        for item in self.copied:
            head, body, end = "", self.after.of(item), ""
            if guarded and item is self.after.definition:
                brace = max(t.start for t in item.head if t.text == "{") + 1
                head, body = (
                    self.after.data[a:b].decode() for a, b in ((item.span.start, brace), (brace, item.span.end - 1))
                )
                head, end = f"{head}\n", "\n}"
            if guarded:
                arch = self.capability * 10
                body = f"#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= {arch}\n{body.strip(_NEWLINE)}\n#endif"
            parts.append(_renamed(head + body + end, self.names))
        return f"// The best for compute capability {dotted(self.capability)}.\n" + "\n\n".join(parts)


def _joined(before: _Text, parts: Sequence[_DispatchPart], guarded: frozenset[int]) -> DeviceDispatch:
    everywhere = (before.program, *(p.after.program for p in parts))
    others = any("__global__" in _words(i) and before.kernel not in i.defines for i in before.items)
    helpers = _fresh(["optiml_capability", "optiml_compiled_for"], before.kernel if others else "", everywhere)
    capability, compiled = helpers["optiml_capability"], helpers["optiml_compiled_for"]
    functions = [_CAPABILITY.replace("NAME", capability)]
    functions += [_COMPILED.replace("NAME", compiled)] if guarded else []
    place, outermost = _place(before)
    copies = [p.copies(p.capability in guarded) for p in parts]
    includes = dict.fromkeys(line for p in parts for line in p.includes)
    edits = [Edit.insert(place, "\n\n" + "\n\n".join(copies))]
    if outermost is None:  # no namespace around the kernel: one place for both
        edits = [Edit.insert(place, "\n\n" + "\n".join(functions) + "\n" + "\n\n".join(copies))]
    else:
        edits.append(Edit.insert(outermost, "\n".join(functions) + "\n"))
    if includes:
        first = next((i for i in before.items if i.word == "include" and not i.conditional), before.items[0])
        edits.append(Edit.insert(first.span.start, "\n".join(includes) + "\n"))
    for index, (_, statement) in enumerate(before.launches):
        branches: list[tuple[str, Sequence[str]]] = []
        for part in parts:
            condition = f"{capability}() == {part.capability}"
            if part.capability in guarded:
                site = part.after.launches[index][0]
                called = f"{site.kernel}<{site.template_args}>" if site.template_args else site.kernel
                called = part.host(part.after.launches[index][1], called)
                condition += f" && {compiled}({called}, {part.capability})"
            branches.append((condition, part.statements[index]))
        edits.append(selected(before.data, statement, [*branches, ("", [text(statement)])]))
    try:
        program = before.program.replace({before.path: apply(before.program.data, edits)})
    except SourceError as error:
        refuse(error.what, before.path)
    outer = before.spec.steps[0].kernel.removesuffix(before.kernel)
    return DeviceDispatch(program, {p.capability: outer + p.names[before.kernel] for p in parts})


def _place(before: _Text) -> tuple[int, int | None]:
    """Behind the kernel, and before the outermost namespace around it (None: there is none)."""
    opened: list[int] = []
    for item in before.items:
        if item is before.definition:
            break
        if item.kind == "open":
            opened.append(item.span.start)
        elif item.kind == "close" and opened:
            opened.pop()
    return before.definition.span.end, opened[0] if opened else None


def _fresh(names: Iterable[str], suffix: str, programs: Sequence[Program]) -> dict[str, str]:
    """A name for each that none of the programs has in it."""
    there = b"\n".join(data for program in programs for data in program.files.values())
    words = set(re.findall(rb"\w+", there))
    number = 1
    while True:
        end = "".join(f"_{part}" for part in (suffix, number if number > 1 else "") if part)
        found = {name: name + end for name in names}
        if not any(new.encode() in words for new in found.values()):
            return found
        number += 1


def _renamed(content: str, names: Mapping[str, str]) -> str:
    """The text with these names replaced, but for members, comments and strings."""
    pieces = pieces_of(content)
    for i, piece in enumerate(pieces):
        member = pieces[i - 1 : i] == ["."] or pieces[max(0, i - 2) : i] == ["-", ">"]
        if piece in names and not member:
            pieces[i] = names[piece]
    return "".join(pieces)


def _may_differ(item: Item, kernel: str) -> bool:
    """Whether a variant may have another such item: its kernel, constants, types, device functions; host functions are compared."""
    if item.kind == "directive":
        return item.word in ("define", "include")
    if "__global__" in _words(item):
        return kernel in item.defines
    if item.kind == "variable":
        return bool(_words(item) & {"const", "constexpr"})
    return item.kind in ("function", "type", "typedef", "using") and bool(item.defines)


def _is_host(item: Item) -> bool:
    return item.kind == "function" and not _words(item) & {"__global__", "__device__"}


def _has_body(item: Item) -> bool:
    return item.kind == "function" and item.tokens[-1].text == "}"


def _words(item: Item) -> set[str]:
    return {t.text for t in item.head}


def _used(item: Item) -> set[str]:
    """The names in an item, those in its directives too."""
    return {w for t in item.tokens for w in re.findall(r"[A-Za-z_]\w*", t.text) if t.kind in ("name", "directive")}


def _names(item: Item) -> tuple[str, ...]:
    """What an item defines, a macro's name too."""
    macro = re.match(r"[A-Za-z_]\w*", item.rest) if item.word == "define" else None
    return item.defines if macro is None else (macro[0],)


def _before(statement: Node) -> Iterator[Node]:
    """The declarations before a statement in the blocks around it, in order."""
    found: list[Node] = []
    block = statement.parent
    while block is not None and block.type != "translation_unit":
        if block.type == "compound_statement":
            found[:0] = [
                n for n in block.named_children if n.type == "declaration" and n.end_byte <= statement.start_byte
            ]
        block = block.parent
    return iter(found)


def _code(node: Node) -> str:
    return " ".join(p for p in pieces_of(text(node)) if p.strip() and not p.startswith(("//", "/*")))


def _words_of(node: Node) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", _code(node)))


def dotted(capability: int) -> str:
    """A compute capability as people write it: 9.0."""
    return f"{capability // 10}.{capability % 10}"
