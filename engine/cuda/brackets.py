"""Where brackets close, in text that no grammar has read."""


def closing(text: str, opening: int, pair: str = "()", most: int | None = None) -> int:
    """The place of the bracket that closes the one at `opening`, within so many characters; -1 for none."""
    depth = 0
    for at in range(opening, len(text) if most is None else min(len(text), opening + most)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return -1
