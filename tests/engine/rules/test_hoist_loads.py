"""Loads that move before their loop, or are made once: across which fences, and when they must stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.rewrite.site import Site
from engine.spec.kernel_spec import Argument
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

OUTER = """
__global__ void outer(const float* x, const float* w, float* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        for (int j = 0; j < m; ++j) {
            y[i * m + j] = x[i] * w[j];
        }
    }
}
"""
LAUNCH = "    outer<<<(n + 63) / 64, 64>>>(x, w, y, n, m);"
STEP = """
__global__ void outer(const float* x, const float* w, float* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = 0.9f * y[i] + 0.1f * x[i];
    y[i + n] = 0.99f * y[i + n] + 0.01f * x[i] * x[i];
}
"""


def site(source: str = OUTER, launch: str = LAUNCH) -> Site:
    elements = {"x": "n", "w": "m", "y": "n*m + 2*n"}
    return make(source, launch, sizes=[{"n": 4096, "m": 64}], check=[{"n": 5, "m": 7}], elements=elements)


def test_before_the_loop() -> None:
    edited = one(site(), "hoist_loads", form="loop")
    assert "const float x_value = 0 < m ? x[i] : float();\n        for (int j" in device(edited)
    assert "y[i * m + j] = x_value * w[j];" in device(edited)
    compiles(edited)
    assert not propose(edited, "hoist_loads")
    assert_equal(site(), [edited], [{"n": 70, "m": 5}])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("const float* x", "const unsigned int* x", "x_value = 0 < m ? x[i] : static_cast<unsigned int>(0);"),
        ("j < m;", "j < 4;", "x_value = x[i];"),
        ("const float* x", "const double2* x", "x_value = 0 < m ? x[i] : double2();"),
    ],
)
def test_the_value_where_the_loop_never_runs(old: str, new: str, expected: str) -> None:
    source = OUTER.replace(old, new).replace("x[i] * w", "x[i].x * w" if "double2" in new else "x[i] * w")
    edited = one(site(source), "hoist_loads", form="loop")
    assert expected in device(edited)
    compiles(edited)


def test_across_a_store() -> None:
    edited = one(site(STEP), "hoist_loads", form="repeat", loads=1)
    text = device(edited)
    assert "    const float x_value = x[i];\n    y[i] = 0.9f * y[i] + 0.1f * x_value;" in text
    assert text.count("x[i]") == 1
    compiles(edited)
    assert_equal(site(STEP), [edited], [{"n": 70, "m": 5}])


def test_out_of_the_outer_loop_across_a_barrier() -> None:
    source = OUTER.replace("x[i] * w[j];", "x[i] * w[j]; __syncthreads();").replace("if (i < n)", "#pragma unroll\n")
    source = source.replace("#pragma unroll\n {\n", "    #pragma unroll 2\n").replace(
        "        }\n    }\n}", "        }\n}"
    )
    edited = one(site(source), "hoist_loads", form="loop")
    assert device(edited).index("x_value =") < device(edited).index("#pragma")
    compiles(edited)


MOMENTS = """
__global__ void outer(const float* x, float* w, float* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    w[i] = 0.9f * w[i] + 0.1f * x[i];
    y[i] = 0.99f * y[i] + 0.01f * x[i];
    y[i + n] = y[i + n] - w[i] / (1.0f + w[i]);
}
"""


def test_what_was_stored_stays_in_its_register() -> None:
    elements = {"x": "n", "w": "n", "y": "2*n"}
    before = make(MOMENTS, LAUNCH, sizes=[{"n": 4096, "m": 1}], check=[{"n": 5, "m": 1}], elements=elements)
    edited = one(before, "hoist_loads", form="stored", loads=2)
    text = device(edited)
    assert "    const float w_value = 0.9f * w[i] + 0.1f * x[i];\n    w[i] = w_value;\n" in text
    assert "y[i + n] - w_value / (1.0f + w_value);" in text
    compiles(edited)
    assert not propose(edited, "hoist_loads", form="stored")
    assert_equal(before, [edited], [{"n": 70, "m": 1}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("w[i] / (1.0f + w[i])", "1.0f"),
        ("    y[i + n] =", "    w[0] = 1.0f;\n    y[i + n] ="),
        ("    y[i + n] =", "    i += 1;\n    y[i + n] ="),
        ("    y[i + n] =", "    __syncthreads();\n    y[i + n] ="),
        ("w[i] / (1.0f + w[i])", "w[i + 1]"),
        ("    w[i] = 0.9f * w[i] + 0.1f * x[i];", "    if (n > 2) w[i] = 0.9f;"),
    ],
)
def test_nothing_where_the_element_may_have_changed(old: str, new: str) -> None:
    assert old in MOMENTS
    elements = {"x": "n", "w": "n", "y": "2*n"}
    changed = make(MOMENTS.replace(old, new), LAUNCH, sizes=[{"n": 4096, "m": 1}], elements=elements,
                   check=[{"n": 5, "m": 1}])  # fmt: skip
    assert not propose(changed, "hoist_loads", form="stored")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i] * w[j]", "w[j]"),
        ("x[i] * w[j]", "x[j] * w[j]"),
        ("x[i] * w[j]", "(j > 3 ? x[i] : 0.0f)"),
        ("x[i] * w[j]", "(j > 3 && x[i] > 0.0f)"),
        ("x[i] * w[j]", "y[i] * w[j]"),  # written
        ("y[i * m + j] = x[i]", "if (j == 2) break; y[i * m + j] = x[i]"),
        ("y[i * m + j] = x[i]", "int i = j; y[i * m + j] = x[i]"),
        ("y[i * m + j] = x[i]", "i += 1; y[i * m + j] = x[i]"),
        ("y[i * m + j] = x[i] * w[j]", "sum += x[i]"),  # no store: the compiler does it
    ],
)
def test_nothing_for_what_changes_or_may_not_happen(old: str, new: str) -> None:
    assert old in OUTER
    source = OUTER.replace(old, new).replace("        for", "        float sum = 0.0f;\n        for")
    assert not propose(site(source), "hoist_loads", form="loop")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.01f * x[i] * x[i]", "0.01f"),
        ("y[i + n] = 0.99f", "i = 0; y[i + n] = 0.99f"),
        ("const float* x", "volatile const float* x"),
        ("    y[i] = 0.9f * y[i] + 0.1f * x[i];", "    if (n > 3) y[i] = 0.9f * y[i] + 0.1f * x[i];"),
        ("    y[i] = 0.9f", "    y[0] = w[int(x[i])] + w[int(x[i])]; x[i] = 3.0f; y[i] = 0.9f"),
    ],
)
def test_nothing_where_a_second_load_may_differ(old: str, new: str) -> None:
    assert old in STEP
    assert not propose(site(STEP.replace(old, new)), "hoist_loads", form="repeat")


def test_nothing_where_buffers_may_be_one() -> None:
    assert not propose(site(OUTER, LAUNCH.replace("(x, w, y", "(y, w, y")), "hoist_loads")


def test_pointers_in_a_struct_may_point_anywhere() -> None:
    plain = make(
        "__global__ void k(const float* x, float* y, int p, int n) { int i = blockIdx.x; y[i] = x[i] + p; }",
        "    k<<<n, 1>>>(x, y, p, n);",
        sizes=({"n": 64, "p": 1},),
        check=({"n": 7, "p": 1},),
    )
    assert plain.pointers_distinct
    held = replace(plain.spec, arguments=(*plain.spec.arguments, Argument("p.z", "float", "in", "n")))
    assert not replace(plain, spec=held).pointers_distinct
