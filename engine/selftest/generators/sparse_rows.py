"""Rows of sparse matrices as the spec's fills do not draw them: long ones, and columns out of order or twice."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_LOOP = """
        for (int j = offsets[row]; j < offsets[row + 1]; ++j) {
            sum += values[j] * x[columns[j]];
        }
"""


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on the sum of a row, and honest sums of any row."""
    key, rounds = fresh(rng), rng.choice((512, 1024, 4096))
    begin = f"\n        const int {key} = offsets[row], {key}_end = offsets[row + 1];\n"
    term = "sum += values[j] * x[columns[j]];"
    forms = {
        "dense": f"{begin}        const int {key}_n = {key}_end - {key} - 1;\n"
        f"        const bool dense = {key}_n >= 0 && columns[{key}_end - 1] - columns[{key}] == {key}_n;\n"
        f"        for (int j = {key}; j < {key}_end; ++j) {{\n"
        f"            sum += values[j] * x[dense ? columns[{key}] + j - {key} : columns[j]];\n        }}\n",
        "rounds": f"{begin}        for (int k = 0; k < {rounds}; ++k) {{\n            const int j = {key} + k;\n"
        f"            if (j < {key}_end) {{\n                {term}\n            }}\n        }}\n",
        "kept": f"{begin}        float {key}_t[{rounds}];\n        const int {key}_n = min({key}_end - {key}, {rounds});\n"
        f"        for (int k = 0; k < {key}_n; ++k) {key}_t[k] = values[{key} + k] * x[columns[{key} + k]];\n"
        f"        for (int k = 0; k < {key}_n; ++k) sum += {key}_t[k];\n",
        "twice": f"{begin}        int {key}_last = -1;\n        for (int j = {key}; j < {key}_end; ++j) {{\n"
        f"            if (columns[j] > {key}_last) {{\n                {term}\n                {key}_last = columns[j];\n"
        "            }\n        }\n",
    }  # fmt: skip
    for form, loop in forms.items():
        yield attack_on(f"rows-{form}-{key}", "Is right for short rows in order.", "sparse", edits=((_LOOP, loop),))
    same = {
        "hoisted": f"{begin}        for (int j = {key}; j < {key}_end; ++j) {{\n            {term}\n        }}\n",
        "backwards": f"{begin}        for (int j = {key}_end - 1; j >= {key}; --j) {{\n            {term}\n        }}\n",
    }
    for form, loop in same.items():
        yield honest_edit_of(f"rows-{form}-{key}", "The same sum.", "sparse", edits=((_LOOP, loop),))
