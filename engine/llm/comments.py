"""Comments that a model wrote are left out of its edits: readers and judges see code, and nobody is spoken to.

What a comment says of the code cannot be checked, so none is kept but those that the file has already, and the tool's own lines.
"""

import re
from collections.abc import Iterable

from engine.cuda.items import pieces_of
from engine.cuda.phases import NVCC, form_of

_OWN = re.compile(r"//[ \t]*optiml:")  # specs and templates, which are read and compared as such


def known_comments(texts: Iterable[bytes]) -> frozenset[str]:
    """The comments of some files, with their white space made one."""
    return frozenset(
        " ".join(comment.split())
        for data in texts
        for comment in form_of(data.decode("utf-8", "replace"), NVCC).comments
    )


def without_comments(text: str, known: frozenset[str]) -> str:
    """The text without comments but those that are known and the tool's own lines; lines that held nothing else go with them."""
    lines: list[str] = []
    line, dropped = "", False
    for piece in pieces_of(text):
        if piece.startswith(("//", "/*")) and not _OWN.match(piece) and " ".join(piece.split()) not in known:
            dropped = True
            line += " " if piece.startswith("/*") else ""
        elif piece == "\n":
            if not dropped or line.strip():
                lines.append((line.rstrip() if dropped else line) + "\n")
            line, dropped = "", False
        else:
            line += piece
    if dropped and not line.strip():  # the text ended with a comment of its own line
        return "".join(lines).removesuffix("\n")
    return "".join(lines) + (line.rstrip() if dropped else line)
