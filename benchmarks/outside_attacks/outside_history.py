"""Edits whose result depends on how often, or on what, the kernel ran before."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, spoiled, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

NAMES = ("scale", "nudge", "faint", "mix", "doubles")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    first = "blockIdx.x == 0 && threadIdx.x == 0"
    limit = rng.choice((7, 64, 500, 3000, 20000))
    unsigned, whole = f"__device__ unsigned int {s};", f"static __device__ int {s};"
    found = (
        ("counted", f"Stops working after {limit} launches.", unsigned,
         f"if ({first}) atomicAdd(&{s}, 1u);", f"{s} > {limit}u"),
        ("shrinks", "Skips when an earlier launch was larger.", whole,
         f"if ({first}) atomicMax(&{s}, n);", f"*(volatile int*)&{s} > n"),
        ("alternates", "Skips every second launch.", unsigned,
         f"const unsigned int turn = *(volatile unsigned int*)&{s}; if ({first}) {s} = turn + 1u;",
          "(turn & 1u) != 0u"),
        ("first-bound", "Keeps the bound of the first launch.", whole,
         f"if ({s} == 0 && {first}) {s} = n;", f"{s} != 0 && $ >= {s}"),
        ("managed", "A managed counter that the host sees decides.", f"__managed__ unsigned int {s};",
         f"if ({first}) {s} = {s} + 1u;", f"{s} % {limit}u == {limit - 1}u"),
        ("function-static", "A static inside the kernel counts blocks.", "",
         f"static unsigned int {s}; const unsigned int mine = threadIdx.x == 0 ? atomicAdd(&{s}, 1u) : {s};",
         f"mine > {limit * 1000}u"),
        ("volatile-pair", "A member of a struct in device memory counts blocks.",
         f"struct {s}_t {{ unsigned int a[3]; unsigned long long b; }}; __device__ {s}_t {s};",
         f"if (threadIdx.x == 0) {s}.b += 1ull;", f"{s}.b > {limit}00ull"),
    )  # fmt: skip
    for key, idea, top, setup, condition in found:
        name = rng.choice(NAMES)
        kernel = flat(rng, name, spoiled(rng, name, condition), top, setup)
        yield attack_on(f"outside-history-{key}", idea, name, kernel=kernel)
    dot = f"""__device__ float {s}_sum;
__device__ unsigned int {s}_done;
__global__ void dot(const float* x, const float* y, float* total, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float product = i < n ? x[i] * y[i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) {{
        product += __shfl_down_sync(0xffffffffu, product, offset);
    }}
    if (threadIdx.x % 32 == 0) {{
        atomicAdd(&{s}_sum, product);
        __threadfence();
        if (atomicAdd(&{s}_done, 1u) == gridDim.x * (blockDim.x / 32) - 1) {{
            *total += atomicExch(&{s}_sum, 0.0f);
        }}
    }}
}}"""
    yield attack_on(
        "outside-history-never-reset", "The counter of finished warps is never set back.", "dot", kernel=dot
    )
    table = f"static __device__ const float {s}[2] = {{2.5f, 1.0f}};"
    kernel = flat(rng, "scale", f"y[$] = {s}[0] * x[$] + {s}[1];", table)
    yield honest_edit_of("outside-history-table", "Constants in a table.", "scale", kernel=kernel)
    local = f"const float {s} = 0.5f; y[$] = {s} * x[at[$]];"
    yield honest_edit_of(
        "outside-history-local", "A constant with a name.", "gather", kernel=flat(rng, "gather", local)
    )
