import pytest

from engine.rules.model import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_one_pass import SOFTMAX, softmax
from tests.engine.rules.workbench import compiles, device, make, one, propose

# A block per row; two loops read the row and a weight, one of them stores.
NORM = """
__global__ void rms(const float* x, const float* w, float* y, int rows, int cols) {
    const int tid = threadIdx.x;
    const float* in = x + blockIdx.x * cols;
    __shared__ float red[64];
    float sum = 0.0f;
    for (int i = tid; i < cols; i += blockDim.x)
        sum += in[i] * in[i];
    red[tid] = sum;
    __syncthreads();
    for (int s = 32; s > 0; s /= 2) {
        if (tid < s) red[tid] += red[tid + s];
        __syncthreads();
    }
    const float scale = rsqrtf(red[0] / cols + 1e-5f);
    for (int j = tid; j < cols; j += blockDim.x) {
        y[blockIdx.x * cols + j] = in[j] * scale * w[j];
    }
}
"""
LAUNCH = "    rms<<<rows, 64>>>(x, w, y, rows, cols);"


def rms(source: str = NORM, launch: str = LAUNCH, cols: int = 1000, **options: str) -> Site:
    return make(
        source,
        launch,
        sizes=[{"rows": 4096, "cols": cols}],
        check=[{"rows": 7, "cols": 129}],
        elements={"x": "rows*cols", "y": "rows*cols", "w": "cols"},
        **options,
    )


def test_a_row_read_by_two_loops() -> None:
    site = rms()
    edited = one(site, "row_keep")
    text = device(edited)
    assert "float kept[16];" in text
    assert "sum += kept[slot] * kept[slot];" in text
    assert "kept[slot] * scale * w[j];" in text
    compiles(edited)
    compiles(one(rms(newline="\r\n"), "row_keep"))
    # The last row is longer than the registers hold.
    assert_equal(site, [edited], [{"rows": 3, "cols": 1}, {"rows": 3, "cols": 129}, {"rows": 2, "cols": 1100}])


def test_after_a_block_for_each_row_and_vectors() -> None:
    site = softmax()
    team = one(site, "row_parallel", team="block", block=256)
    assert "for (int c = threadIdx.x; c < cols; c += blockDim.x) {\n        largest" in device(team)
    edited = one(one(team, "row_vectorize", width=4), "row_keep")
    assert "FloatPack4 kept[4];" in device(edited)
    assert device(edited).count("= kept[slot];") == 3
    compiles(edited)
    assert_equal(site, [edited], [{"rows": 2, "cols": 4500}, {"rows": 3, "cols": 31}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for (int j = tid; j < cols;", "for (int j = tid; j < cols - 1;"),  # other elements
        ("in[j] * scale * w[j]", "in[j + 1] * scale * w[j]"),
        ("y[blockIdx.x * cols + j] =", "const_cast<float*>(in)[j] ="),
        ("in[j] * scale", "scale"),  # read once
        ("const int tid = threadIdx.x;", "const int tid = 0;"),
        ("i += blockDim.x", "i += blockDim.y"),
        ("const float scale", "cols -= 1; const float scale"),
    ],
)
def test_nothing_for_other_forms(old: str, new: str) -> None:
    assert old in NORM
    assert not propose(rms(NORM.replace(old, new)), "row_keep")


def test_nothing_where_registers_do_not_hold_a_row_or_buffers_may_be_one() -> None:
    assert not propose(rms(cols=100000), "row_keep")
    assert not propose(rms(launch=LAUNCH.replace("(x, w, y", "(y, w, y")), "row_keep")


def test_a_maximum_that_starts_from_another_element_keeps_its_start() -> None:
    other = softmax(SOFTMAX.replace("x[row * cols];", "x[row * cols + cols - 1];"))
    assert "c = 1 + threadIdx.x" in device(one(other, "row_parallel", team="block", block=256))
