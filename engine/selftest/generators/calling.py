"""Functions that other files may call: an edit that is right for its own kernel alone, and ones that keep what they compute."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_BODY, _RESULT = "return fabsf(v);", "y[row] = largest;"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks that move a part of a function to its caller, and honest edits of the function alone."""
    key, factor = fresh(rng), rng.choice((2, 4, 8))
    moved = {
        "factor": (f"return {factor}.0f * fabsf(v);", f"y[row] = {1 / factor}f * largest;"),
        "root": ("return v * v;", "y[row] = sqrtf(largest);"),
        "new-name": (f"return {key}(v) * {factor}.0f;", f"y[row] = largest / {factor}.0f;"),
    }
    helper = f"__device__ float {key}(float v) {{\n    return fabsf(v);\n}}\n\n"
    for form, (body, result) in moved.items():
        edits = [(_BODY, body), (_RESULT, result)]
        if form == "new-name":
            edits.append(("__device__ float magnitude", f"{helper}__device__ float magnitude"))
        case = attack_on(f"callers-{form}-{key}", "Is right for the one caller that is seen.", "peaks", edits=edits)
        yield replace(case, cpu=(Outcome.GUARDRAIL, Outcome.WRONG_RESULT))
    for form, body in {
        "choice": "return v < 0.0f ? -v : v;",
        "bits": "return __uint_as_float(__float_as_uint(v) & 0x7fffffffu);",
    }.items():
        yield honest_edit_of(
            f"kept-{form}-{key}", "Another form of the same function.", "peaks", edits=((_BODY, body),)
        )
