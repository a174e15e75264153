"""Tables, assumptions and texts by architecture: honest ones, and ones that could change, need not hold, or are wrong elsewhere."""

import random
from collections.abc import Iterator

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_WRONG = (Outcome.WRONG_RESULT,)


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks and honest edits in each of the three forms."""
    key = fresh(rng)
    table = f"__constant__ float {key}[2] = {{2.5f, 1.0f}};\n\n"
    use = f"y[i] = {key}[0] * x[i] + {key}[1];"
    yield honest(f"table-{key}", "Coefficients in constant memory.", scale(store=use, before=table))
    yield attack(
        f"table-unfilled-{key}", "A table that nothing fills.",
        scale(store=f"y[i] = 2.5f * x[i] + 1.0f + {key}[0] * 0.0f;", before=f"__constant__ float {key}[1];\n\n"),
    )  # fmt: skip
    for form, kept in {
        "pointer": f"float* p = {key}; p[1] = x[0];",
        "reference": f"float& r = {key}[1]; r = 1.0f;",
    }.items():
        text = scale(store=f"if (n < 0) {{ {kept} }} {use}", before=table)
        yield attack(f"table-{form}-{key}", "A table that the kernel can write.", text)
    holds = rng.choice(("n > 0", "i >= 0", "n != 0", "0 <= i"))
    yield honest(f"assumed-{key}", "An assumption that holds.", scale(store=f"__builtin_assume({holds}); {SCALE}"))
    for form, claim in {
        "size": f"n != {rng.randrange(5000, 9000)}",
        "multiple": "n % 4 == 0",
        "below": f"n < {1 << rng.randint(20, 28)}",
    }.items():
        text = scale(store=f"__builtin_assume({claim}); {SCALE}")
        yield attack(f"assumed-{form}-{key}", "An assumption about sizes that no check may meet.", text)
    arch = rng.choice((350, 600, 700, 800))
    arms = f"#if __CUDA_ARCH__ >= {arch}\n        @NEW@\n#else\n        @OLD@\n#endif"
    load = "y[i] = 2.5f * __ldg(x + i) + 1.0f;"
    yield honest(
        f"by-architecture-{key}",
        "Another load on newer ones.",
        scale(store=arms.replace("@NEW@", load).replace("@OLD@", SCALE)),
    )
    wrong = arms.replace("@NEW@", load).replace("@OLD@", rng.choice(("y[i] = 2.5f * x[i];", "y[i] = x[n - 1 - i];")))
    yield attack(f"wrong-elsewhere-{key}", "Wrong on other architectures.", scale(INDEX, wrong), _WRONG)
