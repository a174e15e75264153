"""Text of strangers as a person can safely see it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from engine.run.result import TrajectoryStep

T = TypeVar("T")

# Control characters, line and paragraph separators, characters that turn the direction of writing or are not seen, halves of characters
# and those that no document may hold. See "Trojan Source" (Boucher, Anderson 2021) for what the invisible ones do to source code.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff\ufff9-\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_FAR = re.compile(r"[ \t]{2,}\\$")


def clean(text: str) -> str:
    """The text with every character that is not seen, or changes how others are seen, written as its code point.

    Tabs and line feeds stay.
    """
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def cleaned(value: T) -> T:
    """The value with every text in it cleaned: in dataclasses, mappings (their keys too), tuples and lists."""
    return cast(T, _cleaned(value))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else clean(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _cleaned(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, Mapping):
        return {_cleaned(k): _cleaned(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_cleaned, value))
    return value


def short(text: str, most: int) -> str:
    """At most so many characters, an ellipsis where something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def lines_of(data: bytes, most: int) -> list[str]:
    """The lines of a file, each of at most so many characters."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    # A backslash far to the right would take a line of its own.
    lines = [short(_FAR.sub(r" \\", line.removesuffix("\r")), most) for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def said_throughout(original: Sequence[str], steps: Sequence[TrajectoryStep]) -> tuple[str, ...]:
    """The diagnosis that holds of the original and at every step: it is said once, not once a step."""
    return tuple(s for s in original if steps and all(s in step.diagnosis for step in steps))


def upper_first(text: str) -> str:
    """The text as the beginning of a sentence; names within keep their capitals."""
    return text[:1].upper() + text[1:]


def speedup_words(predicted: bool) -> str:
    """What a speedup is called on axes and in headings: measured and predicted never go by the same name."""
    return "predicted speedup (not measured)" if predicted else "measured speedup"
