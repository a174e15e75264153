"""Parts of the reference copy: as the bytes have them to each other."""

from __future__ import annotations

import pytest

from engine.gpu.copy_parts import copy_parts


@pytest.mark.parametrize(
    ("read", "written", "parts"),
    [
        (1 << 28, 1 << 28, (1, 1)),
        (2 << 27, 1 << 27, (2, 1)),
        (4 << 26, 3 << 26, (4, 3)),  # three arrays updated by a fourth
        (1 << 26, 4 << 26, (1, 1)),
        ((2 << 27) + 8192, (1 << 27) + 64, (2, 1)),  # a row's factors beside the rows
        (1 << 28, 4096, (8, 1)),
        (1 << 28, 0, (8, 1)),
        (0, 1 << 28, (1, 1)),
    ],
)
def test_parts_are_in_the_ratio_of_the_bytes(read: int, written: int, parts: tuple[int, int]) -> None:
    assert copy_parts(read, written) == parts
