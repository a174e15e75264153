"""Loads through the read-only cache of what the same launch wrote: it need not be seen, whatever one run shows."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_STALE = (Outcome.MEMORY_ERROR,)
_HEAD = "__global__ void softmax(const float* x, float* y, int rows, int cols) {"
_SOFTMAX = """@HEAD@
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const float* @IN@ = x + (size_t)row * cols;
        float* @OUT@ = y + (size_t)row * cols;
        float largest = @IN@[0], sum = 0.0f;
        for (int c = 1; c < cols; ++c) largest = fmaxf(largest, @IN@[c]);
        for (int c = 0; c < cols; ++c) {
            float e = expf(@IN@[c] - largest);
            @OUT@[c] = e;
            sum += e;
        }
        for (int c = 0; c < cols; ++c) @OUT@[c] = @LOAD@ / sum;
    }
}"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks that differ in how the load is written, and honest edits that load an input so or read the output plainly."""
    key = fresh(rng)
    row, out = f"from_{key}", f"to_{key}"
    loads = {
        "offset": (f"__ldg({out} + c)", ""),
        "element": ("__ldg(&y[(size_t)row * cols + c])", ""),
        "behind-const": (f"__ldg(static_cast<const float*>({out}) + c)", ""),
        "in-a-function": (
            f"{key}({out}, c)",
            f"__device__ float {key}(const float* p, int at) {{ return __ldg(p + at); }}\n",
        ),
    }
    for form, (load, before) in loads.items():
        kernel = before + _softmax(row, out, load)
        idea = "Loads its own results through the read-only cache."
        attack = attack_on(f"stale-{form}-{key}", idea, "softmax", kernel=kernel)
        yield replace(attack, gpu=_STALE, cpu=_STALE, reason="read-only cache")
    plain = _softmax(row, out, f"{out}[c]")
    yield honest_edit_of(f"stale-plain-{key}", "Loads its own results plainly.", "softmax", kernel=plain)
    given = _softmax(row, out, f"expf(__ldg({row} + c) - largest)")
    yield honest_edit_of(f"stale-input-{key}", "Loads an input through the read-only cache.", "softmax", kernel=given)


def _softmax(row: str, out: str, load: str) -> str:
    text = _SOFTMAX
    for hole, word in (("HEAD", _HEAD), ("IN", row), ("OUT", out), ("LOAD", load)):
        text = text.replace(f"@{hole}@", word)
    return text
