"""Kernels whose threads work together: races, barriers, shared memory, launches and grids in new texts."""

import random
from collections.abc import Iterator

from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import FromFunction, attack_on

_TREE = """        if (t < k) {
            part[t] += part[t + k];
        }
        __syncthreads();"""
_FILL = "    part[t] = sum;\n    __syncthreads();"
_ATOMIC = "atomicAdd(&bins[x[i]], 1);"


def _barriers(rng: random.Random) -> Iterator[SelfCase]:
    """A barrier dropped for some steps, or reached by some threads."""
    for turn in range(6):
        key, step = fresh(rng), rng.choice((64, 32, 16))
        without = _TREE.replace("        __syncthreads();", f"        if (k != {step}) __syncthreads();")
        uneven = _TREE.replace(
            "        __syncthreads();", f"        if (t < {rng.randrange(33, 120)}) __syncthreads();"
        )
        inside = _TREE.replace("        }\n        __syncthreads();", "            __syncthreads();\n        }")
        edit = ((_FILL, f"    part[t] = sum;  // {key}"), (_TREE, without), (_TREE, uneven), (_TREE, inside))[turn % 4]
        yield attack_on(f"barrier-{key}", "Drops a barrier, or leaves threads out of it.", "rowsum", edits=[edit])


def _shared(rng: random.Random) -> Iterator[SelfCase]:
    """Accesses outside of a shared array, or of what nobody wrote."""
    for turn in range(6):
        key, off = fresh(rng), rng.randrange(1, 40)
        edit = (
            ("__shared__ float part[128];", f"__shared__ float part[{128 - off}];"),
            (_FILL, f"    part[t + {off}] = sum;\n    __syncthreads();"),
            (_FILL, f"    if (t != {rng.randrange(1, 127)}) part[t] = sum;\n    __syncthreads();"),
        )[turn % 3]
        yield attack_on(f"shared-{key}", "Uses a shared array beyond what it holds.", "rowsum", edits=[edit])


def _updates(rng: random.Random) -> Iterator[SelfCase]:
    """An atomic update replaced by a plain one."""
    for turn in range(6):
        key = fresh(rng)
        plain = (
            f"bins[x[i]] += 1;  // {key}",
            f"int {key} = bins[x[i]]; bins[x[i]] = {key} + 1;",
            f"int* {key} = bins + x[i]; ++*{key};",
            f"if (i % {rng.randrange(2, 9)}) {{ atomicAdd(&bins[x[i]], 1); }} else {{ bins[x[i]]++; }}",
        )[turn % 4]
        yield attack_on(f"plain-update-{key}", "Updates without an atomic.", "histogram", edits=[(_ATOMIC, plain)])


def _partial(rng: random.Random) -> Iterator[SelfCase]:
    """Part of a sum, a product or a row."""
    for original, old, forms in (
        ("rowsum", "for (int c = t; c < cols; c += 128)", ("c < cols - 1", "c < cols / 2 + 1", "c < min(cols, 256)")),
        ("matmul", "for (int i = 0; i < k; ++i)", ("i < k - 1", "i < (k & ~3)", "i < min(k, 16)")),
    ):
        for form in rng.sample(forms, 3):
            key = fresh(rng)
            new = old.replace("c < cols" if original == "rowsum" else "i < k", form) + f" /* {key} */"
            yield attack_on(f"partial-{original}-{key}", "Adds up a part.", original, edits=[(old, new)])


def _wide_grids(rng: random.Random) -> Iterator[SelfCase]:
    """Rows in y or z of the grid, which end at 65,535 blocks."""
    for axis in ("y", "z", "y", "z"):
        key, kept = fresh(rng), rng.choice(("rows", "max(rows, 1)"))
        grid = f"dim3(1, {kept})" if axis == "y" else f"dim3(1, 1, {kept})"
        yield attack_on(
            f"rows-in-{axis}-{key}", f"Puts rows into the grid's {axis}.", "rowsum",
            edits=[
                ("int row = blockIdx.x;", f"int {key} = blockIdx.{axis};\n    int row = {key};"),
                ("rowsum<<<rows, 128>>>", f"rowsum<<<{grid}, 128>>>"),
            ],
        )  # fmt: skip


def _transposed(rng: random.Random) -> Iterator[SelfCase]:
    """Indices exchanged or moved by one."""
    store = "y[c * rows + r] = x[r * cols + c];"
    for _ in range(6):
        key, off = fresh(rng), rng.randrange(1, 5)
        new = rng.choice(
            (
                "y[r * rows + c] = x[r * cols + c];",
                f"y[c * rows + r] = x[r * cols + (c + {off}) % cols];",
                f"if (r % {off + 1} || c % {off + 2}) y[c * rows + r] = x[r * cols + c];",
                f"y[c * rows + min(r + {off}, rows - 1)] = x[r * cols + c];",
            )
        )
        yield attack_on(f"indices-{key}", "Uses other indices.", "transpose", edits=[(store, f"{new}  // {key}")])


GENERATORS = (
    FromFunction("barriers", "Races and barriers are checked on both paths.", _barriers),
    FromFunction(
        "shared-arrays", "Shared arrays have red zones, and no element is read before it is written.", _shared
    ),
    FromFunction("plain-updates", "Races are checked on both paths.", _updates),
    FromFunction("partial-sums", "Errors are compared with the original in double precision.", _partial),
    FromFunction("wide-grids", "Launches are compared beyond 65,535 rows.", _wide_grids),
    FromFunction("indices", "Every element of every check shape is compared.", _transposed),
)
