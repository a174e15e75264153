"""Roundings that differ at halves and for subnormal rows alone, and code for blocks that the host does not launch."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT,)
_ROUNDED = "(signed char)rintf(row[c] / unit)"
_MOST = """    part[threadIdx.x] = most;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + step]);
        __syncthreads();
    }
"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a row that is rounded to 8 bits, and honest forms of it."""
    key = fresh(rng)
    forms = {
        "away": ("Rounds halves away from zero.", "(signed char)roundf(row[c] / unit)"),
        "up": ("Rounds halves up.", "(signed char)floorf(row[c] / unit + 0.5f)"),
        "reciprocal": ("Multiplies by a reciprocal.", rng.choice((
            "(signed char)rintf(row[c] * (1.0f / unit))", "(signed char)__float2int_rn(__frcp_rn(unit) * row[c])"))),
    }  # fmt: skip
    for form, (idea, value) in forms.items():
        case = attack_on(f"rounded-{form}-{key}", idea, "rounded", edits=((_ROUNDED, value),))
        yield replace(case, gpu=_WRONG, cpu=_WRONG)
    even = rng.choice(("(signed char)__float2int_rn(row[c] / unit)", "(signed char)(int)nearbyintf(row[c] / unit)"))
    yield honest_edit_of(f"rounded-even-{key}", "Rounds as before.", "rounded", edits=((_ROUNDED, even),))
    shuffled = (
        f"        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));\n"
        f"        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;\n        __syncthreads();\n"
        f"        float {key} = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));\n        __syncthreads();\n"
        f"        if (threadIdx.x == 0) part[0] = {key};\n        __syncthreads();\n"
    )
    tested = rng.choice(("blockDim.x == 128", "128 == blockDim.x", "blockDim.x * blockDim.y == 128"))
    either = f"    if ({tested}) {{\n{shuffled}    }} else {{\n{_MOST}    }}\n"
    yield honest_edit_of(
        f"rounded-either-{key}", "Has the old maximum for others.", "rounded", edits=((_MOST, either),)
    )
    lost = either.replace("step > 0; step /= 2) {", f"step > {rng.choice((1, 2, 8))}; step /= 2) {{")
    yield attack_on(f"rounded-lost-{key}", "Is wrong for others.", "rounded", edits=((_MOST, lost),))
