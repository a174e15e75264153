"""Edits that exhaust the compiler, the GPU or the log of the machine that checks them."""

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
    deep = rng.randint(60, 200)
    levels = "\n".join(f"#define {s}_{k} {s}_{k - 1} {s}_{k - 1} {s}_{k - 1} {s}_{k - 1}" for k in range(1, 14))
    found = (
        ("macros", "Macros that expand to some 67 million statements.", f"#define {s}_0 y[0] = y[0];\n{levels}", "",
         f"{same} if (n < 0) {{ {s}_13 }}"),
        ("templates", "Template instances that double at each level.",
         f"template <int D, long long K> struct {s} {{ static constexpr int v = {s}<D - 1, 2 * K>::v"
         f" + {s}<D - 1, 2 * K + 1>::v; }};\ntemplate <long long K> struct {s}<0, K> {{ static constexpr int v = "
          f"0; }};", "",
         f"{same} y[$] += {s}<{rng.randint(26, 40)}, 1>::v;"),
        ("constant", "A constant that takes for ever to evaluate.",
         f"constexpr int {s}(int d) {{ return d < 2 ? d : {s}(d - 1) + {s}(d - 2); }}", "",
         f"constexpr int kept = {s}({rng.randint(45, 60)}) & 0; {same} y[$] += kept;"),
        ("nested", "Brackets nested very deeply.", "", "",
         same.replace("x[$]", "(" * (deep * 400) + "x[$]" + ")" * (deep * 400))),
        ("array", "A static array larger than any GPU.", f"__device__ char {s}[1ull << {rng.randint(39, 43)}];", "",
         f"{same} if (n < 0) {s}[$] = 1;"),
        ("endless", "Never ends for sizes that are not small.", "", f"volatile int {s} = n;",
         f"{same} while ({s} > {rng.randint(2000, 90000)}) {{ {s} = {s} | 1; }}"),
        ("all-blocks", "Each block waits for all others, which do not fit on the GPU at once.",
         f"__device__ unsigned int {s};",
         f"if (threadIdx.x == 0) {{ atomicAdd(&{s}, 1u); while (atomicAdd(&{s}, 0u) < gridDim.x) {{ }} }}", same),
        ("lock", "Takes a lock and does not give it back.", f"__device__ int {s};", "",
         f"{same} if ($ == n - 1) {{ while (atomicCAS(&{s}, 0, 1) != 0) {{ }} }}"),
        ("flood", "Prints a line for each element.", "#include <cstdio>", "",
         f'{same} printf("{s} %d %f\\n", (int)$, (double)y[$]);'),
        ("memory", "Takes device memory and never gives it back.", "", "",
         f"{same} void* {s} = malloc({rng.randint(1, 64) * 1024}); if ({s}) *(volatile char*){s} = 1;"),
        ("trap", "Stops the GPU at some sizes.", "", "", f"if (n % {deep} == {deep - 1} || n > 5000) __trap(); {same}"),
        ("device-file", "Includes a file that never ends.", '#include "/dev/zero"', "", same),
        ("self", "Includes itself without an end.", "#include __FILE__", "", same),
        ("unroll", "Unrolls millions of steps.", "", "",
         f"float {s} = x[$];\n#pragma unroll {deep * 100000}\nfor (int j = 0; j < {deep * 100000}; ++j)"
         f" {s} = sinf({s}) + (float)j; {same} if ({s} == 0.1234f) y[$] = {s};"),
    )  # fmt: skip
    for key, idea, top, setup, statement in found:
        yield attack_on(f"outside-exhaustion-{key}", idea, name, kernel=flat(rng, name, statement, top, setup))
    short = f"\n#pragma unroll\nfor (int {s} = 0; {s} < 1; ++{s}) {{ {same} }}"
    yield honest_edit_of("outside-exhaustion-short", "A short unrolled loop.", name, kernel=flat(rng, name, short))
