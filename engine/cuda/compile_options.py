"""Include folders, macros and the language standard in a compiler's arguments, read as data; nothing is ever run.

Everything else in a command line is passed over: a compile command of a pull request is text of somebody unknown.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_ARGUMENTS = 20_000
_MAX_NESTED = 4  # response files within response files
MACRO = re.compile(r"[A-Za-z_]\w{0,63}(=[\w.+-]{0,64})?", re.ASCII)
_FOLDER = re.compile(r"[\w.+][\w.+ /-]{0,200}", re.ASCII)
_COMPILERS = re.compile(
    r"(?:.*-)?(?:nvcc|clang|clang\+\+|g\+\+|gcc|c\+\+|cc|nvc\+\+|icpx|hipcc)(?:-?\d[\d.]*)?(?:\.exe)?"
)
_LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "env", "nice"})
_INCLUDE = ("-I", "-isystem", "-iquote", "-idirafter", "--include-path", "--system-include")
_DEFINE = ("-D", "--define-macro")
_STANDARD = ("-std", "--std")
_RESPONSE = ("--options-file", "-optf")
# Options of nvcc and of the host's compilers whose value is the next argument: that value is no option.
_WITH_VALUE = frozenset({
    "-o", "-x", "-MF", "-MT", "-MQ", "-include", "-imacros", "-ccbin", "--compiler-bindir", "-Xcompiler", "--compiler-options",
    "-Xptxas", "--ptxas-options", "-Xlinker", "-Xcudafe", "-Xnvlink", "-Xfatbin", "-Xclang", "-arch", "--gpu-architecture", "-code",
    "--gpu-code", "-gencode", "--generate-code", "-odir", "--output-directory", "-U", "--undefine-macro", "--dependency-output",
    "-L", "-l", "-target", "-isysroot", "--sysroot",
})  # fmt: skip
_STANDARDS = {
    "0x": "c++11", "11": "c++11", "1y": "c++14", "14": "c++14", "1z": "c++17", "17": "c++17", "2a": "c++20", "20": "c++20",
    "2b": "c++20", "23": "c++20", "2c": "c++20", "26": "c++20",
}  # fmt: skip


@dataclass(frozen=True)
class CompilerArguments:
    """What the arguments of one compiler call say of headers, macros and the standard.

    `include` are folders relative to the root; `std` is "" where none is given. `notes` are sentences on what was left out.
    """

    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    std: str = ""
    notes: tuple[str, ...] = ()


def words_of(command: str) -> list[str] | None:
    """A command line as words, with a shell's quotes and nothing else of a shell; None where a quote is open."""
    try:
        return shlex.split(command)
    except ValueError:
        return None


def read_options(
    arguments: Sequence[str], directory: str, root: Path, read: Callable[[str], bytes | None]
) -> CompilerArguments:
    """The options in a call's arguments, the compiler's own name first.

    `directory` is where the call runs; folders outside of `root` are left out. `read` gives the bytes of a file of the
    repository by its relative path, for response files.
    """
    arguments, other = _without_compiler(arguments)
    if other:
        return CompilerArguments(notes=(f"the options of '{other[:60]}' are ignored: it is not a CUDA compiler",))
    base = Path(os.path.realpath(root))
    include: dict[str, None] = {}
    defines: dict[str, str] = {}
    notes: dict[str, None] = {}
    outside = unread = 0
    std = ""
    for option, value in _options(_expanded(arguments, directory, base, read, notes)):
        if option in _INCLUDE:
            folder = inside(base, directory, value)
            if folder is None:
                outside += 1
            elif _FOLDER.fullmatch(folder):
                include[folder] = None
            else:
                notes[f"the include folder '{folder[:60]}' has unsupported characters"] = None
        elif option in _DEFINE:
            if MACRO.fullmatch(value):
                defines[value.partition("=")[0]] = value
            else:
                unread += 1
        elif option in _STANDARD:
            std = _STANDARDS.get(re.sub(r"^(?:gnu|c)\+\+", "", value), std)
    if outside:
        notes[f"{outside} include folders outside the repository are ignored"] = None
    if unread:
        notes[f"{unread} macros whose values are neither numbers nor names are ignored"] = None
    return CompilerArguments(tuple(include), tuple(defines.values()), std, tuple(notes))


def inside(base: Path, directory: str, path: str) -> str | None:
    """A path as seen from `directory`, relative to `base` (a real path) with links followed; None outside of it and in `.git`."""
    if "\0" in path or not path:
        return None
    try:
        real = Path(os.path.realpath(os.path.join(base, directory, path)))
        relative = real.relative_to(base)
    except (OSError, ValueError):
        return None
    return None if ".git" in relative.parts else relative.as_posix()


def _without_compiler(arguments: Sequence[str]) -> tuple[Sequence[str], str]:
    """The arguments after the compiler's name, and the name where it is none that is known."""
    at = 0
    while at < len(arguments) and (Path(arguments[at]).name in _LAUNCHERS or re.fullmatch(r"\w+=.*", arguments[at])):
        at += 1
    if at == len(arguments):
        return (), ""
    name = re.split(r"[/\\]", arguments[at])[-1]
    return arguments[at + 1 :], "" if _COMPILERS.fullmatch(name) else name


def _expanded(
    arguments: Sequence[str], directory: str, base: Path, read: Callable[[str], bytes | None], notes: dict[str, None],
    depth: int = 0,
) -> Iterator[str]:  # fmt: skip
    """The arguments with response files in place. What is in none of the repository's files is left out, with a note."""
    named = False  # the last argument asks for a response file
    for index, argument in enumerate(arguments):
        if index >= _MAX_ARGUMENTS:
            notes[f"a command with over {_MAX_ARGUMENTS} arguments is cut there"] = None
            return
        flag, equals, value = argument.partition("=")
        if named or argument.startswith("@") or (equals and flag in _RESPONSE):
            name = argument if named else value if equals and flag in _RESPONSE else argument[1:]
            named = False
            path = inside(base, directory, name)
            data = read(path) if path is not None and depth < _MAX_NESTED else None
            words = words_of(data.decode("utf-8", "replace")) if data is not None else None
            if words is None:
                notes[f"the response file '{name[:100]}' cannot be read inside the repository"] = None
            else:
                yield from _expanded(words, directory, base, read, notes, depth + 1)
        elif argument in _RESPONSE:
            named = True
        else:
            yield argument


def _options(arguments: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Options with their values, joined or apart: `-Ifolder`, `-I folder`, `--include-path=folder`."""
    for argument in arguments:
        if argument in _WITH_VALUE:
            next(arguments, "")
            continue
        for option in (*_INCLUDE, *_DEFINE, *_STANDARD):
            if argument == option:
                yield option, next(arguments, "")
                break
            joined = argument.removeprefix(option)
            if joined != argument and (len(option) == 2 or joined.startswith("=")):
                yield option, joined.removeprefix("=")
                break
            if joined != argument and option.startswith("-i") and joined.startswith("/"):
                yield option, joined
                break
