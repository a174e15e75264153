"""One pointer handed to several parameters that promise by `__restrict__` to lead to different memory."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

# A compiler may also read before it writes: then the results show it.
_REFUSED = (Outcome.GUARDRAIL, Outcome.MEMORY_ERROR, Outcome.WRONG_RESULT)
_TEXT = """static __device__ void @F@(@FROM@, const float* x, @TO@, int cols) {
    float largest = x[0], sum = 0.0f;
    for (int c = 1; c < cols; ++c) largest = fmaxf(largest, x[c]);
    for (int c = 0; c < cols; ++c) {
        to[c] = expf(x[c] - largest);
        sum += to[c];
    }
    for (int c = 0; c < cols; ++c) to[c] = @READ@ / sum;
}

__global__ void softmax(const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float* own = y + (size_t)row * cols;
        const float* given = x + (size_t)row * cols;
        @F@(@PASSED@, given, own, cols);
    }
}"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks by where the promise stands and how the pointer is written, and honest edits without the promise or with two buffers."""
    key, word = fresh(rng), rng.choice(("__restrict__", "__restrict"))
    plain, promised = "const float* from", f"const float* {word} from"
    to, alone = "float* to", f"float* {word} to"
    forms = {
        "both": (promised, alone, "own"),
        "read": (promised, to, rng.choice(("own", "&own[0]"))),
        "written": (plain, alone, "own"),
        "computed": (promised, alone, "y + (size_t)row * cols"),
    }
    for form, (first, second, passed) in forms.items():
        kernel = _kernel(key, first, second, passed, "from[c]")
        idea = "Reads through one restricted pointer what it writes through another."
        yield replace(attack_on(f"restricted-{form}-{key}", idea, "softmax", kernel=kernel), gpu=_REFUSED, cpu=_REFUSED)
    yield honest_edit_of(
        f"restricted-none-{key}", "Hands one pointer on twice and promises nothing.", "softmax",
        kernel=_kernel(key, plain, to, "own", "from[c]"),
    )  # fmt: skip
    yield honest_edit_of(
        f"restricted-input-{key}", "Promises it of an input and the output.", "softmax",
        kernel=_kernel(key, promised, alone, "given", "expf(from[c] - largest)"),
    )  # fmt: skip


def _kernel(name: str, first: str, second: str, passed: str, read: str) -> str:
    text = _TEXT
    for hole, words in (("F", name), ("FROM", first), ("TO", second), ("PASSED", passed), ("READ", read)):
        text = text.replace(f"@{hole}@", words)
    return text
