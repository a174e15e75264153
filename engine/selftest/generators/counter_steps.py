"""Counters that leave their type in the last step before a size near its end, and counters that hold it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.elementwise import KERNELS, ElementwiseKernel
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_REFUSED = (Outcome.SCREENED_OUT,)
_BLOCKS = "int blocks = (n + threads - 1) / threads;"
_INDEX, _GUARD = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n", "    if (i < n) {\n"
_START, _GRID = "blockIdx.x * blockDim.x + threadIdx.x", "gridDim.x * blockDim.x"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Loops of a grid of at most some blocks over the elements, in many forms."""
    key = fresh(rng)
    forms = {
        "for": f"for (int {key} = {_START}; {key} < n; {key} += {_GRID}) {{{{ {{work}} }}}}",
        "named": f"const int {key}_s = {_GRID};\n    for (int {key} = {_START}; n > {key}; {key} = {key}_s + {key}) {{{{ {{work}} }}}}",
        "while": f"int {key} = {_START};\n    while ({key} < n) {{{{ {{work}} {key} += {_GRID}; }}}}",
        "left": f"for (int {key} = {_START};; {key} += {_GRID}) {{{{ if ({key} >= n) break; {{work}} }}}}",
        "next": f"int {key} = {_START};\n    while ({key} < n) {{{{ {{work}} const int {key}_n = {key} + {_GRID}; {key} = {key}_n; }}}}",
        "numbered": f"const int {key}_m = (n - 1) / ({_GRID}) + 1;\n    for (int {key}_k = 0; {key}_k < {key}_m; ++{key}_k) {{{{ "
        f"const int {key} = {_START} + {key}_k * ({_GRID}); if ({key} < n) {{{{ {{work}} }}}} }}}}",
        "cast": f"for (int {key} = {_START}; (long long){key} < n; {key} += {_GRID}) {{{{ {{work}} }}}}",
    }
    threads = rng.choice((1024, 2048, 4096)) * 256
    forms["constant"] = f"for (int {key} = {_START}; {key} < n; {key} += {threads}) {{{{ {{work}} }}}}"
    for form, text in forms.items():
        case = _case(rng.choice(KERNELS), f"counter-{form}-{key}", text, key, rng, attack=True)
        yield replace(case, gpu=_REFUSED, cpu=_REFUSED, reason="the end of its type")
    for form, text in {
        "unsigned": forms["for"].replace("int ", "unsigned int "),
        "wide": forms["while"].replace("int ", rng.choice(("long long ", "size_t "))),
        "copied": f"for (unsigned {key}_u = {_START}; {key}_u < n; {key}_u += {_GRID}) {{{{ const int {key} = {key}_u; {{work}} }}}}",
        "counts-down": f"for (int {key}_l = n - (int)({_START}); {key}_l > 0; {key}_l -= (int)({_GRID})) {{{{ "
        f"const int {key} = n - {key}_l; {{work}} }}}}",
    }.items():
        yield _case(rng.choice(KERNELS), f"counter-{form}-{key}", text, key, rng, attack=False)


def _case(kernel: ElementwiseKernel, name: str, loop: str, index: str, rng: random.Random, *, attack: bool) -> SelfCase:
    work = kernel.store.strip().replace("[i]", f"[{index}]")
    edits = (
        (_INDEX, "    " + loop.format(work=work) + "\n"),
        (f"{_GUARD}{kernel.store}\n    }}\n", ""),
        (_BLOCKS, f"int blocks = min((n + threads - 1) / threads, {rng.choice((1024, 2048, 4096))});"),
    )
    make = attack_on if attack else honest_edit_of
    return make(name, "Strides over the elements.", kernel.name, edits=edits)
