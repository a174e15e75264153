"""Tables in constant memory that an edit may add, and those that could change or be filled."""

from __future__ import annotations

import pytest

from engine.cuda.items import items_of
from engine.verify.constant_tables import is_constant_table, is_integer_constant

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


def _is_integer(declaration: str, around: str = "") -> bool:
    items = items_of(f"{around}\n{declaration}\n")
    return is_integer_constant(items[-1], items)


@pytest.mark.parametrize(
    "declaration",
    [
        "static const int TILE = 8192;",
        "const unsigned long long most = 1ull << 32;",
        "static const int HALF = (TILE + 1) / 2;",
        "const int a = -3 % 2;",
    ],
)
def test_a_number_of_the_host_is_an_integer_constant(declaration: str) -> None:
    assert _is_integer(declaration, "constexpr int TILE = 64;")


@pytest.mark.parametrize(
    "declaration",
    [
        "static const int a = f();", "static const int a = system(0);", "static const int a = TILE(0);", "static const int a = SIZE(0);",
        "static const int a = HIDDEN;",
        "static const int TILE = 1;\n#define TILE f()\nstatic const int a = TILE;", "static const int a = *(int*)16;", "static int a = 3;",
        "static const int* a = 0;", "const Own a = 3;", "const int a = b;", "const int a = [] { return 1; }();", "const int a[1] = {1};",
        "const int a = 1, b = 2;", "const int a = sizeof(x);", "const int a = a;", 'const int a = "x" == 0;', "const int a = 1; int b;",
        "extern const int a;", "const volatile int a = 1;", "thread_local const int a = 1;",
    ],
)  # fmt: skip
def test_what_runs_code_or_can_change_is_no_integer_constant(declaration: str) -> None:
    assert not _is_integer(
        declaration, "#define HIDDEN f()\nint b = 3;\nint f();\nint TILE(int);\nconstexpr int SIZE = 4;"
    )
