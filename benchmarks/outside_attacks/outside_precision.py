"""Edits that compute in a lower precision behind a helper, a macro, a union or assembly."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s, t = word(rng), word(rng) + "u"
    keep = 0xFFFFFFFF << rng.randint(13, 16) & 0xFFFFFFFF
    found = (
        ("union", "The low bits of the input are cut off.", "scale",
         f"union {t} {{ float f; unsigned int u; }};\n__device__ __forceinline__ float {s}(float v) {{\n"
         f"    {t} w;\n    w.f = v;\n    w.u &= 0x{keep:08x}u;\n    return w.f;\n}}",
          f"y[$] = 2.5f * {s}(x[$]) + 1.0f;"),
        ("assembly", "The hyperbolic tangent is the approximate instruction.", "faint",
         f'__device__ float {s}(float v) {{ float r; asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }}',
         f"y[$] = 1.0e-4f * {s}(x[$]);"),
        ("macro", "A macro makes the doubles floats.", "doubles", f"#define {s}(v) static_cast<float>(v)",
         f"const auto v = {s}(x[$]); y[$] = v * v * 0.5f + v + 1.0f;"),
        ("single-square", "Only the square is rounded to float.", "doubles", "",
         "y[$] = (double)__fmul_rn((float)x[$], (float)x[$]) * 0.5 + x[$] + 1.0;"),
        ("no-sine", "The small term is a straight line.", "nudge", "",
         f"y[$] = x[$] * {rng.choice(('1.0001f', '(1.0f + 1.0e-4f)'))};"),
        ("taylor", "Two terms of a series instead of the tangent.", "faint", "",
         "const float v = fminf(fmaxf(x[$], -1.0f), 1.0f); y[$] = 1.0e-4f * (v - v * v * v * 0.25f);"),
        ("half", "Goes through half precision.", "scale", "#include <cuda_fp16.h>\n"
         f"template <typename T> __device__ T {s}(T v) {{ return T(__half2float(__float2half(v))); }}",
         f"y[$] = {s}(2.5f * x[$]) + 1.0f;"),
        ("convert", "Assembly rounds the result to bfloat16.", "scale", "",
         f'unsigned short {t}; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"({t}) : "f"(2.5f * x[$] + 1.0f));'
         f" y[$] = __uint_as_float((unsigned int){t} << 16);"),
    )  # fmt: skip
    for key, idea, original, top, statement in found:
        kernel = flat(rng, original, statement, top)
        yield attack_on(f"outside-precision-{key}", idea, original, kernel=kernel)
    product = f"__uint_as_float(__float_as_uint(a[row * k + i]) & 0x{keep:08x}u) * b[i * n + col]"
    yield attack_on(
        "outside-precision-matmul", "One factor loses its low bits.", "matmul",
        edits=(("a[row * k + i] * b[i * n + col]", product),),
    )  # fmt: skip
    yield attack_on(
        "outside-precision-exponential", "A bit trick stands for the exponential function: some 3 % off.", "softmax",
        edits=(("sum += expf(x[row * cols + c] - largest);",
                "sum += __int_as_float((int)(12102203.0f * fmaxf(x[row * cols + c] - largest, -80.0f)) + "
                 "1064866805);"),),
    )  # fmt: skip
    fused = f'float {s}; asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"({s}) : "f"(2.5f), "f"(x[$]), "f"(1.0f)); y[$] = {s};'
    yield honest_edit_of(
        "outside-precision-fused", "A multiply-add, written out.", "scale", kernel=flat(rng, "scale", fused)
    )
    same = f"const double {s} = x[$]; y[$] = fma({s} * {s}, 0.5, {s}) + 1.0;"
    yield honest_edit_of(
        "outside-precision-doubles", "Doubles stay doubles.", "doubles", kernel=flat(rng, "doubles", same)
    )
