"""Reads from disk what a program consists of: the kernel's file, its local headers, the files that launch it, its spec."""

import contextlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from engine.cuda.conditions import is_standard
from engine.cuda.parse import parse
from engine.cuda.readable_text import has_launch
from engine.cuda.standins import is_standin, standin
from engine.errors import SourceError, UsageError
from engine.model import Program
from engine.settings.suffixes import SOURCES

_SKIPPED = frozenset({"build", "node_modules", "__pycache__", "venv"})  # and every folder whose name begins with a dot
_MAX_BYTES = 2 << 20
_MAX_FILES = 5_000
_MAX_ENTRIES = 100_000  # of folders, whatever they are: a tree of empty folders must end too
_MAX_HEADERS = 1_000
_MOST_INCLUDERS = 8  # of a header's, where its templates are instantiated. Ours.
_FIRST_GIVEN = re.compile(rb"\b[A-Z][A-Z0-9_]{3,}\s*\(\s*\(?\s*(?:\w+::)*([A-Za-z_]\w*)")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\r\n]+)"|<([^>\r\n]+)>)', re.M)


def repository_root(path: Path) -> Path:
    """The nearest folder above `path` that holds `.git`; without one the file's own folder."""
    folder = path.resolve().parent
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            return parent
    return folder


def load_program(
    path: Path, *, spec_file: str | None = None, kernels: Sequence[str] = (), include: Sequence[str] = (), unit: str = "",
) -> Program:  # fmt: skip
    """The program whose kernels stand in the file `path`.

    It holds that file, the headers that it includes (transitively, beside it, in the folders `include` or at the root), every
    file below the root that launches one of `kernels` (default: all kernels of the file), the file `unit` that a header is
    compiled through, with its headers, and `spec_file`. All paths are relative to the repository's root, and nothing outside
    of it is read.
    Raises UsageError for no such file, a folder, a file without a kernel or without one of `kernels`; SourceError for what is
    no text.
    """
    root = repository_root(path)
    main = _main_file(path, root)
    data = read_below(root, main)
    if data is None:
        raise UsageError("cannot be read", main, "give a readable regular file")
    parsed = parse(data, main)
    files = {main: data}
    add_headers(files, main, root, include)
    add_unit(files, unit, root, include)
    if not parsed.kernels:
        raise UsageError("contains no kernel", main, _where_else(files, main))
    names = [_plain(kernel) for kernel in kernels] or [kernel.name for kernel in parsed.kernels]
    for name in names:
        if not any(re.search(rb"\b%s\b" % re.escape(name.encode()), text) for text in files.values()):
            there = ", ".join(kernel.name for kernel in parsed.kernels)
            raise UsageError(f"has no kernel '{name[:200]}'", main, f"it has: {there}")
    for found, text in [*_launching(root, names, main, files)]:
        files.setdefault(found, text)
        if not has_launch(text):
            files |= {path: other for path, other in _macro_headers(root, found, text, include) if path not in files}
    if spec_file is not None and spec_file not in files:
        text_of_spec = read_below(root, spec_file)
        if text_of_spec is None:
            raise UsageError("the kernel spec cannot be read", spec_file, "give a file inside the repository")
        files[spec_file] = text_of_spec
    return Program(files, main)


def resolve_include(
    name: str,
    quoted: bool,
    includer: str,
    *,
    files: Mapping[str, bytes],
    root: Path | None,
    include: Sequence[str] = (),
) -> tuple[str, bytes] | None:
    """(path, bytes) of a header that belongs to the repository, else of our own that stands in for it, else None.

    Looked for beside the file that includes it (in quotes), in the folders `include`, at the root, then in the folders above the
    includer and their `include`, which build files mostly name; first in `files`, then on disk below `root`. One in quotes that is in none
    of these is the nearest of `files` that ends like it, if no other is as near.
    Raises SourceError for a name that leads out of the repository; such a file is never read.
    """
    if name.startswith("/") or "\\" in name or "\0" in name:
        raise SourceError(f'includes "{name[:200]}", which is outside the repository', includer, "include a file in it")
    folders = [*([posixpath.dirname(includer)] if quoted else []), *include, "", *_above(name, quoted, includer)]
    outside = False
    for folder in folders:
        path = posixpath.normpath(posixpath.join(folder, name))
        if path.startswith("../") or path == ".." or path.startswith("/"):
            outside = outside or folder == folders[0]
            continue
        data = files.get(path)
        if data is None and root is not None:
            real = _real(root, path)
            if real is not None:
                path, data = real, files.get(real) or read_below(root, real)
        if data is not None:
            return path, data
    if outside:
        raise SourceError(f'includes "{name[:200]}", which is outside the repository', includer, "include a file in it")
    found = standin(name)
    nearest = _nearest(name, includer, files) if found is None and quoted else None
    return (nearest, files[nearest]) if nearest is not None else found


def _nearest(name: str, includer: str, paths: Iterable[str]) -> str | None:
    """The one path that ends like a header's name and has most folders in common with the file that includes it."""
    ending = "/" + posixpath.normpath(name)
    if is_standard(name) or ending.startswith("/.."):
        return None
    folders = includer.split("/")[:-1]
    found: dict[int, list[str]] = {}
    for path in paths:
        if path.endswith(ending):
            same = takewhile(lambda pair: pair[0] == pair[1], zip(folders, path.split("/"), strict=False))
            found.setdefault(sum(1 for _ in same), []).append(path)
    nearest = found[max(found)] if found else []
    return nearest[0] if len(nearest) == 1 else None


def including_files(root: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The sources below the root with an `#include` of a file of one of these names (without folders), by relative path."""
    wanted = {name.encode() for name in names}
    found: dict[str, bytes] = {}
    for path in source_files(root):
        with contextlib.suppress(SourceError, OSError):
            status = os.lstat(root / path)
            if not wanted.isdisjoint(_included_names(root, path, status.st_mtime_ns, status.st_size)):
                found[path] = read_below(root, path) or b""
    return found


def may_include(root: Path, header: str, units: Iterable[str]) -> list[str]:
    """Those of `units` that may include the header, by the names that they and the headers on the way include; some may not."""
    names: dict[str, frozenset[bytes]] = {}
    for path in dict.fromkeys((*source_files(root), *units)):
        with contextlib.suppress(SourceError, OSError):
            status = os.lstat(root / path)
            names[path] = _included_names(root, path, status.st_mtime_ns, status.st_size)
    reached, found, before = {posixpath.basename(header).encode()}, set[str](), -1
    unread = {n for each in names.values() for n in each if b"." in n and not n.decode("latin-1").endswith(SOURCES)}
    reached |= unread  # what such a file includes nobody looks up here
    while len(found) > before:
        before = len(found)
        for path, included in names.items():
            if path not in found and not included.isdisjoint(reached):
                found.add(path)
                reached.add(posixpath.basename(path).encode())
    return [path for path in units if path in found]


@lru_cache(maxsize=_MAX_FILES)
def _included_names(root: Path, path: str, modified_ns: int, size: int) -> frozenset[bytes]:
    """The names without folders that a file includes; read once while it stays as it is: each kernel asks for every file."""
    return frozenset((m[1] or m[2]).rpartition(b"/")[2] for m in _INCLUDE.finditer(read_below(root, path) or b""))


def with_includers(program: Program, root: Path) -> Program:
    """The program of a header's kernels with some files that include the header: what instantiates its templates."""
    main = program.kernel_file
    if main.endswith(".cu"):
        return program
    found = including_files(root, [posixpath.basename(main)])
    more = {path: data for path, data in found.items() if path not in program.files and _is_text(data)}
    nearest = sorted(more, key=lambda path: (-len(posixpath.commonpath([path, main])), path))[:_MOST_INCLUDERS]
    return Program({**program.files, **{path: more[path] for path in nearest}}, main)


def _is_text(data: bytes) -> bool:
    with contextlib.suppress(SourceError):
        parse(data)
        return True
    return False


def _above(name: str, quoted: bool, includer: str) -> Iterator[str]:
    """Where a header may be that the compile command is needed to find, nearest first; nowhere for what looks like a system's."""
    folder = posixpath.dirname(includer)
    while folder and (quoted or "/" in name):
        yield posixpath.join(folder, "include")
        folder = posixpath.dirname(folder)
        yield folder
    if quoted or "/" in name:
        yield "include"


def read_below(root: Path, path: str, most: int = _MAX_BYTES) -> bytes | None:
    """The bytes of a regular file below the root; None for anything else, for `.git`, and for what links lead out to.

    Raises SourceError for one of more than `most` bytes.
    """
    real = _real(root, path)
    if real is None:
        return None
    try:
        # Not blocking: a named pipe in a pull request must not stop the tool.
        handle = os.open(root.resolve() / real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > most:
            raise SourceError(f"exceeds the limit of {most} bytes", path)
        return file.read()


def _real(root: Path, path: str) -> str | None:
    """The path with links followed, relative to the root; None where that is no longer inside."""
    base = root.resolve()
    try:
        real = (base / path).resolve()
        if not real.is_file():
            return None
        inside = real.relative_to(base)
    except (OSError, ValueError, RuntimeError):
        return None
    # .git holds what no compiler's message may show: a token in its configuration, for one.
    return None if ".git" in inside.parts else inside.as_posix()


def _main_file(path: Path, root: Path) -> str:
    if path.is_dir():
        raise UsageError("is a folder", str(path), "give one .cu file")
    if not path.exists():
        raise UsageError("no such file", str(path), "check the path")
    return path.resolve().relative_to(root.resolve()).as_posix()


def _where_else(files: Mapping[str, bytes], main: str) -> str:
    """What to do about a file without kernels: they may stand in a header of it, or behind syntax nobody knows."""
    unit = parse(files[main], main)
    if b"__global__" in files[main] and unit.errors:
        line = unit.line_of(unit.errors[0].start)
        what = f"line {line} is not understood" if line > 1 else "its text is not understood"
        return f"{what}; braces have to be balanced under each #if"
    if headers := list(kernels_of_headers(files, main)):
        return f"its kernels are in {headers[0]}: give that file"
    return "give a file that defines a __global__ function"


def kernels_of_headers(files: Mapping[str, bytes], main: str) -> dict[str, list[str]]:
    """The qualified names of the kernels that files other than `main` define, for each that defines one."""
    found = {}
    for header in sorted(files.keys() - {main}):
        if b"__global__" in files[header] and (kernels := parse(files[header], header).kernels):
            found[header] = [kernel.qualified for kernel in kernels]
    return found


def _plain(kernel: str) -> str:
    """The bare name: without namespaces and template arguments."""
    return kernel.split("<", 1)[0].strip().rpartition("::")[2]


def add_unit(files: dict[str, bytes], unit: str, root: Path, include: Sequence[str]) -> None:
    """Add to `files` the file that a header is compiled through, and its headers. Raises SourceError for one over the limit."""
    data = read_below(root, unit) if unit and unit not in files else None
    if data is not None:
        files[unit] = data
        add_headers(files, unit, root, include)


def add_headers(
    files: dict[str, bytes], main: str, root: Path, include: Sequence[str], *, everywhere: bool = True
) -> None:
    """Add to `files` the local headers that the file `main` includes, transitively. Raises SourceError for one over the limit.

    Without `everywhere` those that only the build knows where to find are left out: for them the repository is gone through.
    """
    waiting = [main]
    known: tuple[str, ...] | None = None if everywhere else ()
    while waiting and len(files) <= _MAX_HEADERS:
        includer = waiting.pop(0)
        for match in _INCLUDE.finditer(files[includer]):
            name = (match[1] or match[2]).decode("utf-8", "replace")
            try:
                found = resolve_include(name, match[1] is not None, includer, files=files, root=root, include=include)
                if found is None and match[1] is not None:
                    known = tuple(source_files(root)) if known is None else known
                    path = _nearest(name, includer, known)
                    data = read_below(root, path) if path is not None else None
                    found = (path, data) if path is not None and data is not None else None
            except SourceError:
                continue  # the slice refuses it, if it stands in code and not in a comment
            if found is not None and found[0] not in files and not is_standin(found[0]):
                files[found[0]] = found[1]
                waiting.append(found[0])


def _launching(
    root: Path, kernels: Iterable[str], main: str, around: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    """The files that launch one of `kernels`; `around` is the file `main` with its headers."""
    names = sorted({kernel.encode() for kernel in kernels})
    if not names:
        return
    launch = re.compile(
        rb"\b("
        + b"|".join(map(re.escape, names))
        + rb")\s*(?:<[^;{}<]{0,400}(?:<[^;{}]{0,200}>[^;{}<]{0,200})?>\s*)?<<\s*<"
    )
    # `auto kernel = name<…>;` and `launch(name<…>, …)`: what launches by a pointer or a helper.
    handed = re.compile(
        rb"(?:[=(]|\*\))\s*&?\s*(?:\w+::)*(" + b"|".join(map(re.escape, names)) + rb")\s*(?:<[^;{}]{0,600}>)?\s*[;,)]"
    )
    here = {match[1] for text in around.values() for match in launch.finditer(text)}
    for path in source_files(root):
        try:
            status = os.lstat(root / path)
            data = _text_with_launch(root, path, status.st_mtime_ns, status.st_size)
            if data is None and not _given_to_macros(root, path, status.st_mtime_ns, status.st_size).isdisjoint(names):
                data = read_below(root, path)
        except (OSError, SourceError):
            continue
        found = {match[1] for pattern in (launch, handed) for match in pattern.finditer(data or b"")}
        if data is None or not found:
            continue
        if found - _other_kernels(root, path, data, main, here):
            yield path, data


def _macro_headers(root: Path, path: str, data: bytes, include: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The headers of a file that may define the macros which it launches by."""
    files = {path: data}
    with contextlib.suppress(SourceError):
        add_headers(files, path, root, include, everywhere=False)
    yield from ((found, text) for found, text in files.items() if has_launch(text) and b"define" in text)


@lru_cache(maxsize=1024)
def _text_with_launch(root: Path, path: str, modified_ns: int, size: int) -> bytes | None:
    """The bytes of a file that launches something, else None; read once while it stays as it is: each kernel asks for every file."""
    data = read_below(root, path)
    return data if data is not None and (has_launch(data) or b"cudaLaunch" in data) else None


@lru_cache(maxsize=_MAX_FILES)
def _given_to_macros(root: Path, path: str, modified_ns: int, size: int) -> frozenset[bytes]:
    """The names that a file gives to macros first, without namespaces: `LAUNCH(kernel, …)`, where a header has the `<<<`."""
    return frozenset(match[1] for match in _FIRST_GIVEN.finditer(read_below(root, path) or b""))


def _other_kernels(root: Path, path: str, data: bytes, main: str, here: set[bytes]) -> set[bytes]:
    """Names that mean kernels of others in a file: those that it or a header of its own defines.

    Those in `here` too, which the program launches without it, where it neither includes the program's file nor declares them.
    """
    files = {path: data}
    with contextlib.suppress(SourceError):
        add_headers(files, path, root, (), everywhere=False)
    found: set[bytes] = set()
    if main in files and path != main:
        files = {path: data}
    else:
        text = b"\n".join(files.values())
        found |= {name for name in here if not re.search(rb"__global__[^;{}]*\b%s\s*\(" % re.escape(name), text)}
    for name, text in files.items():
        if b"__global__" in text and name != main:
            found |= {kernel.name.encode() for kernel in parse(text, name).kernels}
    return found


def source_files(root: Path) -> Iterator[str]:
    """Paths of files that may define or launch a kernel, nearest folders first, links not followed; bounded in number."""
    folders, entries, files = [""], 0, 0
    while folders:
        folder = folders.pop(0)
        try:
            with os.scandir(root / folder) as listing:
                found = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            entries += 1
            if entries > _MAX_ENTRIES or files >= _MAX_FILES:
                return
            path = posixpath.join(folder, entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                        folders.append(path)
                elif entry.name.endswith(SOURCES) and entry.is_file(follow_symlinks=False):
                    files += 1
                    if entry.stat(follow_symlinks=False).st_size <= _MAX_BYTES:
                        yield path
            except OSError:
                continue
