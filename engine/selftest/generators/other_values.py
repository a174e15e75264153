"""Values that a spec passes in all of its cases, and contents that its fills leave out: flags, whole scalars, blocks, masks."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT,)
_INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
_VALUE, _LEVEL = "int value = mask[i] ? x[i] : 0;", "int level = weight * value + (256 - weight) * 128;"
_RESULT = "y[i] = inverted ? 65535 - level : level;"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks that are right for the spec's scalars, block size and masks, and honest forms for any."""
    key = fresh(rng)
    grey = rng.choice(("(256 - weight) * 128", "32768 - (weight << 7)", "26624"))
    forms = {
        "flag": ("Leaves out what a flag chooses.", (_RESULT, "y[i] = level;")),
        "flag-is-one": ("Takes a flag for one.", (_RESULT, "y[i] = inverted * 65535 + (1 - 2 * inverted) * level;")),
        "scalar": ("Writes the spec's weight in.", (_LEVEL, f"int level = 48 * value + {grey.replace('weight', '48')};")),
        "narrow": ("Keeps the weight in a byte.", (
            _LEVEL, f"const unsigned char {key} = weight;\n        int level = {key} * value + (256 - {key}) * 128;")),
        "block": ("Writes the spec's block size in.", (
            _INDEX, rng.choice(("int i = (blockIdx.x << 8) + threadIdx.x;", "int i = blockIdx.x * 256u + threadIdx.x;")))),
        "factor": ("Multiplies by a mask.", (_VALUE, rng.choice((
            "int value = mask[i] * x[i];", "int value = x[i] & -(int)mask[i];", "int value = mask[i] == 1 ? x[i] : 0;")))),
    }  # fmt: skip
    for form, (idea, edit) in forms.items():
        attack = attack_on(f"values-{form}-{key}", idea, "levels", edits=(edit,))
        yield replace(attack, gpu=REFUSED_FOR, cpu=REFUSED_FOR)
    same = {
        "arithmetic": (
            _RESULT,
            "const int turned = inverted ? -1 : 1;\n        y[i] = (inverted ? 65535 : 0) + turned * level;",
        ),
        "weights": (_LEVEL, "int level = 32768 + weight * (value - 128);"),
        "mask": (_VALUE, "int value = x[i] & (mask[i] != 0 ? 255 : 0);"),
        "index": (_INDEX, "const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;"),
    }
    for form, edit in same.items():
        edits = [edit, ("if (i < n)", "if (i < (unsigned int)n)")] if form == "index" else [edit]
        yield honest_edit_of(f"values-same-{form}-{key}", "The same for any values.", "levels", edits=edits)


# A condition that no check meets is a fault as well.
REFUSED_FOR = (*_WRONG, Outcome.GUARDRAIL)
