"""Text of strangers made harmless in GitHub's Markdown: no markup, no mention, no link, no image, no hidden character."""

from __future__ import annotations

import re

from bot.patched import HIDDEN

_PLAIN = re.compile(r"[\w ./:<>,()=+&;!?%'\"~^$@#*\[\]{}-]+", re.ASCII)
# Hyphens inside of words and colons at their ends are no markup, and would be hard to read as entities.
_SIGNS = re.compile(r"(?!(?<=[A-Za-z0-9])(?:-(?=[A-Za-z0-9])|:(?= )))[^A-Za-z0-9 \u00a0-\U0010ffff]")
_ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[\w.@+~-]+/)+([\w.@+~-]+)")
_BREAK = "&#8203;"  # between a sign and what GitHub would make a link or a mention of


class Safe(str):
    """Text that is Markdown already and is not escaped again."""

    __slots__ = ()


def without_folders(text: str) -> str:
    """Absolute paths as their last part alone: how a runner's disk is laid out is nobody's business. Addresses stay."""
    return _ABSOLUTE.sub(r"\1", text)


def visible(text: str) -> str:
    """Characters that do not show, or change the direction of what does, as ⟨U+202E⟩. Line feeds and tabs stay."""
    return HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def prose(text: object, limit: int = 600) -> Safe:
    """A sentence on one line: every sign of Markdown and HTML shows as itself, and nothing becomes a link or a mention."""
    if isinstance(text, Safe):
        return text
    line = _cut(" ".join(visible(str(text)).split()), limit)
    # As entities, no sign is markup for the parser; the breaks are for the filters that run over its result.
    out = _SIGNS.sub(lambda m: m[0] if m[0] in ",.;'%" else f"&#{ord(m[0])};", line)
    out = re.sub(r"&#(?:64|35|36|58|95);", lambda m: m[0] + _BREAK, out)
    out = re.sub(r"(?i)\b(www|gh)(?=\W)", lambda m: m[0] + _BREAK, out)
    out = re.sub(r"[0-9a-f]{7,}", lambda m: _BREAK.join(re.findall(".{1,5}", m[0])), out)
    # A digit and a full stop at the start would be a list.
    return Safe(re.sub(r"^(\d+)([.)])", r"\1&#46;", out))


def code(text: object, limit: int = 300) -> Safe:
    """A name or path as code on one line, safe in tables. Inside of code, GitHub makes no links and no mentions."""
    line = _cut(visible(str(text)).replace("\n", "⏎").replace("\t", " "), limit)
    if _PLAIN.fullmatch(line) and line.strip() == line:
        return Safe(f"`{line}`")
    return Safe(f"<code>{_entities(line)}</code>")


def html(text: object, limit: int = 80) -> Safe:
    """A name as code inside of an HTML tag, where Markdown is not read."""
    line = _cut(visible(str(text)).replace("\n", "⏎").replace("\t", " "), limit)
    return Safe(f"<code>{_entities(line)}</code>")


def fence(text: str, language: str = "") -> Safe:
    """A block of code. Its fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    body = visible(text)
    return Safe(f"{mark}{language}\n{body}{'' if body.endswith(chr(10)) or not body else chr(10)}{mark}")


def length(text: str) -> int:
    """Its length as GitHub's limits count it at worst: in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _entities(line: str) -> str:
    return "".join(c if c.isalnum() or c == " " or ord(c) > 0x9F else f"&#{ord(c)};" for c in line)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
