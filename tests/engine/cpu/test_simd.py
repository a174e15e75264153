"""Instructions on the halves and bytes of a word, against NumPy's arithmetic on the same numbers as arrays of those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.cpu.conftest import Make, launch

Array = np.ndarray[Any, Any]
_WIDE = {2: ("int16", "uint16"), 4: ("int8", "uint8")}
# The rest of a name -> (whether parts are signed, what they give; None: what does not fit is cut off, else it is clamped).
_EACH: dict[str, tuple[bool, bool, Callable[[Array, Array], Array]]] = {
    "add": (False, False, lambda x, y: x + y),
    "addss": (True, True, lambda x, y: x + y),
    "addus": (False, True, lambda x, y: x + y),
    "sub": (False, False, lambda x, y: x - y),
    "subss": (True, True, lambda x, y: x - y),
    "subus": (False, True, lambda x, y: x - y),
    "avgu": (False, False, lambda x, y: (x + y + 1) // 2),
    "haddu": (False, False, lambda x, y: (x + y) // 2),
    "maxs": (True, False, np.maximum),
    "maxu": (False, False, np.maximum),
    "mins": (True, False, np.minimum),
    "minu": (False, False, np.minimum),
    "absdiffs": (True, False, lambda x, y: np.abs(x - y)),
    "absdiffu": (False, False, lambda x, y: np.abs(x - y)),
    "cmpeq": (False, False, lambda x, y: -(x == y).astype(np.int64)),
    "cmpne": (False, False, lambda x, y: -(x != y).astype(np.int64)),
    "cmpgts": (True, False, lambda x, y: -(x > y).astype(np.int64)),
    "cmpgtu": (False, False, lambda x, y: -(x > y).astype(np.int64)),
    "cmplts": (True, False, lambda x, y: -(x < y).astype(np.int64)),
    "setleu": (False, False, lambda x, y: (x <= y).astype(np.int64)),
    "setges": (True, False, lambda x, y: (x >= y).astype(np.int64)),
}


@pytest.mark.parametrize("parts", _WIDE)
def test_instructions_on_parts_of_words(parts: int, make: Make) -> None:
    calls = "".join(f"  y[{i} * n + t] = __v{name}{parts}(a[t], b[t]);\n" for i, name in enumerate(_EACH))
    code = f"__global__ void k(const unsigned* a, const unsigned* b, unsigned* y, int n) {{\n  int t = threadIdx.x;\n{calls}}}\n"
    random, n = np.random.default_rng(parts), 64
    a, b = (random.integers(0, 1 << 32, n, dtype=np.uint32) for _ in range(2))
    b[::4] = a[::4]
    a[1::4], b[1::4] = 0x80007FFF, 0x7FFF8000
    buffers = [
        ("a", "in", a),
        ("b", "in", b),
        ("y", "out", np.zeros(len(_EACH) * n, np.uint32)),
        ("n", "scalar", np.int32(n)),
    ]
    (done,) = make(code, "k", launch(1, n), buffers).runs((0,))
    assert not done.findings
    for i, (name, (signed, clamps, each)) in enumerate(_EACH.items()):
        kind = np.dtype(_WIDE[parts][not signed])
        made = each(a.view(kind).astype(np.int64), b.view(kind).astype(np.int64))
        made = np.clip(made, np.iinfo(kind).min, np.iinfo(kind).max) if clamps else made
        wanted = made.astype(np.dtype(_WIDE[parts][1])).view(np.uint32)
        np.testing.assert_array_equal(done.outputs["y"][i * n : (i + 1) * n], wanted, err_msg=f"{name}{parts}")


def test_signs_and_sums_of_parts(make: Make) -> None:
    code = """
__global__ void k(const unsigned* a, unsigned* y) {
  y[0] = __vabs4(a[0]); y[1] = __vabsss4(a[0]); y[2] = __vneg2(a[0]); y[3] = __vnegss4(a[0]);
  y[4] = __vsadu4(a[0], a[1]); y[5] = __vsads2(a[0], a[1]); y[6] = __vavgs4(a[0], a[1]);
}
"""
    buffers = [("a", "in", np.array([0x80FF017F, 0x01020304], np.uint32)), ("y", "out", np.zeros(7, np.uint32))]
    (done,) = make(code, "k", launch(1, 1), buffers).runs((0,))
    wanted = [
        0x8001017F,
        0x7F01017F,
        0x7F01FE81,
        0x7F01FF81,
        0x7F + 0xFD + 2 + 0x7B,
        0x102 - (0x80FF - 0x10000) + 0x304 - 0x17F,
    ]
    assert done.outputs["y"][:6].tolist() == wanted
    # Halves are rounded away from zero: -128 and 1, -1 and 2, 1 and 3, 127 and 4.
    assert done.outputs["y"][6] == 0xC0010242


# name -> what it gives for three words, as Python's numbers
_DPX: dict[str, Callable[[int, int, int], int]] = {
    "__vimax3_s32": lambda x, y, z: max(x, y, z),
    "__vimin3_s32": lambda x, y, z: min(x, y, z),
    "__vimax3_s32_relu": lambda x, y, z: max(x, y, z, 0),
    "__viaddmax_s32": lambda x, y, z: max(_wrapped(x + y), z),
    "__viaddmin_s32": lambda x, y, z: min(_wrapped(x + y), z),
    "__viaddmin_s32_relu": lambda x, y, z: max(min(_wrapped(x + y), z), 0),
    "__sad": lambda x, y, z: _wrapped(abs(x - y) + z),
    "__dp2a_lo": lambda x, y, z: _wrapped(
        z + _wrapped(x, 16) * _wrapped(y, 8) + _wrapped(x >> 16, 16) * _wrapped(y >> 8, 8)
    ),
}


def _wrapped(value: int, bits: int = 32) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def test_the_larger_and_smaller_of_three_and_of_sums(make: Make) -> None:
    """Programs for dynamic programming could not be built: `__viaddmax_s16x2` was not declared."""
    calls = "".join(f"  y[{i} * n + t] = {name}(a[t], b[t], c[t]);\n" for i, name in enumerate(_DPX))
    calls += f"  y[{len(_DPX)} * n + t] = __viaddmax_s16x2_relu(a[t], b[t], c[t]);\n"
    calls += (
        f"  bool high, low; __vibmax_s16x2(a[t], b[t], &high, &low);\n  y[{len(_DPX) + 1} * n + t] = high * 2 + low;\n"
    )
    code = f"__global__ void k(const int* a, const int* b, const int* c, int* y, int n) {{\n  int t = threadIdx.x;\n{calls}}}\n"
    random, n = np.random.default_rng(4), 64
    a, b, c = (random.integers(-(1 << 31), 1 << 31, n).astype(np.int32) for _ in range(3))
    b[::4] = a[::4]
    y = np.zeros((len(_DPX) + 2) * n, np.int32)
    buffers = [("a", "in", a), ("b", "in", b), ("c", "in", c), ("y", "out", y), ("n", "scalar", np.int32(n))]
    (done,) = make(code, "k", launch(1, n), buffers).runs((0,))
    assert not done.findings
    given = done.outputs["y"].reshape(-1, n)
    for i, (name, each) in enumerate(_DPX.items()):
        assert given[i].tolist() == [each(*map(int, words)) for words in zip(a, b, c, strict=True)], name
    halves = [word.view(np.int16).astype(np.int64) for word in (a, b, c)]
    sums = (halves[0] + halves[1]).astype(np.int16).astype(np.int64)
    assert given[-2].view(np.int16).tolist() == np.maximum(np.maximum(sums, halves[2]), 0).tolist()
    first = (halves[0] >= halves[1]).reshape(-1, 2)
    assert given[-1].tolist() == (first[:, 1] * 2 + first[:, 0]).tolist()


def test_the_compilers_atomics(make: Make) -> None:
    """Programs with `__nv_atomic_load_n` or `__NV_ATOMIC_RELAXED` could not be built."""
    code = """
    __global__ void k(const int* a, int* sum, int* most, int* once, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int mine = __nv_atomic_load_n(a + i, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        __nv_atomic_fetch_add(sum, mine, __NV_ATOMIC_RELAXED);
        __nv_atomic_fetch_max(most, mine, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
        int expected = 0;
        if (__nv_atomic_compare_exchange_n(once, &expected, 7, false, __NV_ATOMIC_RELAXED, __NV_ATOMIC_RELAXED))
            __nv_atomic_store_n(once + 1, 5, __NV_ATOMIC_RELEASE);
    }
    """
    a = np.arange(100, dtype=np.int32)
    buffers = [
        ("a", "in", a), ("sum", "inout", np.zeros(1, np.int32)), ("most", "inout", np.zeros(1, np.int32)),
        ("once", "inout", np.zeros(2, np.int32)), ("n", "scalar", np.int32(100)),
    ]  # fmt: skip
    (done,) = make(code, "k", launch(4, 32), buffers).runs((0,))
    assert not done.findings
    assert [done.outputs[name].tolist() for name in ("sum", "most", "once")] == [[4950], [99], [7, 5]]
