"""cuRAND's numbers on the CPU: those that cuRAND 10.4.5 gives for the same seed, subsequence and offset, compiled for the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from engine.cpu.features import unsupported
from tests.engine.cpu.conftest import Make, launch

CODE = """
#include <curand_kernel.h>
template <class State> __global__ void k(unsigned* x, float* y, double* z) {
  State s;
  unsigned hash = 0;
  const unsigned long long seeds[] = {0, 1234, 0xdeadbeefcafe1234ull}, sequences[] = {0, 1, 5, 1000003, 0x123456789abcdefull};
  const unsigned long long offsets[] = {0, 1, 2, 7, 1000001, 0x100000001ull, 0xffffffffffffffffull};
  for (auto seed : seeds) for (auto sequence : sequences) for (auto offset : offsets) {
    curand_init(seed, sequence, offset, &s);
    for (int i = 0; i < 9; i++) hash = hash * 31 + curand(&s);
    skipahead(11, &s);
    skipahead_sequence(3, &s);
    hash = hash * 31 + curand(&s);
    hash = hash * 31 + __float_as_uint(curand_uniform(&s));
    unsigned long long bits = __double_as_longlong(curand_uniform_double(&s));
    hash = hash * 31 + static_cast<unsigned>(bits ^ bits >> 32);
  }
  x[0] = hash;
  x[1] = sizeof(State);
  curand_init(1234, 7, 3, &s);
  for (int i = 2; i < 6; i++) x[i] = curand(&s);
  z[0] = curand_uniform_double(&s);
  y[0] = curand_uniform(&s);
  for (int i = 1; i < 4; i++) y[i] = curand_normal(&s);
  float2 two = curand_normal2(&s);
  y[4] = two.x;
  y[5] = two.y;
  for (int i = 1; i < 4; i++) z[i] = curand_normal_double(&s);
  z[4] = curand_normal2_double(&s).y;
  y[6] = curand_log_normal(&s, .5f, .25f);
}
"""
# Of a small program with cuRAND's own header.
KNOWN = {
    "curandState": (
        [3399825681, 48, 324612358, 2988894868, 2223688508, 906701663],
        [0.780807078, 0.849451721, 0.970823288, 0.522044659, -0.544869602, 0.585871994, 1.17852366],
        [0.33990635, -1.01625666, -1.72620957, -1.24430225, -0.6297562832049135],
    ),
    "curandStatePhilox4_32_10_t": (
        [1142219699, 64, 502001991, 843890362, 2897886456, 3571722420],
        [0.929118395, -1.610677, 1.00086105, -0.899626374, 0.455967784, 0.716120899, 1.43532455],
        [0.0689242338, -0.0350729626, -0.100137778, 2.31155338, -0.45556575659852799],
    ),
}


def _run(make: Make, code: str, kernel: str, lengths: tuple[int, int, int]) -> Mapping[str, np.ndarray]:
    kinds = (("x", np.uint32), ("y", np.float32), ("z", np.float64))
    buffers = [(name, "out", np.zeros(n, kind)) for (name, kind), n in zip(kinds, lengths, strict=True)]
    (done,) = make(code, kernel, launch(1, 1), buffers).runs((0,))
    assert not done.findings
    return done.outputs


@pytest.mark.parametrize("state", KNOWN)
def test_numbers_are_those_of_curand(state: str, make: Make) -> None:
    whole, single, double = KNOWN[state]
    done = _run(make, CODE, f"k<{state}>", (6, 7, 5))
    assert done["x"].tolist() == whole
    np.testing.assert_allclose(done["y"], single, rtol=1e-6)
    np.testing.assert_allclose(done["z"], double, rtol=1e-8)


def test_four_numbers_at_a_time(make: Make) -> None:
    code = """
#include <curand_kernel.h>
__global__ void k(unsigned* x, float* y, double* z) {
  curandStatePhilox4_32_10_t s;
  curand_init(9, 2, 1, &s);
  unsigned hash = 0;
  for (int i = 0; i < 5; i++) {
    uint4 c = curand4(&s);
    hash = (((hash * 31 + c.x) * 31 + c.y) * 31 + c.z) * 31 + c.w;
    hash = hash * 31 + curand(&s);
  }
  float4 n = curand_normal4(&s);
  x[0] = hash;
  y[0] = n.x;
  y[1] = n.w;
  z[0] = curand_uniform2_double(&s).y;
}
"""
    done = _run(make, code, "k", (1, 2, 1))
    assert done["x"].tolist() == [3873681515]
    np.testing.assert_allclose(done["y"], [0.934632838, 0.477150619], rtol=1e-6)
    np.testing.assert_allclose(done["z"], [0.82732812020943025], rtol=1e-12)


@pytest.mark.parametrize(
    "use", ["curandStateMRG32k3a s;", "curandStateSobol32_t s;", "unsigned n = curand_poisson(&s, 2.0);"]
)
def test_other_generators_are_named(use: str) -> None:
    assert unsupported(f"__global__ void k() {{ {use} }}") == ("cuRAND's generators but Philox and xorwow",)
    assert not unsupported("__global__ void k(curandState* curand_state) { curand_uniform(curand_state); }")
