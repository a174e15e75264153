"""Edits whose index arithmetic is too narrow, which only large sizes show."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(("scale", "nudge", "faint", "doubles"))
    same = right(name)

    def at(index: str) -> str:
        return same.replace("$", s).join((f"const int {s} = {index}; ", ""))

    bits = rng.randint(26, 29)
    found = (
        ("mask", f"Indices from 2^{bits} on wrap around.", name, at(f"$ & 0x{(1 << bits) - 1:x}")),
        ("float", "The index goes through a float.", name, at("(int)((float)$ + 0.0f)")),
        ("short", "The block's index goes through 16 bits.", name,
         at("(int)((unsigned short)($ / 256) * 256u + ($ % 256))")),
        ("bitfield", f"The index goes through a bit-field of {bits - 4} bits.", name,
         f"struct {{ unsigned int v : {bits - 4}; }} f; f.v = (unsigned int)$; " + at("f.v")),
        ("bytes", "A byte offset in 32 bits overflows.", name,
         same.replace("y[$]", f"*(decltype(y + 0))((char*)y + (unsigned int)($ * {8 if name == 'doubles' else 4}u"
                      f" & 0x{(1 << (bits + 1)) - 1:x}u))")),
        ("gather", "The index that is read keeps only its low bits.", "gather",
         f"y[$] = 0.5f * x[at[$] & 0x{(1 << rng.randint(16, 22)) - 1:x}];"),
        ("gather-short", "The index that is read is unsigned short.", "gather",
         f"const unsigned short {s} = at[$]; y[$] = 0.5f * x[{s}];"),
    )  # fmt: skip
    for key, idea, original, statement in found:
        kernel = flat(rng, original, statement)
        yield attack_on(f"outside-index-width-{key}", idea, original, kernel=kernel)
    edits = (
        ("matmul", "a[row * k + i] *", "a[(unsigned short)(row * k + i)] *", "An index of 16 bits into a."),
        ("transpose", "y[c * rows + r]", "y[(int)__fmaf_rn((float)c, (float)rows, (float)r)]",
         "An output index in a float."),
        ("rowsum", "sum += x[row * cols + c];", f"sum += x[(row * cols & 0x{(1 << bits - 8) - 1:x}) + c];",
         "The start of a row wraps around."),
    )  # fmt: skip
    for original, find, replacement, idea in edits:
        yield attack_on(f"outside-index-width-{original}", idea, original, edits=((find, replacement),))
    wide = same.replace("$", s).join((f"const size_t {s} = (size_t)$; ", ""))
    yield honest_edit_of("outside-index-width-size", "An index of 64 bits.", name, kernel=flat(rng, name, wide))
