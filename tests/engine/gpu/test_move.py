"""The reference copy reads and writes each byte once (`move_*` of engine/gpu/tools.cu, run by the host's compiler)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from engine.gpu.copy_parts import PARTS
from tests.engine.gpu import host

UNTOUCHED = 0x11111111


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host.library(tmp_path_factory, host.moving())


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("reads", "writes"), [(20, 20), (40, 20), (40, 30), (41, 19), (7, 40), (80, 0), (0, 80)])
def test_every_vector_is_written_once_and_none_beyond(
    kernels: ctypes.CDLL, reads: int, writes: int, parts: tuple[int, int]
) -> None:
    source = np.arange(4 * max(reads, 1), dtype=np.uint32)
    target = np.full(4 * (writes + 8), UNTOUCHED, np.uint32)
    part = max(-(-reads // parts[0]), -(-writes // parts[1]))
    host.launch(
        kernels, f"move_{parts[0]}_{parts[1]}", ctypes.c_void_p(source.ctypes.data), ctypes.c_uint64(reads),
        ctypes.c_void_p(target.ctypes.data), ctypes.c_uint64(writes), ctypes.c_uint64(part), lanes=96,
    )  # fmt: skip
    assert (target[: 4 * writes] != UNTOUCHED).all()
    assert (target[4 * writes :] == UNTOUCHED).all()
    both = 4 * min(reads, writes, part)
    assert (target[:both] == source[:both]).all()
