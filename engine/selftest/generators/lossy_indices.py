"""Indices and counters with fewer bits than sizes may need, and rows as arrays of a fixed length."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_REFUSED = (Outcome.SCREENED_OUT,)
_FOUND = "        for (int c = 0; c < cols; ++c) {\n            largest = fmaxf(largest, magnitude(x[row * cols + c]));\n        }"
_PUT = "largest = fmaxf(largest, magnitude(x[row * cols + {at}]));"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on the loop over a row's columns, and honest forms of it."""
    key = fresh(rng)
    group, length = rng.choice((8, 16)), rng.choice((512, 1024, 2048))
    steps = f"(cols + {group - 1}) / {group}"
    inner = f"for (int c = {key} * {group}; c < min(cols, {key} * {group} + {group}); ++c) {_PUT.format(at='c')}"
    lossy = {
        "float": (
            "counts in a float",
            f"for (float {key} = 0.0f; {key} < (float)cols; {key} += 1.0f) {_PUT.format(at=f'(int){key}')}",
        ),
        "half-way": (
            "turns an index to a float and back",
            f"for (int {key} = 0; {key} < cols; ++{key}) {_PUT.format(at=f'(int)(row * 0.0f + {key})')}",
        ),
        "reciprocal": (
            "divides by a rounded reciprocal",
            f"const unsigned {key} = 0xffffffffu / cols + 1; for (int c = 0; c < cols; ++c) "
            + _PUT.format(at=f"c - (cols > 1 ? (int)__umulhi(c, {key}) * cols : 0)"),
        ),
    }
    for form, (idea, loop) in lossy.items():
        case = attack_on(f"lossy-{form}-{key}", f"Once {idea}.", "peaks", edits=((_FOUND, f"        {loop}"),))
        yield replace(case, gpu=_REFUSED, cpu=_REFUSED, reason="PTX")
    narrow = attack_on(
        f"narrow-steps-{key}", "Counts groups of columns in 16 bits.", "peaks",
        edits=((_FOUND, f"        for (unsigned short {key} = 0; {key} < {steps}; ++{key}) {inner}"),),
    )  # fmt: skip
    yield replace(narrow, cpu=(Outcome.WRONG_RESULT,))
    row = f"struct {key}_row {{ float at[{length}]; }};"
    loop = f"for (int c = 0; c < cols; ++c) largest = fmaxf(largest, magnitude(reinterpret_cast<const {key}_row*>(x + row * cols)->at[c]));"
    fixed = attack_on(
        f"fixed-row-{key}",
        "Reads a row as an array of a fixed length.",
        "peaks",
        edits=((_FOUND, f"        {row} {loop}"),),
    )
    yield replace(fixed, cpu=(Outcome.WRONG_RESULT, Outcome.CRASHED))
    yield honest_edit_of(
        f"wide-steps-{key}", "Counts groups of columns in 32 bits.", "peaks",
        edits=((_FOUND, f"        for (int {key} = 0; {key} < {steps}; ++{key}) {inner}"),),
    )  # fmt: skip
