"""CUDA that rules write, kept as `.cu` files with holes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HOLE = re.compile(r"\$(\w+)")
_SECTION = re.compile(r"^//: (\w+)\n", re.M)
_ALONE = re.compile(r"([ \t]*)\$(\w+)\n")


@dataclass(frozen=True)
class Snippet:
    """A snippet with holes `$name`. A hole alone on its line takes several lines; without a value the line goes, too."""

    text: str

    @property
    def holes(self) -> tuple[str, ...]:
        """The names of its holes, in order of text."""
        return tuple(dict.fromkeys(_HOLE.findall(self.text)))

    def sections(self) -> dict[str, Snippet]:
        """The parts between lines `//: name`, by name."""
        parts = _SECTION.split(self.text)
        return {name: Snippet(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}

    def render(self, **values: str) -> str:
        """The snippet with its holes filled. Raises KeyError for a hole without a value."""
        written = []
        for line in self.text.splitlines(keepends=True):
            alone = _ALONE.fullmatch(line)
            if alone is None:
                written.append(_HOLE.sub(lambda hole: values[hole[1]], line))
            elif values[alone[2]]:
                lines = values[alone[2]].removesuffix("\n").split("\n")
                written += [f"{alone[1]}{part}\n" if part else "\n" for part in lines]
        return "".join(written)


@cache
def template(package: str, name: str) -> Snippet:
    """The template `NAME.cu` of the folder `snippets` in a package. Raises FileNotFoundError."""
    return Snippet(resources.files(package).joinpath("snippets", f"{name}.cu").read_text(encoding="utf-8"))
