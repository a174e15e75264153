"""Launches that callers may make: larger blocks, more rows; and quotients of numbers near the end of their type."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_SHARE = "x[(size_t)row * cols + c] / most"
_ROW = "    int row = blockIdx.x * blockDim.x + threadIdx.x;\n"
_LAUNCH = "    int threads = 128;\n    peaks<<<(rows + threads - 1) / threads, threads>>>(x, y, rows, cols);\n"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks that promise less than callers need, and honest edits that keep it."""
    key = fresh(rng)
    unrolled = ("        int count = 0;\n", f"        int count = 0;\n        #pragma unroll {rng.choice((8, 16))}\n")
    bound = rng.choice(("128", "256", "512", "256, 4", "768"))
    yield attack_on(
        f"bound-{key}", "Promises small blocks.", "shares",
        edits=(("__global__ void shares(", f"__global__ void __launch_bounds__({bound}) shares("), unrolled),
    )  # fmt: skip
    whole = rng.choice(("1024", "1024, 1"))
    yield honest_edit_of(
        f"bound-whole-{key}", "Promises what every launch keeps.", "shares",
        edits=(("__global__ void shares(", f"__global__ void __launch_bounds__({whole}) shares("), unrolled),
    )  # fmt: skip
    yield attack_on(
        f"quotient-{key}", "Is zero for large divisors.", "shares",
        edits=((_SHARE, rng.choice(("__fdividef(x[(size_t)row * cols + c], most)",
                                    "__fdividef(1.0f, __fdividef(most, x[(size_t)row * cols + c]))"))),),
    )  # fmt: skip
    yield honest_edit_of(
        f"quotient-rounded-{key}", "The same quotient.", "shares",
        edits=((_SHARE, "__fdiv_rn(x[(size_t)row * cols + c], most)"),),
    )  # fmt: skip
    axis, threads = rng.choice("yz"), rng.choice((2, 4, 8))
    grid = f"dim3(1, {'1, ' if axis == 'z' else ''}(rows + {threads - 1}) / {threads})"
    edits = (
        (_ROW, f"    int {key} = blockIdx.{axis} * blockDim.x + threadIdx.x;\n    int row = {key};\n"),
        (_LAUNCH, f"    peaks<<<{grid}, {threads}>>>(x, y, rows, cols);\n"),
    )
    yield attack_on(f"rows-in-{axis}-{key}", "Fails for a million rows.", "peaks", edits=edits)
    more = rng.choice((32, 64))
    edits = (
        (_ROW, f"    int row = blockIdx.y * {more} + threadIdx.x;\n"),
        (_LAUNCH, f"    peaks<<<dim3(1, (rows + {more - 1}) / {more}), {more}>>>(x, y, rows, cols);\n"),
    )
    yield honest_edit_of(f"rows-in-y-{key}", "Takes two million rows.", "peaks", edits=edits)
