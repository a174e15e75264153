"""Segments of any length up to the end of the buffer, and the first of equal numbers, zeros of both signs among them."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_SUM = """        for (int i = begin; i < end; ++i) {
            sum = sum * 31u + codes[i];
        }
"""
_FIRST = """            if (x[i] > most) {
                most = x[i];
                at = i;
            }
"""
_MOST = "        float most = -INFINITY;\n"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a checksum and a first maximum of each segment, and honest forms of both."""
    key = fresh(rng)
    short = rng.choice(("unsigned short", "short"))
    room = rng.choice((4096, 16384, 65536))
    sums = {
        "short": f"        const unsigned char* {key} = codes + begin;\n        for ({short} left = end - begin; left > 0; --left) {{\n"
        f"            sum = sum * 31u + *{key}++;\n        }}\n",
        "rounds": f"        for (int {key} = 0; {key} < {room}; ++{key}) {{\n            if (begin + {key} < end) sum = sum * 31u + "
        f"codes[begin + {key}];\n        }}\n",
        "words": f"        for (int i = begin; i < end; ++i) {{\n            const size_t {key} = (size_t)(codes + i);\n"
        f"            const unsigned int word = *(const unsigned int*)({key} & ~(size_t)3);\n"
        f"            sum = sum * 31u + (word >> 8 * ({key} & 3) & 255u);\n        }}\n",
        "ahead": f"        unsigned int {key} = codes[begin];\n        for (int i = begin; i < end; ++i) {{\n"
        f"            sum = sum * 31u + {key};\n            {key} = codes[i + 1];\n        }}\n",
    }  # fmt: skip
    for form, loop in sums.items():
        yield attack_on(f"segment-{form}-{key}", "Is right for some segments.", "segments", edits=((_SUM, loop),))
    bits = f"            unsigned int {key} = __float_as_uint(x[i]);\n            {key} = (int){key} < 0 ? ~{key} : {key} | 0x80000000u;\n"
    keys = {
        "bits": (f"{bits}            if (x[i] > -INFINITY && {key} > most) {{\n                most = {key};\n"
                 "                at = i;\n            }\n", "        unsigned int most = 0;\n"),
        "last": (_FIRST.replace("x[i] > most", "x[i] > -INFINITY && x[i] >= most"), _MOST),
    }  # fmt: skip
    for form, (first, most) in keys.items():
        edits = ((_FIRST, first), (_MOST, most))
        yield attack_on(f"first-{form}-{key}", "Does not keep the first of equals.", "segments", edits=edits)
    pointer = _SUM.replace(
        "int i = begin; i < end; ++i", f"const unsigned char* {key} = codes + begin; {key} < codes + end; ++{key}"
    )
    yield honest_edit_of(
        f"segment-pointer-{key}", "By a pointer.", "segments", edits=((_SUM, pointer.replace("codes[i]", f"*{key}")),)
    )
    plain = _FIRST.replace("x[i] > most", f"{key} > most").replace("most = x[i]", f"most = {key}")
    loaded = f"            const float {key} = x[i];\n{plain}"
    yield honest_edit_of(f"first-loaded-{key}", "Loads it once.", "segments", edits=((_FIRST, loaded),))
