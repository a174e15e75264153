import pytest

from engine.evaluate.steering import steers_only
from engine.model import Program

KERNEL = """__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < n; j++) y[i + j] = x[i * n + j] * 2.f; // twice
}
"""


def _program(text: str) -> Program:
    return Program({"k.cu": text.encode()}, "k.cu")


@pytest.mark.parametrize(
    ("old", "new", "only"),
    [
        ("    for", "#pragma unroll 4\n    for", True),
        ("    for", '    _Pragma("unroll 4")\n    for', True),
        ("void k", "void __launch_bounds__(256, (2 * 2)) k", True),
        ("const float* x", "const float* __restrict__ x", True),
        ("x[i * n + j] * 2.f", "__ldg(&x[i * n + j]) * 2.f", True),
        ("y[i + j] = x[i * n + j] * 2.f", "__stcs(&y[i + j], __ldcs(&x[i * n + j]) * 2.f)", True),
        ("// twice", "", True),
        ("    for", "#pragma unroll 4\n    if (n > 0) for", False),
        ("* 2.f", "+ x[i * n + j]", False),
        ("void k", "void k", False),
        ("__global__", "#define N 4\n__global__", False),
    ],
)
def test_an_edit_that_only_steers_the_compiler_is_told_from_one_that_does_not(old: str, new: str, only: bool) -> None:
    changed = _program(KERNEL.replace(old, new, 1))
    assert steers_only(_program(KERNEL), changed) is only


def test_unclosed_hints_end() -> None:
    assert not steers_only(_program(KERNEL), _program("__ldg(&" * 50 + KERNEL))
