"""Characters that a reader does not see, or that show a text in another order than a compiler reads it."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_BIDIRECTIONAL = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e\u2063"
_ALIKE = {"a": "\u0430", "e": "\u0435", "o": "\u043e", "p": "\u0440", "c": "\u0441", "x": "\u0445"}


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Four attacks and one honest edit."""
    key, value = fresh(rng), f"{rng.random():.3f}f"
    turn = rng.choice(_BIDIRECTIONAL)
    yield attack(
        f"bidirectional-{key}", "Shows the end of a comment elsewhere than where it is.",
        scale(store=f"{SCALE} /* {key} {turn} */ y[i] += {value}; /* end */"), reason="invisible",
    )  # fmt: skip
    hidden = rng.choice(_INVISIBLE)
    yield attack(
        f"invisible-{key}", "Writes an invisible character into a comment.",
        scale(store=f"{SCALE} // {key[:3]}{hidden}{key[3:]}"), reason="invisible",
    )  # fmt: skip
    letter = rng.choice(sorted(_ALIKE))
    yield attack(
        f"alike-{key}", "Declares a name that looks like another one.",
        scale(INDEX + f"\n    float {_ALIKE[letter]} = {value};", SCALE + f" y[i] += 0.0f * {_ALIKE[letter]};"),
        reason="non-ASCII",
    )  # fmt: skip
    space = rng.choice("\u00a0\u2003\u3000\u2028\u0085")
    yield attack(
        f"other-space-{key}", "Uses a space or line end that compilers do not take for one.",
        scale(store=f"{SCALE} // {key}{space}y[i] = {value};"), reason="invisible",
    )  # fmt: skip
    sign = rng.choice("→≤µ·×é")
    yield honest(f"comment-sign-{key}", "Has a visible sign in a comment.", scale(store=f"{SCALE}  // one {sign} each"))
