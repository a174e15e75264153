"""A patched file built whole with nvcc, host included, and compared with the original's: what is suggested is what was verified.

The screening reads text, and the search compiles a slice of it with another compiler. This asks the user's compiler: host code after
preprocessing is equal but for the launch, other host functions are the same machine code, so are all other kernels and instances, and
the kernel's machine code is what was verified.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.compile.cubin import Cubin
from engine.compile.whole import WholeFile
from engine.cuda.closure import closure
from engine.cuda.items import items_of
from engine.model import Binary, Program
from engine.spec.kernel_spec import KernelSpec
from engine.verify.host_object import differing_host, public_name
from engine.verify.kernel_ptx import same_text
from engine.verify.screen import host_difference

_MARKER = re.compile(r"# (\d+) \"((?:[^\"\\]|\\.)*)\"(?: [\d ]+)?\Z")
_SPACES = re.compile(r"__attribute__\(\((global|device|host|shared|constant|managed)\)\)")


@dataclass(frozen=True)
class Preprocessed:
    """A unit after preprocessing: the text of the repository's files in it, and of every other header by its path."""

    own: str
    headers: Mapping[str, str] = field(repr=False)


def preprocessed(text: str, files: Iterable[str]) -> Preprocessed:
    """Divide nvcc's host half by the files that its lines come from. A number that is its own line's reads `__LINE__`."""
    ours = set(files)
    own: list[str] = []
    headers: dict[str, list[str]] = {}
    into: list[str] | None = None
    line = 0
    for row in text.splitlines():
        if match := _MARKER.match(row):
            line = int(match[1])
            path = posixpath.normpath(match[2])
            into = own if path in ours else headers.setdefault(path, [])
            continue
        if into is own:
            into.append(re.sub(rf"(?<![\w.]){line}(?![\w.])", "__LINE__", row))
        elif into is not None and row.strip():
            into.append(row.strip())
        line += 1
    code = _SPACES.sub(r"__\1__", "\n".join(own))
    return Preprocessed(code, {path: "\n".join(rows) for path, rows in headers.items()})


def with_lines_of(original: bytes, candidate: bytes) -> bytes:
    """The candidate's text, with `#line` before each item that the original has too, so that `__LINE__` means the same in both."""
    old, new = original.decode("utf-8", "replace"), candidate.decode("utf-8", "replace")
    places: dict[str, list[int]] = {}
    for item in items_of(old):
        if item.kind not in ("directive", "open", "close"):
            places.setdefault(_key(old, item.span.start, item.span.end, item.defines), []).append(item.line)
    parts: list[str] = []
    at = 0
    for item in items_of(new):
        if item.kind in ("directive", "open", "close"):
            continue
        if lines := places.get(_key(new, item.span.start, item.span.end, item.defines)):
            parts += [new[at : item.span.start], f"\n#line {lines.pop(0)}\n"]
            at = item.span.start
    return "".join([*parts, new[at:]]).encode()


def _key(text: str, start: int, end: int, defines: Sequence[str]) -> str:
    """What an item is found by in the other text: its names, for its launch may have changed; without names its text."""
    return "\0".join(defines) or text[start:end]


def host_problem(
    before: WholeFile, after: WholeFile, files: Iterable[str], original: Program, spec: KernelSpec
) -> str | None:
    """Why the host half of a patched unit is not the original's but for the launch; None where it is."""
    paths = list(files)
    old, new = preprocessed(before.host, paths), preprocessed(after.host, paths)
    for path in sorted(old.headers.keys() & new.headers.keys()):
        if old.headers[path] != new.headers[path]:
            return f"changes the meaning of the header {posixpath.basename(path)}"
    if reason := host_difference(old.own, new.own, original, spec):
        return reason
    kernels = frozenset(step.kernel.rpartition("::")[2] for step in spec.steps)
    name = differing_host(before.object, after.object, kernels)
    return None if name is None else f"changes the machine code of host code ('{name[:80]}')"


@dataclass(frozen=True)
class ChangedKernel:
    """A kernel whose machine code a patched unit changes beside the verified ones.

    `instance` is the name expression of another instance of the spec's kernel that the original has too, "" for any other kernel.
    """

    entry: str
    instance: str = ""
    what: str = "another kernel"

    @property
    def problem(self) -> str:
        """Why an edit is refused for it."""
        return f"changes {self.what} that was not verified ('{self.entry[:80]}')"


def changed_kernels(
    before: WholeFile, after: WholeFile, spec: KernelSpec, verified: Sequence[str]
) -> tuple[ChangedKernel, ...]:
    """The kernels and instances beside the verified entries that a patched unit changes, by name."""
    if not before.cubin and not after.cubin:
        return ()
    kernels = [step.kernel.rpartition("::")[2] for step in spec.steps]
    old, new, checked = _codes(before.cubin), _codes(after.cubin), {public_name(name) for name in verified}
    names = {public_name(entry): expression for entry, expression in before.kernels.items()}
    found: list[ChangedKernel] = []
    for name in sorted({*old, *new} - checked):
        if old.get(name) == new.get(name) or same_text(before.ptx, after.ptx, name):
            continue
        ours = any(re.search(rf"(?<!\d){len(k)}{re.escape(k)}", name) for k in kernels)
        if name not in new and ours:
            continue  # nothing launches this instance any more
        instance = names.get(name, "") if ours and name in old else ""
        what = "an instance of the kernel" if ours else "another kernel"
        found.append(ChangedKernel(name, instance if "<" in instance else "", what))
    return tuple(found)


def kernel_problem(before: WholeFile, after: WholeFile, spec: KernelSpec, verified: Sequence[str]) -> str | None:
    """Which kernel or instance beside the verified entries a patched unit changes; None where it changes none."""
    return next((changed.problem for changed in changed_kernels(before, after, spec, verified)), None)


def verified_problem(after: WholeFile, binary: Binary) -> tuple[Literal["", "differs", "missing"], str]:
    """Whether nvcc's machine code of the whole file is what was verified, and the entry that is not or is missing."""
    codes, verified = _codes(after.cubin), Cubin(binary.cubin)
    for entry in binary.entries:
        found = codes.get(public_name(entry))
        if found is None:
            return "missing", entry
        if found != verified.code_hash((entry,), module=False):
            return "differs", entry
    return "", ""


def same_kernels(
    first: WholeFile, second: WholeFile, entries: Sequence[str], renamed: Sequence[str] | None = None
) -> bool:
    """Whether two builds by nvcc have the same code of these entries, which the second may have under other names.

    Machine code, or under the same name what ptxas made it of.
    """
    one, other = _codes(first.cubin), _codes(second.cubin)
    pairs = zip(entries, entries if renamed is None else renamed, strict=True)
    names = [(public_name(a), public_name(b)) for a, b in pairs]
    return all(
        a in one and (one[a] == other.get(b) or (a == b and same_text(first.ptx, second.ptx, a))) for a, b in names
    )


def shared_entries(whole: WholeFile, entries: Sequence[str]) -> tuple[str, ...]:
    """Those of the entries that a build has machine code of."""
    there = _codes(whole.cubin) if whole.cubin else {}
    return tuple(entry for entry in entries if public_name(entry) in there)


def _codes(data: bytes) -> dict[str, str]:
    cubin = Cubin(data)
    return {public_name(entry): cubin.code_hash((entry,), module=False) for entry in cubin.entries}


def including(files: Mapping[str, bytes], changed: Iterable[str]) -> Iterator[str]:
    """The sources among `files` that are among the changed ones or include one, directly or not, in the order of their paths."""
    includes = {path: {m.decode("utf-8", "replace") for m in _INCLUDE.findall(data)} for path, data in files.items()}

    def includers(path: str) -> Iterator[str]:
        base = posixpath.basename(path)
        return (p for p, names in includes.items() if any(posixpath.basename(name) == base for name in names))

    return iter(sorted(path for path in closure(changed, includers) if path.endswith(_SOURCES)))


_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\r\n]+)[">]', re.M)
_SOURCES = (".cu", ".cpp", ".cc", ".cxx")
