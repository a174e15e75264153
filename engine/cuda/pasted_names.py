"""Names that calls of macros paste together: `Atomic##NAME` in the text of one that is called with `Add`."""

import re
from collections.abc import Iterator, Mapping, Sequence

from engine.cuda.items import Token, past_call

_PARAMETERS = re.compile(r"\(([^()]*)\)")
_PASTED = re.compile(r"\w+(?:\s*##\s*\w+)+")


def pasted(tokens: Sequence[Token], macros: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What the macros that some tokens call make of their arguments. `macros`: their texts, parameters first, by name."""
    for at, token in enumerate(tokens):
        texts = [each for each in macros.get(token.text, ()) if "##" in each] if token.kind == "name" else []
        end = past_call(tokens, at) if texts else at
        if end == at:
            continue
        given = "".join(t.text for t in tokens[at + 2 : end]).split(",")
        for each in texts:
            listed = _PARAMETERS.match(each)
            names = [p.strip() for p in str(listed[1]).split(",")] if listed else []
            bound = dict(zip(names, given, strict=False))
            for match in _PASTED.finditer(each):
                yield "".join(bound.get(part, part) for part in re.split(r"\s*##\s*", match[0]))
