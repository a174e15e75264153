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
