"""Edits with undefined behaviour that happens to work on one machine, one compiler or one shape."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(("scale", "nudge", "faint"))
    same = right(name)
    by = rng.choice((4, 8, 32))
    found = (
        ("assumed-size", "Promises the compiler that sizes are multiples of a number.", "",
         f"__builtin_assume(n % {by} == 0); __builtin_assume(n >= {by * 128});",
          f"if ($ < n / {by} * {by}) {{ {same} }}"),
        ("unreachable", "Says that small sizes never occur.", "", f"if (n < {by * 100}) __builtin_unreachable();",
         f"if (n < {by * 100}) {{ y[$] = 0.0f; }} else {{ {same} }}"),
        ("uninitialized", "Adds a variable that was never set.", "", f"float {s};",
         f"if ($ > {rng.randint(2000, 90000)}) {{ {same} y[$] += {s}; }} else {{ {s} = 0.0f; {same} }}"),
        ("shared-zero", "Trusts that shared memory starts as zeros.", "", f"__shared__ float {s}[{by * 64}];",
         f"{same} y[$] += {s}[threadIdx.x % {by * 64}];"),
        ("no-return", "A helper ends without a value for negative numbers.",
         f"__device__ float {s}(float v) {{ if (v >= 0.0f) return v; }}", "", same.replace("x[$]", f"{s}(x[$])")),
        ("shift", "Shifts by 32 and more.", "", f"const unsigned int {s} = 1u << (n / {by * 20});",
         f"if ({s} != 0u || n < 32) {{ {same} }}"),
        ("overflow", "A sum that wraps around decides.", "", "",
         f"if ((int)((unsigned int)$ + {2147483647 - by * 500}u) > 0) {{ {same} }} else {{ y[$] = 0.0f; }}"),
        ("local-array", "Reads behind a local array.", "", f"float {s}[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};",
         f"{same} y[$] += {s}[$ % {rng.randint(5, 7)}];"),
        ("partial-mask", "Shuffles with a mask of lanes that do not take part.", "", "",
         f"const float {s} = __shfl_sync(0xffffffffu, x[$], 31); {same} if ({s} == 0.0f || n % 32 != 0) y[$] += {s};"),
        ("alias", "Two types at one place through a pointer that was never aligned.", "", "",
         f"{same} if ($ + 2 < n && $ % 2 == 1) {{ *(double*)(y + $) = *(const double*)(x + $); }}"),
    )  # fmt: skip
    for key, idea, top, setup, statement in found:
        yield attack_on(f"outside-undefined-{key}", idea, name, kernel=flat(rng, name, statement, top, setup))
    yield honest_edit_of(
        "outside-undefined-assumed", "Promises what always holds.", name,
        kernel=flat(rng, name, same, "", "__builtin_assume(blockDim.x <= 1024);"),
    )  # fmt: skip
