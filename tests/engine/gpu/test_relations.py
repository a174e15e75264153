"""The kernels that draw inputs with a relation (engine/gpu/relations.cu), run by the host's compiler: one lane after the other."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from engine.spec.data import figures, related
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from tests.engine.gpu import host


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host.library(tmp_path_factory, host.RELATIONS)


_launch = host.launch


def _sparse(
    kernels: ctypes.CDLL, rows: int, entries: int, width: int, seed: int, salt: int | None = None, dtype: Any = np.int32
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    offsets, columns = np.full(rows + 1, 77, dtype), np.full(entries, 77, np.int32)
    word = None if salt is None else ctypes.byref(ctypes.c_uint64(salt))
    first = ctypes.c_void_p(offsets.ctypes.data), ctypes.c_uint32(offsets.itemsize)
    rest = ctypes.c_uint64(rows), ctypes.c_uint64(entries), ctypes.c_uint64(width), ctypes.c_uint64(seed), word
    _launch(kernels, "draw_csr_offsets", *first, *rest)
    second = ctypes.c_void_p(columns.ctypes.data), ctypes.c_uint32(4)
    _launch(kernels, "draw_csr_columns", *second, *first, rest[0], rest[2], rest[3], word)
    return offsets, columns


@pytest.mark.parametrize(
    ("rows", "entries", "width"),
    [(1, 2, 4), (33, 300, 65), (300, 3000, 129), (7, 7 * 5, 5), (5, 1, 1 << 30), (64, 64 * 9 - 3, 9), (3, 6, 2)],
)
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_a_sparse_matrix_is_one(kernels: ctypes.CDLL, rows: int, entries: int, width: int, dtype: Any) -> None:
    for seed in range(20):
        offsets, columns = _sparse(kernels, rows, entries, width, seed, dtype=dtype)
        assert offsets[0] == 0
        assert offsets[-1] == entries
        lengths = np.diff(offsets)
        assert (lengths >= 0).all()
        assert lengths.max() <= width
        row = np.repeat(np.arange(rows), lengths)
        assert (np.diff(columns.astype(np.int64) + row * (width + 1)) > 0).all()  # ascending, none twice
        assert columns.min() >= 0
        assert columns.max() < width


def test_rows_differ_in_length_and_some_are_empty(kernels: ctypes.CDLL) -> None:
    lengths = np.diff(_sparse(kernels, 4096, 4096 * 16, 4096, 5)[0])
    assert (lengths == 0).mean() > 0.02
    assert lengths.max() > 3 * 16
    assert lengths.std() > 8


def test_every_seed_and_every_salt_make_another(kernels: ctypes.CDLL) -> None:
    made = [_sparse(kernels, 300, 3000, 129, seed, salt) for seed in (1, 9) for salt in (None, 5, 6)]
    again = _sparse(kernels, 300, 3000, 129, 1, 5)
    assert all(np.array_equal(a, b) for a, b in zip(made[1], again, strict=True))
    for part in range(2):
        assert len({found[part].tobytes() for found in made}) == len(made)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 1000, 4097])
@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_a_permutation_has_every_number_once(kernels: ctypes.CDLL, count: int, dtype: Any) -> None:
    found = []
    for seed in range(8):
        out = np.full(count, 77, dtype)
        _launch(
            kernels, "draw_permutation", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint32(out.itemsize),
            ctypes.c_uint64(count), ctypes.c_uint64(seed), None,
        )  # fmt: skip
        assert np.array_equal(np.sort(out), np.arange(count))
        found.append(out)
    if count >= 1000:  # no element has a place it prefers, and neighbours do not stay together
        assert len({out.tobytes() for out in found}) == 8
        for out in found:
            assert (out == np.arange(count)).mean() < 0.01
            assert (np.abs(np.diff(out.astype(np.int64))) == 1).mean() < 0.01
            assert abs(np.corrcoef(out, np.arange(count))[0, 1]) < 0.15


def _spec(*arguments: Argument) -> tuple[KernelSpec, Case]:
    case = Case("c", {"rows": 4, "entries": 6, "cols": 9})
    names = tuple(a.name for a in arguments)
    return KernelSpec("k.cu", (Step("k", "", names),), arguments, (case,), (case,)), case


def test_each_fill_says_what_is_drawn() -> None:
    spec, case = _spec(
        Argument("offsets", "int", "in", "rows + 1", Fill("csr_offsets", of="columns")),
        Argument("columns", "short", "in", "entries", Fill("csr_columns", "", "cols", "offsets")),
        Argument("places", "int", "in", "rows", Fill("permutation")),
        Argument("edges", "float", "in", "rows", Fill("sorted", "-1", "1")),
        Argument("x", "float", "in", "rows", Fill("normal")),
        Argument("y", "int", "out", "rows"),
    )
    made = {a.name: related(spec, case, a, 3, "declared") for a in spec.arguments}
    assert {name: found.kind if found else None for name, found in made.items()} == {
        "offsets": "csr", "columns": "csr_columns", "places": "permutation", "edges": None, "x": None, "y": None,
    }  # fmt: skip
    offsets = made["offsets"]
    assert offsets is not None
    assert (offsets.columns, offsets.width) == ("columns", 9)
    other = related(spec, case, spec.argument("offsets"), 4, "declared")
    assert other is not None
    assert other.seed != offsets.seed
    edges = figures(spec, case, spec.argument("edges"), 3, "negated")
    assert edges is not None
    assert (edges.kind, edges.ordered, edges.low, edges.high, edges.scale) == ("uniform", True, -1.0, 1.0, -1.0)
