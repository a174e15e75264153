import numpy as np
import pytest

from engine.cpu import CpuJob
from engine.rewrite.site import Site
from engine.spec.launch_config import evaluate
from tests.engine.rules.equality import assert_equal, machine
from tests.engine.rules.workbench import PATH, after, compiles, device, make, one, propose

SOFTMAX = """
__global__ void softmax(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float largest = x[row * cols];
    for (int c = 1; c < cols; ++c) {
        largest = fmaxf(largest, x[row * cols + c]);
    }
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) {
        sum += expf(x[row * cols + c] - largest);
    }
    for (int c = 0; c < cols; ++c) {
        y[row * cols + c] = expf(x[row * cols + c] - largest) / sum;
    }
}
"""
NORM = """
__global__ void layer_norm(const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const float* in = x + row * cols;
        float mean = 0.0f;
        for (int i = 0; i < cols; i++) mean += in[i];
        mean /= cols;
        float variance = 0.0f;
        for (int j = 0; j < cols; j += 1) {
            float d = x[j + cols * row] - mean;
            variance += d * d / cols;
        }
        for (int i = 0; i < cols; i++) {
            y[row * cols + i] = (in[i] - mean) * rsqrtf(variance + 1e-5f);
        }
    }
}
"""
# A block per row with a tree in shared memory, under a causal mask, scaled: the maximum has two names.
ATTENTION = """
__global__ void attention(const float* scores, float* out, int rows, int cols) {
    __shared__ float red[64];
    const int r = blockIdx.x, t = threadIdx.x;
    float m = -INFINITY;
    for (int c = t; c <= r; c += 64) {
        float s = scores[r * cols + c];
        if (s > m) { m = s; }
    }
    red[t] = m;
    __syncthreads();
    for (int s = 32; s > 0; s /= 2) {
        if (t < s) red[t] = fmaxf(red[t], red[t + s]);
        __syncthreads();
    }
    const float top = red[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = t; c <= r; c += 64) {
        sum = sum + __expf((scores[r * cols + c] - top) * 0.125f);
    }
    red[t] = sum;
    __syncthreads();
    for (int s = 32; s > 0; s /= 2) {
        if (t < s) red[t] += red[t + s];
        __syncthreads();
    }
    for (int c = t; c < cols; c += 64) {
        out[r * cols + c] = c <= r ? __expf((scores[r * cols + c] - top) * 0.125f) / red[0] : 0.0f;
    }
}
"""
SIZES = {"sizes": [{"rows": 4096, "cols": 4096}], "check": [{"rows": 7, "cols": 129}]}
CASES = [{"rows": 7, "cols": 129}, {"rows": 3, "cols": 1}]


def softmax(source: str = SOFTMAX) -> Site:
    return make(
        source,
        "    softmax<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);",
        elements={"x": "rows*cols", "y": "rows*cols"},
        **SIZES,
    )


def norm(source: str = NORM) -> Site:
    return make(
        source,
        "    layer_norm<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);",
        elements={"x": "rows*cols", "y": "rows*cols"},
        **SIZES,
    )


def attention(source: str = ATTENTION) -> Site:
    return make(
        source,
        "    attention<<<rows, 64>>>(scores, out, rows, cols);",
        elements={"scores": "rows*cols", "out": "rows*cols"},
        **SIZES,
    )


def test_softmax_by_one_thread_or_a_team() -> None:
    site = softmax()
    alone = one(site, "one_pass")
    assert "sum += partial;" in device(alone)
    assert device(alone).count("for (") == 2
    team = one(one(site, "row_parallel", team="block", block=256), "one_pass")
    assert "const float own = largest;\n    largest = block_max(largest);" in device(team)
    assert "* expf(own - largest);" in device(team)
    compiles(team)
    assert_equal(site, [alone, team], CASES, races=True)


def test_layer_norm_by_one_thread_or_a_team() -> None:
    site = norm()
    alone = one(site, "one_pass")
    assert "variance += (squares - taken) / cols;" in device(alone)
    team = one(one(site, "row_parallel", team="warp", block=256), "one_pass")
    compiles(team)
    assert_equal(site, [alone, team], CASES)


def test_a_first_value_far_from_the_others_costs_no_digits() -> None:
    """Deviations were kept around the first value: on `examples/layer_norm.cu` verification refused two of three such edits."""
    site, sizes = norm(), {"rows": 64, "cols": 129}
    x = np.random.default_rng(3).standard_normal((64, 129)).astype(np.float32)
    x[:, 0] = 30.0
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    errors = []
    for each in (site, one(site, "one_pass")):
        binary = machine().build(device(each), PATH, each.spec, [each.kernel.name])
        scalars = {name: np.int32(value) for name, value in sizes.items()}
        buffers = {"x": x.reshape(-1), "y": np.zeros(x.size, np.float32)}
        (run,) = machine().run_many(binary, [CpuJob([evaluate(each.program, each.spec, 0, sizes)], buffers, scalars)])
        assert not run.findings
        errors.append(np.abs(run.outputs["y"].reshape(x.shape) - exact).max())
    assert errors[1] <= 3 * errors[0], errors


def test_a_block_with_its_own_reduction_and_a_mask() -> None:
    site = attention()
    edited = one(site, "one_pass")
    text = device(edited)
    assert "sum += partial * __expf((m - top) * 0.125f);" in text
    assert_equal(site, [edited], [{"rows": 70, "cols": 70}])


def test_a_row_of_masked_values_gives_numbers() -> None:
    """Minus infinity until the first value that counts must not make the sum no number."""
    masked = SOFTMAX.replace("float largest = x[row * cols];", "float largest = -INFINITY;").replace(
        "int c = 1", "int c = 0"
    )
    masked = masked.replace("x[row * cols + c]", "(c < 3 ? -INFINITY : x[row * cols + c])")
    site = softmax(masked)
    assert_equal(site, [one(site, "one_pass")], [{"rows": 2, "cols": 65}])


def test_what_comes_out_compiles() -> None:
    double = SOFTMAX.replace("float", "double").replace("fmaxf", "max").replace("expf", "exp")
    for source in (double, SOFTMAX.replace("fmaxf(largest, ", "fmaxf((largest), ")):
        proposals = propose(softmax(source), "one_pass")
        assert proposals
        for proposal in proposals:
            compiles(after(softmax(source), proposal))
    crlf = make(NORM, "    layer_norm<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);", newline="\r\n", **SIZES)
    proposals = propose(crlf, "one_pass")
    assert proposals
    for proposal in proposals:
        compiles(after(crlf, proposal))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum += expf(x[row * cols + c] - largest);", "sum += expf(x[row * cols + c + 1] - largest);"),
        ("sum += expf(x[row * cols + c] - largest);", "sum += expf(x[row * cols + c]);"),
        ("sum += expf(x[row * cols + c] - largest);", "sum += expf(x[row * cols + c] - largest) * c;"),
        ("sum += expf(x[row * cols + c] - largest);", "sum += sinf(x[row * cols + c] - largest);"),
        ("sum += expf(x[row * cols + c] - largest);", "sum += expf(x[row * cols + c] - largest); y[c] = sum;"),
        ("for (int c = 1; c < cols", "for (int c = 1; c < cols - 1"),
        ("for (int c = 1; c < cols", "for (int c = 2; c < cols"),
        ("float sum = 0.0f;", "float sum = 0.0f; y[row] = 1.0f;"),
        ("float sum = 0.0f;", "float sum = 0.0f; row = 0;"),
        ("largest = fmaxf(largest, x[row * cols + c]);", "largest = fminf(largest, x[row * cols + c]);"),
        ("largest = fmaxf(largest, x[row * cols + c]);", "largest += x[row * cols + c];"),
    ],
)
def test_nothing_for_other_forms(old: str, new: str) -> None:
    assert old in SOFTMAX
    assert not propose(softmax(SOFTMAX.replace(old, new)), "one_pass")


def test_a_nan_in_a_row_makes_the_row_nan_as_before() -> None:
    """Minima and maxima drop a NaN: the sum must not."""
    site, sizes = softmax(), {"rows": 5, "cols": 70}
    x = np.random.default_rng(1).standard_normal(350).astype(np.float32)
    x[[70 + 3, 140, 350 - 1]] = np.nan
    buffers = {"x": x, "y": np.zeros_like(x)}
    scalars = {"rows": np.int32(5), "cols": np.int32(70)}
    found = []
    for form in (site, one(site, "one_pass")):
        binary = machine().build(device(form), PATH, form.spec, [form.kernel.name])
        launch = evaluate(form.program, form.spec, 0, sizes)
        found.append(machine().run_many(binary, [CpuJob([launch], buffers, scalars)])[0].outputs["y"])
    assert np.isnan(found[0].reshape(5, 70)[[1, 2, 4]]).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
