"""Which functions other files may call, and the original with the edit's versions of them."""

from __future__ import annotations

import pytest

from engine.model import Program
from engine.spec.kernel_spec import KernelSpec, Step
from engine.verify.helpers import with_new_helpers

SPEC = KernelSpec("k.cu", (Step("k", "", ()),), (), (), ())
KERNEL = "__global__ void k(float* y) { y[threadIdx.x] = f(y[threadIdx.x]); }\n"


def _mixed(before: str, after: str) -> tuple[str, tuple[str, ...]] | None:
    original = Program({"k.cu": (before + KERNEL).encode()}, "k.cu")
    found = with_new_helpers(
        original, Program({"k.cu": (after + KERNEL.replace("= f", "= 0.5f * f")).encode()}, "k.cu"), SPEC
    )
    return None if found is None else (found[0].data.decode(), found[1])


def test_the_edit_s_function_stands_in_the_original() -> None:
    found = _mixed("__device__ float f(float v) { return v; }\n", "__device__ float f(float v) { return 2 * v; }\n")
    assert found == ("__device__ float f(float v) { return 2 * v; }\n" + KERNEL, ("f",))


def test_what_it_needs_comes_along() -> None:
    after = "#define TWO 2\nconstexpr float kOne = 1;\n__device__ float g(float v) { return TWO * v; }\n"
    after += "__device__ float f(float v) { return kOne * g(v); }\n"
    found = _mixed("__device__ float f(float v) { return v; }\n", after)
    assert found is not None
    text, names = found
    assert names == ("f",)
    assert text.endswith(KERNEL)
    assert all(part in text for part in ("#define TWO 2\n", "kOne = 1;", "float g(float v)"))
    assert text.count("float f(float v)") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "static __device__ float f(float v) { return v; }\n",
            "static __device__ float f(float v) { return 2 * v; }\n",
        ),
        (
            "__device__ inline float f(float v) { return v; }\n",
            "__device__ inline float f(float v) { return 2 * v; }\n",
        ),
        (
            "namespace {\n__device__ float f(float v) { return v; }\n}\n",
            "namespace {\n__device__ float f(float v) { return 2 * v; }\n}\n",
        ),
        ("__device__ float f(float v) { return v; }\n", "__device__ float f(float v) { return v; /* the value */ }\n"),
        ("__device__ float f(float v) { return v; }\n", "__device__ float f(double v) { return 2 * v; }\n"),
    ],
)
def test_nothing_where_no_other_file_could_call_it_or_nothing_changed(before: str, after: str) -> None:
    assert _mixed(before, after) is None
