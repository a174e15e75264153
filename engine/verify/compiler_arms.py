"""Edits whose text differs by architecture, as one text for each arm of their `#if`: each must be correct by itself.

Conditions on `__CUDA_ARCH__` alone are read so. What tells compilers apart, such as `__CUDACC_RTC__`, has no place in an edit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.cuda.items import Token, directive_parts, tokens_of
from engine.model import Program

_ASKS = re.compile(r"\b__CUDA_ARCH__\b")
_OTHERS = re.compile(r"\b(?!__CUDA_ARCH__\b|defined\b|\d)\w+")  # names of anything else
_OPENS = ("if", "ifdef", "ifndef")
_MOST = 4  # texts of one edit: each is checked like a suggestion. Ours


@dataclass
class _ConditionalGroup:
    """The directives of one `#if`, the last of which is its `#endif`."""

    directives: list[Token] = field(default_factory=list)

    @property
    def conditions(self) -> list[tuple[str, str]]:
        return [directive_parts(token.text) for token in self.directives[:-1]]


def compiler_arms(original: Program, candidate: Program) -> tuple[Program, ...]:
    """The candidate once for each way in which the conditions that it adds may be read; () where it adds none, or too many.

    What such a text then still asks of a compiler is for the screening.
    """
    before, path = original.data.decode("utf-8", "replace"), candidate.kernel_file
    waiting, found = [candidate.data.decode("utf-8", "replace")], list[str]()
    known = Counter(_asking(before))
    while waiting:
        text = waiting.pop()
        group = next((one for one in _groups(text) if _is_added(one, known)), None)
        if group is None:
            found.append(text)
        else:
            waiting += list(_arms(text, group))
        if len(found) + len(waiting) > _MOST:
            return ()
    return () if len(found) == 1 else tuple(candidate.replace({path: text.encode()}) for text in found)


def _asking(text: str) -> Iterator[tuple[str, str]]:
    for group in _groups(text):
        yield from (condition for condition in group.conditions if _ASKS.search(condition[1]))


def _is_added(group: _ConditionalGroup, known: Counter[tuple[str, str]]) -> bool:
    if any(_OTHERS.search(rest) for word, rest in group.conditions):
        return False
    return any(_ASKS.search(rest) and (word, rest) not in known for word, rest in group.conditions)


def _groups(text: str) -> Iterator[_ConditionalGroup]:
    """The groups of a text by where they begin: outer ones before those inside."""
    stack, done = list[_ConditionalGroup](), list[_ConditionalGroup]()
    for token in tokens_of(text):
        if token.kind != "directive":
            continue
        word, _ = directive_parts(token.text)
        if word in _OPENS:
            stack.append(_ConditionalGroup([token]))
        elif word in ("elif", "else", "elifdef", "elifndef") and stack:
            stack[-1].directives.append(token)
        elif word == "endif" and stack:
            stack[-1].directives.append(token)
            done.append(stack.pop())
    return iter(sorted(done, key=lambda group: group.directives[0].start))


def _arms(text: str, group: _ConditionalGroup) -> Iterator[str]:
    """The text with one arm each in the place of a group, every line where it stood; without `#else` also with none."""
    start, end = group.directives[0].start, group.directives[-1].end
    has_else = any(word == "else" for word, _ in group.conditions)
    arms = [(one.end, other.start) for one, other in zip(group.directives, group.directives[1:], strict=False)]
    for first, last in [*arms, *([] if has_else else [(end, end)])]:
        yield text[:start] + _blank(text[start:first]) + text[first:last] + _blank(text[last:end]) + text[end:]


def _blank(part: str) -> str:
    return re.sub(r"[^\n]", "", part)
