"""Products in single precision on tensor cores: three products in TF32, each factor the sum of two numbers that TF32 holds."""

import dataclasses
import re

import numpy as np
import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal, results
from tests.engine.rules.test_matmul_tile import AWKWARD, PLAIN, TRANSPOSED, site_of
from tests.engine.rules.workbench import after, compiles, device, machine_code, propose

OTHER_FORMS = (  # orders, a mask, a result that is used otherwise
    ("b[i * n + col]", "b[col * k + i]"),
    ("a[row * k + i]", "a[i * m + row]"),
    ("if (row < m && col < n) {", "if (row < m && col < n && col <= row) {"),
    ("c[row * n + col] = sum;", "c[row * n + col] = 2.0f * sum + c[row * n + col];"),
)
TOLERANCE = 1e-5  # of sums of 36 terms; single precision is good for 2e-6, one product in TF32 for 1e-3


def tensor(site: Site, bm: int, bn: int, tn: int) -> Site:
    (proposal,) = propose(site, "matmul_tile", bm=bm, bn=bn, tn=tn, bk=16, tensor=1)
    return after(site, proposal)


def on(site: Site, arch: str) -> Site:
    return dataclasses.replace(site, target=dataclasses.replace(site.target, arch=arch))


def test_every_tiling_compiles() -> None:
    site = site_of(PLAIN)
    found = propose(site, "matmul_tile", tensor=1)
    assert len(found) >= 4
    for proposal in found:
        compiles(after(site, proposal))


def test_a_step_is_three_products_on_tensor_cores() -> None:
    """128 x 128 x 16 for 8 warps: 32 of 16 x 8 x 8 for each, thrice."""
    site = site_of(PLAIN)
    (proposal,) = propose(site, "matmul_tile", bm=128, bk=16, tm=8, tensor=1)
    code = machine_code(after(site, proposal))
    assert len(re.findall(r"\bHMMA\.1688\.F32\.TF32\b", code)) == 3 * 32
    assert not re.findall(r"\b(?:LDL|STL)\b", code)  # no spills


def test_what_a_warp_computes_and_hands_on() -> None:
    code = device(tensor(site_of(PLAIN), 64, 128, 4))
    assert "alignas(16) __shared__ float a_tile[2][tile_m][tile_k + 4];" in code
    assert "alignas(16) __shared__ float b_tile[2][tile_k][tile_n + 8];" in code
    assert "const int warp_row = tid / 32 / 4 * warp_m;" in code
    assert "reinterpret_cast<float (*)[8][warp_n + 8]>(&b_tile[0][0][0]);" in code
    assert "            finite = finite && isfinite(sums[i2][j][e]);" in code
    assert (
        """                const float result = out_tile[tid / 32][at / warp_n][at % warp_n];
                if (row < m && col < n) {
                    float sum = 0.0f;
                    sum += result;
                    c[row * n + col] = sum;
"""
        in code
    )
    assert code.endswith(
        """    } else {  // parts of factors overflow where factors do not
        for (int at = tid % 32; at < warp_m * warp_n; at += 32) {
            int row = first_row + warp_row + at / warp_n;
            int col = first_col + warp_col + at % warp_n;
            if (row < m && col < n) {
                float sum = 0.0f;
                for (int i = 0; i < k; ++i) {
                    sum += a[row * k + i] * b[i * n + col];
                }
                c[row * n + col] = sum;
            }
        }
    }
}"""
    )


@pytest.mark.parametrize("sizes", AWKWARD)
def test_every_tiling_gives_the_same_results(sizes: dict[str, int]) -> None:
    site = site_of(PLAIN)
    edited = [after(site, p) for p in propose(site, "matmul_tile", tensor=1)]
    assert_equal(site, edited, [sizes], tolerance=TOLERANCE, races=sizes["m"] == 70)


@pytest.mark.parametrize(("old", "new"), [*OTHER_FORMS, ("sum += ", "sum -= ")])
def test_other_orders_masks_and_results(old: str, new: str) -> None:
    site = site_of(PLAIN.replace(old, new))
    assert_equal(site, [tensor(site, 64, 128, 4)], AWKWARD[1:2], tolerance=TOLERANCE, races=True)


@pytest.mark.parametrize("source", [PLAIN, TRANSPOSED])
def test_infinite_factors(source: str) -> None:
    """The other part of an infinite factor is no number: such results are computed by the author's loop."""
    site = site_of(source)
    edited = tensor(site, 64, 128, 4)
    expected, got = (results(s, AWKWARD[1], infinite="a")["c"] for s in (site, edited))
    assert np.isinf(expected).any()
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    np.testing.assert_array_equal(got[~np.isfinite(got)], expected[~np.isfinite(expected)])


def test_factors_of_other_types_become_floats() -> None:
    source = "#include <cuda_fp16.h>\n" + PLAIN.replace("const float* a", "const half* a")
    site = site_of(source.replace("a[row * k + i]", "__half2float(a[row * k + i])"))
    assert not propose(site, "matmul_tile", tensor=1)  # asynchronous copies do not convert


@pytest.mark.parametrize("source", [PLAIN.replace("float", "double"), PLAIN.replace("float sum", "double sum")])
def test_products_in_double_precision_stay_there(source: str) -> None:
    found = propose(site_of(source), "matmul_tile")
    assert found
    assert not any(p.parameters["tensor"] for p in found)


@pytest.mark.parametrize(
    ("arch", "some"), [("sm_80", True), ("sm_90a", True), ("sm_75", False), ("sm_86", False), ("sm_89", False)]
)
def test_where_tensor_cores_are_as_slow_as_the_others_they_are_not_used(arch: str, some: bool) -> None:
    assert bool(propose(on(site_of(PLAIN), arch), "matmul_tile", tensor=1)) == some
