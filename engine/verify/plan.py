"""Which checks a candidate has to pass: every check shape with every family of inputs, then the real shapes; seeds are fresh."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.spec.data import families_for
from engine.spec.model import KernelSpec


@dataclass(frozen=True)
class Check:
    """One run of a candidate: index into check cases followed by timing cases, input family, seed (even or odd poison)."""

    case: int
    family: str
    seed: int


def plan(
    spec: KernelSpec, random_bits: random.Random, *, repeats: int = 1, real_shapes: bool = True
) -> tuple[Check, ...]:
    """The checks in the order that refutes soonest: awkward shapes first, real shapes last."""
    families = families_for(spec)
    checks = [
        Check(case, family, random_bits.getrandbits(40))
        for _ in range(repeats)
        for family in families
        for case in range(len(spec.check))
    ]
    if real_shapes:
        checks += [Check(len(spec.check) + i, "declared", random_bits.getrandbits(40)) for i in range(len(spec.time))]
    return tuple(checks)
