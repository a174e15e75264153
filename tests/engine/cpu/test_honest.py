"""Kernels that are right must run, give the right answer in every order, and not be refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.cpu.conftest import Make, launch
from tests.engine.cpu.kernels import honest

KERNELS = honest()


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_is_right_and_not_refused(name: str, make: Make) -> None:
    h = KERNELS[name]
    kernel = make(h.text, h.kernel, h.launch, h.arguments)
    for run in kernel.runs(h.orders):
        assert run.findings == ()
        for output, expected in h.expected.items():
            np.testing.assert_allclose(run.outputs[output], expected, rtol=h.tolerance, atol=h.tolerance)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_has_no_race(name: str, make: Make) -> None:
    h = KERNELS[name]
    assert make(h.text, h.kernel, h.launch, h.arguments).races((0, 1, 2)) == ()


def test_a_member_function_may_be_called_memcpy(make: Make) -> None:
    code = """
struct Pair { float v[2]; static __device__ void memcpy(float* to, const float* from) { to[0] = from[0], to[1] = from[1]; } };
template <class T, class U> struct Both { T a; U b; };
__global__ void k(const float* x, float* y) {
  Pair::memcpy(y, x);
  memcpy(y + 2, x + 2, 2 * sizeof(float));
  memcpy(reinterpret_cast<Both<float, float>*>(y + 4), x + 4, sizeof(Both<float, float>));
}
"""
    x = np.arange(6, dtype=np.float32)
    (done,) = make(code, "k", launch(1, 1), [("x", "in", x), ("y", "out", np.zeros(6, np.float32))]).runs((0,))
    assert not done.findings
    assert done.outputs["y"].tolist() == x.tolist()
