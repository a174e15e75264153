"""Template arguments that constants of a namespace are part of."""

from __future__ import annotations

from pathlib import Path

from tests.engine.spec.tried_drafts import tried


def test_a_constant_of_an_unnamed_namespace_has_its_namespaces(tmp_path: Path) -> None:
    """'SIDE' was not declared in this scope: a launch's arguments are written at the end of the file."""
    made = tried(
        """
namespace outer { namespace inner { namespace {
constexpr int SIDE = 32;
template <int PER> __global__ void k(const float* x, float* y, int n) {
    int i = (blockIdx.x * SIDE + threadIdx.x) * PER;
    for (int j = i; j < i + PER && j < n; ++j) y[j] = 2.0f * x[j];
}
}
void run(const float* x, float* y, int n) {
    constexpr int PER = 128 / SIDE;
    k<PER><<<(n + 127) / 128, SIDE>>>(x, y, n);
}
} }
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.steps[0].template_args in ("4", "128 / outer::inner::SIDE")


def test_a_host_template_that_calls_its_namesake_of_another_namespace(tmp_path: Path) -> None:
    """The call inside of it counted as a use of itself: both types were the last one."""
    made = tried(
        """
namespace inner {
template <typename I, typename T> __global__ void k(const I* at, const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[at[i]];
}
template <typename I, typename T> void gather(const I* at, const T* x, T* y, int n) {
    k<I, T><<<(n + 255) / 256, 256>>>(at, x, y, n);
}
}
template <int DEVICE, typename I, typename T> void gather(const I* at, const T* x, T* y, int n) {
    inner::gather<I, T>(at, x, y, n);
}
template void gather<1, int, double>(const int*, const double*, double*, int);
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.steps[0].template_args == "int, double"
