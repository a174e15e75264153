"""Callers that pass one buffer for input and output: an edit that reads what other threads may have written by then."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a kernel that its caller uses in place, and honest forms that read before they write."""
    key, lanes = fresh(rng), rng.choice((32, 64))
    direct = f"y[i] = 0.5f * x[blockIdx.x * 256 + 255 - {key}];"
    halves = (
        f"const float {key}_v = {key} < 128 ? x[blockIdx.x * 256 + 255 - {key}] : x[blockIdx.x * 256 + (255 - {key})];\n"
        f"    y[i] = 0.5f * {key}_v;"
    )
    few = (
        f"__shared__ float {key}_t[256];\n    {key}_t[{key}] = x[i];\n    __syncthreads();\n"
        f"    y[i] = 0.5f * ({key} % {lanes} ? {key}_t[255 - {key}] : x[blockIdx.x * 256 + 255 - {key}]);"
    )
    for form, body in {"direct": direct, "choice": halves, "some": few}.items():
        yield attack_on(
            f"in-place-{form}-{key}", "Reads what another warp writes, if the caller works in place.", "mirror",
            kernel=_mirror(key, body),
        )  # fmt: skip
    pair = (
        f"const float {key}_v = x[i];\n    __shared__ float {key}_t[256];\n    {key}_t[255 - {key}] = {key}_v;\n"
        f"    __syncthreads();\n    y[i] = 0.5f * {key}_t[{key}];"
    )
    scaled = (
        f"__shared__ float {key}_t[{256 + rng.choice((1, 8))}];\n    {key}_t[{key}] = 0.5f * x[i];\n    __syncthreads();\n"
        f"    y[i] = {key}_t[255 - {key}];"
    )
    for form, body in {"turned": pair, "scaled": scaled}.items():
        yield honest_edit_of(f"in-place-{form}-{key}", "Reads before it writes.", "mirror", kernel=_mirror(key, body))


def _mirror(key: str, body: str) -> str:
    return (
        "__global__ void mirror(const float* x, float* y) {\n"
        f"    const int {key} = threadIdx.x;\n    int i = blockIdx.x * 256 + {key};\n    {body}\n}}\n"
    )
