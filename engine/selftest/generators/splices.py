"""Names and comments that a line splice joins or parts, differently for NVRTC and nvcc."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_NAMES = ("asm", "printf", "malloc", "__trap", "__CUDA_ARCH__")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Five attacks and one honest edit."""
    key = fresh(rng)
    name = rng.choice(_NAMES)
    at = rng.randrange(1, len(name))
    yield attack(
        f"split-name-{key}", f"Splits the name {name} over two lines.",
        scale(INDEX + f"\n    auto {key} = (long long)&{name[:at]}\\\n{name[at:]};"), reason="splice",
    )  # fmt: skip
    yield attack(
        f"split-in-macro-{key}", f"Splits the name {name} within a macro.",
        scale(INDEX, SCALE, f"#define {key.upper()}() {name[:at]}\\\n{name[at:]}()\n"), reason=name,
    )  # fmt: skip
    blanks = rng.choice((" ", "  ", "\t", " \t"))
    yield attack(
        f"blank-splice-{key}", "Ends a comment with a backslash and blanks: nvcc joins the next line to it, NVRTC does not.",
        scale(store=f"float {key} = 0.0f; // sum \\{blanks}\n        {key} = x[i];\n        y[i] = 2.5f * {key} + 1.0f;"),
        reason="backslash",
    )  # fmt: skip
    yield attack(
        f"comment-splice-{key}", "Ends a comment with a backslash, so that the next line is none to a compiler.",
        scale(store=f"{SCALE} // {key} \\\n        y[i] += {rng.random():.3f}f;"), reason="splice",
    )  # fmt: skip
    spelled = "".join(f"\\u{ord(c):04x}" if i == at else c for i, c in enumerate(name))
    yield attack(
        f"universal-name-{key}", f"Spells a letter of {name} as a universal character name.",
        scale(INDEX + f"\n    auto {key} = (long long)&{spelled};"), reason="universal",
    )  # fmt: skip
    yield honest(
        f"long-macro-{key}", "Adds a macro of two lines.",
        scale(INDEX, f"y[i] = {key.upper()}(x[i]);", f"#define {key.upper()}(v) \\\n    (2.5f * (v) + 1.0f)\n"),
    )  # fmt: skip
