"""Headers of libcu++ on the CPU: what kernels take from them."""

from __future__ import annotations

import numpy as np

from tests.engine.cpu.conftest import Make, launch

CODE = """
#include <cuda/cmath>
#include <cuda/functional>
#include <cuda/std/array>
#include <cuda/std/tuple>
__global__ void k(int* y) {
  cuda::std::array<int, 2> a = {7, 3};
  cuda::fast_mod_div<int> three(3);
  auto both = cuda::div(17, three);
  y[0] = cuda::ceil_div(a[0], a[1]); y[1] = cuda::round_up(7, 4u); y[2] = cuda::round_down(7, 4); y[3] = cuda::ilog2(1000u);
  y[4] = cuda::is_power_of_two(64) + 2 * cuda::is_power_of_two(65); y[5] = 17 / three * 10 + 17 % three;
  y[6] = both.first * 10 + both.second; y[7] = cuda::maximum<int>{}(3, 5) * 10 + cuda::minimum<>{}(3, 5);
  y[8] = cuda::std::get<1>(cuda::std::make_tuple(1, 9));
}
"""


def test_whole_numbers_and_function_objects(make: Make) -> None:
    (done,) = make(CODE, "k", launch(1, 1), [("y", "out", np.zeros(9, np.int32))]).runs((0,))
    assert not done.findings
    assert done.outputs["y"].tolist() == [3, 8, 4, 9, 1, 52, 52, 53, 9]
