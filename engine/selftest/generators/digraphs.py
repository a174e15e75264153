"""Directives and brackets spelled with digraphs: `%:define` in a kernel's body reaches the user's host code."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_HOST_NAMES = ("run_scale", "threads", "blocks")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Four attacks and one honest edit."""
    blank = rng.choice(("", " ", "\t"))
    name, key = rng.choice(_HOST_NAMES), fresh(rng)
    comment = rng.choice(("", f"/* {key} */ "))
    yield attack(
        f"digraph-define-{key}", "Renames what the host's code uses by a directive that begins with a digraph.",
        scale(INDEX + f"\n{comment}%:{blank}define {name} {key}_{name}"), reason="digraph",
    )  # fmt: skip
    macro = rng.choice(("__CUDACC_RTC__", "NDEBUG", "__GNUC__"))
    yield attack(
        f"digraph-condition-{key}", "One program for NVRTC, another for nvcc, by a condition that begins with a digraph.",
        scale(store=f"\n%:{blank}ifdef {macro}\n        {SCALE}\n%:else\n        y[i] = {rng.random():.3f}f;\n%:endif\n"),
        reason="digraph",
    )  # fmt: skip
    yield attack(
        f"digraph-undef-{key}", "Takes a macro of the headers away for all that follows.",
        scale(INDEX + f"\n    %:{blank}undef {rng.choice(('__CUDACC__', '__device__', 'assert'))}  // {key}"), reason="digraph",
    )  # fmt: skip
    yield attack(
        f"digraph-attribute-{key}", "Spells an attribute with digraphs.",
        scale(before=f"<:{blank}<:gnu::{rng.choice(('weak', 'constructor', 'used'))}:>:>  // {key}\n"), reason="digraph",
    )  # fmt: skip
    yield honest(
        f"modulo-{key}", "Computes with `%` beside a `:`, which is no digraph.",
        scale(INDEX + f"\n    int {key} = n > 0 ? i % {rng.randrange(2, 9)} : i;", SCALE.replace("x[i]", f"x[i + 0 * {key}]")),
    )  # fmt: skip
