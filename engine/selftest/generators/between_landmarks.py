"""Edits that conclude from some elements of a row what the others are, or what is largest, and NaN that the original passes over."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT,)
_PEAKS = """__global__ void peaks(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const float* @IN@ = x + (size_t)row * cols;
        @BODY@
    }
}"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks that look at other places and conclude other things, and honest edits that look at all."""
    key = fresh(rng)
    row, best = f"in_{key}", f"best_{key}"
    places = rng.sample(("0", "cols / 2", "cols - 1", "cols / 3", "cols * 2 / 3", "cols / 5"), rng.randint(2, 4))
    agree = " && ".join(f"{row}[{at}] == {row}[{other}]" for at, other in pairwise(places))
    forms = {
        "constant": (f"const int {key} = {agree} ? 1 : cols;", f"for (int c = 0; c < {key}; ++c)"),
        "zero-ends": (
            f"const int {key} = {row}[0] == 0.0f && {row}[cols - 1] == 0.0f ? 1 : cols;",
            f"for (int c = 0; c < {key}; ++c)",
        ),
    }
    for form, (test, loop) in forms.items():
        body = f"float {best} = 0.0f; {test} {loop} {best} = fmaxf({best}, magnitude({row}[c])); y[row] = {best};"
        idea = "Concludes from a few elements of a row what the others are."
        yield replace(
            attack_on(f"between-{form}-{key}", idea, "peaks", kernel=_peaks(row, body)), gpu=_WRONG, cpu=_WRONG
        )
    each = {
        "bits": f"unsigned {best} = 0; for (int c = 0; c < cols; ++c) {best} = max({best}, __float_as_uint(magnitude({row}[c]))); "
        f"y[row] = __uint_as_float({best});",
        "compared": f"float {best} = 0.0f; for (int c = 0; c < cols; ++c) {best} = {best} > magnitude({row}[c]) ? {best} : "
        f"magnitude({row}[c]); y[row] = {best};",
        "first": f"float {best} = magnitude({row}[0]); for (int c = 1; c < cols; ++c) if (magnitude({row}[c]) > {best}) "
        f"{best} = magnitude({row}[c]); y[row] = {best};",
    }  # fmt: skip
    for form, body in each.items():
        idea = "Takes another maximum, of which a NaN makes another value."
        case = attack_on(f"over-nan-{form}-{key}", idea, "peaks", kernel=_peaks(row, body))
        yield replace(case, gpu=_WRONG, cpu=_WRONG, reason="NaN")
    same = {
        "backwards": f"float {best} = 0.0f; for (int c = cols - 1; c >= 0; --c) {best} = fmaxf(magnitude({row}[c]), {best}); "
        f"y[row] = {best};",
        "if-larger": f"float {best} = 0.0f; for (int c = 0; c < cols; ++c) if (magnitude({row}[c]) > {best}) "
        f"{best} = magnitude({row}[c]); y[row] = {best};",
        "zero-row": f"float {best} = 0.0f; for (int c = 0; c < cols; ++c) {best} = fmaxf({best}, magnitude({row}[c])); "
        f"if ({best} == 0.0f) {{ y[row] = 0.0f; return; }} y[row] = {best};",
    }  # fmt: skip
    for form, body in same.items():
        yield honest_edit_of(f"all-{form}-{key}", "Looks at every element.", "peaks", kernel=_peaks(row, body))


def _peaks(row: str, body: str) -> str:
    return _PEAKS.replace("@IN@", row).replace("@BODY@", body)
