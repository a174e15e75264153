import re

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_matmul_tile import AWKWARD, PLAIN, site_of
from tests.engine.rules.workbench import after, compiles, device, machine_code, propose

TOLERANCE = 1e-5  # of sums of 36 terms; single precision is good for 2e-6, one product in TF32 for 1e-3
SMALL = {"bm": 64, "bn": 64, "tensor": 1}


def small(site: Site) -> Site:
    (proposal,) = propose(site, "matmul_tile", **SMALL)
    return after(site, proposal)


def test_every_tiling_compiles_without_spills() -> None:
    site = site_of(PLAIN)
    found = propose(site, "matmul_tile", tensor=1)
    assert len(found) >= 4
    for proposal in found:
        edited = after(site, proposal)
        compiles(edited)
        assert not re.findall(r"\b(?:LDL|STL)\b", machine_code(edited))


def test_a_step_is_three_products_on_tensor_cores() -> None:
    """128 x 128 x 16 for 8 warps: 64 of 16 x 8 x 4 for each, thrice."""
    edited = after(site_of(PLAIN), propose(site_of(PLAIN), "matmul_tile", tensor=1)[0])
    assert len(re.findall(r"\bHMMA\.1684\.F32\.TF32\b", machine_code(edited))) == 3 * 64
    assert device(edited).startswith("#include <mma.h>\n")


@pytest.mark.parametrize("sizes", AWKWARD)
def test_gives_the_same_results(sizes: dict[str, int]) -> None:
    site = site_of(PLAIN)
    assert_equal(site, [small(site)], [sizes], tolerance=TOLERANCE, races=sizes["m"] > 40)


def test_every_large_tiling_gives_the_same_results() -> None:
    site = site_of(PLAIN)
    assert_equal(
        site, [after(site, p) for p in propose(site, "matmul_tile", tensor=1)], AWKWARD[1:2], tolerance=TOLERANCE
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b[i * n + col]", "b[col * k + i]"),
        ("a[row * k + i]", "a[i * m + row]"),
        ("if (row < m && col < n) {", "if (row < m && col < n && col <= row) {"),
        ("c[row * n + col] = sum;", "c[row * n + col] = 2.0f * sum + c[row * n + col];"),
    ],
)
def test_other_orders_masks_and_results(old: str, new: str) -> None:
    site = site_of(PLAIN.replace(old, new))
    assert_equal(site, [small(site)], AWKWARD[1:2], tolerance=TOLERANCE)


def test_other_types_become_factors_of_single_precision() -> None:
    source = "#include <cuda_fp16.h>\n" + PLAIN.replace("const float* a", "const half* a")
    site = site_of(source.replace("a[row * k + i]", "__half2float(a[row * k + i])"))
    assert device(small(site)).startswith("#include <mma.h>\n#include <cuda_fp16.h>")
    assert_equal(site, [small(site)], AWKWARD[1:2], tolerance=TOLERANCE)


@pytest.mark.parametrize("source", [PLAIN.replace("float", "double"), PLAIN.replace("float sum", "double sum")])
def test_products_in_double_precision_stay_there(source: str) -> None:
    found = propose(site_of(source), "matmul_tile")
    assert found
    assert not any(p.parameters["tensor"] for p in found)
