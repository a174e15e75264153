"""Which `__global__` function of a repository a recorded kernel is, by its demangled name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.cuda.kernel import Kernel
from engine.cuda.load import read_below, source_files
from engine.cuda.parse import parse
from engine.cuda.typenames import split_arguments
from engine.errors import SourceError

_INTEGER = re.compile(r"(?:\((?:unsigned |signed )?(?:int|long|char|short|long long)\))?(-?\d+)(?:u|l|ul|ull|ll)?")
_BOOL = re.compile(r"\(bool\)([01])")
_HIDDEN = "(anonymous namespace)::"


@dataclass(frozen=True)
class KernelPlace:
    """A kernel's place in the repository."""

    file: str
    kernel: Kernel

    @property
    def shown(self) -> str:
        return f"{self.file}:{self.kernel.line}"


@dataclass(frozen=True)
class Binding:
    """A recorded kernel's source, or the `problem`: why it has none."""

    place: KernelPlace | None
    template_args: str = ""
    problem: str = ""


@dataclass(frozen=True)
class KernelName:
    """A demangled name in its parts: qualified name, template arguments, parameter types (None: not in the name)."""

    qualified: str
    template_args: tuple[str, ...]
    parameters: tuple[str, ...] | None


def repository_kernels(root: Path, demangled: Iterable[str]) -> dict[str, list[KernelPlace]]:
    """The kernels below the root that may be one of these, by plain name. Files that cannot be read are left out."""
    names = {split_name(name).qualified.rpartition("::")[2].encode() for name in demangled}
    found: dict[str, list[KernelPlace]] = {}
    for file, kernel in _kernels(root, names):
        found.setdefault(kernel.name, []).append(KernelPlace(file, kernel))
    return found


def _kernels(root: Path, names: set[bytes]) -> Iterator[tuple[str, Kernel]]:
    for path in source_files(root):
        try:
            data = read_below(root, path)
            if data is None or b"__global__" not in data or not any(name in data for name in names):
                continue
            for kernel in parse(data, path).kernels:
                yield path, kernel
        except SourceError:
            continue


def bind(
    demangled: str, arguments: int | None, there: dict[str, list[KernelPlace]], command: tuple[str, ...] = ()
) -> Binding:
    """The source of a kernel with this many arguments (None: not known); of several the one in a file that the command names."""
    parts = split_name(demangled)
    plain = parts.qualified.rpartition("::")[2]
    places = there.get(plain, [])
    if not places:
        return Binding(None, problem="no source in this repository")
    count = arguments if arguments is not None else None if parts.parameters is None else len(parts.parameters)
    fitting = [p for p in places if count is None or len(p.kernel.parameters) == count]
    if parts.parameters is not None or parts.template_args:  # a bare name says nothing of templates
        fitting = [p for p in fitting if bool(p.kernel.template_parameters) == bool(parts.template_args)]
    qualified = [p for p in fitting if p.kernel.qualified.replace(_HIDDEN, "") == parts.qualified.replace(_HIDDEN, "")]
    fitting = qualified or fitting
    if len(fitting) > 1:
        words = set(re.split(r"[^\w.-]+", " ".join(command)))
        fitting = [p for p in fitting if words & {PurePosixPath(p.file).name, PurePosixPath(p.file).stem}] or fitting
    if not fitting:
        return Binding(None, problem=f"'{plain}' at {places[0].shown} has different parameters")
    if len(fitting) > 1:
        return Binding(None, problem=f"several kernels of this name: {', '.join(p.shown for p in fitting[:4])}")
    given, own = parts.template_args, fitting[0].kernel.template_parameters
    if not any("..." in p for p in own):
        given = given[: len(own)]  # g++ says what its typedefs are for, too
    return Binding(fitting[0], ", ".join(given))


def split_name(demangled: str) -> KernelName:
    """The parts of a demangled function name; a name without parameters (extern "C") is its own qualified name."""
    text, parameters = demangled.strip(), None
    if text.endswith(")"):
        at = _opening(text, len(text) - 1, "()")
        if at > 0:
            inner = text[at + 1 : -1].strip()
            parameters = () if inner in ("", "void") else tuple(p.strip() for p in split_arguments(inner))
            text = text[:at].rstrip()
    template_args: tuple[str, ...] = ()
    if text.endswith(">") and not text.endswith("operator>"):
        at = _opening(text, len(text) - 1, "<>")
        if at > 0:
            template_args = tuple(_plain_argument(a.strip()) for a in split_arguments(text[at + 1 : -1]))
            text = text[:at]
            text = text.removeprefix("void ")  # of a function template the return type is in the name
    return KernelName(text.strip(), template_args, parameters)


def _opening(text: str, end: int, pair: str) -> int:
    """The position of the bracket that the one at `end` closes; -1 where there is none."""
    depth = 0
    for at in range(end, -1, -1):
        depth += text[at] == pair[1]
        depth -= text[at] == pair[0]
        if depth == 0:
            return at
    return -1


def _plain_argument(text: str) -> str:
    """A template argument as C++ source writes it: demanglers write `(int)4`, `256u` and `(bool)1`."""
    if found := _BOOL.fullmatch(text):
        return "true" if found[1] == "1" else "false"
    found = _INTEGER.fullmatch(text)
    return found[1] if found else text
