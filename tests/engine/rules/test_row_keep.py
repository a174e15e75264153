import pytest

from engine.rewrite.site import Site
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
        ("sum += in[i] * in[i];", "if (i < rows) sum += in[i];"),  # not read at every index
        ("sum += in[i] * in[i];", "sum += i < rows ? in[i] : 0.0f;"),
        ("        sum += in[i] * in[i];", "    { if (i >= rows) continue; sum += in[i]; }"),
        (
            "        sum += in[i] * in[i];",
            "    { sum += in[i]; if (i >= rows) break; }",
        ),  # it ends the loops of both halves
    ],
)
def test_nothing_for_other_forms(old: str, new: str) -> None:
    assert old in NORM
    assert not propose(rms(NORM.replace(old, new)), "row_keep")


def test_a_row_is_kept_from_the_first_loop_on_that_reads_it_at_every_index() -> None:
    loop = "    float most = 0.0f;\n    for (int k = tid; k < cols; k += blockDim.x) if (k < rows) most = in[k];\n"
    edited = one(rms(NORM.replace("    float sum", loop + "    float sum")), "row_keep")
    assert "most = kept" not in device(edited)
    assert "sum += kept[slot] * kept[slot];" in device(edited)


def test_nothing_where_registers_do_not_hold_a_row_or_buffers_may_be_one() -> None:
    assert not propose(rms(cols=100000), "row_keep")
    assert not propose(rms(launch=LAUNCH.replace("(x, w, y", "(y, w, y")), "row_keep")


def test_a_maximum_that_starts_from_another_element_keeps_its_start() -> None:
    other = softmax(SOFTMAX.replace("x[row * cols];", "x[row * cols + cols - 1];"))
    assert "c = 1 + threadIdx.x" in device(one(other, "row_parallel", team="block", block=256))


STORED = """
__global__ void softmax_rows(const float* in, float* out, int rows, int cols) {
    const float* x = in + blockIdx.x * cols;
    float* y = out + blockIdx.x * cols;
    const int lane = threadIdx.x;
    float top = 0.0f;
    for (int c = lane; c < cols; c += 32) top = fmaxf(top, x[c]);
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float sum = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        y[c] = expf(x[c] - top);
        sum += y[c];
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int c = lane; c < cols; c += 32) {
        y[c] /= sum + 1.0f;
    }
}
"""


def stored(source: str = STORED) -> Site:
    return make(
        source,
        "    softmax_rows<<<rows, 32>>>(in, out, rows, cols);",
        sizes=[{"rows": 4096, "cols": 256}],
        check=[{"rows": 7, "cols": 129}],
        elements={"in": "rows*cols", "out": "rows*cols"},
    )


def test_what_a_loop_computes_for_a_later_one_is_kept_too() -> None:
    site = stored()
    edited = one(site, "row_keep")
    text = device(edited)
    assert "kept2[slot] = expf(kept[slot] - top);\n            sum += kept2[slot];" in text
    assert "y[c] = kept2[slot] / (sum + 1.0f);" in text
    # A result that nothing replaces is stored all the same.
    both = one(stored(STORED.replace("y[c] /= sum + 1.0f", "if (y[c] > sum) { top = y[c]; }")), "row_keep")
    assert "y[c] = kept2[slot] = expf(kept[slot] - top);" in device(both)
    compiles(edited)
    compiles(both)
    assert_equal(site, [edited], [{"rows": 2, "cols": 300}, {"rows": 3, "cols": 5}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[c] /= sum", "y[c] = y[c + 1] / sum"),
        ("y[c] /= sum", "out[c] /= sum"),
        ("y[c] /= sum", "if (c > 2) y[c] /= sum"),
        ("float sum = 0.0f;", "float sum = y[0];"),
        ("y[c] = expf(x[c] - top);", "if (c > 2) y[c] = expf(x[c] - top);"),
        ("y[c] = expf(x[c] - top);", "if (c > 2) { continue; } y[c] = expf(x[c] - top);"),
        ("y[c] /= sum", "if (c > 2) { continue; } y[c] /= sum"),
        (
            "    for (int c = lane; c < cols; c += 32) {\n        y[c] /= sum",
            "    x = y;\n    for (int c = lane; c < cols; c += 32) {\n        y[c] = x[c] / sum",
        ),
        (
            "    for (int c = lane; c < cols; c += 32) {\n        y[c] /= sum",
            "    in = y;\n    for (int c = lane; c < cols; c += 32) {\n        y[c] = in[c] / sum",
        ),
    ],
)
def test_a_result_is_not_kept_where_other_elements_may_be_meant(old: str, new: str) -> None:
    assert old in STORED
    for proposal in propose(stored(STORED.replace(old, new)), "row_keep"):
        assert "kept2" not in str(proposal.edits)
