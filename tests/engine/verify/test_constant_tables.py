"""Tables in constant memory that an edit may add, and those that could change or be filled."""

from __future__ import annotations

import pytest

from engine.cuda.items import items_of
from engine.verify.constant_tables import is_constant_table

TABLE = "__constant__ float t[2] = {0.5f, -2.0f};\n"


def _is_one(table: str, body: str, around: str = "") -> bool:
    items = items_of(f"{around}\n{table}__global__ void k(float* y, float v) {{ {body} }}\n")
    (item,) = (item for item in items if item.kind == "variable")
    return is_constant_table(item, items)


@pytest.mark.parametrize(
    "body",
    [
        "y[0] = t[0] * (v + t[1] * v);",
        "return t[threadIdx.x] / 2;",
        "float a = 1 - t[0];",
        "y[1] = fmaxf(v * t[0], 1);",
    ],
)
def test_elements_that_are_operands_are_read(body: str) -> None:
    assert _is_one(TABLE, body)


def test_a_number_in_constant_memory_is_one_too() -> None:
    assert _is_one("__constant__ const float t = 0.5f;\n", "y[0] = t * v;")


@pytest.mark.parametrize(
    "body",
    [
        "t[0] = 1;", "t[0] += v * 2;", "++t[0];", "y[0] = 2 * t[0]++;", "float* p = t; *p = 1 * v;", "float* p = &t[0];", "*(t + 1) = v;",
        "float& r = t[0]; r = v;", "f(t[0]);", "f(t);", "f(v, t[0]);", "decltype(auto) r = t[0];", "for (float& r : t) r = v;",
        "(v > 0 ? t[0] : t[1]) = 3;", "y[0] = v * (t[0]);", "auto g = [&] { t[0] = 1; };", "y[0] = t[0] EQUALS 3;", "y[0] = M(2 * t[0]);",
    ],
)  # fmt: skip
def test_what_may_change_an_element_or_hand_it_on_is_no_read(body: str) -> None:
    assert not _is_one(TABLE, body, "#define EQUALS =\n#define M(x) (x++)")


@pytest.mark.parametrize(
    "table",
    [
        "__constant__ float t[2];\n",
        "__constant__ float t[2] = {f(), 1};\n",
        "__device__ float t[2] = {1, 2};\n",
        "__constant__ Pair t[2] = {1, 2};\n",
    ],
)
def test_what_is_filled_elsewhere_or_outside_of_constant_memory_is_none(table: str) -> None:
    assert not _is_one(table, "y[0] = t[0] * v;")


def test_an_operator_of_the_file_s_own_may_take_it_by_reference() -> None:
    own = "struct S {}; __device__ float operator*(float& a, S) { a = 3; return a; }"
    assert not _is_one(TABLE, "y[0] = t[0] * S{};", own)
