"""What a value of the settings may be: each kind reads one strictly and describes itself as JSON schema."""

import difflib
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any, Protocol

from engine.settings.config_text import shown

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Kind(Protocol):
    """What a value may be: reads one, and describes itself as JSON schema."""

    def read(self, value: object) -> Any:
        """The value as the dataclass holds it. Raises Wrong."""
        ...

    def schema(self) -> dict[str, Any]: ...


@dataclass
class Wrong(Exception):
    what: str
    do: str
    index: int | None = None


@dataclass(frozen=True)
class Flag:
    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Wrong(f"is {kind_of(value)}", "write true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number:
    low: float
    high: float
    whole: bool = False

    def read(self, value: object) -> float:
        numeric = isinstance(value, int) if self.whole else isinstance(value, int | float)
        if isinstance(value, bool) or not numeric:
            kind = "a whole number" if self.whole else "a number"
            raise Wrong(f"is {kind_of(value)}", f"write {kind} from {self.low:g} to {self.high:g}")
        assert isinstance(value, int | float)
        if not self.low <= value <= self.high or not math.isfinite(value):
            raise Wrong("is out of range", f"write a number from {self.low:g} to {self.high:g}")
        return value if self.whole else float(value)

    def schema(self) -> dict[str, Any]:
        kind = "integer" if self.whole else "number"
        low, high = (int(v) if float(v).is_integer() else v for v in (self.low, self.high))
        return {"type": kind, "minimum": low, "maximum": high}


@dataclass(frozen=True)
class Time:
    """Seconds, written as "90s", "10m" or "1h"."""

    low: float
    high: float

    def read(self, value: object) -> float:
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", value, re.ASCII) if isinstance(value, str) else None
        if match is None:
            what = f"is {shown(value) if isinstance(value, str) else kind_of(value)}"
            raise Wrong(what, "write a time such as 90s, 10m or 1h")
        seconds = float(match[1]) * _UNITS[match[2]]
        if not self.low <= seconds <= self.high:
            raise Wrong("is out of range", f"write a time from {self.low:g}s to {self.high / 3600:g}h")
        return seconds

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?[smh]$"}


@dataclass(frozen=True)
class Text:
    pattern: str
    do: str

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Wrong(f"is {kind_of(value)}, not a string", self.do)
        if not re.fullmatch(self.pattern, value):
            raise Wrong(f"is {shown(value)}", self.do)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Choice:
    words: tuple[str, ...]

    def read(self, value: object) -> str:
        if value not in self.words or not isinstance(value, str):
            near = difflib.get_close_matches(str(value)[:60], self.words, n=1, cutoff=0.5)
            do = f"did you mean '{near[0]}'?" if near else f"write one of {', '.join(self.words)}"
            raise Wrong(f"is {shown(value)}", do)
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Command:
    """Words, written as one line with the quotes of a shell, which is all it has of one."""

    most: int = 1000

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, str):
            raise Wrong(f"is {kind_of(value)}, not a string", "write a command such as ./bench --quick")
        if len(value) > self.most or not value.isprintable():
            raise Wrong(
                "is too long or has unprintable characters", f"write at most {self.most} characters in one line"
            )
        try:
            return tuple(shlex.split(value))
        except ValueError:
            raise Wrong(f"has an open quote: {shown(value)}", "close it") from None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.most}


@dataclass(frozen=True)
class Many:
    of: Kind
    least: int = 0
    most: int = 100

    def read(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Wrong(f"is {kind_of(value)}, not a list", "write [ … ]")
        if not self.least <= len(value) <= self.most:
            raise Wrong(f"has {len(value)} entries", f"give {self.least} to {self.most}")
        read: list[Any] = []
        for index, entry in enumerate(value):
            try:
                read.append(self.of.read(entry))
            except Wrong as wrong:
                raise Wrong(wrong.what, wrong.do, index) from None
            if read[-1] in read[:-1]:
                raise Wrong("is given twice", "keep one of them", index)
        return tuple(read)

    def schema(self) -> dict[str, Any]:
        given: dict[str, Any] = {"type": "array", "items": self.of.schema(), "uniqueItems": True}
        return given | {"minItems": self.least, "maxItems": self.most}


def kind_of(value: object) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "empty" if value is None else "a date")
