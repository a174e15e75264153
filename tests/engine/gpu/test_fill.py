"""Fills and guard zones are exact to the byte (`fill_words` and `check_guards` of engine/gpu/tools.cu, run by the host's compiler)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.engine.gpu import host

PATTERN = 0x7FF8A5C3
BYTES = np.frombuffer(np.uint32(PATTERN).tobytes(), np.uint8)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host.library(tmp_path_factory, host.filling())


def _aligned(size: int) -> np.ndarray[Any, Any]:
    memory = np.full(size + 4, 0x11, np.uint8)
    return memory[-memory.ctypes.data % 4 :][:size]


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 127, 130])
def test_a_fill_writes_its_bytes_and_no_other(kernels: ctypes.CDLL, start: int, size: int) -> None:
    """It wrote whole words: two bytes too many in a buffer of one half, which ended compute-sanitizer's run."""
    memory = _aligned(size + 16)
    at = ctypes.c_void_p(memory.ctypes.data + start)
    host.launch(kernels, "fill_words", at, ctypes.c_uint64(size), ctypes.c_uint32(PATTERN))
    expected = np.full(memory.size, 0x11, np.uint8)
    expected[start : start + size] = np.resize(BYTES, memory.size)[start : start + size]
    assert (memory == expected).all()


@pytest.mark.parametrize("end", range(1, 5))
@pytest.mark.parametrize("touched", [None, 0, 1, 2, 3, 4, 9])
def test_each_byte_after_a_buffer_is_guarded(kernels: ctypes.CDLL, end: int, touched: int | None) -> None:
    memory = _aligned(16)
    memory[:] = np.resize(BYTES, 16)
    if touched is not None:
        memory[end + touched] ^= 1
    zones = np.array([memory.ctypes.data + end, 16 - end], np.uint64)
    out = np.zeros(1, np.uint64)
    host.launch(
        kernels, "check_guards", ctypes.c_void_p(zones.ctypes.data), ctypes.c_uint32(1), ctypes.c_uint32(PATTERN),
        ctypes.c_void_p(out.ctypes.data),
    )  # fmt: skip
    assert int(out[0]) == (0 if touched is None else 1)
