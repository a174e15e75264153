"""Read-only loads: which accesses get `__ldg`, and which arrays may change."""

from __future__ import annotations

import pytest

from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, compiles, device, make, one, propose


def test_reads_go_through_the_read_only_cache() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH), "read_only", loads=1)
    assert "a * __ldg(&x[i])" in device(edited)
    compiles(edited)
    assert not propose(edited, "read_only")


@pytest.mark.parametrize(
    ("work", "expected", "loads"),
    [
        ("y[i] = x[int(x[i])];", "__ldg(&x[int(__ldg(&x[i]))])", 2),
        ("const float* p = x + 1; y[i] = p[i];", "const float* p = x + 1; y[i] = __ldg(&p[i]);", 1),
        ("const float4* p = reinterpret_cast<const float4*>(x); float4 v = p[i]; y[i] = v.x;", "v = __ldg(&p[i]);", 1),
        ("y[i] = x[i] * y[i];", "y[i] = __ldg(&x[i]) * y[i];", 1),
    ],
)
def test_every_load_of_an_input(work: str, expected: str, loads: int) -> None:
    edited = one(make(SCALE.replace("y[i] = a * x[i];", work), SCALE_LAUNCH), "read_only", loads=loads)
    assert expected in device(edited)
    compiles(edited)


@pytest.mark.parametrize(
    "work",
    [
        "y[i] = __ldg(&x[i]);",
        "x[i] = 1.0f; y[i] = x[i];",
        "float* p = x; *p = 2.0f; y[i] = x[i];",
        "atomicAdd(&x[0], 1.0f); y[i] = x[i];",
        "y[i] = y[i + 1];",
    ],
)
def test_nothing_for_what_is_written_or_hinted(work: str) -> None:
    source = SCALE.replace("const float* x", "float* x").replace("y[i] = a * x[i];", work)
    assert not propose(make(source, SCALE_LAUNCH), "read_only")


def test_nothing_for_volatile_or_shared_buffers() -> None:
    volatile = SCALE.replace("const float* x", "volatile float* x")
    assert not propose(make(volatile, SCALE_LAUNCH), "read_only")
    assert not propose(make(SCALE, SCALE_LAUNCH.replace("x, y", "y, y")), "read_only")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[i] = a * x[i];", "for (int j = 0; j < 3; ++j) y[i] += x[i + j];"),
        ("y[i] = a * x[i];", "const float* p = x + 1; y[i] = p[i];"),
        ("const float* __restrict__ x", "const float* x"),
        ("const float* __restrict__ x", "const short* __restrict__ x"),
    ],
)
def test_marked_inputs_of_straight_code_are_left_to_the_compiler(old: str, new: str) -> None:
    marked = SCALE.replace("const float* x", "const float* __restrict__ x")
    assert not propose(make(marked, SCALE_LAUNCH), "read_only")
    assert propose(make(marked.replace(old, new), SCALE_LAUNCH), "read_only")


@pytest.mark.parametrize("work", ["x = y; y[i] = x[i];", "const float** p = &x; *p = y; y[i] = x[i];"])
def test_nothing_for_a_parameter_that_becomes_another_buffer(work: str) -> None:
    assert not propose(make(SCALE.replace("y[i] = a * x[i];", work), SCALE_LAUNCH), "read_only")
