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
