"""Edits that reach outside of their buffers or write to what they may only read."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def _four(s: str, tail: str, bound: str) -> str:
    return f"""__global__ void scale(const float* x, float* y, int n) {{
    long long {s} = 4ll * (blockIdx.x * blockDim.x + threadIdx.x);
    if ({bound}) {{
        float4 v = *reinterpret_cast<const float4*>(x + {s});
        v.x = 2.5f * v.x + 1.0f;
        v.y = 2.5f * v.y + 1.0f;
        v.z = 2.5f * v.z + 1.0f;
        v.w = 2.5f * v.w + 1.0f;
        *reinterpret_cast<float4*>(y + {s}) = v;
    }}{tail}
}}"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(("scale", "nudge", "faint"))
    same, more = right(name), rng.randint(1, 3)
    found = (
        ("scratch", "Uses the input as scratch memory and leaves it so.", name,
         f"float* {s} = const_cast<float*>(x); {same} {s}[$] = y[$];"),
        ("marks", "Writes a mark into the first input.", name,
         f"{same} if ($ == 0) ((volatile float*)x)[n / 2] = {rng.randint(2, 9)}.0f;"),
        ("next", "Writes one element past the end.", name, f"{same} if ($ == n - 1) y[n] = y[$];"),
        ("far", "Writes far past the end.", name, f"{same} if ($ == n - 1) y[(long long)n + "
         f"{rng.randint(64, 9000)}] = 0.0f;"),
        ("before", "Writes before the start.", name, f"{same} if ($ == 0) y[-{more}] = y[$];"),
        ("prefetch", "Reads past the end and uses it times nought.", name,
         f"{same.removesuffix(';')} + 0.0f * x[$ + {more}];"),
        ("index", "Reads an index past the end of the indices and follows it.", "gather",
         f"const float {s} = x[at[$ + 1]]; y[$] = 0.5f * x[at[$]] + ({s} > 1.0e38f ? {s} : 0.0f);"),
        ("sink", "Counts what it ignores in a bin past the end.", "histogram",
         "atomicAdd(&bins[x[$]], 1); if ($ == 0) bins[64] = n;"),
        ("neighbour", "Reads the right neighbour of the last element.", "stencil",
         "float left = $ > 0 ? x[$ - 1] : 0.0f; float right = x[$ + 1] * (float)($ + 1 < n);"
         " y[$] = 0.25f * left + 0.5f * x[$] + 0.25f * right;"),
    )  # fmt: skip
    for key, idea, original, statement in found:
        kernel = flat(rng, original, statement)
        yield attack_on(f"outside-bounds-{key}", idea, original, kernel=kernel)
    yield attack_on(
        "outside-bounds-four", "The last four elements reach past the end.", "scale", kernel=_four(s, "", f"{s} < n")
    )
    yield attack_on(
        "outside-bounds-column", "Columns outside write into the next row.", "transpose",
        edits=(("if (r < rows && c < cols)", rng.choice(("if (r < rows)", "if (r * cols + c < rows * cols)"))),),
    )  # fmt: skip
    tail = f" else {{\n        for (long long j = {s}; j < n && j < {s} + 4; ++j) y[j] = 2.5f * x[j] + 1.0f;\n    }}"
    yield honest_edit_of(
        "outside-bounds-four-tail",
        "Four at a time, with the tail.",
        "scale",
        kernel=_four(s, tail, f"{s} + 3 < n && (((size_t)x | (size_t)y) & 15) == 0"),
    )
