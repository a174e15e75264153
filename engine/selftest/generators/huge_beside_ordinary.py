"""Intermediate values that overflow or vanish for ordinary-looking reasons, where another input is huge."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT,)


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a gate that a second input multiplies, and honest forms of it."""
    key, low = fresh(rng), rng.choice((17, 19, 23, 31))
    gate, up = f"{key}_g", f"{key}_u"
    e = f"expf(-{gate})"
    forms = {
        "reordered": ("Multiplies the inputs first: the product overflows.", rng.choice((
            f"{gate} * {up} / (1.0f + {e})", f"({up} * {gate}) * (1.0f / (1.0f + {e}))", f"__fdiv_rn({up} * {gate}, {e} + 1.0f)"))),
        "flushed": (f"Counts gates below -{low} as zero.", f"({gate} > -{low}.0f ? {gate} / (1.0f + {e}) : 0.0f) * {up}"),
        "clamped": (f"Clamps gates at -{low}.", f"{gate} / (1.0f + expf(fminf(-{gate}, {low}.0f))) * {up}"),
        "approximate": ("Divides so that nothing is left for divisors beyond 2^126.", f"__fdividef({gate}, 1.0f + {e}) * {up}"),
        "cancels": ("Takes the sigmoid of a tanh, which cancels out.", f"0.5f * ({gate} + {gate} * tanhf(0.5f * {gate})) * {up}"),
        "exponential": ("Takes an exponential that overflows for large gates.", f"{gate} * (expf({gate}) / (1.0f + expf({gate}))) * {up}"),
    }  # fmt: skip
    for form, (idea, value) in forms.items():
        attack = attack_on(f"magnitude-{form}-{key}", idea, "gated", kernel=_gated(gate, up, value))
        yield replace(attack, gpu=_WRONG, cpu=_WRONG)
    same = {
        "reciprocal": f"{gate} * (1.0f / (1.0f + {e})) * {up}",
        "turned": f"{up} * ({gate} / ({e} + 1.0f))",
        "power-of-two": f"{gate} / (1.0f + exp2f(-1.4426950408889634f * {gate})) * {up}",
    }
    for form, value in same.items():
        yield honest_edit_of(
            f"magnitude-{form}-{key}", "The same up to rounding.", "gated", kernel=_gated(gate, up, value)
        )


def _gated(gate: str, up: str, value: str) -> str:
    return (
        "__global__ void gated(const float* g, const float* u, float* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < n) {{\n        const float {gate} = g[i], {up} = u[i];\n        y[i] = {value};\n    }}\n}}\n"
    )
