"""Which kernels a pull request changes: their text, a launch, something they call, or a header they include."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bot.changed import ChangedKernel, Skipped
from bot.clone import Entry, Repository
from engine.cuda.items import tokens_of
from engine.cuda.kernel import Kernel
from engine.cuda.parse import parse
from engine.cuda.slice import device_slice
from engine.errors import OptimlError, SourceError
from engine.model import Program
from engine.settings.suffixes import CUDA, KERNELS, SOURCES, may_define

_TEXT = (*SOURCES, ".c")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\r\n]+)"|<([^>\r\n]+)>)', re.M)
_DEFINE = re.compile(r"#\s*define\s+([A-Za-z_]\w*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MAX_HEADERS = 1_000
_MAX_FILES = 300  # CUDA files that are looked at; the rest is named as not looked at
_MAX_DEPTH = 20  # of headers that include headers


@dataclass(frozen=True)
class Changes:
    """What a pull request changes. `base` is where it branched off."""

    base: str
    head: str
    kernels: tuple[ChangedKernel, ...]
    skipped: tuple[Skipped, ...]


def find_changes(repository: Repository, base: str, head: str, *, include: Sequence[str] = ()) -> Changes:
    """The kernels that differ between the point where `head` left `base`, and `head`. Reads git objects only.

    A change of comments or blanks alone is none. `include` are folders that headers are looked for in, beside the including
    file's own and the root. Raises GitError (a commit is missing).
    """
    base = repository.merge_base(base, head)
    entries = repository.changed(base, head)
    skipped: list[Skipped] = []
    changed: list[Entry] = []
    for entry in entries:
        reason = _unreadable(entry, repository, head)
        if reason is not None:
            if reason:
                skipped.append(Skipped(entry.path, reason))
            continue
        changed.append(entry)
    repository.preload(head, [entry.path for entry in changed])
    repository.preload(base, [entry.old_path for entry in changed if entry.status != "A"])
    finder = _Finder(repository, base, head, {e.path: e.old_path for e in changed if e.status != "A"}, include)
    launched = finder.launches(changed)
    files = _affected(repository, head, changed, launched)
    for path in files[_MAX_FILES:]:
        skipped.append(Skipped(path, f"more than {_MAX_FILES} CUDA files are affected; this one exceeds the limit"))
    kernels: list[ChangedKernel] = []
    for path in files[:_MAX_FILES]:
        try:
            kernels += finder.kernels(path, launched)
        except OptimlError as error:
            skipped.append(Skipped(path, str(error)))
    return Changes(base, head, tuple(kernels), tuple(skipped))


def _unreadable(entry: Entry, repository: Repository, head: str) -> str | None:
    """Why a changed path is not looked at; "" where that needs no word (it is no CUDA, or it is gone)."""
    if entry.submodule:
        return "a submodule: not analysed"
    if not entry.path.endswith(_TEXT) or entry.status == "D":
        return ""
    says = entry.path.endswith(CUDA)
    if entry.link:
        return "a symbolic link is not followed" if says else ""
    data = repository.read(head, entry.path)
    if data is None:
        return "is not a regular file of at most 2 MiB" if says else ""
    if b"\0" in data:
        return "is binary" if says else ""
    return None


def _affected(repository: Repository, head: str, changed: Sequence[Entry], launched: Iterable[str]) -> list[str]:
    """Files at the head that may define a kernel that the changes reach, in order of path."""
    files = {e.path for e in changed if may_define(e.path, repository.read(head, e.path) or b"")}
    waiting = [(entry.path, 0) for entry in changed if not entry.path.endswith(".cu")]
    seen = {path for path, _ in waiting}
    names: dict[str, list[str]] = {}
    while waiting and len(seen) < _MAX_HEADERS:
        header, depth = waiting.pop(0)
        name = posixpath.basename(header)
        if not header.endswith(_TEXT) or depth > _MAX_DEPTH:
            continue
        if name not in names:
            names[name] = repository.grep(head, name, _TEXT)
        for path in names[name]:
            data = repository.read(head, path)
            if data is None or path in seen or not _includes(data, name):
                continue
            seen.add(path)
            waiting.append((path, depth + 1))
            if may_define(path, data):
                files.add(path)
    for kernel in launched:
        for path in repository.grep(head, kernel.rpartition("::")[2], KERNELS):
            if may_define(path, repository.read(head, path) or b""):
                files.add(path)
    return sorted(files)


def _includes(data: bytes, name: str) -> bool:
    wanted = name.encode("utf-8", "surrogateescape")
    return any(posixpath.basename(match[1] or match[2]) == wanted for match in _INCLUDE.finditer(data))


class _Finder:
    """Compares the two sides. `renamed` maps paths at the head to paths at the base, for every file that is on both."""

    def __init__(
        self, repository: Repository, base: str, head: str, renamed: dict[str, str], include: Sequence[str]
    ) -> None:
        self._repository, self._base, self._head = repository, base, head
        self._renamed, self._include = renamed, tuple(include)
        self._old_launches: Counter[tuple[str, str]] = Counter()
        self._new_launches: Counter[tuple[str, str]] = Counter()

    def launches(self, changed: Sequence[Entry]) -> set[str]:
        """Kernels (as named there) whose launches in the changed files differ."""
        for entry in changed:
            self._new_launches.update(self._sites(self._head, entry.path))
            if entry.status != "A":
                self._old_launches.update(self._sites(self._base, entry.old_path))
        differing = (self._new_launches - self._old_launches) + (self._old_launches - self._new_launches)
        return {kernel for kernel, _ in differing}

    def _sites(self, commit: str, path: str) -> list[tuple[str, str]]:
        data = self._repository.read(commit, path)
        if data is None or b"<<<" not in data:
            return []
        try:
            unit = parse(data, path)
        except SourceError:
            return []
        return [
            (
                s.kernel.rpartition("::")[2],
                _tokens(" ; ".join([s.template_args, *(p.text for p in s.parts), *s.arguments])),
            )
            for s in unit.launches
        ]

    def kernels(self, path: str, launched: set[str]) -> list[ChangedKernel]:
        """The changed kernels of one file at the head."""
        data = self._repository.read(self._head, path)
        if data is None:
            return []
        kernels = parse(data, path).kernels
        old_path = self._renamed.get(path, path if path in self._repository.tree(self._base) else "")
        old_data = self._repository.read(self._base, old_path) if old_path else None
        before: dict[str, Kernel] = {}
        if old_data is not None and b"\0" not in old_data:
            try:
                before = {kernel.qualified: kernel for kernel in parse(old_data, old_path).kernels}
            except SourceError:
                before = {}
        new_program = self._program(self._head, path, data)
        old_program = self._program(self._base, old_path, old_data) if old_data is not None else None
        found: list[ChangedKernel] = []
        for kernel in kernels:
            reasons: list[str] = []
            old = before.get(kernel.qualified)
            size = 0
            if old is None or old_data is None or old_program is None:
                reasons.append("new")
                size = len(_part(data, kernel).split())
            else:
                size = _differing(_part(old_data, old), _part(data, kernel))
                if size:
                    reasons.append("body")
                before_slice, after_slice = self._slice(old_program, old), self._slice(new_program, kernel)
                if before_slice != after_slice:
                    reasons.append("callee or header")
                    size += _differing(before_slice, after_slice)
            if kernel.name in launched and old is not None:
                reasons.append("launch")
            if reasons:
                base_path = old_path if old is not None else ""
                found.append(ChangedKernel(path, kernel.qualified, kernel.line, tuple(reasons), base_path, size))
        return found

    def _program(self, commit: str, path: str, data: bytes) -> Program:
        files = {path: data}
        waiting = [path]
        tree = self._repository.tree(commit)
        while waiting and len(files) < _MAX_HEADERS:
            includer = waiting.pop(0)
            for match in _INCLUDE.finditer(files[includer]):
                name = (match[1] or match[2]).decode("utf-8", "replace")
                for folder in ([posixpath.dirname(includer)] if match[1] else []) + [*self._include, ""]:
                    header = posixpath.normpath(posixpath.join(folder, name))
                    text = self._repository.read(commit, header) if header in tree else None
                    if text is not None and header not in files:
                        files[header] = text
                        waiting.append(header)
                    if text is not None:
                        break
        return Program(files, path)

    def _slice(self, program: Program, kernel: Kernel) -> str:
        """What the compiler sees beside the kernel's own text, without comments, blanks and positions."""
        try:
            # The kernel's own text counts as "body"; removing it here keeps the two reasons apart.
            text = device_slice(program, [kernel.qualified], root=None, include=self._include).text
            own = program.data[kernel.span.start : kernel.span.end].decode("utf-8")
            return _tokens(text.replace(own, "", 1), own)
        except SourceError:
            whole = [program.data[: kernel.span.start] + program.data[kernel.span.end :]]
            whole += [data for path, data in sorted(program.files.items()) if path != program.kernel_file]
            return "\n".join(_tokens(data.decode("utf-8", "replace")) for data in whole)


def _differing(before: str, after: str) -> int:
    """How many tokens one text has more often than the other."""
    old, new = Counter(before.split()), Counter(after.split())
    return max((old - new).total() + (new - old).total(), int(before != after))


def _part(data: bytes, kernel: Kernel) -> str:
    return _tokens(data[kernel.span.start : kernel.span.end].decode("utf-8"))


def _tokens(text: str, own: str = "") -> str:
    """The tokens, one blank between them, without positions, local includes, and macros that neither they nor `own` name."""
    kept = [(t.kind, " ".join(t.text.split()) if t.kind == "directive" else t.text) for t in tokens_of(text)]
    kept = [(kind, t) for kind, t in kept if not re.match(r"#\s*(line\b|\d|include\s*\")", t)]
    used = {t for kind, t in kept if kind == "name"} | set(_NAME.findall(own))
    waiting: dict[str, set[str]] = {}
    for kind, directive in kept:
        if kind == "directive":
            macro = _DEFINE.match(directive)
            if macro is None:
                used.update(_NAME.findall(directive))
            else:
                waiting.setdefault(macro[1], set()).update(_NAME.findall(directive[macro.end() :]))
    ready = [name for name in waiting if name in used]
    while ready:
        for name in waiting.pop(ready.pop(), ()):
            used.add(name)
            if name in waiting:
                ready.append(name)
        ready = [name for name in ready if name in waiting]
    return " ".join(t for kind, t in kept if kind != "directive" or not (m := _DEFINE.match(t)) or m[1] in used)


__all__ = ["CUDA", "ChangedKernel", "Changes", "Skipped", "find_changes"]
