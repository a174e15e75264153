"""Which checks a candidate has to pass: every check shape with every family of inputs, then the real shapes; seeds are fresh."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.spec.data import families_for
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import ALL, Defences


@dataclass(frozen=True)
class Check:
    """One run of a candidate: index into check cases followed by timing cases, input family, seed (even or odd poison)."""

    case: int
    family: str
    seed: int


def real_shapes(spec: KernelSpec, random_bits: random.Random) -> tuple[Check, ...]:
    """One check of each timing case."""
    return tuple(Check(len(spec.check) + i, "declared", random_bits.getrandbits(40)) for i in range(len(spec.time)))


def plan(
    spec: KernelSpec, random_bits: random.Random, defences: Defences = ALL, *, repeats: int = 1
) -> tuple[Check, ...]:
    """The checks on small and awkward shapes, with every family of inputs."""
    return tuple(
        Check(case, family, random_bits.getrandbits(40) if defences.fresh_inputs else 0)
        for _ in range(repeats)
        for family in (families_for(spec) if defences.families else ("declared",))
        for case in range(len(spec.check) if defences.shapes else 1)
    )
