"""Where each key and value of a TOML text stands. tomllib reads values; messages and edits need their places too."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

_SPACE = " \t\r"
_MOST_PARTS = 64
_LONG_KEY = re.compile(rf"""(?<![\w"'.-])(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}""", re.ASCII)


def check_keys(text: str) -> None:
    """Raises TOMLDecodeError for a dotted key of more than 64 parts: reading one takes the square of their number, a minute for 50,000."""
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise tomllib.TOMLDecodeError(f"a key of more than {_MOST_PARTS} parts (at line {line}, column 1)")


@dataclass(frozen=True)
class TomlSpan:
    """Character offsets of one value. `key` spans the key as written, dots included; for a header, what it names.

    `inline`: the key stands inside `{ … }`.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    inline: bool = False


@dataclass
class _TomlScanner:
    text: str
    at: int = 0
    places: dict[Path, TomlSpan] = field(default_factory=dict)
    arrays: dict[Path, int] = field(default_factory=dict)  # arrays of tables: how many tables so far

    def skip(self, blank: str) -> None:
        """Passes blanks, and comments where lines may end."""
        while self.at < len(self.text):
            if self.text[self.at] in blank:
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            self.at += 3
            while not self.text.startswith(quote * 3, self.at):
                self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
            self.at += 3
            # Up to two quotes may stand before the closing three.
            while self.at < len(self.text) and self.text[self.at] == quote:
                self.at += 1
            return
        self.at += 1
        while self.text[self.at] != quote:
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += 1

    def key(self) -> tuple[Path, tuple[int, int]]:
        parts: list[str] = []
        first = self.at
        while True:
            self.skip(_SPACE)
            start = self.at
            if self.text[self.at] in "\"'":
                self.string()
                parts.append(next(iter(tomllib.loads(self.text[start : self.at] + " = 0"))))
            else:
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            end = self.at
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return tuple(parts), (first, end)
            self.at += 1

    def resolve(self, parts: Path) -> Path:
        """The path with the index of the latest table wherever a part names an array of tables."""
        path: Path = ()
        for part in parts:
            path += (part,)
            if path in self.arrays:
                path += (self.arrays[path] - 1,)
        return path

    def header(self) -> Path:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        self.skip(_SPACE)
        parts, span = self.key()
        self.at += 2 if array else 1
        for count in range(1, len(parts)):
            self.places.setdefault(self.resolve(parts[:count]), TomlSpan(span, span))
        if array:
            path = (*self.resolve(parts[:-1]), parts[-1])
            self.places.setdefault(path, TomlSpan(span, span))
            self.arrays[path] = self.arrays.get(path, 0) + 1
            path += (self.arrays[path] - 1,)
        else:
            path = self.resolve(parts)
        self.places.setdefault(path, TomlSpan(span, span))
        return path

    def pair(self, path: Path, inline: bool) -> None:
        parts, key = self.key()
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        full = path + parts
        for count in range(1, len(parts)):
            self.places.setdefault(path + parts[:count], TomlSpan(key, key, inline))
        self.value(full, key, inline)

    def value(self, path: Path, key: tuple[int, int], inline: bool) -> None:
        start = self.at
        first = self.text[start]
        if first in "\"'":
            self.string()
        elif first == "[":
            self.at += 1
            self.elements(path)
        elif first == "{":
            self.at += 1
            self.skip(_SPACE + "\n")
            while self.text[self.at] != "}":
                self.pair(path, True)
                self.skip(_SPACE + "\n,")
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1
            while self.text[self.at - 1] in _SPACE:
                self.at -= 1
        self.places[path] = TomlSpan(key, (start, self.at), inline)

    def elements(self, path: Path) -> None:
        index = 0
        self.skip(_SPACE + "\n")
        while self.text[self.at] != "]":
            self.value((*path, index), (self.at, self.at), True)
            index += 1
            self.skip(_SPACE + "\n,")
        self.at += 1

    def run(self) -> None:
        table: Path = ()
        self.skip(_SPACE + "\n")
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table, False)
            self.skip(_SPACE + "\n")


def locate(text: str) -> Mapping[Path, TomlSpan]:
    """The places of all keys and values of a TOML text that tomllib has accepted, by path (keys and array indices).

    Raises RecursionError for values nested deeper than Python's stack, as tomllib does.
    """
    scanner = _TomlScanner(text)
    scanner.run()
    return scanner.places
