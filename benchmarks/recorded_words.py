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
    (
        r"Load and store (\d+) neighbouring elements at once in the loops over",
        r"Vector loads and stores of \1 elements in the loops over",
    ),
    (r"Load and store (\d+) elements at once", r"Vector loads and stores of \1 elements"),
    (
        r"elements of the row in each thread's registers between (\d+) loops",
        r"elements of the row per thread in registers across \1 loops",
    ),
    (r"Declare blocks of (\d+) threads, (\d+) to a multiprocessor", r"Add `__launch_bounds__(\1, \2)`"),
)  # fmt: skip


def in_todays_words(text: str) -> str:
    """A recorded verdict, diagnosis or edit as it would be written now."""
    for old, new in _TODAY:
        text = re.sub(old, new, text)
    return text
