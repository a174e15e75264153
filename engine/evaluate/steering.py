"""Whether an edit only steers the compiler: unroll pragmas, launch bounds, cache hints, inlining.

What such an edit brings depends on what the compiler makes of it, and no prediction of ours knows that: only a measurement does.
"""

import re

from engine.model import Guardrail, Program

REFUSED = Guardrail(
    "more than compiler hints",
    "failed",
    "the edit contains only compiler hints, whose effect cannot be predicted: measure it on a GPU",
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_HINTS = re.compile(
    r"^[ \t]*#[ \t]*pragma[ \t]+(?:(?:GCC|clang)[ \t]+)?(?:no)?unroll\b[^\n]*$"
    r"|_Pragma\s*\(\s*\"(?:no)?unroll[^\"]*\"\s*\)"
    r"|__(?:launch_bounds|maxnreg)__\s*\((?:[^()]|\([^()]*\))*\)"
    r"|\b(?:__forceinline__|__noinline__|__inline__|inline|__restrict__|__restrict|const)\b",
    re.M,
)
_LOAD = re.compile(r"__ld(?:g|ca|cg|cs|lu|cv)\(&")
_STORE = re.compile(r"__st(?:wb|cg|cs|wt)\(&")
_MOST = 10_000  # hints of one text


def steers_only(original: Program, candidate: Program) -> bool:
    """Whether the programs differ, and in nothing but what tells the compiler how to build the same kernel."""
    changed = [path for path, data in candidate.files.items() if original.files.get(path) != data]
    same_files = candidate.files.keys() == original.files.keys()
    return bool(changed) and same_files and all(_bare(original, p) == _bare(candidate, p) for p in changed)


def _bare(program: Program, path: str) -> str:
    text = _HINTS.sub(" ", _COMMENT.sub(" ", program.files[path].decode("utf-8", "replace")))
    text = re.sub(r"\s+", "", text)
    for _ in range(_MOST):
        found = _LOAD.search(text) or _STORE.search(text)
        plain = _without(text, found) if found is not None else None
        if plain is None:
            break
        text = plain
    return text


def _without(text: str, found: re.Match[str]) -> str | None:
    """The text with a load or store through a hint written as a plain one: `__ldg(&x[i])` is `x[i]`, `__stcs(&y[i],v)` is `y[i]=v`."""
    depth, comma = 1, 0
    for at in range(found.end(), len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == "," and depth == 1 and not comma:
            comma = at
        if depth == 0:
            inner = text[found.end() : at]
            if comma and found[0].startswith("__st"):
                inner = f"{text[found.end() : comma]}={text[comma + 1 : at]}"
            return f"{text[: found.start()]}{inner}{text[at + 1 :]}"
    return None  # it is never closed
