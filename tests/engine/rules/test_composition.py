"""Rules work on each other's output, as the search applies them, and the results stay the same."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.rewrite.site import Site
from engine.rules import RuleFailure, proposals
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, make

EXAMPLES = Path(__file__).parents[3] / "examples"
KERNELS: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, int]]] = {
    "softmax": (
        "softmax_kernel<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);",
        {"x": "rows*cols", "y": "rows*cols"},
        {"rows": 7, "cols": 136},
    ),
    "gemv": (
        "gemv_kernel<<<(rows + 63) / 64, 64>>>(a, x, y, rows, cols);",
        {"a": "rows*cols", "x": "cols", "y": "rows"},
        {"rows": 7, "cols": 133},
    ),
    "column_sum": (
        "column_sum_kernel<<<(cols + 63) / 64, 64>>>(x, sums, rows, cols);",
        {"x": "rows*cols", "sums": "cols"},
        {"rows": 45, "cols": 70},
    ),
    "matmul": (
        "dim3 block(16, 16);\n    dim3 grid((n + 15) / 16, (m + 15) / 16);\n"
        "    matmul_kernel<<<grid, block>>>(a, b, c, m, n, k);",
        {"a": "m*k", "b": "k*n", "c": "m*n"},
        {"m": 70, "n": 36, "k": 20},
    ),
}


def site_of(name: str) -> Site:
    launch, elements, sizes = KERNELS[name]
    text = (EXAMPLES / f"{name}.cu").read_text()
    start = text.index("__global__")
    source = text[start : text.index("\n}\n", start) + 3]
    return make(source, "    " + launch, sizes=(dict.fromkeys(sizes, 4096),), check=(sizes,), elements=elements)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", range(4))
def test_a_random_path_of_edits_keeps_the_results(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    original = site = site_of(name)
    path: list[tuple[str, dict[str, int | str]]] = []
    for _ in range(rng.choice((2, 3, 4))):
        failures: list[RuleFailure] = []
        found = proposals(site, failures=failures)
        assert not failures, (path, failures)
        if not found:
            break
        rule = rng.choice(sorted({p.rule for p in found}))
        proposal = rng.choice([p for p in found if p.rule == rule])
        path.append((rule, dict(proposal.parameters)))
        site = after(site, proposal)
    assert path
    compiles(site)
    assert_equal(original, [site], (KERNELS[name][2],), tolerance=1e-3)


def test_a_column_sum_in_global_memory_gets_a_team_per_column() -> None:
    site = site_of("column_sum")
    for rule in ("register_accumulate", "row_parallel"):
        site = after(site, proposals(site, only=[rule])[0])
    compiles(site)
    assert_equal(site_of("column_sum"), [site], ({"rows": 45, "cols": 70}, {"rows": 1, "cols": 1}), races=True)
