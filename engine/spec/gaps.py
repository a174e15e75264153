"""What a drafted spec lacks: one sentence a gap, the spec's key that closes it, and the line to write with a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_OPEN = "?"  # what a draft writes where nothing is known
_PREFIX = "// optiml: "
_KEY = re.compile(r"([A-Za-z_][\w.]*)\s*=")
_NOTE = re.compile(r"  # ((?:assumed|recorded): .*)$")
_BLOCK = 256  # threads of a launch that is guessed


class Gap(str):
    """A sentence that says what could not be found out. `key` is the spec's key that closes it; "": no line of a spec does.

    `guess` is the line that may close it, or the size of an argument, where there is a better one than all sizes together.
    """

    key: str
    guess: str

    def __new__(cls, what: str, key: str = "", guess: str = "") -> Gap:
        made = super().__new__(cls, what)
        made.key, made.guess = key, guess
        return made


def asked_first(missing: Sequence[Gap], untried: str) -> tuple[Gap, ...]:
    """The gaps to name now: without those that others may close with. `untried` says why the kernel was not tried, if it was not."""
    # Where no line of a spec can help, what else is missing is of no use to anybody.
    missing = [gap for gap in missing if not gap.key] or missing
    if instance := [gap for gap in missing if gap.key == "kernel"]:
        # Types and sizes follow from the template arguments: what else is missing shows when these are known.
        guess = next((gap.guess for gap in instance if gap.guess), "")
        return (Gap("; ".join(instance), "kernel", guess),)
    if "launch" in untried and any(gap.key == "launch" for gap in missing):
        # So do sizes from trials, which need a launch.
        missing = [gap for gap in missing if not gap.startswith("the size of")]
    return tuple(missing)


def grouped(reason: str) -> str:
    """What is missing, as one text, with the buffers named together whose sizes are missing for the same reason."""
    found = re.findall(r"the size of '([^']+)': (.*?)(?=; the size of '|; the launch: |$)", reason)
    for why in dict.fromkeys(why for _, why in found):
        names = [name for name, each in found if each == why]
        if len(names) > 1:
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            together = f"the sizes of '{names[0]}', '{names[1]}'{more}: {why}"
            reason = reason.replace(f"the size of '{names[0]}': {why}", together, 1)
            for name in names[1:]:
                reason = reason.replace(f"; the size of '{name}': {why}", "", 1)
    return reason


def lines_of(text: str) -> dict[str, str]:
    """The lines of a draft by their keys, without comment prefix and notes."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        bare = _NOTE.sub("", line.removeprefix(_PREFIX))
        if match := _KEY.match(bare):
            found[match[1]] = bare
    return found


def assumptions(text: str) -> tuple[str, ...]:
    """What a draft says it assumed, each with the line it is about."""
    found = []
    for line in text.splitlines():
        bare = line.removeprefix(_PREFIX)
        if match := _NOTE.search(bare):
            said = match[1].replace("; assumed: ", "; ")
            found.append(f"{said}: {bare[: match.start()]}")
    return tuple(found)


def assumed_values(text: str) -> tuple[str, ...]:
    """The numbers whose value a draft assumed with nothing to go by, each as `name = value`."""
    return _assumed(text, "the value")


def assumed_strides(text: str) -> tuple[str, ...]:
    """The distances between rows that a draft assumed, each as `name = value`."""
    return _assumed(text, "(?:memory without gaps|rows that do not overlap)")


def _assumed(text: str, what: str) -> tuple[str, ...]:
    pattern = re.compile(rf'assumed: {what}: args\.([\w.]+) = \{{ value = "([^"]+)"')
    return tuple(f"{match[1]} = {match[2]}" for match in map(pattern.match, assumptions(text)) if match)


def proposal(gap: Gap, text: str, sizes: Mapping[str, int | float]) -> str:
    """The spec line that closes a gap of the draft `text`, with a guess where there is one and `?` where there is none.

    `sizes` are those of a case: what a guess can be made of. "" for a gap that no line closes.
    """
    if not gap.key:
        return ""
    sized = gap.key.startswith("args.")
    if gap.guess and not sized:
        return gap.guess
    product = gap.guess or "*".join(sizes) or "1"
    line = lines_of(text).get(gap.key, "")
    if gap.key == "compile.defines":
        return 'compile.defines = ["?"]'
    if sized:
        line = line.replace(f'size = "{_OPEN}"', f'size = "{product}"')
        line = line.replace('"struct:1"', '"struct:?"').replace('"hex:00"', '"hex:?"')
    return line


def answered(line: str, answer: str) -> str:
    """The line with an answer in place of its open or guessed value; the answer may be the whole line.

    A launch is answered as `GRID, BLOCK`, each an expression.
    """
    answer = answer.strip().removeprefix(_PREFIX.strip()).strip()
    key = _KEY.match(line)
    if not answer or key is None:
        return line
    if answer.startswith(key[1]) and _KEY.match(answer):
        return answer
    safe = answer.replace("\\", "").replace('"', "")
    if key[1] == "launch":
        grid, _, block = _split_last(safe)
        return f'launch = {{ grid = "{grid}", block = "{block or _BLOCK}" }}'
    if key[1] == "compile.defines":
        return (
            f"compile.defines = [{', '.join(f'{chr(34)}{name}{chr(34)}' for name in safe.replace(',', ' ').split())}]"
        )
    if key[1] == "kernel":
        base = line.partition('"')[2].partition("<")[0].rstrip('"')
        return f'kernel = "{safe}"' if "<" in safe else f'kernel = "{base}<{safe}>"'
    for opened, put in (('"struct:?"', f'"struct:{safe.removeprefix("struct:")}"'), ('"hex:?"', f'"{_value(safe)}"')):
        if opened in line:
            return line.replace(opened, put, 1)
    return re.sub(r'size = "[^"]*"', lambda _: f'size = "{safe}"', line, count=1)


def is_open(line: str) -> bool:
    """Whether a proposed line still has a place that nothing could be guessed for."""
    return re.search(r'["<:, ]\?["<>, ]', line) is not None


def _value(text: str) -> str:
    return text if not re.fullmatch(r"[0-9a-fA-F]{2,}", text) else f"hex:{text}"


def _split_last(text: str) -> tuple[str, str, str]:
    """The text around its last comma outside of brackets."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] in ")]") - (text[at] in "([")
        if text[at] == "," and depth == 0:
            return text[:at].strip(), ",", text[at + 1 :].strip()
    return text.strip(), "", ""
