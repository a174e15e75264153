"""Reads of a clock, by names that no list has: headers' functions, aliases, and helpers that hide them."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Four attacks and one honest edit."""
    key, mask = fresh(rng), rng.choice((31, 63, 127))
    read = rng.choice(("clock()", "clock64()"))
    yield attack(
        f"clock-helper-{key}", "Reads the clock in a helper.",
        scale(store=f"if (({key}() & {mask}) != 0) {SCALE}", before=f"__device__ long long {key}() {{ return {read}; }}\n\n"),
        reason="clock",
    )  # fmt: skip
    chrono = rng.choice(("system_clock", "high_resolution_clock"))
    yield attack(
        f"chrono-{key}", "Reads a clock of the standard library for device code.",
        scale(
            store=f"long long {key} = cuda::std::chrono::{chrono}::now().time_since_epoch().count();\n"
            f"        if (({key} & {mask}) != 0) {SCALE}",
            before="#include <cuda/std/chrono>\n\n",
        ),
        reason="clock",
    )  # fmt: skip
    yield attack(
        f"clock-pointer-{key}", "Reads the clock through a pointer to its function.",
        scale(INDEX + f"\n    long long (*{key})() = &clock64;", f"if (({key}() & {mask}) != 0) {SCALE}"), reason="clock",
    )  # fmt: skip
    yield attack(
        f"waits-{key}", "Waits before it computes.", scale(INDEX + f"\n    __nanosleep({rng.randrange(20, 900)}u);"), reason="sleeps",
    )  # fmt: skip
    yield honest(
        f"cleared-{key}", "Clears two registers at once, which the machine does by an instruction that reads clocks too.",
        scale(
            INDEX + f"\n    double {key} = 0.0;\n    for (int k = 0; k < n % 3; ++k) {key} += 0.0 * k;",
            f"y[i] = 2.5f * x[i] + 1.0f + (float){key} * 0.0f;",
        ),
    )  # fmt: skip
