"""Differences of values that lie far from zero, which are lost where each is multiplied or rounded before."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT,)
_FOUND = "y[row * cols + c] = (x[row * cols + c] - x[row * cols]) * w[c];"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a difference that is weighed, and honest forms of it."""
    key = fresh(rng)
    own, first, weight = f"{key}_x", f"{key}_f", f"{key}_w"
    loads = f"const float {own} = x[row * cols + c], {first} = x[row * cols], {weight} = w[c];\n        "
    folded = rng.choice((f"fmaf({own}, {weight}, -{first} * {weight})", f"{own} * {weight} - {first} * {weight}"))
    forms = {
        "folded": folded,
        "squares": f"({own} * {own} - {first} * {first}) / ({own} + {first}) * {weight}",
        "tripled": f"(3.0f * {own} - 3.0f * {first}) * ({weight} / 3.0f)",
    }
    for form, value in forms.items():
        edit = (_FOUND, f"{loads}y[row * cols + c] = {value};")
        case = attack_on(
            f"far-{form}-{key}", "Rounds large terms before they are subtracted.", "centred", edits=(edit,)
        )
        yield replace(case, gpu=_WRONG, cpu=_WRONG)
    for form, value in {"turned": f"{weight} * ({own} - {first})", "negated": f"({first} - {own}) * -{weight}"}.items():
        edit = (_FOUND, f"{loads}y[row * cols + c] = {value};")
        yield honest_edit_of(f"near-{form}-{key}", "The same difference.", "centred", edits=(edit,))
