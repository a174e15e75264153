"""Kernels that are right must run, give the right answer in every order, and not be refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.cpu.conftest import Make
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
