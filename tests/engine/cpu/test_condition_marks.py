"""Marked conditions: which are found, and what runs report of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.cpu import CpuMachine
from engine.cpu.condition_marks import mark_conditions
from engine.cpu.toolchain import INCLUDE
from engine.cuda import standins
from tests.engine.cpu.conftest import Make, launch


def _found(body: str, before: str = "") -> list[str]:
    text = '# 1 "k.cu"\n# 1 "/usr/include/x.h" 1\nint f(int a) { return a == 9; }\n# 1 "k.cu" 2\n'
    text += f'{before}void k(int* y, int n) {{ {body} }}\n# 1 "end"\nint g(int a) {{ return a == 8; }}\n'
    return [condition.text for condition in mark_conditions(text, "k.cu", "end").conditions]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("if (n % 97 == 3) { y[0] = 1; }", ["n % 97 == 3"]),
        ("while (n) { --n; }", ["n"]),
        ("do { --n; } while (n > 3);", ["n > 3"]),
        ("for (int i = 0; i < n; ++i) { y[i] = 0; }", ["i < n"]),
        ("for (int i = 0; i < 2 * 4; ++i) { y[i] = n > 3; }", ["n > 3"]),
        ("constexpr int m = 8; for (int i = m - 1; 0 <= i; i -= m / 4) { y[i] = 0; }", []),
        ("for (int i = 0; i < 8; ++i) { y[i] = 0; i += n / 12345; }", ["i < 8"]),
        ("for (int i = 0; i < 8; ++i) { h(i); }", ["i < 8"]),
        ("for (int i = 0; i < 8; ++i) { int& j = i; j += n; }", ["i < 8"]),
        ("for (int i = 0; i < 8; i += n) { y[i] = 0; }", ["i < 8"]),
        ("for (unsigned long i = 0; i < 8; i += 2) { y[i] = 0; }", []),
        ("for (Counter i = 0; i < 8; ++i) { y[0] = 0; }", ["i < 8"]),  # its operators may ask for anything
        ("for (size_t i = 0; i < 8; ++i) { y[0] = 0; }", ["i < 8"]),  # a name that a class may have
        ("for (int i = n / 9; i < 8; ++i) { y[i] = 0; }", ["i < 8"]),
        ("const int m = n / 9; for (int i = 0; i < m; ++i) { y[i] = 0; }", ["i < m"]),
        ("constexpr Bound m = 8; for (int i = 0; i < m; ++i) { y[i] = 0; }", ["i < m"]),
        ("constexpr int n = 8; for (int i = 0; i < n; ++i) { y[i] = 0; }", ["i < n"]),  # a parameter has that name
        ("int i; for (i = 0; i < 8; ++i) { y[i] = 0; }", ["i < 8"]),
        ("y[0] = n & 1 ? 2 : 3;", ["n & 1"]),
        ("y[0] = (n == 3) * 2;", ["n == 3"]),
        ("y[0] = !n;", ["n"]),
        ("bool b = n > 3 && y[0];", ["n > 3 && y[0]", "n > 3", "y[0]"]),
        ("bool b = (n > 3) & (n < 9);", ["(n > 3) & (n < 9)", "n > 3", "n < 9"]),
        ("switch (n) { case 3: y[0] = 1; break; default: y[0] = 2; }", ["case 3", "default"]),
        ("auto f = [&](int a) { return a != 4; }; y[0] = f(n);", ["a != 4"]),
        ("if constexpr (sizeof(int) == 4) { y[0] = 1; }", ["sizeof(int) == 4"]),
        ("namespace cg = cooperative_groups; cg::tile<32> w = cg::part<32>(n > 3);", ["n > 3"]),
        ("while (true) { return; }", []),
        ("int a[(3 > 2) ? 4 : 5]; static_assert(4 > 3);", []),
    ],
)
def test_what_counts_as_a_condition(body: str, found: list[str]) -> None:
    assert _found(body) == found


def test_helpers_of_the_file_count_and_code_of_the_system_does_not() -> None:
    assert _found("y[0] = h(n);", "int h(int a) { return a > 5; }\n") == ["a > 5"]


def test_a_condition_that_declares_a_variable_is_not_marked() -> None:
    text = '# 1 "k.cu"\nvoid k(int* y, int n) { if (int m = n % 97) { y[0] = m; } }\n# 1 "end"\n'
    (condition,) = mark_conditions(text, "k.cu", "end").conditions
    assert not condition.marked


def test_what_cannot_be_parsed_is_named() -> None:
    text = '# 7 "k.cu"\n# 1 "k.cu"\nvoid k(int* y) {\n y[0] = = 3 ] ;\n}\n# 1 "end"\n'
    marked = mark_conditions(text, "k.cu", "end")
    assert marked.unread == 2
    assert marked.unread_in == {"void k(int* y) { y[0] = = 3 ] ; }"}


KERNEL = """#define RARE(v) ((v) == 7 ? 1 : 0)
template <int N> __device__ int folded(int v) { if (N > 4) { return v; } return v + 1; }
constexpr int tabled(int v) { return v > 2 ? v : 2; }
__constant__ int table[tabled(1)] = {1, 2};
__global__ void k(const int* x, int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = folded<8>(x[i]);
    int j = 0;
    while (j < 3) { v += j++; }
    for (int l = 0; l < 2; ++l) { v += l; }
    y[i] = v + RARE(x[i]) + (x[i] < 0 && x[i] == -9) + tabled(x[i]);
}
"""


def _outcomes(make: Make, values: list[int]) -> dict[str, int]:
    x = np.array(values, np.int32)
    arguments = [("x", "in", x), ("y", "out", np.zeros_like(x)), ("n", "scalar", np.int32(len(x)))]
    kernel = make(KERNEL, "k", launch(1, 32), arguments)
    plain = kernel.runs((0,))[0]
    marked = kernel.machine.marked(KERNEL, kernel.binary, ["k"])
    (run,) = kernel.machine.run_many(marked, [kernel.job()])
    assert run.findings == ()
    np.testing.assert_array_equal(run.outputs["y"], plain.outputs["y"])
    marked.saw(run)
    return {condition.text: marked.seen.get(number, 0) for number, condition in enumerate(marked.conditions)}


def test_runs_report_the_outcomes_of_conditions_in_macros_templates_and_operands(make: Make) -> None:
    found = _outcomes(make, [1, 2, 3, -4])
    rare = next(text for text in found if text.endswith("== 7"))
    assert found[rare] == 4 | 1
    assert found["x[i] == -9"] == 4 | 1
    assert found["x[i] < 0"] == 4 | 2 | 1
    assert found["i >= n"] == 4 | 2 | 1
    assert found["N > 4"] & 4 == 0  # a constant
    assert found["j < 3"] & 3 == 3
    found = _outcomes(make, [7, -9])
    assert found[rare] & 3 == 3
    assert found["x[i] == -9"] & 2


def test_conversions_round_as_they_are_named(make: Make) -> None:
    text = """__global__ void k(const int* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) {
        y[3 * i] = __int2float_rz(x[i]);
        y[3 * i + 1] = __int2float_ru(x[i]);
        y[3 * i + 2] = __int2float_rd(x[i]);
    }
}
"""
    x = np.array([16777217, -16777217, 5, 2147483647], np.int32)
    arguments = [("x", "in", x), ("y", "out", np.zeros(3 * len(x), np.float32)), ("n", "scalar", np.int32(len(x)))]
    (run,) = make(text, "k", launch(1, 32), arguments).runs((0,))
    expected = [
        16777216, 16777218, 16777216, -16777216, -16777216, -16777218, 5, 5, 5, 2147483520, 2147483648, 2147483520,
    ]  # fmt: skip
    np.testing.assert_array_equal(run.outputs["y"], np.array(expected, np.float32))


def test_the_preprocessor_reads_the_headers_of_its_own_installation(machine: CpuMachine) -> None:
    """Installations share the cache; the precompiled header of one that is gone served builds, and not this."""
    assert str(INCLUDE) not in machine.prepared().header.read_text()


@pytest.mark.parametrize("name", ["opencv.cuh", "opencv_modules.cuh", "torch_accessor.cuh", "torch_philox.cuh"])
def test_conditions_beside_a_header_of_ours_can_be_read(name: str) -> None:
    header = (Path(standins.__file__).with_suffix("") / name).read_text(encoding="utf-8")
    assert mark_conditions(f'# 1 "k.cu"\n{header}\n# 1 "end"\n', "k.cu", "end").unread == 0
