"""What an edit may not bring into a text, whatever the code means: forms that are read differently, attributes, strings, talk.

Works on the forms of `engine.cuda.phases`, so that no splice, digraph or trigraph hides a token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from engine.cuda.items import Token, directive_parts, tokens_of
from engine.cuda.phases import Form, oddities
from engine.verify.allowed_assembly import allowed_statements

_LAUNCH = re.compile(r"//\s*optiml:\s*(?:(?:launch|chain)\b|\{)")
_LONG_COMMENT = 300
_TALK = re.compile(
    r"https?:|www\.|@\w|<!--|</?[a-z]+[ >]|!\[|\]\(|\b(?:approve\w*|reviewers?|lgtm|merge|ignore\s+(?:all|any|the|previous|above)|"
    r"previous\s+instructions?|system\s+prompt|instructions?|assistant|language\s+model|already\s+verified|trust(?:ed)?|"
    r"do\s+not\s+(?:check|verify|test|review)|skip\s+(?:the\s+)?(?:check|test|verif\w*)|\w+:\s*(?:noqa|nolint))\b",
    re.I,
)  # fmt: skip
# Attributes that change no code but for speed and warnings.
_HARMLESS = frozenset({"maybe_unused", "likely", "unlikely", "nodiscard", "fallthrough", "[", "]", ","})
_ATTRIBUTES = frozenset({"__attribute__", "__attribute", "__declspec"})
_PAIRS = {")": "(", "]": "[", "}": "{"}
_CHARACTER = 8  # of a character literal: 'a', '\n', '\x7f', u8'a'


def odd_form(before: str, after: str) -> str | None:
    """Why an edit is refused for a form of its text that compilers or people read differently; None where it adds none."""
    added = oddities(after) - oddities(before)
    if not added:
        return None
    what, line = min(added)
    return f"adds {what}, which compilers or readers interpret differently ('{_shown(line)}')"


def added_talk(before: Form, after: Form) -> str | None:
    """Why a comment that comes in is refused. The author's own may stand once more, beside a copy of the code that they are about.

    What a spec says is compared as one, but its lines may hold a comment, or declare a template, which is no part of it.
    """
    for comment in _words(after.comments).keys() - _words(before.comments).keys():
        if _TALK.search(comment) or (len(comment) > _LONG_COMMENT and not _LAUNCH.match(comment)):
            return "adds a comment addressed to a reader or a tool rather than about the code"
    return None


def added_string(before: Form, after: Form) -> str | None:
    """Why a string that comes in is refused: device code that may not print needs none, and readers see it."""
    _, copies = allowed_statements(tokens_of(after.code))
    for string in Counter(after.strings) - Counter(before.strings) - Counter(copies):
        if not (string.endswith("'") and len(string) <= _CHARACTER):
            return f"adds the string {_shown(string)}, which device code does not need"
    return None


def added_attribute(before: Form, after: Form) -> str | None:
    """Why an attribute, or a macro that may spell one, is refused: attributes switch off checks, place code and run it early."""
    old, new = tokens_of(before.code), tokens_of(after.code)
    for attribute in Counter(_attributes(new)) - Counter(_attributes(old)):
        if not set(attribute) <= _HARMLESS:
            return f"adds an attribute ('{_shown(' '.join(attribute))}')"
    macros = Counter(t.text for t in new if t.kind == "directive") - Counter(
        t.text for t in old if t.kind == "directive"
    )
    names = set[str]()
    for text in macros:
        word, rest = directive_parts(text)
        if word != "define":
            continue
        name, replacement = _macro(rest)
        names.add(name)
        if not _balanced(replacement):
            return f"adds a macro with an unmatched bracket ('{_shown(name)}')"
        if replacement[:1] == ["["]:
            return f"adds a macro that may form an attribute ('{_shown(name)}')"
    for i, token in enumerate(new[:-2]):
        if token.text in names and new[i + 1].text == "(" and _bracket_first(new[i + 1 :]):
            return f"passes a macro tokens that may form an attribute ('{_shown(token.text)}')"
    return None


def _words(comments: Sequence[str]) -> Counter[str]:
    return Counter(" ".join(comment.split()) for comment in comments)


def _attributes(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Each attribute's tokens. No subscript begins with `[[` ([dcl.attr.grammar])."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "directive":
            yield from _attributes(tokens_of(directive_parts(token.text)[1]))
        opening = token.text in _ATTRIBUTES or (
            token.text == "[" and at + 1 < len(tokens) and tokens[at + 1].text == "["
        )
        if not opening:
            at += 1
            continue
        begin, depth, at = at, int(token.text == "["), at + 1
        while at < len(tokens):
            depth += (tokens[at].text in ("(", "[")) - (tokens[at].text in (")", "]"))
            at += 1
            if depth <= 0:
                break
        yield tuple(t.text for t in tokens[begin:at])


def _macro(rest: str) -> tuple[str, list[str]]:
    """A macro's name, and the tokens that it stands for."""
    name = re.match(r"\w*", rest)
    assert name is not None
    tail = rest[name.end() :]
    if tail.startswith("("):
        tail = tail.partition(")")[2]
    return name[0], [t.text for t in tokens_of(tail)]


def _balanced(tokens: Sequence[str]) -> bool:
    stack: list[str] = []
    for text in tokens:
        if text in ("(", "[", "{"):
            stack.append(text)
        elif text in _PAIRS and (not stack or stack.pop() != _PAIRS[text]):
            return False
    return not stack


def _bracket_first(tokens: Sequence[Token]) -> bool:
    """Whether an argument of the call whose `(` comes first begins with a bracket."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text in ("(", "[", "{")) - (token.text in _PAIRS)
        if token.text in ("(", ",") and i + 1 < len(tokens) and tokens[i + 1].text == "[":
            return True
        if depth == 0:
            return False
    return False


def _shown(text: str) -> str:
    """A piece of an edit in a message: escapes instead of what cannot be seen."""
    return text[:60].encode("unicode_escape").decode("ascii")[:80]
