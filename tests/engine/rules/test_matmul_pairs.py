"""Products of factors of 16 bits on tensor cores, with sums in single precision."""

import dataclasses
import re

import numpy as np
import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal, results
from tests.engine.rules.test_matmul_tensor import OTHER_FORMS
from tests.engine.rules.test_matmul_tile import AWKWARD, PLAIN, site_of
from tests.engine.rules.workbench import after, compiles, device, machine_code, propose

TOLERANCE = 2e-5  # of sums of up to 80 terms: products are exact, sums in single precision
HALF = "#include <cuda_fp16.h>\n" + PLAIN.replace("const float* ", "const half* ").replace(
    "a[row * k + i] * b[i * n + col]", "__half2float(a[row * k + i]) * __half2float(b[i * n + col])"
)
BFLOAT = (
    HALF.replace("cuda_fp16", "cuda_bf16")
    .replace("const half* ", "const __nv_bfloat16* ")
    .replace("half2float", "bfloat162float")
)


def pairs(site: Site, bm: int, bn: int, tm: int) -> Site:
    (proposal,) = propose(site, "matmul_tile", bm=bm, bn=bn, tm=tm, tn=4, bk=32, tensor=1)
    return after(site, proposal)


@pytest.mark.parametrize(("source", "kind"), [(HALF, "F32"), (BFLOAT, "F32.BF16")])
def test_every_tiling_compiles(source: str, kind: str) -> None:
    site = site_of(source)
    found = propose(site, "matmul_tile", tensor=1)
    assert len(found) >= 4
    for proposal in found if kind == "F32" else found[1:2]:  # tilings are written alike for both types
        compiles(after(site, proposal))
    code = machine_code(after(site, found[1]))
    assert (
        len(re.findall(rf"\bHMMA\.16816\.{kind} ", code)) == 32
    )  # of 16 x 8 x 16, for a warp's 64 x 32 and a depth of 32
    assert not re.findall(r"\b(?:LDL|STL)\b", code)  # no spills


def test_what_a_warp_computes() -> None:
    code = device(pairs(site_of(HALF), 64, 64, 8))
    assert "alignas(16) __shared__ half a_tile[3][tile_m][tile_k];" in code
    assert "alignas(16) __shared__ half b_tile[3][tile_k][tile_n];" in code
    assert "a_pairs[e] = *reinterpret_cast<const unsigned*>(&a_tile[" in code  # neighbours along k
    assert "= pair(b_tile[" in code
    assert "isfinite" not in code
    assert code.endswith("""            const float result = out_tile[tid / 32][at / warp_n][at % warp_n];
            if (row < m && col < n) {
                float sum = 0.0f;
                sum += result;
                c[row * n + col] = sum;
            }
        }
    }
}""")


@pytest.mark.parametrize("source", [HALF, BFLOAT])
@pytest.mark.parametrize("sizes", [*AWKWARD, {"m": 64, "n": 72, "k": 80}])
def test_every_tiling_gives_the_same_results(source: str, sizes: dict[str, int]) -> None:
    site = site_of(source)
    edited = [after(site, p) for p in propose(site, "matmul_tile", tensor=1)]
    assert_equal(site, edited, [sizes], tolerance=TOLERANCE, races=sizes["m"] == 70)


@pytest.mark.parametrize(("old", "new"), [*OTHER_FORMS, ("__half2float(a[row * k + i])", "(float)a[row * k + i]")])
def test_other_orders_masks_and_results(old: str, new: str) -> None:
    assert old in HALF
    site = site_of(HALF.replace(old, new))
    for sizes in (AWKWARD[1], {"m": 64, "n": 72, "k": 80}):
        assert_equal(site, [pairs(site, 64, 64, 8)], [sizes], tolerance=TOLERANCE, races=sizes["m"] == 64)


def test_infinite_factors() -> None:
    site = site_of(HALF)
    expected, got = (results(s, AWKWARD[1], infinite="a")["c"] for s in (site, pairs(site, 64, 64, 8)))
    assert np.isinf(expected).any()
    np.testing.assert_array_equal(got[~np.isfinite(got)], expected[~np.isfinite(expected)])
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const half* b", "const float* b"),  # factors of two types
        ("float sum", "half sum"),  # sums of 16 bits
        (
            "__half2float(a[row * k + i]) * __half2float(b[i * n + col])",
            "__half2float(a[row * k + i] * b[i * n + col])",
        ),
    ],
)
def test_other_products_are_left_to_other_units(old: str, new: str) -> None:
    assert old in HALF
    assert not propose(site_of(HALF.replace(old, new)), "matmul_tile", tensor=1)


@pytest.mark.parametrize(
    ("arch", "some"), [("sm_80", True), ("sm_86", True), ("sm_90a", True), ("sm_120", True), ("sm_75", False)]
)
def test_from_which_architecture_on(arch: str, some: bool) -> None:
    site = site_of(HALF)
    site = dataclasses.replace(site, target=dataclasses.replace(site.target, arch=arch))
    assert bool(propose(site, "matmul_tile", tensor=1)) == some
