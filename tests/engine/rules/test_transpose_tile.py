import pytest

from engine.rules.transpose_tile import TransposeTile
from tests.engine.rules import workbench
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, machine_code, make, one, propose

TRANSPOSE = """
__global__ void flip(const float* in, float* out, int rows, int cols) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    const int r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= cols) return;
    out[c * rows + r] = 2.0f * in[r * cols + c];
}
"""
LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((cols + 15) / 16, (rows + 15) / 16);
    flip<<<grid, block>>>(in, out, rows, cols);
"""
SIZES = {
    "sizes": [{"rows": 4096, "cols": 2000}],
    "check": [{"rows": 7, "cols": 129}],
    "elements": {"in": "rows*cols", "out": "rows*cols"},
}


def test_store_along_columns() -> None:
    edited = one(make(TRANSPOSE, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8)
    text = device(edited)
    assert "__shared__ float tile[32][32 + 1];" in text
    assert "if (r < rows && c < cols) {" in text
    assert "tile[k][threadIdx.x] = in[r * cols + c];" in text
    assert "out[c * rows + r] = 2.0f * tile[threadIdx.x][k];" in text
    assert edited.configs[0].block == (32, 8, 1)
    assert edited.configs[0].grid == (63, 128, 1)
    compiles(edited)


def test_the_compiler_knows_how_often_a_thread_goes_round() -> None:
    edited = one(make(TRANSPOSE, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8)
    loop = "for (int first = 0; first < 32; first += 8) {\n        const int k = first + threadIdx.y;\n"
    assert device(edited).count(loop) == 2
    # All four loads are under way before the first store.
    before, _, after = machine_code(edited).partition("BAR.SYNC")
    assert before.count("LDG") == 4
    assert "LDG" not in after


def test_rows_that_do_not_divide_the_tile() -> None:
    (family,) = TransposeTile().families(make(TRANSPOSE, LAUNCH, **SIZES))
    proposal = family.make({"tile": 48, "rows": 32})
    assert proposal is not None
    edited = workbench.after(make(TRANSPOSE, LAUNCH, **SIZES), proposal)
    assert device(edited).count("for (int k = threadIdx.y; k < 48; k += 32) {") == 2


def test_load_along_columns_with_a_derived_index() -> None:
    source = TRANSPOSE.replace("out[c * rows + r] = 2.0f * in[r * cols + c]", "out[r * cols + c] = in[at]").replace(
        "    if (r", "    const int at = c * rows + r;\n    if (r"
    )
    edited = one(make(source, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8)
    assert "tile[threadIdx.x][k] = in[at];" in device(edited)
    assert device(edited).count("const int at = c * rows + r;") == 2
    compiles(edited)


@pytest.mark.parametrize(
    "work",
    [
        "out[r * cols + c] = in[r * cols + c];",  # nothing is transposed
        "out[c * rows + r] = in[r * cols + c] + in[r * cols + c + 1];",  # two loads
        "out[c * rows + r] = in[(r * cols + c) % 100];",
        "out[c * rows + r] = threadIdx.x * in[r * cols + c];",
        "out[c * rows + r] = out[r * cols + c];",
    ],
)
def test_nothing_for_other_forms(work: str) -> None:
    source = TRANSPOSE.replace("out[c * rows + r] = 2.0f * in[r * cols + c];", work)
    assert not propose(make(source, LAUNCH, **SIZES), "transpose_tile")


PLANES = """
__global__ void planes(const float* in, float* out, int count, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z;
    if (c < cols && r < rows) {
        out[(n * cols + c) * rows + r] = in[(n * rows + r) * cols + c];
    }
}
"""
PLANES_LAUNCH = (
    "    planes<<<dim3((cols + 31) / 32, (rows + 7) / 8, count), dim3(32, 8)>>>(in, out, count, rows, cols);"
)
PLANES_SIZES = {
    "sizes": [{"count": 8, "rows": 512, "cols": 512}],
    "check": [{"count": 1, "rows": 1, "cols": 2}, {"count": 3, "rows": 33, "cols": 70}],
    "elements": {"in": "count*rows*cols", "out": "count*rows*cols"},
}


def test_a_transpose_in_each_of_several_planes() -> None:
    site = make(PLANES, PLANES_LAUNCH, **PLANES_SIZES)
    edited = one(site, "transpose_tile", tile=32, rows=8)
    assert "tile[k][threadIdx.x] = in[(n * rows + r) * cols + c];" in device(edited)
    assert edited.configs[0].grid == (16, 16, 8)
    assert_equal(site, [edited], PLANES_SIZES["check"], tolerance=0.0)
    compiles(edited)


def test_planes_that_only_happen_to_be_so_many_are_left_alone() -> None:
    fixed = {
        **PLANES_SIZES,
        "sizes": [{"count": 3, "rows": 64, "cols": 32}],
        "check": [{"count": 3, "rows": 5, "cols": 7}],
    }
    assert not propose(make(PLANES, PLANES_LAUNCH.replace(", count), dim3", ", 3), dim3"), **fixed), "transpose_tile")
