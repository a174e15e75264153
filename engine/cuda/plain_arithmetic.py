"""Host expressions without an effect of their own: figures of a launch that may be dropped with it."""

import re
from collections.abc import Sequence

from engine.cuda.items import Token

_CALLS = frozenset({"dim3", "min", "max", "std", "sizeof", "static_cast", "int", "unsigned", "float", "double", "ceil"})


def plain_arithmetic(tokens: Sequence[Token]) -> bool:
    """Whether an expression has no effect of its own, as far as tokens tell."""
    for i, token in enumerate(tokens):
        if token.kind in ("string", "directive") or token.text in ("=", ";", "[", "&", "new", "delete"):
            if token.text == "=" and (
                (i + 1 < len(tokens) and tokens[i + 1].text == "=") or (i and tokens[i - 1].text in "=<>!")
            ):
                continue
            return False
        following = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if token.kind == "name" and following == "(" and token.text not in _CALLS and not _is_division(token.text):
            return False
        if token.text in "+-" and following == token.text and tokens[i + 1].start == token.end:
            return False
    return True


def _is_division(name: str) -> bool:
    return re.fullmatch(r"(?i:cdiv|ceil_?div\w*|div_?(?:round_?)?up|divup|idivup)", name) is not None
