"""Divisions by values that stay the same: each form, what it is guarded by, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import SCALE, compiles, device, make, one, propose

BIAS = """
__global__ void bias(const float* x, const float* b, float* y, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) {
        y[i] = x[i] + b[i % cols] + i / cols;
    }
}
"""
LAUNCH = "    bias<<<(rows * cols + 255) / 256, 256>>>(x, b, y, rows, cols);"
LOOPED = """
__global__ void bias(const float* x, const float* b, float* y, int rows, int cols) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += blockDim.x * gridDim.x) {
        const int r = i / cols, c = i % cols;
        y[i] = x[i] + b[c] + r;
    }
}
"""
WIDE = BIAS.replace("int i =", "size_t i =").replace("i < rows", "i < (size_t)rows")


def site(source: str = BIAS, *, times: tuple[Mapping[str, int], ...] = ({"rows": 512, "cols": 96},)) -> Site:
    elements = {"x": "rows*cols", "b": "cols", "y": "rows*cols"}
    return make(source, LAUNCH, sizes=times, check=[{"rows": 3, "cols": 7}], elements=elements)


def test_by_the_size_of_the_spec() -> None:
    edited = one(site(), "invariant_division", form="constant", divisions=2)
    assert "b[remainder_96(i, cols)] + quotient_96(i, cols);" in device(edited)
    assert "if (by == 96) {\n        return value % 96;\n    }\n    return value % by;" in device(edited)
    compiles(edited)
    assert not propose(edited, "invariant_division")


def test_the_sentence_keeps_the_parentheses_that_matter() -> None:
    source = BIAS.replace("b[i % cols] + i / cols", "b[i % cols] + i / ((cols + 31) / 32)")
    (proposal,) = propose(site(source), "invariant_division", form="constant")
    assert proposal.summary == "Divide by a constant if cols is 96 and (cols + 31) / 32 is 3"


POWERS = ({"rows": 512, "cols": 64}, {"rows": 512, "cols": 256})


def test_by_shifts_where_sizes_are_powers_of_two() -> None:
    edited = one(site(times=POWERS), "invariant_division", form="shift")
    assert "value >= 0 && by > 0 && (by & (by - 1)) == 0" in device(edited)
    compiles(edited)
    assert not propose(site(times=POWERS), "invariant_division", form="constant")


def test_in_32_bits() -> None:
    edited = one(site(WIDE), "invariant_division", form="narrow")
    assert "unsigned long long remainder_by(unsigned long long value, unsigned long long by) {" in device(edited)
    compiles(edited)
    assert not propose(site(), "invariant_division", form="narrow")


def test_along_a_loop() -> None:
    edited = one(site(LOOPED), "invariant_division", form="incremental")
    text = device(edited)
    assert "int i_quotient = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / cols;" in text
    assert "const int r = i_quotient, c = i_remainder;" in text
    assert "if (i_remainder >= cols) {" in text
    compiles(edited)


def test_one_after_the_other() -> None:
    source = LOOPED.replace("int i = blockIdx.x * blockDim.x + threadIdx.x", "int i = 0").replace(
        "i += blockDim.x * gridDim.x", "++i"
    )
    edited = one(site(source), "invariant_division", form="incremental")
    assert "if (++i_remainder == cols) {" in device(edited)
    compiles(edited)


def test_every_form_gives_the_same_results() -> None:
    cases = [{"rows": 5, "cols": 96}, {"rows": 9, "cols": 64}, {"rows": 3, "cols": 7}]
    plain = [one(site(), "invariant_division", form="constant")]
    plain.append(one(site(times=POWERS), "invariant_division", form="shift"))
    assert_equal(site(), plain, cases)
    assert_equal(site(WIDE), [one(site(WIDE), "invariant_division", form="narrow")], cases[:1])
    few = LAUNCH.replace("(rows * cols + 255) / 256, 256", "2, 32")
    elements = {"x": "rows*cols", "b": "cols", "y": "rows*cols"}
    looped = make(LOOPED, few, sizes=[{"rows": 512, "cols": 96}], check=[{"rows": 3, "cols": 7}], elements=elements)
    assert_equal(looped, [one(looped, "invariant_division", form="incremental")], [cases[0], cases[2]])


def test_nested_divisions() -> None:
    source = BIAS.replace("i % cols]", "i / rows % cols]")
    edited = one(site(source), "invariant_division", form="constant")
    assert "b[remainder_96(quotient_512(i, rows), cols)]" in device(edited)
    compiles(edited)


@pytest.mark.parametrize(
    "work",
    [
        "y[i] = x[i] / cols;",  # of floats
        "y[i] = x[i % 7];",  # the compiler knows
        "cols += 1; y[i] = x[i % cols];",
        "y[i] = x[i % (cols + i)];",
        "auto k = x[i]; y[i] = k / cols;",
        "y[i] = x[(rows++) % cols];",
    ],
)
def test_nothing_for_other_divisions(work: str) -> None:
    source = BIAS[: BIAS.index("        y[i]")] + work + "\n    }\n}\n"
    assert not propose(site(source), "invariant_division")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[i] =", "if (c == 3) continue;\n        y[i] ="),
        ("const int r", "cols = 5;\n        const int r"),
        ("blockIdx.x * blockDim.x + threadIdx.x", "rows - 5"),  # may be negative
        ("i / cols, c = i % cols", "(i + 1) / cols, c = (i + 1) % cols"),
        ("const int r", "int cols = 5;\n        const int r"),
    ],
)
def test_nothing_along_loops_that_cannot_carry_it(old: str, new: str) -> None:
    assert old in LOOPED
    assert not propose(site(LOOPED.replace(old, new)), "invariant_division", form="incremental")


def test_nothing_without_a_division() -> None:
    assert not propose(make(SCALE, "    scale<<<(n + 255) / 256, 256>>>(x, y, a, n);"), "invariant_division")
