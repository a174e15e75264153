"""What a compiler is asked for and what it says: the seam between the search and NVRTC or nvcc."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from engine.errors import CompileError, UsageError
from engine.model import Binary, Resources

if TYPE_CHECKING:
    pass

STANDARDS = ("c++11", "c++14", "c++17", "c++20", "c++23")
# About the compiler's own switches and its precompiled headers, which the user neither set nor can change.
_NOISE = ("Remark: The warnings can be suppressed", "Warning #630-D", "Warning #639-D")
_FURTHER = 4  # messages after the first that an author is told
_LOG_LIMIT = 16_384  # characters of a compiler's log that are kept
_DEFINE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=[^\n\r\0]{0,1000})?\Z")
_ARCH = re.compile(r"sm_\d{2,3}[af]?\Z")
# "file(12): error: …" of the CUDA front end and "file:12:3: error: …" of a host compiler.
_ERROR = re.compile(
    r"^(?P<file>[^\n()]*?)(?:\((?P<a>\d+)\)|:(?P<b>\d+)(?::\d+)?): (?:catastrophic |fatal )?error\b:?\s*(?P<what>.*)$"
)
_PTXAS_ERROR = re.compile(r"ptxas (?:error|fatal)\s*: (?P<what>.*)")
_ABSOLUTE = re.compile(r"(?<![\w./<])/(?:[^\s/()'\":;,]+/)+([^\s/()'\":;,]*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Translation:
    """One text to compile.

    `expressions` name the kernels to instantiate, one per step of the spec: "k" or "k<float, 256>"; behind them "&v" for each
    `__constant__` variable whose address is wanted. `defines` are
    "NAME" or "NAME=VALUE"; `include` are folders shown to the compiler read-only (what is compiled with them is not
    cached). `path` is what messages call the text. Without `expressions` every `__global__` function that needs no
    instantiation is an entry, in the order of their names.
    """

    text: str
    path: str
    expressions: tuple[str, ...]
    defines: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    std: str = "c++17"
    line_info: bool = False

    @property
    def kernels(self) -> int:
        """How many of the expressions are kernels."""
        return sum(not each.startswith("&") for each in self.expressions)

    def check(self) -> None:
        """Raises CompileError where an option is not one: nothing here may smuggle a flag into a compiler."""
        if self.std not in STANDARDS:
            raise CompileError(
                f"unknown C++ standard '{self.std[:40]}'", self.path, f"use one of {', '.join(STANDARDS)}"
            )
        for define in self.defines:
            if not _DEFINE.match(define):
                raise CompileError(
                    f"invalid macro definition '{define[:80]}'", self.path, "expected NAME or NAME=VALUE"
                )
        for expression in self.expressions:
            if not expression.strip() or "\n" in expression or "\0" in expression or len(expression) > 4096:
                raise CompileError(
                    f"'{expression[:80]}' is not a kernel name", self.path, "expected NAME or NAME<ARGUMENTS>"
                )


class CompileTimeout(CompileError):
    """The compiler did not finish in its time, or died."""


class NeedsNvcc(CompileError):
    """NVRTC refuses the code for what it is, and there is no nvcc: whether it has an error is not known."""


class Compiler(Protocol):
    """Compiles device code for one architecture. Thread-safe."""

    def compile(self, translation: Translation, owner: object = None) -> Binary:
        """The machine code. Raises CompileError with the first error's `path:line` as `where`."""
        ...

    def give_up(self, owner: object) -> None:
        """End what is being compiled for `owner`."""
        ...


def check_arch(arch: str) -> str:
    """The architecture as given. Raises UsageError where it is none."""
    if not _ARCH.match(arch):
        raise UsageError(f"invalid architecture '{arch[:40]}'", "--arch", "expected e.g. sm_90")
    return arch


def clean_log(log: str) -> str:
    """A compiler's log without control characters and this machine's folders, at most 16,384 characters long."""
    text = _CONTROL.sub("", log.replace("\r\n", "\n").expandtabs(4))
    text = _ABSOLUTE.sub(lambda m: m[1], text)
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(_NOISE)]
    text = "\n".join(line for line in lines if line).strip()
    return text if len(text) <= _LOG_LIMIT else text[:_LOG_LIMIT] + "\n…"


def compile_error(log: str, path: str) -> CompileError:
    """The error that a log tells of: its first message, at its line of `path` where that is known."""
    cleaned = clean_log(log)
    first: re.Match[str] | None = None
    where = path
    for line in cleaned.splitlines():
        match = _ERROR.match(line)
        if not match:
            continue
        first = first or match
        # A message within a header counts, but the place to look at is the first one in the user's file.
        if os.path.basename(match["file"]) == os.path.basename(path):
            where = f"{path}:{match['a'] or match['b']}"
            break
    if first:
        what = first["what"]
    else:
        ptxas = _PTXAS_ERROR.search(cleaned)
        what = ptxas["what"] if ptxas else (cleaned.splitlines()[0] if cleaned else "the compiler gave no reason")
    do = (
        "add the required defines or include folders with 'compile' in the kernel's spec"
        if what.startswith("#error")
        else ""
    )
    return CompileError(what[:500].strip() or "the code does not compile", where, do, log=cleaned)


def further_errors(error: CompileError, path: str) -> str:
    """The messages at other lines of `path` after the first, "" where there are none: what one needs who is to correct them all."""
    told, more = {error.where.rpartition(":")[2]}, []
    for line in error.log.splitlines():
        match = _ERROR.match(line)
        number = (match["a"] or match["b"]) if match else ""
        if match and number not in told and os.path.basename(match["file"]) == os.path.basename(path):
            told.add(number)
            more.append(f"line {number}: {match['what'][:200].strip()}")
    return "; ".join(more[:_FURTHER])


_ENTRY = re.compile(r"Compiling entry function '([^'\n]+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(log: str) -> dict[str, Resources]:
    """What ptxas reports with `-v`, by entry symbol.

    The last report of an entry counts: a `#warning` of the compiled text can print the same words, but only before.
    """
    found: dict[str, Resources] = {}
    entry = subject = ""
    frame = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, subject, frame = match[1], match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            subject = match[1]
        elif (match := _STACK.search(line)) and subject == entry:
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and entry:
            shared = _SHARED.search(match[3])
            found[entry] = Resources(
                int(match[1]), int(shared[1]) if shared else 0, frame[0], frame[1], frame[2], int(match[2] or 0)
            )
    return found
