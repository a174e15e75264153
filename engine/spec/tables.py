"""Finds the text of kernel specs: `// optiml:` comments above kernels, and `[[kernel]]` tables of an optiml.toml."""

from __future__ import annotations

import posixpath
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from engine.cuda.kernel import Kernel, Span, Unit
from engine.cuda.parse import parse
from engine.cuda.typenames import split_arguments
from engine.errors import SpecError
from engine.model import Program
from engine.settings.toml_positions import Path, TomlSpan, check_keys, locate

SPEC_NAME = "optiml.toml"
_MAX_TEXT = 256 * 1024  # characters; tomllib is quadratic in places, and no honest spec is near this
_COMMENT = re.compile(rb"^[ \t]*//[ \t]*optiml:[ \t]?([^\n]*)", re.MULTILINE)
# `tune NAME = 64, 128` and `where NAME <= 64` declare a template for engine.tune; `tune.NAME = […]` and `where = […]` are TOML.
_TUNING = re.compile(rb"[ \t]*(tune\b(?!\s*[.=])|where\b(?!\s*=[^=]))[ \t]*([^\n]*)")


@dataclass(frozen=True)
class SpecText:
    """TOML text and where each of its lines stands in the file it was taken from."""

    path: str  # repository-relative
    text: str = field(repr=False)
    lines: tuple[tuple[int, int], ...] = field(repr=False)  # per line of `text`: line of the file, byte offset in it
    starts: tuple[int, ...] = field(repr=False)  # per line of `text`: its character offset
    places: Mapping[Path, TomlSpan] = field(repr=False)

    def line(self, at: int) -> int:
        """The file's 1-based line of a character offset of the text."""
        return self.lines[bisect_right(self.starts, at) - 1][0]

    def byte(self, at: int) -> int:
        """The file's byte offset of a character offset of the text."""
        row = bisect_right(self.starts, at) - 1
        return self.lines[row][1] + len(self.text[self.starts[row] : at].encode())


@dataclass(frozen=True)
class Table:
    """One kernel's spec as it was written, not yet checked. `prefix` leads to it in `source.places`."""

    source: SpecText
    data: Mapping[str, Any]
    prefix: Path
    comment: bool
    kernel: str  # as declared, template arguments included; the first step's for a chain; "" where it is missing
    first: int = 0  # character offset of the table's first line

    @property
    def origin(self) -> str:
        """`path:line` of the table."""
        return f"{self.source.path}:{self.source.line(self.first)}"

    def where(self, *keys: str | int) -> str:
        """`path:line` of a key below the table, or of the nearest thing above it that has a place."""
        for count in range(len(keys), 0, -1):
            place = self.source.places.get((*self.prefix, *keys[:count]))
            if place:
                return f"{self.source.path}:{self.source.line(place.key[0])}"
        return self.origin

    def place(self, *keys: str | int) -> TomlSpan | None:
        return self.source.places.get((*self.prefix, *keys))

    def span(self, *keys: str | int) -> Span | None:
        """The bytes of a value in its file."""
        place = self.place(*keys)
        return Span(self.source.byte(place.value[0]), self.source.byte(place.value[1])) if place else None


def _load(path: str, text: str, lines: Sequence[tuple[int, int]]) -> tuple[SpecText, Mapping[str, Any]]:
    starts = [0]
    for row in text.split("\n")[:-1]:
        starts.append(starts[-1] + len(row) + 1)
    if len(text) > _MAX_TEXT:
        raise SpecError(f"a spec of {len(text)} characters exceeds the limit of {_MAX_TEXT}", f"{path}:{lines[0][0]}")
    try:
        check_keys(text)
        data = tomllib.loads(text)
        places = locate(text)
    except RecursionError:
        raise SpecError("values are nested too deeply", f"{path}:{lines[0][0]}") from None
    except ValueError as error:
        # Also plain ValueErrors: an integer of thousands of digits, a date that does not exist.
        what = str(error)
        match = re.search(r" \((?:at line (\d+), column \d+|at end of document)\)$", what)
        at = int(match[1]) - 1 if match and match[1] else len(lines) - 1 if match else 0
        line = lines[min(at, len(lines) - 1)][0]
        what = what[: match.start()] if match else what.split(";")[0]
        raise SpecError(f"not valid TOML: {what}", f"{path}:{line}") from None
    return SpecText(path, text, tuple(lines), tuple(starts), places), data


def _decode(data: bytes, path: str, line: int = 1) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError("is not UTF-8 text", f"{path}:{line + data.count(bytes([10]), 0, error.start)}") from None


def split_kernel(name: str) -> tuple[str, str]:
    """`reduce<float, 256>` as ("reduce", "float, 256"); spaces are made regular."""
    base, bracket, rest = name.partition("<")
    arguments = rest.strip().removesuffix(">") if bracket else ""
    return base.strip(), ", ".join(" ".join(a.split()) for a in split_arguments(arguments))


def _declared_kernel(data: Mapping[str, Any]) -> str:
    name = data.get("kernel")
    chain = data.get("chain")
    if name is None and isinstance(chain, list) and chain and isinstance(chain[0], dict):
        name = chain[0].get("kernel")
    return name if isinstance(name, str) else ""


def comment_tables(unit: Unit) -> tuple[Table, ...]:
    """One table per kernel with `// optiml:` lines above it. Raises SpecError for lines that belong to no kernel."""
    runs: dict[int, list[re.Match[bytes]]] = {}
    for match in _COMMENT.finditer(unit.data):
        at = match.start(1)
        if _TUNING.match(match[1]):
            continue
        inside = next((f for f in unit.functions if f.body.start <= at < f.body.end), None)
        if inside:
            raise SpecError(
                f"an optiml line inside the function '{inside.name}'",
                f"{unit.path}:{unit.line_of(at)}",
                "move it above the kernel that it describes",
            )
        following = [i for i, k in enumerate(unit.kernels) if k.body.start > at]
        if not following:
            where = f"{unit.path}:{unit.line_of(at)}"
            raise SpecError("an optiml line with no kernel after it", where, "move it above the kernel")
        runs.setdefault(min(following, key=lambda i: unit.kernels[i].body.start), []).append(match)
    tables: list[Table] = []
    for index, matches in runs.items():
        lines = [(unit.line_of(m.start(1)), m.start(1)) for m in matches]
        texts = [_decode(m[1].removesuffix(b"\r"), unit.path, n) for m, (n, _) in zip(matches, lines, strict=True)]
        source, data = _load(unit.path, "\n".join(texts), lines)
        tables.append(Table(source, data, (), True, _declared_kernel(data) or unit.kernels[index].qualified))
        _check_next(tables[-1], unit.kernels[index])
    return tuple(tables)


def tuning_lines(unit: Unit) -> tuple[tuple[str, str, int], ...]:
    """The file's `// optiml: tune …` and `// optiml: where …` lines: ("tune" or "where", the rest, line). Raises SpecError."""
    found = []
    for match in _COMMENT.finditer(unit.data):
        tuning = _TUNING.match(match[1].removesuffix(b"\r"))
        if tuning:
            line = unit.line_of(match.start(1))
            found.append((tuning[1].decode(), _decode(tuning[2], unit.path, line).strip(), line))
    return tuple(found)


def _check_next(table: Table, kernel: Kernel) -> None:
    name = split_kernel(table.kernel)[0]
    if name not in (kernel.name, kernel.qualified) and "chain" not in table.data:
        raise SpecError(
            f"the spec above the kernel '{kernel.name}' is for '{name}'",
            table.where("kernel"),
            "move it above that kernel, or correct the name",
        )


@lru_cache(maxsize=64)  # every candidate of a search is screened against the same one
def toml_tables(data: bytes, path: str, kernel_file: str) -> tuple[Table, ...]:
    """The tables of an optiml.toml (at `path`, repository-relative) that are for `kernel_file`. Raises SpecError."""
    bom = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    text = _decode(data[bom:], path)
    lines: list[tuple[int, int]] = []
    at = bom
    for number, row in enumerate(text.split("\n"), 1):
        lines.append((number, at))
        at += len(row.encode()) + 1
    source, parsed = _load(path, text, lines)
    for key in parsed:
        if key != "kernel":
            where = f"{path}:{source.line(source.places[key,].key[0])}"
            raise SpecError(
                f"unknown key '{key[:60]}'",
                where,
                "only [[kernel]] tables are allowed here; settings belong in .optiml.yml",
            )
    kernels = parsed.get("kernel", [])
    if not isinstance(kernels, list) or not all(isinstance(k, dict) for k in kernels):
        line = source.line(source.places["kernel",].key[0])
        raise SpecError("'kernel' is not an array of tables", f"{path}:{line}", "write [[kernel]] with two brackets")
    tables = []
    for index, entry in enumerate(kernels):
        prefix: Path = ("kernel", index)
        first = source.places[prefix].key[0] if prefix in source.places else 0
        table = Table(source, entry, prefix, False, _declared_kernel(entry), first)
        file = entry.get("file")
        if not isinstance(file, str):
            do = "give the .cu file, relative to this optiml.toml"
            raise SpecError("'file' is missing" if file is None else "'file' is not a string", table.where("file"), do)
        if resolve(path, file) == kernel_file:
            tables.append(table)
    return tuple(tables)


def resolve(spec_path: str, file: str) -> str | None:
    """A spec's `file` as a repository-relative path; None where it leads out of the repository."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(spec_path), file))
    return None if joined.startswith(("/", "../")) or joined == ".." else joined


def tables_of(program: Program, spec_path: str | None) -> tuple[Table, ...]:
    """All tables for the program's kernel file: those in its comments, then those of the optiml.toml at `spec_path`.

    A kernel described in comments is not looked for in the optiml.toml. Raises SpecError.
    """
    found = list(comment_tables(parse(program.data, program.kernel_file)))
    if spec_path is not None and spec_path != program.kernel_file and spec_path in program.files:
        known = {split_kernel(t.kernel)[0] for t in found}
        beside = toml_tables(program.files[spec_path], spec_path, program.kernel_file)
        found += [t for t in beside if split_kernel(t.kernel)[0] not in known]
    seen: dict[tuple[str, str], Table] = {}
    for table in found:
        earlier = seen.setdefault(split_kernel(table.kernel), table)
        if table.kernel and earlier is not table:
            do = f"keep one of them (the other is at {earlier.origin})"
            raise SpecError(f"a second spec for '{table.kernel[:100]}'", table.origin, do)
    return tuple(found)
