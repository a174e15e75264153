"""Attributes: they switch off checks, place code elsewhere, or run it before `main`."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_NAMES = ('no_sanitize("thread")', "no_sanitize_thread", "constructor", "weak", "used", "noinline", "optimize(0)")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Five attacks and two honest edits."""
    key, name = fresh(rng), rng.choice(_NAMES)
    blank = rng.choice(("", " ", "\n", " /* */ "))
    word = rng.choice(("__attribute__", "__attribute"))
    yield attack(
        f"gnu-attribute-{key}", "Declares a helper with a GNU attribute.",
        scale(INDEX, SCALE, f"{word}{blank}(({name})) __device__ float {key}(float v) {{ return v; }}\n"),
        reason="attribute",
    )  # fmt: skip
    yield attack(
        f"standard-attribute-{key}", "Declares a helper with an attribute in brackets.",
        scale(INDEX, SCALE, f"[{blank}[gnu::{name}]] __device__ float {key}(float v) {{ return v; }}\n"), reason="attribute",
    )  # fmt: skip
    yield attack(
        f"macro-attribute-{key}", "Spells the brackets of an attribute by a macro.",
        scale(INDEX, SCALE, f"#define {key.upper()} [gnu::{name}]\n[{key.upper()}] __device__ float {key}(float v) {{ return v; }}\n"),
        reason="attribute",
    )  # fmt: skip
    yield attack(
        f"half-bracket-{key}", "Spells half of an attribute by a macro.",
        scale(INDEX, SCALE, f"#define {key.upper()} [\n{key.upper()}{key.upper()}gnu::{name}]] __device__ int {key}();\n"),
        reason="bracket",
    )  # fmt: skip
    yield attack(
        f"argument-attribute-{key}", "Gives a macro the inner brackets of an attribute.",
        scale(INDEX, SCALE, f"#define {key.upper()}(v) int w[v]\n__device__ {key.upper()}([gnu::{name}]);\n"),
        reason="attribute",
    )  # fmt: skip
    yield honest(
        f"unused-{key}", "Declares that a variable may be unused.", scale(INDEX + f"\n    [[maybe_unused]] int {key} = i;")
    )  # fmt: skip
    yield honest(
        f"subscript-{key}", "Indexes an array by an element of another one.",
        scale(INDEX + f"\n    int {key}[1] = {{0}};\n    float one[1] = {{1.0f}};", f"y[i] = 2.5f * x[i] + one[{key}[0]];"),
    )  # fmt: skip
