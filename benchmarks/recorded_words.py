"""Sentences of older records in today's terms. Records stay as they were written; numbers are not touched."""

from __future__ import annotations

import re

_TODAY = (
    (r"(\d+) of them right", r"\1 correct"),
    (r"(\d+) compiled to code that was known", r"\1 duplicates (same SASS and launch)"),
    (r"% of what a copy reaches", "% of copy"),
    (r"the path to L1 and L2 is used at (\d+) % of its peak", r"L1 and L2 bandwidth at \1 % of peak"),
    (r"the (?:multiprocessors|SMs) are used at (\d+) % of their peak", r"SMs at \1 % of peak"),
    (
        r"memory is used at (\d+) % and arithmetic at (\d+) % of their peaks",
        r"memory at \1 % and arithmetic at \2 % of peak",
    ),
    (r"Let one (warp|block of \d+ threads) work on each row", r"One \1 per row"),
    (r"Declare blocks of (\d+) threads, (\d+) to a multiprocessor", r"Add `__launch_bounds__(\1, \2)`"),
)  # fmt: skip


def in_todays_words(text: str) -> str:
    """A recorded verdict, diagnosis or edit as it would be written now."""
    for old, new in _TODAY:
        text = re.sub(old, new, text)
    return text
