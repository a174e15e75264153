"""Inline assembly that an edit may add: asynchronous copies into shared memory with what waits for them, approximations of functions, and
products of small matrices in TF32 and in numbers of 16 bits.

Other assembly cannot be screened. These instructions are written so because no function of the language had them for years, or has them;
the CPU path executes each of them, and has a copy arrive no sooner than it must (`engine/cpu/inline_ptx.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.cuda.effects import APPROXIMATION
from engine.cuda.items import Token

_ASM = frozenset({"asm", "__asm__", "__asm"})
ADDRESS = "__cvta_generic_to_shared"  # of a shared array, as these instructions take it
_CODE = re.compile(
    r"(?:cp\.async\.c[ag]\.shared\.global(?:\.L2::(?:64|128|256)B)? \[%0\], \[%1\], (?:4|8|16|%2)(?:, %[23])?|"
    r"cp\.async\.commit_group|cp\.async\.wait_group (?:\d|%0)|cp\.async\.wait_all);?"
)
_VALUE = re.compile(APPROXIMATION)
_PRODUCT = re.compile(
    r"mma\.sync\.aligned\.(?:m16n8k8\.row\.col\.f32\.tf32\.tf32|m16n8k16\.row\.col\.f32\.(?:f16\.f16|bf16\.bf16))\.f32 "
    r"\{%0, ?%1, ?%2, ?%3\}, ?\{%4, ?%5, ?%6, ?%7\}, ?\{%8, ?%9\}, ?\{%0, ?%1, ?%2, ?%3\};?"
)
_FACTORS = ['"+f"'] * 4 + ['"r"'] * 6
_CONSTRAINTS = frozenset({'"r"', '"l"', '"n"', '"memory"'})


def allowed_statements(tokens: Sequence[Token]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Where the allowed statements of some tokens begin (as offsets), and the strings in them."""
    starts, strings = set[int](), list[str]()
    for at, token in enumerate(tokens):
        if token.text not in _ASM:
            continue
        begin = at + 1
        while begin < len(tokens) and tokens[begin].text in ("volatile", "__volatile__"):
            begin += 1
        own = _bracketed(tokens, begin)
        if own is None:
            continue
        colon = next((i for i, t in enumerate(own) if t.text in (":", "::")), len(own))
        code, rest = own[:colon], own[colon:]
        written = "".join(t.text[1:-1] for t in code if t.kind == "string")
        plain = " ".join(written.replace("\\n", " ").replace("\\t", " ").split())
        said = [t.text for t in rest if t.kind == "string"]
        copies = _CODE.fullmatch(plain) and set(said) <= _CONSTRAINTS
        values = _VALUE.fullmatch(plain) and said == ['"=f"', '"f"'] and [t.text for t in rest].count(":") == 2
        product = _PRODUCT.fullmatch(plain) and said == _FACTORS and [t.text for t in rest].count(":") == 2
        if all(t.kind == "string" for t in code) and (copies or values or product):
            starts.add(token.start)
            strings += [t.text for t in own if t.kind == "string"]
    return frozenset(starts), tuple(strings)


def _bracketed(tokens: Sequence[Token], at: int) -> Sequence[Token] | None:
    """What stands between a `(` at a place and its `)`. None: there is no such, or a directive in it."""
    if at >= len(tokens) or tokens[at].text != "(":
        return None
    depth = 0
    for end in range(at, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[end].text, 0)
        if tokens[end].kind == "directive":
            return None
        if depth == 0:
            return tokens[at + 1 : end]
    return None
