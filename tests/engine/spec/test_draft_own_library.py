"""Kernels of a library whose namespace other programs take for one of the host's."""

from __future__ import annotations

from pathlib import Path

from tests.engine.spec.tried_drafts import tried


def test_a_typedef_of_a_class_of_its_own_namespace_is_there(tmp_path: Path) -> None:
    """ "'Pair' does not name a type": `cv::…` counted as a class of the host's in OpenCV itself."""
    made = tried(
        """
namespace cv { namespace parts {
template <class T> struct Pair_ { T first, second; };
} }
typedef cv::parts::Pair_<float> Pair;
namespace cv { namespace device {
__global__ void k(const Pair* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { Pair p = x[i]; y[i] = p.first * p.second; }
}
} }
void run(const Pair* x, float* y, int n) { cv::device::k<<<(n + 255) / 256, 256>>>(x, y, n); }
""",
        tmp_path,
    )
    assert not made.missing
