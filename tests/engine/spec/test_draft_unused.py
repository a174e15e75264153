"""Drafts of kernels with parameters that they do not use."""

from __future__ import annotations

from pathlib import Path

from engine.spec.kernel_spec import Fill
from tests.engine.spec.tried_drafts import tried

UNUSED = """
#define MAYBE(i) w[i]
__global__ void k(const float* x, float* old, const float* w, const float* v, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i]{used};  // old[i] was written here
}}
void run(const float* x, float* old, const float* w, const float* v, float* y, int n) {{
    k<<<(n + 255) / 256, 256>>>(x, old, w, v, y, n);
}}
"""


def test_a_buffer_that_the_kernel_does_not_name_has_one_element(tmp_path: Path) -> None:
    made = tried(UNUSED.format(used=""), tmp_path)
    assert not made.missing
    assert [made.spec.argument(name).size for name in ("old", "w", "v")] == ["1"] * 3
    assert made.spec.argument("old").role == "in"
    assert made.spec.argument("old").fill == Fill("constant", "0")
    assert "# assumed: one element, as the kernel does not use it" in made.text


def test_one_that_only_a_macro_names_is_used(tmp_path: Path) -> None:
    made = tried(UNUSED.format(used=" + MAYBE(i)"), tmp_path)
    assert made.spec.argument("w").size == "n"
    assert made.spec.argument("v").size == "1"


def test_one_that_a_macro_names_behind_a_condition_that_no_trial_met_is_not_unused(tmp_path: Path) -> None:
    made = tried(UNUSED.format(used=" + (x[i] > 1e30f ? MAYBE((int)x[i]) : 0.0f)"), tmp_path)
    assert any("the size of 'w'" in gap for gap in made.missing)


def test_one_behind_a_condition_that_no_trial_met_is_not_unused(tmp_path: Path) -> None:
    """Its size is asked for: a buffer of one element would be left once the condition holds."""
    made = tried(UNUSED.format(used=" + (x[i] > 1e30f ? v[(int)x[i]] : 0.0f)"), tmp_path)
    assert any("the size of 'v'" in gap for gap in made.missing)
