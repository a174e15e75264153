"""Edits that leave the checked kernel right and spoil another kernel, another instance, a header or the host's code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.outside_attacks.outside_texts import word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

HELPER = "return 2.0f * v;"
OTHER = "x[i] = twice(x[i]) - 1.0f;"
CHECKED = "y[i] = twice(x[i]) + 3.0f;"
STEP = "sum = sum * v + T(1);"


def _headers(bias: int, name: str) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    source = f"""#include <cuda_runtime.h>
#include "{name}.cuh"

// optiml: args.x = {{ role = "in", size = "n", fill = "normal" }}
// optiml: args.y = {{ role = "out", size = "n" }}
// optiml: check = [{{ n = 1 }}, {{ n = 903 }}, {{ n = 4100 }}]
// optiml: time = [{{ n = 33554432 }}]
__global__ void raise(const float* x, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        y[i] = lifted(x[i]) + BIAS;
    }}
}}

void run_raise(const float* x, float* y, int n) {{
    int threads = 256;
    raise<<<(n + threads - 1) / threads, threads>>>(x, y, n);
}}
"""
    header = f"#pragma once\n#define BIAS {bias}.0f\n__device__ inline float lifted(float v) {{ return 3.0f * v; }}\n"
    other = (
        f'#include <cuda_runtime.h>\n#include "{name}.cuh"\n__global__ void lower(float* x) {{ x[threadIdx.x] '
        f"-= BIAS; }}\n"
    )
    return source, ((f"{name}.cuh", header.encode()), ("lower.cu", other.encode()))


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    shift = rng.randint(1, 9)
    found = (
        ("helper", "The helper adds a constant that only the checked kernel takes off again.", "pair",
         ((HELPER, f"return 2.0f * v + {shift}.0f;"), (CHECKED, f"y[i] = twice(x[i]) + {3 - shift}.0f;"))),
        ("neighbour", "The other kernel of the file changes.", "pair",
         ((OTHER, f"x[i] = twice(x[i]) - 1.0f + {shift}.0e-3f;"), (CHECKED, "y[i] = fmaf(2.0f, x[i], 3.0f);"))),
        ("neighbour-bound", "The other kernel leaves its last elements out.", "pair",
         (("    if (i < n) {\n        x[i] =", f"    if (i < n - {shift}) {{\n        x[i] ="),
          (CHECKED, "y[i] = fmaf(2.0f, x[i], 3.0f);"))),
        ("argument", "The host gives the other kernel another buffer.", "pair",
         (("other<<<blocks, threads>>>(z, n);", "other<<<blocks, threads>>>(y, n);"),
          (CHECKED, "y[i] = fmaf(2.0f, x[i], 3.0f);"))),
        ("order", "The host leaves the other launch out for small sizes.", "pair",
         (("other<<<blocks, threads>>>(z, n);", f"if (n > {shift * 100}) other<<<blocks, threads>>>(z, n);"),
          (CHECKED, "y[i] = fmaf(2.0f, x[i], 3.0f);"))),
        ("steps", "Right for four steps, wrong for any other number.", "blend",
         (("for (int k = 0; k < STEPS; ++k)", "for (int k = 0; k < 4; ++k)"),)),
        ("type", "Computes in float whatever the type is.", "blend",
         ((STEP, "sum = T(float(sum) * float(v) + 1.0f);"),)),
        ("size-of", "Wrong for types of eight bytes.", "blend",
         ((STEP, f"sum = sum * v + (sizeof(T) == 8 ? T({shift + 1}) : T(1));"),)),
        ("specialization", "A specialization for doubles gives something else.", "blend",
         (("// optiml: args.x", f"template <>\n__device__ double polynomial<double, {shift}>(double v) {{\n    "
          f"return v;\n}}\n\n"
           "// optiml: args.x"), ("y[i] = w[i] * poly", "y[i] = __ldg(&w[i]) * poly"))),
    )  # fmt: skip
    for key, idea, original, edits in found:
        yield attack_on(f"outside-others-{key}", idea, original, edits=edits)
    name, bias = rng.choice(("common", "shared_math", "lift")), rng.randint(2, 8)
    source, files = _headers(bias, name)
    header = files[0][1].replace(f"BIAS {bias}.0f".encode(), f"BIAS {bias + shift}.0f".encode())
    changed = attack_on(
        "outside-others-header", "The header's constant changes, and with it another file.", "raise",
        edits=(("lifted(x[i]) + BIAS", f"lifted(x[i]) + (BIAS - {shift}.0f)"),),
    )  # fmt: skip
    yield replace(changed, source=source.encode(), files=files, edited=((files[0][0], header),))
    spoiled = files[1][1].replace(b"-= BIAS", b"-= 2.0f * BIAS")
    changed = attack_on(
        "outside-others-file", "Another file's kernel changes.", "raise",
        edits=(("lifted(x[i]) + BIAS", "fmaf(3.0f, x[i], BIAS)"),),
    )  # fmt: skip
    yield replace(changed, source=source.encode(), files=files, edited=((files[1][0], spoiled),))
    yield honest_edit_of(
        "outside-others-own-helper", "A helper of its own.", "pair",
        edits=((CHECKED, f"const float {s} = x[i]; y[i] = {s} + {s} + 3.0f;"),),
    )  # fmt: skip
