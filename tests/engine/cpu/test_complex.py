"""Complex numbers on the CPU path: what NumPy computes in double precision, within single precision, and no overflow on the way."""

from __future__ import annotations

import numpy as np

from tests.engine.cpu.conftest import Make, launch

KERNEL = """
#include <cuComplex.h>
__global__ void k(const cuFloatComplex* a, const cuFloatComplex* b, cuFloatComplex* y, float* size, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  cuFloatComplex sum = cuCaddf(a[i], cuConjf(b[i])), product = cuCmulf(a[i], b[i]);
  y[4 * i] = cuCfmaf(a[i], b[i], sum);
  y[4 * i + 1] = cuCdivf(a[i], b[i]);
  y[4 * i + 2] = cuCsubf(product, make_cuComplex(cuCrealf(a[i]), cuCimagf(b[i])));
  y[4 * i + 3] = cuComplexDoubleToFloat(cuCdiv(cuComplexFloatToDouble(a[i]), make_cuDoubleComplex(0.5, -2.0)));
  size[i] = cuCabsf(a[i]);
}
"""


def test_complex_numbers(make: Make) -> None:
    rng = np.random.default_rng(3)
    a, b = ((rng.normal(size=32) + 1j * rng.normal(size=32)).astype(np.complex64) for _ in range(2))
    a[0], b[0] = 3e30 + 4e30j, 1e30 + 1e30j  # whose squares no float holds
    a[1], a[2] = 0, complex(np.inf, 1)
    arguments = [
        ("a", "in", a.view(np.float32)), ("b", "in", b.view(np.float32)), ("y", "out", np.zeros(256, np.float32)),
        ("size", "out", np.zeros(32, np.float32)), ("n", "scalar", np.int32(32)),
    ]  # fmt: skip
    (run,) = make(KERNEL, "k", launch(1, 32), arguments).runs((0,))
    assert run.findings == ()
    got = run.outputs["y"].view(np.complex64).reshape(32, 4)
    wide, other = a.astype(np.complex128), b.astype(np.complex128)
    few = slice(3, None)
    np.testing.assert_allclose(got[few, 0], (wide * other + wide + other.conj())[few], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[few, 1], (wide / other)[few], rtol=1e-5)
    np.testing.assert_allclose(got[0, 1], wide[0] / other[0], rtol=1e-5)
    np.testing.assert_allclose(
        got[few, 2], (wide * other)[few] - wide[few].real - 1j * other[few].imag, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(got[few, 3], (wide / (0.5 - 2j))[few], rtol=1e-5)
    np.testing.assert_allclose(run.outputs["size"], np.abs(wide), rtol=1e-6)
