"""The block that is done last merges what the others left: fences, counters that are set back, and room for every block."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_STORE = """    if (threadIdx.x == 0) {
        partial[2 * blockIdx.x] = sums[0];
        partial[2 * blockIdx.x + 1] = peaks[0];
        __threadfence();
"""
_TICKET = "last = atomicAdd(&g_done, 1u) == gridDim.x - 1;"
_BACK = "        out[1] = peak;\n        g_done = 0;\n"
_MERGE = """    if (last && threadIdx.x == 0) {
        __threadfence();
        const volatile float* found = partial;
"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a merge by the last block, and honest forms of it."""
    key, room = fresh(rng), rng.choice((2048, 3072, 4096))
    lanes = (
        f"    if (threadIdx.x < 2) {{\n        const float {key} = threadIdx.x ? peaks[0] : sums[0];\n"
        f"        partial[2 * blockIdx.x + threadIdx.x] = {key};\n"
    )
    without = _STORE.replace("        __threadfence();\n", "")
    fences = {
        "one-lane": f"{lanes}    }}\n    if (threadIdx.x == 0) {{\n        __threadfence();\n",
        "none": without,
        "of-a-block": _STORE.replace("__threadfence()", "__threadfence_block()"),
        "of-others": f"    if (threadIdx.x >= {rng.choice((1, 32))}) __threadfence();\n{without}",
    }
    for form, store in fences.items():
        yield attack_on(f"fence-{form}-{key}", "Fences less than it stores.", "merged", edits=((_STORE, store),))
    kept = rng.choice(("% gridDim.x == gridDim.x - 1", "% gridDim.x + 1 == gridDim.x"))
    ticket = _TICKET.replace("== gridDim.x - 1", kept)
    yield attack_on(
        f"tickets-{key}", "Never sets the counter back.", "merged",
        edits=((_TICKET, ticket), (_BACK, "        out[1] = peak;\n")),
    )  # fmt: skip
    limit = rng.choice(("2 * gridDim.x", f"{key}_n"))
    staged = (
        f"    __shared__ float found[2 * {room}];\n    if (last) {{\n        const unsigned int {key}_n = 2 * gridDim.x;\n"
        f"        __threadfence();\n        for (unsigned int {key} = threadIdx.x; {key} < {limit}; {key} += THREADS) {{\n"
        f"            found[{key}] = *(const volatile float*)(partial + {key});\n        }}\n    }}\n    __syncthreads();\n"
        "    if (last && threadIdx.x == 0) {\n"
    )
    yield attack_on(f"staged-{key}", f"Has room for {room} blocks.", "merged", edits=((_MERGE, staged),))
    barrier = f"{lanes}    }}\n    __syncthreads();\n    if (threadIdx.x == 0) {{\n        __threadfence();\n"
    each = f"{lanes}        __threadfence();\n    }}\n    __syncthreads();\n    if (threadIdx.x == 0) {{\n        __threadfence();\n"
    for form, store in {"barrier": barrier, "each": each}.items():
        yield honest_edit_of(f"fence-{form}-{key}", "Fences all.", "merged", edits=((_STORE, store),))
    increment = _TICKET.replace("atomicAdd(&g_done, 1u)", "atomicInc(&g_done, gridDim.x - 1)")
    yield honest_edit_of(
        f"tickets-back-{key}", "Sets it back by the increment.", "merged",
        edits=((_TICKET, increment), (_BACK, "        out[1] = peak;\n")),
    )  # fmt: skip
