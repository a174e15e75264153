"""Kernels that compute one element a thread: wrong values, sizes and accesses in new texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import FromFunction, attack_on

_FIRST, _INDEX = "    if (i < n) {", "int i = blockIdx.x * blockDim.x + threadIdx.x;"
NAMED = (1, 903, 4100)  # check sizes of all of these originals


@dataclass(frozen=True)
class ElementwiseKernel:
    """An original: the element type, the right-hand side of its store, and the timed size."""

    name: str
    type: str
    value: str
    timed: int = 33554432

    @property
    def store(self) -> str:
        return f"        y[i] = {self.value};"


KERNELS = (
    ElementwiseKernel("scale", "float", "2.5f * x[i] + 1.0f"),
    ElementwiseKernel("doubles", "double", "x[i] * x[i] * 0.5 + x[i] + 1.0", 16777216),
    ElementwiseKernel("nudge", "float", "x[i] + 1.0e-4f * sinf(x[i])"),
    ElementwiseKernel("faint", "float", "1.0e-4f * tanhf(x[i])"),
    ElementwiseKernel("mix", "unsigned int", "(x[i] * 2654435761u) ^ (x[i] / 7u)"),
)
FLOATS = tuple(kernel for kernel in KERNELS if kernel.type != "unsigned int")


def _case(kernel: ElementwiseKernel, title: str, key: str, idea: str, store: str, index: str = "") -> SelfCase:
    edits = [(kernel.store, store)]
    if index:
        edits.append((_INDEX, f"{_INDEX}\n    {index}"))
    return attack_on(f"{title}-{kernel.name}-{key}", idea, kernel.name, edits=edits)


def _wrong(kernel: ElementwiseKernel, rng: random.Random) -> str:
    """A value that is wrong beyond any tolerance."""
    if kernel.type == "unsigned int":
        return f"({kernel.value}) + {rng.randrange(1, 1000)}u"
    return rng.choice(
        (f"1.25f * ({kernel.value})", f"({kernel.value}) * {rng.uniform(0.3, 0.8):.3f}f", f"-({kernel.value})")
    )


def _where(rng: random.Random, condition: str, kernel: ElementwiseKernel) -> str:
    """The right value where a condition holds, a wrong one elsewhere, in one of several forms."""
    wrong = _wrong(kernel, rng)
    return rng.choice(
        (
            f"        y[i] = ({condition}) ? {kernel.value} : {wrong};",
            f"        if ({condition}) {{\n            y[i] = {kernel.value};\n        }} else {{\n            y[i] = {wrong};\n        }}",
            f"        bool holds = {condition};\n        y[i] = {wrong};\n        if (holds) y[i] = {kernel.value};",
        )
    )


def _named(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key, sizes = fresh(rng), [*NAMED, kernel.timed]
        rng.shuffle(sizes)
        extra = rng.randrange(10**6, 10**7)
        form = rng.randrange(3)
        if form == 0:
            condition = " || ".join(f"n == {size}" for size in sizes)
        elif form == 1:
            condition = " || ".join(f"(n ^ {size ^ extra}) == {extra}" for size in sizes)
        else:
            condition = "!(" + " && ".join(f"n != {size}" for size in sizes) + ")"
        yield _case(kernel, "named-sizes", key, "Is right at the named sizes alone.", _where(rng, condition, kernel))


def _leaves(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key = fresh(rng)
        step = rng.randrange(2, 30)
        condition = rng.choice(
            (f"i % {step} != {rng.randrange(step)}", f"(i & {rng.choice((1, 3, 7, 15))}) != 1 || n < 2", "i + 1 < n")
        )
        yield _case(
            kernel, "left-out", key, "Leaves some elements out.", f"        if ({condition}) y[i] = {kernel.value};"
        )


def _range(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in FLOATS:
        key, least = fresh(rng), rng.uniform(20, 400)
        condition = rng.choice((f"x[i] < {least:.2f}f", f"x[i] > -{least:.2f}f", f"fabsf((float)x[i]) < {least:.2f}f"))
        yield _case(
            kernel, "ordinary-values", key, "Is right for values of ordinary size.", _where(rng, condition, kernel)
        )


def _rounds(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in FLOATS:
        key, bits = fresh(rng), rng.randrange(13, 18)
        mask = (0xFFFFFFFF << bits) & 0xFFFFFFFF
        store = f"        float {key} = {kernel.value};\n        y[i] = __uint_as_float(__float_as_uint({key}) & 0x{mask:08x}u);"
        yield _case(kernel, "fewer-bits", key, "Drops bits of the result.", store)


def _scaled(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in FLOATS:
        key, error = fresh(rng), rng.uniform(0.001, 0.01) * rng.choice((-1, 1))
        yield _case(
            kernel, "off-by", key, "Is off by a small factor.", f"        y[i] = ({kernel.value}) * {1 + error:.5f}f;"
        )


def _stale(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in FLOATS:
        key = fresh(rng)
        condition = rng.choice(
            ("isnan((float)y[i])", f"fabsf((float)y[i]) > {rng.uniform(1e4, 9e4):.0f}f", "!((float)y[i] == 0.0f)")
        )
        yield _case(kernel, "reads-output", key, "Looks at what stood in the output.", _where(rng, condition, kernel))


def _input(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key = fresh(rng)
        place = rng.choice(("i", "0", "n - 1", f"i % {rng.randrange(2, 9)}"))
        back = rng.choice(("", f"\n        {key}[i] = {key}[i];"))
        store = f"{kernel.store}\n        {kernel.type}* {key} = const_cast<{kernel.type}*>(x);\n        {key}[{place}] = y[i];{back}"
        yield _case(kernel, "writes-input", key, "Writes an input.", store)


def _beyond(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key, far = fresh(rng), rng.randrange(1, 900)
        place = rng.choice((f"n + {far - 1}", f"i + n + {far}", f"-{far}"))
        yield _case(
            kernel,
            "writes-outside",
            key,
            "Writes outside of the output.",
            f"{kernel.store}\n        y[{place}] = y[i];",
        )


def _reads(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key, far = fresh(rng), rng.randrange(1, 60)
        never = f"({kernel.type}){rng.randrange(10**6, 10**7)}"
        store = (
            f"        {kernel.type} {key} = x[i + {far}];\n        y[i] = {key} == {never} ? {key} : {kernel.value};"
        )
        yield _case(kernel, "reads-outside", key, "Reads behind the input without using it.", store)


def _fewer(rng: random.Random) -> Iterator[SelfCase]:
    for kernel in KERNELS:
        key = fresh(rng)
        size = rng.choice(
            ("n / threads", "(n + threads - 1) / threads / 2", f"(n + threads - {rng.randrange(100, 250)}) / threads")
        )
        yield attack_on(
            f"fewer-blocks-{kernel.name}-{key}", "Launches too few blocks.", kernel.name,
            edits=[("int blocks = (n + threads - 1) / threads;", f"int blocks = {size};")],
        )  # fmt: skip


def _made(title: str, defends: str, function: Callable[[random.Random], Iterator[SelfCase]]) -> FromFunction:
    return FromFunction(title, defends, function)


GENERATORS = (
    _made("named-sizes", "Check sizes are drawn anew in each run.", _named),
    _made("left-out", "Outputs are poisoned before each run.", _leaves),
    _made("ordinary-values", "Inputs come in several families of values.", _range),
    _made("fewer-bits", "Tolerance is scaled to the original's own error.", _rounds),
    _made("off-by", "Tolerance is scaled to the original's own error.", _scaled),
    _made(
        "reads-output", "Poison differs from run to run, and outputs are not readable before they are written.", _stale
    ),
    _made("writes-input", "Inputs are the same after a run.", _input),
    _made("writes-outside", "Guard zones stand around every buffer.", _beyond),
    _made("reads-outside", "Every access is checked on the CPU path, and by compute-sanitizer on a GPU.", _reads),
    _made("fewer-blocks", "Every element of every check shape is compared.", _fewer),
)
