"""Edits of the host code that launch less, something else, or in another order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

BLOCKS = "int blocks = (n + threads - 1) / threads;"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(("scale", "nudge", "faint", "doubles"))
    call = f"{name}<<<blocks, threads>>>(x, y, n);"
    cap = rng.choice((4096, 16384, 65535))
    stream = (
        f"static cudaStream_t {s} = nullptr;\n    if (!{s}) cudaStreamCreateWithFlags(&{s}, cudaStreamNonBlocking);"
    )
    wrong = flat(rng, name, f"y[$] = x[$] * {rng.randint(2, 5)};").replace(f"void {name}(", f"void {name}_{s}(")
    found = (
        ("tail", "The last incomplete block is not launched.", name, ((BLOCKS,
         "int blocks = n > threads ? n / threads : 1;"),)),
        ("cap", "Launches a limited number of blocks of a kernel that has no loop.", name,
         ((BLOCKS, BLOCKS + f"\n    blocks = blocks < {cap} ? blocks : {cap};"),)),
        ("too-many", "Launches more threads than a block may have: nothing runs.", name,
         (("int threads = 256;", f"int threads = {rng.choice((1056, 1536, 2048))};"),)),
        ("stream", "Runs in a stream that nothing waits for.", name,
         ((call, f"{stream}\n    {name}<<<blocks, threads, 0, {s}>>>(x, y, n);"),)),
        ("less", "The host passes one element less.", name, ((call, f"{name}<<<blocks, threads>>>(x, y, n - 1);"),)),
        ("skips", "The host does nothing from the second call on.", name,
         ((call, f"static int {s} = 0;\n    if ({s}++ > {rng.randint(0, 30)}) return;\n    {call}"),)),
        ("large", "The host bounds the size.", name,
         (("int threads = 256;", f"int threads = 256;\n    n = n > {cap * 1000} ? {cap * 1000} : n;"),)),
        ("another", "The host launches another kernel, and the one that is checked stays as it was.", name,
         ((f"void run_{name}", f"{wrong}\n\nvoid run_{name}"), (call, call.replace(name, f"{name}_{s}")))),
        ("macro", "A macro below the kernel makes its name that of another.", name,
         ((f"void run_{name}", f"{wrong}\n\n#define {name} {name}_{s}\nvoid run_{name}"),)),
        ("swapped", "Rows and columns of the grid are swapped.", "matmul",
         (("dim3 grid((n + 15) / 16, (m + 15) / 16);", "dim3 grid((m + 15) / 16, (n + 15) / 16);"),)),
        ("twice", "The host launches it twice on data that changes each time.", "relu",
         (("relu<<<blocks, threads>>>(x, n);", "for (int k = 0; k < 2; ++k) relu<<<blocks, threads>>>(x, n);"),)),
        ("rounded", "Counts whole blocks only.", "histogram",
         (("histogram<<<blocks, threads>>>(x, bins, n);",
          "histogram<<<blocks, threads>>>(x, bins, n < 256 ? n : n & ~255);"),)),
    )  # fmt: skip
    for key, idea, original, edits in found:
        yield attack_on(f"outside-launches-{key}", idea, original, edits=edits)
    bound = rng.choice((64, 128))
    yield attack_on(
        "outside-launches-bounds", f"Declared for blocks of {bound} threads, launched with 256: nothing runs.", name,
        edits=((f"__global__ void {name}(", f"__global__ void __launch_bounds__({bound}) {name}("),),
    )  # fmt: skip
    threads = rng.choice((64, 128, 512))
    yield honest_edit_of(
        "outside-launches-threads", "Blocks of another size.", name,
        edits=(("int threads = 256;", f"int threads = {threads};"),),
    )  # fmt: skip
