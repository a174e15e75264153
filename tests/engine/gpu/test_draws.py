"""The kernel that draws inputs (`draw` of engine/gpu/tools.cu), run by the host's compiler."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from tests.engine.gpu import host

TYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "u8": np.uint8}
NORMAL, UNIFORM, INTEGERS = range(3)
TEXT = "".join(
    f"""
extern "C" void draw_{name}({type_}* out, u64 n, u64 seed, const u64* salt, u32 kind, double low, double high, double scale,
                            double most, u32 special, double tiny, double large) {{
  draw<{type_}>(out, n, seed, salt, kind, low, high, scale, most, special, tiny, large);
}}"""
    for name, type_ in (("float", "float"), ("double", "double"), ("int", "int"), ("u8", "unsigned char"))
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host.library(tmp_path_factory, host.drawing() + TEXT)


def drawn(
    kernels: ctypes.CDLL, name: str, count: int, kind: int, low: float = 0.0, high: float = 1.0, *, seed: int = 5,
    salt: int | None = None, scale: float = 1.0, most: float = math.inf, special: bool = False, lanes: int = 32,
) -> np.ndarray[Any, Any]:  # fmt: skip
    out = np.full(count + 1, 77, TYPES[name])
    word = None if salt is None else ctypes.byref(ctypes.c_uint64(salt))
    host.launch(
        kernels, f"draw_{name}", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(count), ctypes.c_uint64(seed), word,
        ctypes.c_uint32(kind), *(ctypes.c_double(v) for v in (low, high, scale, most)), ctypes.c_uint32(special),
        ctypes.c_double(1e-38), ctypes.c_double(1e4), lanes=lanes,
    )  # fmt: skip
    assert out[count] == 77
    return out[:count]


@pytest.mark.parametrize("name", ["float", "double"])
def test_normal_numbers_are(kernels: ctypes.CDLL, name: str) -> None:
    x = drawn(kernels, name, 400_000, NORMAL, 3.0, 2.0).astype(float)
    z = (x - 3.0) / 2.0
    assert np.isfinite(x).all()
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1.0) < 0.01
    assert abs((z**4).mean() - 3.0) < 0.08
    assert 4.0 < np.abs(z).max() < 6.5
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 0.01  # the two of one radius
    assert abs(np.corrcoef(z[::2] ** 2, z[1::2] ** 2)[0, 1]) < 0.01
    assert abs(np.corrcoef(z[1:-1:2], z[2::2])[0, 1]) < 0.01
    assert np.unique(x).size > 0.9 * x.size


@pytest.mark.parametrize("name", ["float", "double"])
def test_uniform_numbers_fill_their_range_and_stay_in_it(kernels: ctypes.CDLL, name: str) -> None:
    below = float(np.nextafter(TYPES[name](5.0), TYPES[name](0.0)))
    x = drawn(kernels, name, 400_000, UNIFORM, -1.0, 5.0, most=below).astype(float)
    assert x.min() >= -1.0
    assert x.max() < 5.0
    assert np.allclose(np.histogram(x, 12, (-1.0, 5.0))[0], x.size / 12, rtol=0.03)
    assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 0.01


@pytest.mark.parametrize(("name", "low", "high"), [("int", -3, 9), ("u8", 0, 256), ("float", 2, 7), ("double", 0, 1)])
def test_integers_are_each_as_likely(kernels: ctypes.CDLL, name: str, low: int, high: int) -> None:
    x = drawn(kernels, name, 200_000, INTEGERS, low, high)
    values, counts = np.unique(x, return_counts=True)
    assert np.array_equal(values, np.arange(low, high))
    assert np.allclose(counts, x.size / (high - low), rtol=0.15)


def test_scale_and_bound_apply(kernels: ctypes.CDLL) -> None:
    plain = drawn(kernels, "float", 1000, NORMAL)
    assert np.array_equal(drawn(kernels, "float", 1000, NORMAL, scale=-1.0), -plain)
    assert np.array_equal(drawn(kernels, "float", 1000, NORMAL, most=0.5), np.minimum(plain, np.float32(0.5)))


def test_some_are_special_where_asked_for(kernels: ctypes.CDLL) -> None:
    plain, special = (drawn(kernels, "float", 64_000, NORMAL, special=s) for s in (False, True))
    changed = special[plain != special]
    assert 0.9 * 64_000 / 16 < changed.size < 1.1 * 64_000 / 16
    assert {0.0, 1e4, -1e4, 1.0} <= set(changed.tolist())
    assert (np.abs(changed) == np.float32(1e-38)).any()
    assert np.signbit(changed[changed == 0.0]).any()
    ends = drawn(kernels, "float", 64_000, UNIFORM, -2.0, 3.0, most=2.5, special=True)
    assert (ends == -2.0).sum() > 1000
    assert (ends == 2.5).sum() > 1000


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1001])
@pytest.mark.parametrize(("name", "kind"), [("float", NORMAL), ("float", UNIFORM), ("u8", INTEGERS)])
def test_any_number_of_threads_draws_the_same(kernels: ctypes.CDLL, name: str, kind: int, count: int) -> None:
    """A test of what follows from places alone: a shorter array is the beginning of a longer one."""
    whole = drawn(kernels, name, 1001, kind, 0.0, 9.0)
    assert np.array_equal(drawn(kernels, name, count, kind, 0.0, 9.0, lanes=7), whole[:count])


def test_every_seed_and_every_salt_make_another(kernels: ctypes.CDLL) -> None:
    for kind, high in ((NORMAL, 1.0), (UNIFORM, 1.0), (INTEGERS, 1e6)):
        made = [drawn(kernels, "float", 999, kind, 0.0, high, seed=s, salt=t) for s in (1, 9) for t in (None, 5, 6)]
        assert len({x.tobytes() for x in made}) == len(made)
        assert np.array_equal(made[1], drawn(kernels, "float", 999, kind, 0.0, high, seed=1, salt=5))
