"""What generators write cases from: names that no text has yet, and edits of the original `scale`."""

import random

from engine.model import Outcome
from engine.selftest.cases import HONEST, SelfCase

REFUSED = (Outcome.SCREENED_OUT,)
_STEMS = ("acc", "part", "lane", "tile", "fold", "span", "step", "quad", "base", "tail")
SCALE = "y[i] = 2.5f * x[i] + 1.0f;"
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def fresh(rng: random.Random) -> str:
    """A name that no original has."""
    return f"{rng.choice(_STEMS)}_{rng.randrange(16**6):06x}"


def scale(index: str = INDEX, store: str = SCALE, before: str = "") -> str:
    """The kernel `scale` with other statements."""
    return (
        f"{before}__global__ void scale(const float* x, float* y, int n) {{\n    {index}\n"
        f"    if (i < n) {{\n        {store}\n    }}\n}}\n"
    )


def attack(name: str, idea: str, kernel: str, outcomes: tuple[Outcome, ...] = REFUSED, reason: str = "") -> SelfCase:
    """An edit of `scale` that must end with one of `outcomes`."""
    return SelfCase(name, "attacks", idea, "scale", kernel, gpu=outcomes, cpu=outcomes, reason=reason)


def honest(name: str, idea: str, kernel: str) -> SelfCase:
    """An edit of `scale` that must be accepted."""
    return SelfCase(name, "honest", idea, "scale", kernel, gpu=HONEST, cpu=HONEST)
