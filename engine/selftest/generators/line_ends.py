"""Lone carriage returns and trigraphs: the end of a line, or a token, for one compiler and not for another."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Four attacks and one honest edit."""
    key, value = fresh(rng), f"{rng.random():.3f}f"
    yield attack(
        f"carriage-return-{key}", "Hides a statement from NVRTC behind a carriage return in a comment.",
        scale(store=f"{SCALE} // {key}\ry[i] = {value};\n"), reason="carriage return",
    )  # fmt: skip
    yield attack(
        f"carriage-return-directive-{key}", "Begins a directive behind a carriage return in a comment.",
        scale(INDEX + f" // {key}\r#define run_scale {key}"), reason="carriage return",
    )  # fmt: skip
    yield attack(
        f"trigraph-splice-{key}", "Ends a comment with a trigraph that is a backslash under -std=c++14.",
        scale(store=f"y[i] = {value}; // really??/\n        {SCALE}"), reason="trigraph",
    )  # fmt: skip
    yield attack(
        f"trigraph-directive-{key}", "Begins a directive with a trigraph.",
        scale(INDEX + f"\n??={rng.choice(('', ' '))}define threads {rng.randrange(2, 64)}"), reason="trigraph",
    )  # fmt: skip
    store = f"y[i] = n > 0 ? n > {rng.randrange(1, 9)} ? 2.5f * x[i] + 1.0f : 2.5f * x[i] + 1.0f : 0.0f;  // {key}"
    yield honest(f"question-{key}", "Asks twice.", scale(store=store))
