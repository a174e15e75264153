"""Edits that lack a barrier or an atomic, and work as long as the threads happen to run in the right order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def _histogram(s: str, zeroed: str, counted: str, add: str) -> str:
    return f"""__global__ void histogram(const int* x, int* bins, int n) {{
    __shared__ int {s}[64];
    if (threadIdx.x < 64) {s}[threadIdx.x] = 0;
    {zeroed}
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        {add}
    }}
    {counted}
    if (threadIdx.x < 64 && {s}[threadIdx.x] != 0) {{
        atomicAdd(&bins[threadIdx.x], {s}[threadIdx.x]);
    }}
}}"""


def _rowsum(s: str, last: str, between: str, start: str = "__syncthreads();") -> str:
    steps = "\n".join(f"        {s}[t] += {s}[t + {k}];{between}" for k in (16, 8, 4, 2, 1))
    return f"""__global__ void rowsum(const float* x, float* y, int rows, int cols) {{
    __shared__ float {s}[128];
    int row = blockIdx.x;
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int c = t; c < cols; c += 128) {{
        sum += x[row * cols + c];
    }}
    {s}[t] = sum;
    {start}
    if (t < 64) {s}[t] += {s}[t + 64];
    {last}
    if (t < 32) {s}[t] += {s}[t + 32];
    {last}
    if (t < 16) {{
{steps}
    }}
    if (t == 0) {{
        y[row] = {s}[0];
    }}
}}"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    sync, atomic = "__syncthreads();", f"atomicAdd(&{s}[x[i]], 1);"
    weak = rng.choice(("__syncwarp();", "__threadfence_block();"))
    bins = (
        ("zeroed", "No barrier after the bins are zeroed.", weak, sync, atomic),
        ("counted", "No barrier before the bins are added.", sync, weak, atomic),
        ("plain", "The block's bins are counted without atomics.", sync, sync, f"{s}[x[i]] += 1;"),
        ("read-write", "Reads and writes a bin in two steps.", sync, sync,
         f"volatile int* p = {s}; const int old = p[x[i]]; p[x[i]] = old + 1;"),
    )  # fmt: skip
    for key, idea, zeroed, counted, add in bins:
        kernel = _histogram(s, zeroed, counted, add)
        yield attack_on(f"outside-races-histogram-{key}", idea, "histogram", kernel=kernel)
    yield attack_on(
        "outside-races-block-scope", "Atomic only within the block.", "histogram",
        kernel=flat(rng, "histogram", "atomicAdd_block(&bins[x[$]], 1);"),
    )  # fmt: skip
    rows = (
        ("warp-synchronous", "The last steps trust that a warp runs in step.", sync, "", sync),
        ("fence", "A fence stands where a barrier must be.", weak, " __syncwarp(0x0000ffffu);", sync),
        ("first", "No barrier after the partial sums.", sync, " __syncwarp(0x0000ffffu);", weak),
    )
    for key, idea, last, between, start in rows:
        yield attack_on(f"outside-races-rowsum-{key}", idea, "rowsum", kernel=_rowsum(s, last, between, start))
    yield attack_on(
        "outside-races-loop", "Only some rounds of the tree have a barrier.", "rowsum",
        edits=(("        }\n        __syncthreads();",
                f"        }}\n        if (k >= {rng.choice((16, 32, 64))}) {{ __syncthreads(); }}"),),
    )  # fmt: skip
    yield attack_on(
        "outside-races-dot", "Adds to the total without an atomic.", "dot",
        edits=(("atomicAdd(total, product);", rng.choice(("*total += product;",
         "total[0] = __ldcg(total) + product;"))),),
    )  # fmt: skip
    tile = (
        f"__shared__ float {s}[256]; {s}[threadIdx.x] = x[$]; {weak}"
        f" float left = threadIdx.x > 0 ? {s}[threadIdx.x - 1] : ($ > 0 ? x[$ - 1] : 0.0f);"
        f" float right = $ + 1 < n ? (threadIdx.x < 255 ? {s}[threadIdx.x + 1] : x[$ + 1]) : 0.0f;"
        " y[$] = 0.25f * left + 0.5f * x[$] + 0.25f * right;"
    )
    yield attack_on(
        "outside-races-tile", "No barrier after the tile is loaded.", "stencil", kernel=flat(rng, "stencil", tile)
    )
    kernel = _histogram(s, sync, sync, atomic)
    yield honest_edit_of("outside-races-bins", "Bins of the block, with barriers.", "histogram", kernel=kernel)
    pairs = _rowsum(s, sync, "").replace("        ", "").split("    if (t < 16)")[0] + (
        f"    float v = {s}[t % 32];\n    for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);\n"
        "    if (t == 0) y[row] = v;\n}"
    )
    yield honest_edit_of("outside-races-shuffles", "The last steps are shuffles.", "rowsum", kernel=pairs)
