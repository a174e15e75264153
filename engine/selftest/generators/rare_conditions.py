"""Every condition of an edit is seen true and false in a check: code that only rare sizes or values reach is not verified."""

import random
from collections.abc import Iterator

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, attack, fresh, honest, scale

_UNMET = (Outcome.GUARDRAIL, Outcome.WRONG_RESULT)  # a drawn size may meet it by chance


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks in the forms that a condition can take, and honest edits whose conditions every check meets."""
    key, odd, wrong = fresh(rng), rng.randrange(1 << 30) * 2 + 1, f"{rng.randrange(1001, 1099) / 1000}f"
    rare = f"((unsigned)n * {odd}u) >> 12 == {rng.randrange(1 << 20)}u"
    bits = f"(__float_as_uint(x[i]) * {odd}u) >> 9 == {rng.randrange(1 << 23)}u"
    spoilt = f"y[i] = {wrong} * x[i];"
    forms = {
        "hashed-size": ("Is wrong where a hash of the size has one value.", f"{SCALE}\n        if ({rare}) {{ {spoilt} }}"),
        "hashed-value": ("Is wrong where a hash of the bits has one value.", f"{SCALE}\n        if ({bits}) {{ {spoilt} }}"),
        "chosen": ("Chooses another factor where a hash of the size has one value.", f"y[i] = ({rare} ? {wrong} : 2.5f) * x[i] + 1.0f;"),
        "as-number": ("Adds a comparison that is hardly ever true.", f"y[i] = 2.5f * x[i] + 1.0f + {wrong} * ({rare});"),
        "negated": ("Adds a negation that is hardly ever true.", f"y[i] = 2.5f * x[i] + 1.0f + {wrong} * !(((unsigned)n * {odd}u) >> 12);"),
        "switched": (
            "Has a case for one value of a hash of the size.",
            f"switch (((unsigned)n * {odd}u) >> 12) {{ case {rng.randrange(1 << 20)}u: {spoilt} break; default: {SCALE} }}",
        ),
        "declared": ("Declares what it tests.", f"{SCALE}\n        if (bool {key} = {rare}) {{ y[i] *= {key} ? {wrong} : 1.0f; }}"),
    }  # fmt: skip
    for form, (idea, store) in forms.items():
        yield attack(f"rare-{form}-{key}", idea, scale(store=store), _UNMET)
    macro = f"#define {key.upper()}(v) (({rare.replace('n *', '(v) *')}) ? {wrong} : 2.5f)\n"
    yield attack(
        f"rare-macro-{key}", "Hides the condition in a macro.",
        scale(before=macro, store=f"y[i] = {key.upper()}(n) * x[i] + 1.0f;"), _UNMET,
    )  # fmt: skip
    helper = f"__device__ __forceinline__ float {key}(int n) {{ return {rare} ? {wrong} : 2.5f; }}\n"
    yield attack(
        f"rare-helper-{key}", "Hides the condition in a device function.",
        scale(before=helper, store=f"y[i] = {key}(n) * x[i] + 1.0f;"), _UNMET,
    )  # fmt: skip
    step = rng.choice((2, 4, 8))
    body = f"""{INDEX}
    long long {key} = {step}ll * i;
    if ({key} + {step} <= n) {{
        for (int k = 0; k < {step}; ++k) y[{key} + k] = 2.5f * x[{key} + k] + 1.0f;
    }} else {{
        for (long long k = {key}; k < n; ++k) y[k] = 2.5f * x[k] + 1.0f;
    }}"""
    kernel = f"__global__ void scale(const float* x, float* y, int n) {{\n    {body}\n}}\n"
    yield honest(f"met-remainder-{key}", "Has a loop for the remainder.", kernel)
    folded = (
        f"template <int N> __device__ float {key}(float v) {{ if (N > 4) {{ return 2.0f * v; }} return 2.5f * v; }}\n"
    )
    yield honest(
        f"met-constant-{key}", "Tests a constant.", scale(before=folded, store=f"y[i] = {key}<{rng.choice((1, 2, 4))}>(x[i]) + 1.0f;")
    )  # fmt: skip
    guard = "reinterpret_cast<size_t>(x) % 8 == 0 && reinterpret_cast<size_t>(y) % 8 == 0"
    pairs = f"""{INDEX}
    if ({guard} && 2ll * i + 1 < n) {{
        float2 {key} = reinterpret_cast<const float2*>(x)[i];
        reinterpret_cast<float2*>(y)[i] = make_float2(2.5f * {key}.x + 1.0f, 2.5f * {key}.y + 1.0f);
    }} else {{
        for (long long k = 2ll * i; k < n && k < 2ll * i + 2; ++k) y[k] = 2.5f * x[k] + 1.0f;
    }}"""
    kernel = f"__global__ void scale(const float* x, float* y, int n) {{\n    {pairs}\n}}\n"
    yield honest(f"met-alignment-{key}", "Uses vectors where the addresses allow it.", kernel)
