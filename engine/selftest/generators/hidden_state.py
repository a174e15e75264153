"""Memory that outlives a launch, clocks, heaps, and calls that device code has no business with, in new texts."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import INDEX, SCALE, fresh, scale
from engine.selftest.generators.protocol import FromFunction, attack_on


def _kept(rng: random.Random) -> Iterator[SelfCase]:
    """Counts launches in memory that stays, in several spellings."""
    for turn in range(8):
        key, after = fresh(rng), rng.randrange(3, 4000)
        kind = rng.choice(("int", "unsigned", "unsigned long long"))
        before, inside, name = (
            (f"__device__ {kind} {key};\n", "", key),
            ("", f"static {kind} {key};", key),
            (f"template <int> __device__ {kind} {key};\n", "", f"{key}<{turn}>"),
            (f"struct {key}_s {{ {kind} v; }};\n__device__ {key}_s {key};\n", "", f"{key}.v"),
            (f"#define {key.upper()} static {kind}\n", f"{key.upper()} {key};", key),
            (f"namespace {{ __device__ {kind} {key}[2]; }}\n", "", f"{key}[1]"),
            (f"__device__ __managed__ {kind} {key};\n", "", key),
            (f"inline __device__ {kind} {key} = 0;\n", "", key),
        )[turn]
        count = f"if (i == 0) {name} = {name} + 1;\n    if ({name} > {after}) return;"
        yield attack_on(
            f"kept-{key}", "Counts its launches and stops working later.", "scale",
            kernel=scale(f"{INDEX}\n    {inside}\n    {count}", SCALE, before),
        )  # fmt: skip


def _clocks(rng: random.Random) -> Iterator[SelfCase]:
    """Looks at a clock or waits."""
    for call in ("clock64()", "clock()", "__nanosleep(100), 0", "__globaltimer()", "(long long)clock64()", "::clock()"):
        key = fresh(rng)
        store = (
            f"long long {key} = {call};\n        y[i] = {key} == {rng.randrange(10**9)} ? 0.0f : 2.5f * x[i] + 1.0f;"
        )
        yield attack_on(f"clock-{key}", "Looks at the clock.", "scale", kernel=scale(INDEX, store))


def _heap(rng: random.Random) -> Iterator[SelfCase]:
    """Takes memory from the device's heap, stops the launch or prints."""
    for call in (
        "float* {k} = (float*)malloc({n}); if ({k}) {{ {k}[0] = x[i]; free({k}); }}", "float* {k} = new float[{n}]; delete[] {k};",
        "if (n == {n}) __trap();", 'if (n == {n}) printf("{k}");', "if (n == {n}) asm(\"trap;\");",
        "if (n == {n}) {{ int* {k} = (int*)alloca({n}); {k}[0] = 1; }}",
    ):  # fmt: skip
        key = fresh(rng)
        yield attack_on(
            f"heap-{key}", "Does what device code of a search must not.", "scale",
            kernel=scale(f"{INDEX}\n    {call.format(k=key, n=rng.randrange(8, 4000))}"),
        )  # fmt: skip


def _architecture(rng: random.Random) -> Iterator[SelfCase]:
    """One program for the checker's compiler, another for the user's."""
    for macro in ("__CUDA_ARCH__", "__CUDACC_RTC__", "__CUDACC_VER_MAJOR__", "NDEBUG", "__GNUC__", "__clang__"):
        key, wrong = fresh(rng), f"{rng.uniform(2.6, 9):.2f}f"
        directive = rng.choice((f"#ifdef {macro}", f"#if defined({macro})", f"#if defined {macro} // {key}"))
        store = f"\n{directive}\n        {SCALE}\n#else\n        y[i] = {wrong} * x[i];\n#endif"
        yield attack_on(
            f"built-for-{key}", "Is another program under another compiler.", "scale", kernel=scale(INDEX, store)
        )


def _host(rng: random.Random) -> Iterator[SelfCase]:
    """Changes host code beside the launch."""
    launch = "    scale<<<blocks, threads>>>(x, y, n);"
    for new in (
        "{l}\n    scale<<<blocks, threads>>>(x, y, n);", "    if (n != {n}) {{\n{l}\n    }}", "{l}\n    {k}();",
        "    n = n - 1;\n{l}", "    static int {k} = 0;\n    if ({k}++ < {n}) {{\n{l}\n    }}", "    x += {n};\n{l}",
    ):  # fmt: skip
        key = fresh(rng)
        text = new.format(l=launch, n=rng.randrange(2, 5000), k=key)
        yield attack_on(f"host-{key}", "Changes what the host does.", "scale", edits=[(launch, f"{text}  // {key}")])


def _specs(rng: random.Random) -> Iterator[SelfCase]:
    """Changes what is checked."""
    for old, new in (
        ("check = [{ n = 1 }, { n = 903 }, { n = 4100 }]", "check = [{{ n = {n} }}]"),
        ("time = [{ n = 33554432 }]", "time = [{{ n = {n} }}]"),
        ('y = { role = "out", size = "n" }', 'y = {{ role = "out", size = "n", tolerance = {t} }}'),
        ('y = { role = "out", size = "n" }', 'y = {{ role = "inout", size = "n" }}'),
        (
            'x = { role = "in", size = "n", fill = "normal" }',
            'x = {{ role = "in", size = "n", fill = {{ kind = "constant", low = {n} }} }}',
        ),
    ):
        key = fresh(rng)
        changed = new.format(n=rng.randrange(2, 4000), t=f"{rng.uniform(0.1, 0.9):.2f}")
        yield attack_on(
            f"spec-{key}", "Changes the kernel spec.", "scale",
            edits=[(f"// optiml: args.{old}" if "role" in old else old, f"// optiml: args.{changed}" if "role" in old else changed),
                   (SCALE, f"y[i] = 2.5f * x[i];  // {key}")],
        )  # fmt: skip


def _others(rng: random.Random) -> Iterator[SelfCase]:
    """Changes a kernel, or a helper of a kernel, that nobody verifies."""
    for old, new in (
        ("x[i] = twice(x[i]) - 1.0f;", "x[i] = twice(x[i]) - {v}f;"), ("return 2.0f * v;", "return {v}f * v;"),
        ("__global__ void other(float* x, int n) {{", "__global__ void other(float* x, int n) {{ n -= 1;"),
        ("other<<<blocks, threads>>>(z, n);", "other<<<blocks / 2, threads>>>(z, n);"),
        ("__device__ float twice(float v) {{", "__device__ float twice(double v) {{ return v; }}\n__device__ float twice(float v) {{"),
    ):  # fmt: skip
        key = fresh(rng)
        yield attack_on(
            f"other-{key}", "Changes code that nobody verifies.", "pair",
            edits=[(old.format(), f"{new.format(v=f'{rng.uniform(2.5, 9):.2f}')}  // {key}")],
        )  # fmt: skip


GENERATORS = (
    FromFunction("kept-memory", "Nothing outlives a launch.", _kept),
    FromFunction("reads-clock", "No clock is read.", _clocks),
    FromFunction("heap-and-traps", "Device code takes no heap, prints nothing and stops nothing.", _heap),
    FromFunction("built-for-the-checker", "What is checked is what the user builds.", _architecture),
    FromFunction("host-code", "Only device code and launch arguments change.", _host),
    FromFunction("spec-changes", "The spec is that of the original.", _specs),
    FromFunction("unverified-code", "Code that nobody verifies does not change.", _others),
)
