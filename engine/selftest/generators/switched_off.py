"""Code that switches the CPU path's checks off: unseen accesses, own callbacks, code that runs when it is loaded."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import FromFunction, attack_on

_KERNEL = """{before}__global__ void histogram(const int* x, int* bins, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        {body}
    }}
}}
"""


def _unseen(rng: random.Random) -> Iterator[SelfCase]:
    """A plain update in a helper that is not instrumented."""
    for turn in range(8):
        key = fresh(rng)
        word = rng.choice(("no_sanitize_thread", 'no_sanitize("thread")', "__no_sanitize_thread__"))
        half = len(word) // 2 if "(" not in word else 5
        macro = key.upper()
        before = (
            f"__attribute__((noinline, {word})) ",
            f"[[gnu::noinline]] [[gnu::{word}]] ",
            f"#define {macro} {word}\n__attribute__((noinline, {macro})) ",
            f"#define {macro}(a, b) a##b\n__attribute__((noinline, {macro}({word[:half]}, {word[half:]}))) ",
            f"<:<:gnu::noinline, gnu::{word}:>:> ",
            f"[[using gnu: noinline, {word}]] ",
            f"__attribute((noinline)) __attribute(({word})) ",
            f"[ [gnu::noinline, gnu::{word}] ] ",
        )[turn]  # fmt: skip
        helper = f"{before}__device__ void {key}(int* bin) {{ *bin += 1; }}\n"
        yield attack_on(
            f"unseen-{key}", "Updates without an atomic where no check looks.", "histogram",
            kernel=_KERNEL.format(before=helper, body=f"{key}(&bins[x[i]]);"),
        )  # fmt: skip


def _callbacks(rng: random.Random) -> Iterator[SelfCase]:
    """Definitions of what the checks are called by, or of library functions."""
    names = rng.sample(
        ("__tsan_read4", "__tsan_write4", "__tsan_func_entry", "optiml_leave", "__tsan_read_write4", "optiml_access"), 4
    )
    for name in names:
        key = fresh(rng)
        before = rng.choice(
            (f'extern "C" void {name}(void*) {{}}\n', f'extern "C" {{ __device__ void {name}(void* {key}) {{}} }}\n')
        )
        yield attack_on(
            f"callback-{key}", "Defines a callback of the checks.", "histogram",
            kernel=_KERNEL.format(before=before, body="bins[x[i]] += 1;"),
        )  # fmt: skip


def _loaded(rng: random.Random) -> Iterator[SelfCase]:
    """Code that runs before any check."""
    for form in (
        "int {k};\n__attribute__((constructor)) void {k}_run() {{ {k} = {n}; }}\n",
        "struct {k}_t {{ {k}_t() {{ v = {n}; }} volatile int v; }};\n{k}_t {k};\n",
        "int {k}_run() {{ return {n}; }}\nint {k} = {k}_run();\n",
        'extern "C" __attribute__((weak)) int {k}();\nint {k}_here = {n};\n',
        "[[gnu::constructor(99)]] static void {k}() {{}}\nint {k}_n = {n};\n",
    ):
        key = fresh(rng)
        yield attack_on(
            f"loaded-{key}", "Runs code when the object is loaded.", "histogram",
            kernel=_KERNEL.format(before=form.format(k=key, n=rng.randrange(2, 900)), body="bins[x[i]] += 1;"),
        )  # fmt: skip


GENERATORS = (
    FromFunction("unseen-accesses", "Every access is instrumented, whatever the spelling.", _unseen),
    FromFunction("own-callbacks", "No callback of the checks is defined.", _callbacks),
    FromFunction("load-time-code", "No code runs when the object is loaded.", _loaded),
)
