"""The project's own compile command of a file: from a compile_commands.json, PyTorch's ninja file, and the settings.

A header's command is that of a file that includes it: its kernels are compiled through that file, and edited in the header.
Include folders, macros and the standard are taken, as data; nothing outside of the repository is read, and nothing is run.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from engine.cuda.compile_options import CompilerArguments, inside, read_options, words_of
from engine.cuda.load import add_headers, including_files, may_include, read_below, source_files
from engine.errors import OptimlError, SourceError
from engine.settings.config import Config, load_config
from engine.settings.suffixes import HEADERS

DATABASE, NINJA = "compile_commands.json", "build.ninja"
RECORDED = f".optiml/capture/{DATABASE}"  # what `optiml capture --cpu` saw the compiler be given
_MAX_BYTES = 64 << 20
_MAX_FOLDERS = 200  # that are looked at for build files
# Folders that build systems make: CMake's and its presets', IDEs', meson's, PyTorch's.
_BUILD = re.compile(r"\.?_?build\w*|cmake-build-[\w-]+|out|builddir", re.IGNORECASE)
_UNITS = (".cu", ".cpp", ".cc", ".cxx")
_INCLUDE_NAME = "include"  # a folder of this name is assumed to hold headers where no command says so
_VARIABLE = re.compile(r"(\w[\w.-]*) *= *(.*)")
_EDGE = re.compile(r"build (?:[^:$]|\$.)+: *cuda_compile ((?:[^|$]|\$.)+)")


@dataclass(frozen=True)
class CompileCommand:
    """How a file is compiled. `unit` is the file that the compiler is given, "" where it is the file itself.

    `include` are folders relative to the root, `std` is "" where nothing gives one. `origin` says where it was read: a path, or
    "the settings", or "" where nothing was found. `notes` are sentences on what was left out or assumed.
    """

    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    std: str = ""
    unit: str = ""
    origin: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Call:
    """One call of a compiler, as a build file has it."""

    file: str  # relative to the root
    directory: str
    arguments: tuple[str, ...]


class Project:
    """The compile commands of one repository, read once."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.notes: list[str] = []
        self._closures: dict[str, frozenset[str]] = {}
        try:
            self.config, _ = load_config(self.root)
        except OptimlError as error:
            self.config = Config()
            self.notes.append(f"the settings are ignored: {error}")

    def command(self, path: str) -> CompileCommand:
        """The command of a file, by its path relative to the root."""
        origin, call = self._calls.get(path, ("", None))
        unit = ""
        if call is None and (path.endswith(HEADERS) or self._is_part(path)):
            unit = self._includer(path)
            origin, call = self._calls.get(unit, ("", None))
        found = CompilerArguments() if call is None else self._options(call)
        settings = self.config.compile
        include = dict.fromkeys((*settings.include, *found.include))
        defines = {d.partition("=")[0]: d for d in (*found.defines, *settings.define)}
        if settings.include or settings.define or settings.std:
            origin = f"{origin} and the settings" if origin else "the settings"
        notes = (*self.notes, *found.notes)
        if not origin:
            include = dict.fromkeys(self._assumed(path))
        return CompileCommand(
            tuple(include), tuple(defines.values()), settings.std or found.std, unit, origin, tuple(notes)
        )

    def _options(self, call: _Call) -> CompilerArguments:
        return read_options(call.arguments, call.directory, self.root, lambda path: _read(self.root, path, _MAX_BYTES))

    @cached_property
    def _calls(self) -> Mapping[str, tuple[str, _Call]]:
        """The calls of all build files by the file they compile, with the build file; the first one of a file counts."""
        found: dict[str, tuple[str, _Call]] = {}
        for path in self._build_files():
            data = _read(self.root, path, _MAX_BYTES)
            if data is None:
                self.notes.append(
                    f"{path} is not a regular file of the repository below {_MAX_BYTES >> 20} MiB; ignored"
                )
                continue
            calls = list(_ninja(self.root, path, data) if path.endswith(NINJA) else self._database(path, data))
            for call in calls:
                found.setdefault(call.file, (path, call))
        return found

    def _build_files(self) -> Iterator[str]:
        given = self.config.compile_commands
        if given:
            yield given if given.endswith(".json") else posixpath.join(given, DATABASE)
            return
        folders = [".", *_build_folders(self.root)]
        for name in (DATABASE, NINJA):
            for folder in folders:
                if os.path.lexists(self.root / folder / name):
                    yield posixpath.normpath(posixpath.join(folder, name))
        if os.path.lexists(self.root / RECORDED):
            yield RECORDED

    def _database(self, path: str, data: bytes) -> Iterator[_Call]:
        try:
            entries = json.loads(data)
        except (ValueError, RecursionError):
            entries = None
        if not isinstance(entries, list):
            self.notes.append(
                f"{path} is not a valid compile_commands.json; ignored; generate it again with CMAKE_EXPORT_COMPILE_COMMANDS"
            )
            return
        elsewhere = ""
        for entry in entries:
            if not isinstance(entry, dict):
                continue
            directory, file, command = (entry.get(key) for key in ("directory", "file", "command"))
            arguments = entry.get("arguments")
            if not isinstance(directory, str) or not isinstance(file, str):
                continue
            where = inside(self.root, directory, file)
            if where is None:
                elsewhere = elsewhere or directory
                continue
            if not (isinstance(arguments, list) and all(isinstance(a, str) for a in arguments)):
                arguments = words_of(command) if isinstance(command, str) else None
            if arguments is None:
                self.notes.append(f"{path}: the command of {where[:100]} has an unclosed quote; ignored")
                continue
            yield _Call(where, directory, tuple(arguments))
        if elsewhere:
            self.notes.append(f"{path} has commands for files outside the repository ('{elsewhere[:100]}'); ignored")

    def _is_part(self, path: str) -> bool:
        """Whether a source includes nothing of the repository and another one includes it: what it needs comes before it there."""
        data = _read(self.root, path, _MAX_BYTES)
        if data is None or re.search(rb'^[ \t]*#[ \t]*include[ \t]*"', data, re.M):
            return False
        return bool(including_files(self.root, [posixpath.basename(path)]).keys() - {path})

    def _includer(self, header: str) -> str:
        """The file through which a header is compiled: a .cu file first, one with a command first, then the nearest; "" for none."""
        units = {path: None for path in (*self._calls, *source_files(self.root)) if path.endswith(_UNITS)}
        near = posixpath.dirname(header)

        def rank(path: str) -> tuple[bool, bool, int, str]:
            apart = posixpath.relpath(posixpath.dirname(path) or ".", near or ".").count("/")
            return not path.endswith(".cu"), path not in self._calls, apart, path

        likely = sorted(may_include(self.root, header, [*units]), key=rank)
        return next((path for path in likely if header in self._closure(path)), "")

    def _closure(self, unit: str) -> frozenset[str]:
        """What a file includes of the repository, headers of headers too."""
        if unit in self._closures:
            return self._closures[unit]
        files: dict[str, bytes] = {}
        try:
            data = read_below(self.root, unit)
            if data is not None and b"#" in data:
                files[unit] = data
                _, call = self._calls.get(unit, ("", None))
                include = (
                    *self.config.compile.include,
                    *(self._options(call).include if call else self._assumed(unit)),
                )
                add_headers(files, unit, self.root, include)
        except SourceError:
            pass
        self._closures[unit] = frozenset(files) - {unit}
        return self._closures[unit]

    def _assumed(self, path: str) -> Iterator[str]:
        """Folders named `include` beside the file and above it."""
        folder = posixpath.dirname(path)
        while True:
            guess = posixpath.join(folder, _INCLUDE_NAME)
            if (self.root / guess).is_dir() and inside(self.root, ".", guess) == guess:
                yield guess
            if not folder:
                return
            folder = posixpath.dirname(folder)


def compile_command(root: Path, path: str) -> CompileCommand:
    """The command of one file (`path` is relative to `root`), as the build files and settings there are now."""
    return project(root).command(path)


def project(root: Path) -> Project:
    """The commands of a repository, kept while its settings and build files stay as they are."""
    base = Path(os.path.realpath(root))
    marks = []
    for name in (
        "",
        "pyproject.toml",
        ".optiml.yml",
        DATABASE,
        RECORDED,
        *(f"{f}/{n}" for f in _build_folders(base) for n in (DATABASE, NINJA)),
    ):
        try:
            status = os.stat(base / name)
            marks.append((name, status.st_mtime_ns, status.st_size))
        except OSError:
            continue
    return _project(base, tuple(marks))


@lru_cache(maxsize=8)
def _project(root: Path, marks: tuple[tuple[str, int, int], ...]) -> Project:
    return Project(root)


def _build_folders(root: Path) -> list[str]:
    """Build folders at the root and two levels below them, sorted."""
    found: list[str] = []

    def below(folder: str, depth: int) -> None:
        try:
            with os.scandir(root / folder) as listing:
                names = sorted(
                    e.name for e in listing if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
                )
        except OSError:
            return
        for name in names:
            path = posixpath.join(folder, name) if folder != "." else name
            if (depth or _BUILD.fullmatch(name)) and len(found) < _MAX_FOLDERS:
                found.append(path)
                if depth < 2:
                    below(path, depth + 1)

    below(".", 0)
    return found


def _ninja(root: Path, path: str, data: bytes) -> Iterator[_Call]:
    """The calls of nvcc in a ninja file as torch.utils.cpp_extension writes it."""
    text = data.decode("utf-8", "replace").replace("$\r\n", "").replace("$\n", "")
    flags: dict[str, str] = {}
    files: list[str] = []
    for line in text.splitlines():
        if match := _VARIABLE.fullmatch(line):
            flags[match[1]] = _unescaped(match[2])
        elif match := _EDGE.match(line):
            files += [_unescaped(f) for f in re.findall(r"(?:[^ $]|\$.)+", match[1])]
    words = words_of(f"{flags.get('cuda_cflags', '')} {flags.get('cuda_post_cflags', '')}")
    folder = posixpath.dirname(path)
    for file in files if words is not None else ():
        where = inside(root, folder, file)
        if where is not None:
            yield _Call(where, folder, ("nvcc", *(words or ())))


def _unescaped(text: str) -> str:
    return re.sub(r"\$([ :$])", r"\1", text).strip()


def _read(root: Path, path: str, most: int) -> bytes | None:
    try:
        return read_below(root, path, most)
    except SourceError:
        return None
