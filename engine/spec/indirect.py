"""Finds the size of a buffer whose indices come from another one, from where a kernel reaches with all of these 0, and all 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.extents import Trial, fit, products, trial_key, value_at

ROWS = 256  # of a table that no size of the kernel counts. Ours: enough that rows differ, few enough for a check.


@dataclass(frozen=True)
class Indirect:
    """A buffer's size, and the size that bounds the indices into it (exclusive): "" where that is `ROWS`."""

    size: str
    high: str


def scattered(table: Indirect, count: str) -> Indirect:
    """A table that results are stored in, at as many different rows as there are indices."""
    rows = f"{ROWS}*"
    return Indirect(f"{count}*{table.size[len(rows) :]}", count) if table.size.startswith(rows) else table


def indirect(zeros: Sequence[Trial], ones: Sequence[Trial]) -> Indirect | None:
    """The size that explains both series of trials, at the same sizes; None where the indices do not move the end.

    A table of rows (`t[i[k] * n + c]`) is given `ROWS` rows: how many there are is nowhere in the kernel. Where an index chooses
    within rows of a size of the kernel (`p[k * n + i[k]]`), that size bounds it.
    """
    later = {trial_key(sizes): touched for sizes, touched in ones}
    both = [(sizes, low, later[trial_key(sizes)] - low) for sizes, low in zeros if trial_key(sizes) in later]
    if len(both) < 2 or any(low <= 0 or step <= 0 for _, low, step in both):
        return None
    step = fit([(sizes, each) for sizes, _, each in both])
    if step is None or not step.exact:
        return None
    names = list(both[0][0])
    if step.text != "1" and all(low == each for _, low, each in both):
        return Indirect(f"{ROWS}*{step.text}", "")
    for size in [
        *products(names),
        *(f"{name} + 1" for name in names),
    ]:  # the offset of a row's end is that of the next one
        for name in names:
            if all(value_at(size, sizes) == low + (sizes[name] - 1) * each for sizes, low, each in both):
                return Indirect(size, name)
    last = fit([(sizes, low) for sizes, low, _ in both])  # of a row that is not read to its end, or beyond it
    if not step.text.isdigit() and last is not None and last.exact:
        return Indirect(f"{ROWS - 1}*{step.text} + {last.text}", "")
    return None
