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
    edited = one(make(TRANSPOSE, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8, vector=0)
    text = device(edited)
    assert "__shared__ float tile[32][32 + 1];" in text
    assert "if (r < rows && c < cols) {" in text
    assert "tile[k][threadIdx.x] = in[r * cols + c];" in text
    assert "out[c * rows + r] = 2.0f * tile[threadIdx.x][k];" in text
    assert edited.configs[0].block == (32, 8, 1)
    assert edited.configs[0].grid == (63, 128, 1)
    compiles(edited)


def test_the_compiler_knows_how_often_a_thread_goes_round() -> None:
    edited = one(make(TRANSPOSE, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8, vector=0)
    loop = "for (int first = 0; first < 32; first += 8) {\n        const int k = first + threadIdx.y;\n"
    assert device(edited).count(loop) == 2
    # All four loads are under way before the first store.
    before, _, after = machine_code(edited).partition("BAR.SYNC")
    assert before.count("LDG") == 4
    assert "LDG" not in after


def test_rows_that_do_not_divide_the_tile() -> None:
    (family,) = TransposeTile().families(make(TRANSPOSE, LAUNCH, **SIZES))
    proposal = family.make({"tile": 48, "rows": 32, "vector": 0})
    assert proposal is not None
    edited = workbench.after(make(TRANSPOSE, LAUNCH, **SIZES), proposal)
    assert device(edited).count("for (int k = threadIdx.y; k < 48; k += 32) {") == 2


def test_load_along_columns_with_a_derived_index() -> None:
    source = TRANSPOSE.replace("out[c * rows + r] = 2.0f * in[r * cols + c]", "out[r * cols + c] = in[at]").replace(
        "    if (r", "    const int at = c * rows + r;\n    if (r"
    )
    edited = one(make(source, LAUNCH, **SIZES), "transpose_tile", tile=32, rows=8, vector=0)
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
    edited = one(site, "transpose_tile", tile=32, rows=8, vector=0)
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


def test_the_tile_is_loaded_by_vectors_all_under_way_at_once() -> None:
    site = make(PLANES, PLANES_LAUNCH, **PLANES_SIZES)
    edited = one(site, "transpose_tile", tile=64, rows=4, vector=1)
    assert edited.configs[0].block == (64, 4, 1)
    text = device(edited)
    assert (
        "if (c < cols && r < rows && c + 3 < cols && reinterpret_cast<size_t>(&in[(n * rows + r) * cols + c]) % 16 == 0) {"
        in text
    )
    assert "tile[n2 * 16 + row][at + j] = packs[n2].at[j];" in text
    code = machine_code(edited)
    before, _, after = code.partition("BAR.SYNC")
    assert before.count("LDG.E.128") == 4
    assert "LDG" not in after
    first_store = before.index("STS")
    assert before.rindex("LDG.E.128") < first_store
    assert "LDL" not in code
    assert "STL" not in code


@pytest.mark.parametrize("kind", ["float", "double", "signed char"])
def test_vectors_at_edges_and_odd_addresses(kind: str) -> None:
    source = PLANES.replace("float", kind)
    sizes = [
        {"count": 3, "rows": 33, "cols": 70},
        {"count": 2, "rows": 66, "cols": 64},
        {"count": 2, "rows": 5, "cols": 129},
    ]
    site = make(source, PLANES_LAUNCH, **PLANES_SIZES)
    edited = [workbench.after(site, p) for p in propose(site, "transpose_tile", vector=1)]
    assert edited
    assert_equal(site, edited, sizes, tolerance=0.0, races=True)


def test_vectors_down_the_columns_of_the_tile() -> None:
    source = TRANSPOSE.replace("out[c * rows + r] = 2.0f * in[r * cols + c]", "out[r * cols + c] = in[at]").replace(
        "    if (r", "    const int at = c * rows + r;\n    if (r"
    )
    site = make(source, LAUNCH, **SIZES)
    edited = one(site, "transpose_tile", tile=64, rows=4, vector=1)
    assert "r + 3 < rows && reinterpret_cast<size_t>(&in[at]) % 16 == 0" in device(edited)
    assert_equal(site, [edited], ({"rows": 7, "cols": 129}, {"rows": 64, "cols": 65}), tolerance=0.0)


def test_vectors_only_where_they_divide_the_tile_among_its_threads() -> None:
    (family,) = TransposeTile().families(make(TRANSPOSE, LAUNCH, **SIZES))
    made = [family.make({"tile": 64, "rows": rows, "vector": 1}) is not None for rows in (1, 4, 16, 32)]
    assert made == [True, True, True, False]
