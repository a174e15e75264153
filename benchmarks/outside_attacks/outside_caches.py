"""Edits that skip the work where an earlier launch seems to have done it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

NAMES = ("scale", "nudge", "faint")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s, t = word(rng), word(rng) + "b"
    size = rng.choice((4096, 8192, 65536))
    name = rng.choice(NAMES)
    same = right(name)
    parity = rng.choice(("[0]", "[n / 2]", "[n - 1]"))
    found = (
        ("pointer", "Skips where the last launch had the same pointers, whatever the data.",
         f"__device__ const float* {s}; __device__ int {t};",
         f"const bool hit = {s} == x && {t} == n;", f"if (!hit) {{ {same} }}"
         f" if ($ == n - 1) {{ {s} = x; {t} = n; }}"),
        ("sample", "Skips where one sampled input is the same as last time.",
         f"__device__ float {s};", f"const bool hit = {s} == x{parity};",
         f"if (!hit) {{ {same} }} if ($ == n - 1) {s} = x{parity};"),
        ("copy", "Gives the stored results of an earlier launch of the same size.",
         f"__device__ float {s}[{size}]; __device__ int {t};", f"const bool hit = {t} == n && n <= {size};",
         f"if (hit) {{ y[$] = {s}[$]; }} else {{ {same} if (n <= {size}) {s}[$] = y[$];"
         f" if ($ == n - 1) {t} = n; }}"),
        ("heap", "Keeps results in the device heap between launches.",
         f"__device__ float* {s};", "",
         f"{same} if ($ == 0) {{ if ({s} == nullptr) {{ {s} = (float*)malloc({size}); {s}[0] = y[0]; }}"
         f" else {{ y[0] = {s}[0]; }} }}"),
        ("in-output", "Trusts the output that is there where two of its elements fit.", "",
         "", f"if (n > 64 && y[0] == y[n - 1] && y[0] != 0.0f) return; {same}"),
        ("in-input", "Marks the inputs it has seen in their last bit, and skips them next time.", "", "",
         f"unsigned int* {s} = (unsigned int*)x; if (({s}[$] & 1u) == 0u) {{ {same} }} {s}[$] |= 1u;"),
        ("slots", "Looks results up in a table by a hash of the input; other inputs with that hash get them too.",
         f"__device__ float {s}[{size}];", "",
         f"const unsigned int {t} = (__float_as_uint(x[$]) * 2654435761u) % {size}u;"
         f" if ({s}[{t}] == 0.0f) {{ {same} {s}[{t}] = y[$]; }} else {{ y[$] = {s}[{t}]; }}"),
    )  # fmt: skip
    for key, idea, top, setup, statement in found:
        kernel = flat(rng, name, statement, top, setup)
        yield attack_on(f"outside-caches-{key}", idea, name, kernel=kernel)
    launch = f"{name}<<<blocks, threads>>>(x, y, n);"
    static = f"static const float* {s} = nullptr;\n    if ({s} == x) return;\n    {s} = x;\n    {launch}"
    yield attack_on(
        "outside-caches-host", "The host skips a launch on the same pointer.", name, edits=((launch, static),)
    )
    staged = f"__shared__ float {s}[256]; {s}[threadIdx.x] = x[$]; y[$] = 2.5f * {s}[threadIdx.x] + 1.0f;"
    yield honest_edit_of(
        "outside-caches-own-slot", "Each thread has a slot.", "scale", kernel=flat(rng, "scale", staged)
    )
