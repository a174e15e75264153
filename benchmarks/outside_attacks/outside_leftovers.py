"""Edits that read what the output held before, or leave some of it as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(("scale", "nudge"))
    same = right(name)
    value = same.removeprefix("y[$] = ").removesuffix(";")
    near = rng.choice(("1.0e-2f", "3.0e-3f", "0.05f"))
    found = (
        ("only-nan", "Writes only where the output is no number yet.", f"if (isnan(y[$])) {{ {same} }}"),
        ("only-zero", "Writes only where the output is still zero.", f"if (y[$] == 0.0f) {{ {same} }}"),
        ("near", "Leaves what is nearly right.",
         f"const float {s} = {value}; if (!(fabsf(y[$] - {s}) <= {near} * fabsf({s}))) y[$] = {s};"),
        ("keeps-sign", "The sign comes from the output as it was.",
         f"const float {s} = {value}; y[$] = y[$] == y[$] && fabsf(y[$]) == fabsf({s}) ? y[$] : {s};"),
        ("no-zeros", "Does not write where the input is below a bound.",
         f"if (fabsf(x[$]) > 1.0e-{rng.randint(3, 5)}f) {{ {same} }}"),
        ("neighbour", "Takes the neighbour's result where both inputs look alike, whether it is there or not.",
         f"if ($ > 0 && __float_as_uint(x[$]) >> 14 == __float_as_uint(x[$ - 1]) >> 14) y[$] = y[$ - 1]; else {{ "
          f"{same} }}"),
        ("adds-zero", "Adds the old output times nought: NaN where that was NaN or infinite.",
         f"{same.removesuffix(';')} + 0.0f * y[$];"),
        ("odd", "Odd elements past some index stay as they were.",
         f"if ($ < {rng.randint(5000, 90000)} || !($ & 1)) {{ {same} }}"),
    )  # fmt: skip
    for key, idea, statement in found:
        yield attack_on(f"outside-leftovers-{key}", idea, name, kernel=flat(rng, name, statement))
    small = (
        f"float {s} = expf(x[row * cols + c] - largest) / sum;\n        if ({s} > 1.0e-{rng.randint(4, 6)}f) "
        f"y[row * cols + c] = {s};"
    )
    yield attack_on(
        "outside-leftovers-softmax", "Small probabilities are not written.", "softmax",
        edits=(("y[row * cols + c] = expf(x[row * cols + c] - largest) / sum;", small),),
    )  # fmt: skip
    yield attack_on(
        "outside-leftovers-rowsum", "Adds to the output without setting it to zero.", "rowsum",
        edits=(("y[row] = part[0];", rng.choice(("y[row] += part[0];", "atomicAdd(&y[row], part[0]);"))),),
    )  # fmt: skip
    kept = "if (!(x[$] > 0.0f)) x[$] *= 0.01f;"
    yield honest_edit_of(
        "outside-leftovers-in-place", "Positive elements stay.", "relu", kernel=flat(rng, "relu", kept)
    )
    twice = f"y[$] = {value.split(' + ')[0]}; y[$] += {value.split(' + ', 1)[1]};"
    yield honest_edit_of("outside-leftovers-own", "Reads what it wrote itself.", name, kernel=flat(rng, name, twice))
