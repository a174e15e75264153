"""A model's sentences as plain words."""

import re

_PLAIN = re.compile(r"[^\w .,:;()+*/%='-]")


def plain(text: str, most: int = 140) -> str:
    """A model's sentence as one line of plain words: no mark-up, links or mentions come through to a reader."""
    line = " ".join(_PLAIN.sub(" ", re.sub(r"\w+://\S*|www\.\S*", " ", text[: 4 * most])).split())
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0]
