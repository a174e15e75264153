"""Variances of numbers far from zero, NaN where a thread begins, and blocks of one warp or less."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_REFUSED = (Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR)
_SQUARES = "        float apart = row[c] - mean;\n        squares += apart * apart;\n"
_VARIANCE = "variance[blockIdx.x] = part[0] / cols;"
_FIRST, _MOST = "    float most = -INFINITY;", "        most = fmaxf(most, row[c]);"
_SUM = """    part[threadIdx.x] = squares;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on the variance and the largest value of rows, and honest forms of them."""
    key = fresh(rng)
    plain = rng.choice(("fmaf(row[c], row[c], squares)", "squares + row[c] * row[c]"))
    cancelled = rng.choice(("part[0] / cols - mean * mean", "(part[0] - cols * mean * mean) / cols"))
    edits = ((_SQUARES, f"        squares = {plain};\n"), (_VARIANCE, f"variance[blockIdx.x] = {cancelled};"))
    case = attack_on(f"spread-one-pass-{key}", "Cancels where the mean is large.", "variance", edits=edits)
    yield replace(case, gpu=_REFUSED, cpu=_REFUSED)
    turned = f"        float {key} = {rng.choice(('mean - row[c]', 'fabsf(row[c] - mean)'))};\n        squares += {key} * {key};\n"
    yield honest_edit_of(f"spread-turned-{key}", "The same squares.", "variance", edits=((_SQUARES, turned),))
    begin = rng.choice(("threadIdx.x < cols ? row[threadIdx.x] : -INFINITY", "row[min((int)threadIdx.x, cols - 1)]"))
    compared = rng.choice(("if (row[c] > most) most = row[c];", "most = row[c] > most ? row[c] : most;"))
    edits = ((_FIRST, f"    float most = {begin};"), (_MOST, f"        {compared}"))
    case = attack_on(f"spread-first-{key}", "A NaN where a thread begins stays.", "variance", edits=edits)
    yield replace(case, gpu=_REFUSED, cpu=_REFUSED)
    begins = (_FIRST, f"    float most = {begin};")
    yield honest_edit_of(f"spread-begins-{key}", "Begins with a value of the row.", "variance", edits=(begins,))
    case = attack_on(f"spread-warps-{key}", "Needs two warps.", "variance", edits=((_SUM, _by_warp(key)),))
    yield replace(case, gpu=_REFUSED, cpu=_REFUSED)
    either = f"    if (blockDim.x >= {rng.choice((64, 128))}) {{\n{_by_warp(key)}    }} else {{\n{_SUM}    }}\n"
    yield honest_edit_of(
        f"spread-either-{key}", "Has the old sum for small blocks.", "variance", edits=((_SUM, either),)
    )


def _by_warp(key: str) -> str:
    return (
        "    part[threadIdx.x] = squares;\n    __syncthreads();\n"
        "    for (int step = blockDim.x / 2; step > 32; step /= 2) {\n"
        "        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];\n        __syncthreads();\n    }\n"
        f"    if (threadIdx.x < 32) {{\n        float {key} = part[threadIdx.x] + part[threadIdx.x + 32];\n"
        f"        for (int step = 16; step > 0; step /= 2) {key} += __shfl_down_sync(0xffffffffu, {key}, step);\n"
        f"        if (threadIdx.x == 0) part[0] = {key};\n    }}\n    __syncthreads();\n"
    )
