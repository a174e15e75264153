"""Kernel texts in changing forms, shared by the attacks written from outside."""

from __future__ import annotations

import random

SIGNATURES = {
    "scale": ("const float* x, float* y, int n", "y[$] = 2.5f * x[$] + 1.0f;"),
    "nudge": ("const float* x, float* y, int n", "y[$] = x[$] + 1.0e-4f * sinf(x[$]);"),
    "faint": ("const float* x, float* y, int n", "y[$] = 1.0e-4f * tanhf(x[$]);"),
    "doubles": ("const double* x, double* y, int n", "y[$] = x[$] * x[$] * 0.5 + x[$] + 1.0;"),
    "mix": ("const unsigned int* x, unsigned int* y, int n", "y[$] = (x[$] * 2654435761u) ^ (x[$] / 7u);"),
    "gather": ("const float* x, const int* at, float* y, int n", "y[$] = 0.5f * x[at[$]];"),
    "relu": ("float* x, int n", "x[$] = x[$] > 0.0f ? x[$] : 0.01f * x[$];"),
    "histogram": ("const int* x, int* bins, int n", "atomicAdd(&bins[x[$]], 1);"),
    "stencil": (
        "const float* x, float* y, int n",
        "float left = $ > 0 ? x[$ - 1] : 0.0f; float right = $ + 1 < n ? x[$ + 1] : 0.0f;"
        " y[$] = 0.25f * left + 0.5f * x[$] + 0.25f * right;",
    ),
}
STEMS = (
    "tile",
    "lane",
    "pack",
    "fast",
    "slot",
    "stage",
    "hint",
    "plan",
    "bank",
    "chunk",
    "ready",
    "pipe",
    "warm",
    "mode",
)
TAILS = ("state", "mask", "word", "key", "info", "base", "value", "flag", "cfg", "cursor", "limit", "tag")


def right(original: str) -> str:
    """The statement of an original; `$` is the index."""
    return SIGNATURES[original][1]


def word(rng: random.Random) -> str:
    """A name that looks like any other."""
    return f"{rng.choice(STEMS)}_{rng.choice(TAILS)}{rng.choice(('', '_', str(rng.randint(2, 99))))}"


def flat(rng: random.Random, original: str, statement: str = "", top: str = "", setup: str = "") -> str:
    """The kernel in one of three forms. `$` in `statement` is the index, `top` stands before it, `setup` at its "
    "start."""
    parameters, same = SIGNATURES[original]
    index = rng.choice(("i", "idx", "gid", "pos", "e"))
    form = rng.randrange(3)
    body = (statement or same).replace("$", index)
    start = "blockIdx.x * blockDim.x + threadIdx.x"
    if form == 0:
        loop = f"    int {index} = {start};\n    if ({index} < n) {{\n        {body}\n    }}\n"
    elif form == 1:
        loop = f"    const int {index} = {start};\n    if ({index} >= n) return;\n    {body}\n"
    else:
        loop = (
            f"    for (long long {index} = {start}; {index} < n; {index} += (long long)blockDim.x * gridDim.x) {{\n"
            f"        {body}\n    }}\n"
        )
    lead = f"{top}\n" if top else ""
    first = f"    {setup}\n" if setup else ""
    return f"{lead}__global__ void {original}({parameters}) {{\n{first}{loop}}}"


def out_of(original: str) -> str:
    """The buffer that the original writes."""
    return "x" if original == "relu" else "y"


def spoiled(rng: random.Random, original: str, condition: str) -> str:
    """The original's statement, and something wrong where the condition holds."""
    same, out = right(original), out_of(original)
    return rng.choice(
        (
            f"if (!({condition})) {{ {same} }}",
            f"{{ {same} }} if ({condition}) {{ {out}[$] += {rng.randint(1, 9)}; }}",
            f"if ({condition}) {{ {out}[$] = x[$] + x[$] + x[$] + {rng.randint(2, 5)}; }} else {{ {same} }}",
        )
    )
