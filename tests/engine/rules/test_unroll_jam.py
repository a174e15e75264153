"""Several results to a thread: what matches, what is written, and that nothing else comes of it."""

from __future__ import annotations

import pytest

from engine.rewrite.proposal import Parametric
from engine.rewrite.site import Site
from engine.rules import rules
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, host, make, one, propose

SIZES = ({"rows": 4096, "cols": 2048, "depth": 64},)
CHECK = ({"rows": 1, "cols": 1, "depth": 1}, {"rows": 7, "cols": 70, "depth": 5}, {"rows": 9, "cols": 33, "depth": 2})
ELEMENTS = {"a": "rows*depth", "b": "depth*cols", "c": "rows*cols", "d": "rows*cols"}
ARGUMENTS = "const float* a, const float* b, float* c, float* d, int rows, int cols, int depth"
TWO = f"""__global__ void k({ARGUMENTS}) {{
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || col >= cols) return;
"""
LAUNCH = (
    "    dim3 grid((cols + 15) / 16, (rows + 3) / 4);\n    k<<<grid, dim3(16, 4)>>>(a, b, c, d, rows, cols, depth);"
)
PRODUCT = (
    TWO
    + """    // The sum over the depth.
    float sum = 0.0f;
    for (int i = 0; i < depth; ++i) {
        sum += a[row * depth + i] * b[i * cols + col];
    }
    c[row * cols + col] = sum;  // stored once
}"""
)


def site_of(source: str, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def test_what_depends_on_the_row_is_written_for_each_and_all_else_once() -> None:
    edited = one(site_of(PRODUCT), "unroll_jam", index="row", factor=4)
    assert device(edited).endswith(
        """    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row0 = blockIdx.y * (blockDim.y * 4) + threadIdx.y;
    if (row0 >= rows || col >= cols) return;
    int row[4];
    #pragma unroll
    for (int k2 = 0; k2 < 4; ++k2) {
        row[k2] = row0 + k2 * blockDim.y < rows ? row0 + k2 * blockDim.y : rows - 1;
    }
    // The sum over the depth.
    float sum[4];
    #pragma unroll
    for (int k2 = 0; k2 < 4; ++k2) {
        sum[k2] = 0.0f;
    }
    for (int i = 0; i < depth; ++i) {
        #pragma unroll
        for (int k2 = 0; k2 < 4; ++k2) {
            sum[k2] += a[row[k2] * depth + i] * b[i * cols + col];
        }
    }
    #pragma unroll
    for (int k2 = 0; k2 < 4; ++k2) {
        if (row0 + k2 * blockDim.y < rows) {
            c[row[k2] * cols + col] = sum[k2];  // stored once
        }
    }
}"""
    )
    assert "grid((cols + 15) / 16, (rows + 15) / 16)" in host(edited)


SPLIT = f"""__global__ void k({ARGUMENTS}) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y % cols;
    int row = blockIdx.y / cols;
    if (i >= depth) {{
        return;
    }}
    float most = 0.0f;
    for (int j = 0; j <= i; ++j) {{
        float x = a[row * depth + j];
        if (x > 0.0f)
            most = fmaxf(most, x * b[j * cols + col]);
        else
            most += 0.5f;
    }}
    if (i == depth - 1) c[row * cols + col] = most;
}}"""
SPLIT_LAUNCH = "    k<<<dim3((depth + 31) / 32, rows * cols), 32>>>(a, b, c, d, rows, cols, depth);"


def test_a_grid_axis_that_holds_two_indices_is_shared_out_anew() -> None:
    edited = one(site_of(SPLIT, SPLIT_LAUNCH), "unroll_jam", factor=8)
    code = device(edited)
    assert "int col0 = blockIdx.y % ((cols + 7) / 8) * 8;" in code
    assert "int row = blockIdx.y / ((cols + 7) / 8);" in code
    assert "dim3((depth + 31) / 32, rows * ((cols + 7) / 8))" in host(edited)


BLOCKS = f"""__global__ void k({ARGUMENTS}) {{
    int row = blockIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col < cols) {{
        const float* from = a + row * depth;
        float sum = 0.0f, square = 1.0f;
        for (int i = 0; i < depth; i++) {{
            const float weight = b[i * cols + col];
            float part = from[i] * weight;
            sum += part;
            square *= part;
        }}
        d[row * cols + col] -= sum;
        c[row * cols + col] = square;
    }}
}}"""
BLOCKS_LAUNCH = "    k<<<dim3((cols + 15) / 16, rows), 16>>>(a, b, c, d, rows, cols, depth);"


def test_values_live_in_arrays_only_beyond_their_own_statements() -> None:
    code = device(one(site_of(BLOCKS, BLOCKS_LAUNCH), "unroll_jam", index="row", factor=2))
    assert "int row0 = blockIdx.y * 2;" in code
    assert "const float* from[2];" in code
    assert "sum[k2] = 0.0f, square[k2] = 1.0f;" in code
    assert "float part = from[k2][i] * weight;\n" in code  # used where it is declared, and nowhere else
    assert "            const float weight = b[i * cols + col];\n            #pragma unroll\n" in code


GOOD = {
    "product": (PRODUCT, LAUNCH),
    "split": (SPLIT, SPLIT_LAUNCH),
    "blocks": (BLOCKS, BLOCKS_LAUNCH),
    "in turn": (
        TWO + "    c[row * cols + col] = 0;\n    for (int i = 0; i < depth; ++i) {\n        float w = b[i * cols + col];\n"
        "        if (w > 0) { if (a[row * depth + i] > w) c[row * cols + col] += w; }\n        else { continue; }\n"
        "        d[row * cols + col] = w * a[row * depth + i];\n    }\n}",
        LAUNCH,
    ),
    "while": (
        TWO + "    int i = 0; float s = 1;\n    while (i < depth) {\n        s += a[row * depth + i] * b[i * cols + col];\n"
        "        i++;\n    }\n"
        "    #pragma unroll\n    for (int t = 0; t < 3; ++t) s *= 0.5f;\n    c[row * cols + col] = s;\n}",
        LAUNCH,
    ),
    "unbraced": (
        TWO + "    float s = 1;\n    for (int i = 0; i < depth; ++i)\n        for (int j = 0; j < 2; ++j)\n"
        "            s += a[row * depth + i] * b[i * cols + col];\n    c[row * cols + col] = s;\n}",
        LAUNCH,
    ),
}  # fmt: skip


EDGES = (
    TWO
    + """    float sum = 0.0f;
    for (int i = 0; i < depth; ++i) {
        for (int dy = -1; dy <= 1; ++dy) {
            int at = row + dy;
            if (at >= 0 && at < rows) {
                float v = a[at * depth + i];
                sum += v * b[i * cols + col];
                if (v > 0.5f) sum += b[i];
                sum += at < 3 ? b[0] : d[at];
            }
        }
    }
    c[row * cols + col] = sum;
}"""
)
GOOD["behind a condition"] = (EDGES.replace("d[at]", "0.0f"), LAUNCH)


def test_a_load_behind_a_condition_that_does_not_speak_of_it_is_made_once() -> None:
    """The compiler makes it for each copy: it must not load where the condition does not hold."""
    site = site_of(EDGES)
    edited = device(one(site, "unroll_jam", index="row", factor=4))
    loop = edited[edited.index("const float b_value") :]
    assert loop.startswith(
        """const float b_value = b[i * cols + col];
            #pragma unroll
            for (int k2 = 0; k2 < 4; ++k2) {
                int at = row[k2] + dy;
                if (at >= 0 && at < rows) {
                    float v = a[at * depth + i];
                    sum[k2] += v * b_value;
                    if (v > 0.5f) sum[k2] += b[i];
                    sum[k2] += at < 3 ? b[0] : d[at];
                }
            }"""
    )
    across = one(one(site, "unroll_jam", index="row", factor=4), "unroll_jam", index="col", factor=2)
    assert "sum[k3][k2] += v * b_value[k3];" in device(across)
    # The other way round it is a load in a loop over copies, made once for each of them.
    other = one(one(site, "unroll_jam", index="col", factor=2), "unroll_jam", index="row", factor=4)
    assert "b_value[k2] = b[i * cols + col[k2]];" in device(other)
    assert "sum[k3][k2] += v * b_value[k2];" in device(other)
    good = site_of(*GOOD["behind a condition"])
    tile = one(one(good, "unroll_jam", index="col", factor=2), "unroll_jam", index="row", factor=4)
    assert_equal(good, [tile], CHECK, tolerance=0.0)
    compiles(across)


def test_a_load_that_the_condition_guards_stays_behind_it() -> None:
    guarded = EDGES.replace("at < rows", "at < rows && i * 2 < cols + at").replace("b[i * cols + col]", "b[cols]")
    assert "b_value" not in device(one(site_of(guarded), "unroll_jam", index="row", factor=4))
    stored = EDGES.replace("sum += v *", "d[at] = v; sum += v *").replace("b[i * cols + col]", "d[col]")
    found = propose(site_of(stored), "unroll_jam", index="row", factor=4)
    assert not [p for p in found if "d_value" in device(after(site_of(stored), p))]


@pytest.mark.parametrize("name", GOOD)
def test_what_is_written_compiles_and_gives_the_same(name: str) -> None:
    site = site_of(*GOOD[name])
    edited = [after(site, p) for p in propose(site, "unroll_jam", factor=4)]
    assert_equal(site, edited, CHECK, tolerance=0.0)
    compiles(edited[-1])


def test_lines_end_as_the_author_ends_them() -> None:
    edited = one(site_of(PRODUCT, newline="\r\n"), "unroll_jam", index="row", factor=4)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


LOOP = "    float s = 0;\n    for (int i = 0; i < depth; ++i) {\n        BODY\n    }\n    c[row * cols + col] = s;\n}"
USED = "s += a[row * depth + i] * b[i * cols + col];"
BAD = {
    "nothing is shared": TWO + "    c[row * cols + col] = a[row * depth] * b[col];\n}",
    "a barrier": TWO + LOOP.replace("BODY", USED + " __syncthreads();"),
    "an atomic": TWO + LOOP.replace("BODY", USED + " atomicAdd(&d[0], s);"),
    "a loop is left": TWO + LOOP.replace("BODY", USED + " if (s > 4) break;"),
    "the kernel is left": TWO + LOOP.replace("BODY", USED + " if (s > 4) return;"),
    "an array with values of its own": TWO
    + "    float t[2] = {0, 0};\n"
    + LOOP.replace("BODY", USED + " t[0] += s;"),
    "a loop of its own": TWO + LOOP.replace("int i = 0", "int i = row").replace("BODY", "s += b[i * cols + col];"),
    "a store for all": TWO + LOOP.replace("BODY", USED + " d[0] = 1.0f;"),
    "one declaration for both": TWO + LOOP.replace("BODY", "float w = b[i], v = a[row * depth + i] * b[i + col]; s += w * v;"),
    "an unknown type": TWO + LOOP.replace("BODY", "auto v = a[row * depth + i]; if (i > 0) { int z = i; } float w = b[i]; s += v * w;"),
    "another guard": TWO.replace("row >= rows ||", "row * 2 >= rows + row ||") + LOOP.replace("BODY", USED),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_match(name: str) -> None:
    found = propose(site_of(BAD[name]), "unroll_jam")
    assert not [p for p in found if p.parameters["index"] == "row"], name


def test_a_grid_that_only_happens_to_have_that_size_is_left_alone() -> None:
    """64 rows in every case, and 64 blocks: for other sizes they would differ."""
    case = {"rows": 64, "cols": 32, "depth": 2}
    site = make(BLOCKS, BLOCKS_LAUNCH.replace(", rows)", ", 64)"), sizes=[case], check=[case], elements=ELEMENTS)
    assert not propose(site, "unroll_jam", index="row")


def test_the_tuner_may_choose_the_number() -> None:
    (rule,) = [r for r in rules() if r.name == "unroll_jam"]
    assert isinstance(rule, Parametric)
    site = site_of(SPLIT, SPLIT_LAUNCH)
    (family,) = rule.families(site)
    made = family.make({"factor": 6})
    assert made is not None
    assert_equal(site, [after(site, made)], CHECK, tolerance=0.0)


def test_results_along_one_axis_after_those_along_another() -> None:
    """Registers hold a tile of them then."""
    site = site_of(PRODUCT)
    first = one(site, "unroll_jam", index="col", factor=2)
    second = one(first, "unroll_jam", index="row", factor=4)
    assert "float sum[4][2];" in device(second)
    assert "sum[k3][k2] += a[row[k3] * depth + i] * b[i * cols + col[k2]];" in device(second)
    assert "grid((cols + 31) / 32, (rows + 15) / 16)" in host(second)
    assert_equal(site, [second], CHECK, tolerance=0.0)
    compiles(second)


WARPS = """__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
}

__global__ void k(const float* a, const float* b, float* c, float* d, int rows, int cols, int depth) {
    const int row = NUMBER;
    const int lane = threadIdx.x % 32;
    if (row >= rows) {
        return;
    }
    float sum = 0.0f;
    for (int i = lane; i < depth; i += 32) {
        sum += a[row * depth + i] * b[i];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        c[row] = sum;
    }
}"""
WARPS_LAUNCH = "    k<<<(rows + 3) / 4, 128>>>(a, b, c, d, rows, cols, depth);"
NUMBERS = (
    "blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32",
    "(blockIdx.x * blockDim.x + threadIdx.x) / warpSize",
    "blockIdx.x * 4 + (threadIdx.x >> 5)",
)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_warp_takes_on_several_rows(number: str) -> None:
    """What the lanes load for one row serves the others, and the warp's sums follow each other."""
    site = site_of(WARPS.replace("NUMBER", number), WARPS_LAUNCH)
    edited = one(site, "unroll_jam", index="row", factor=4)
    code = device(edited)
    assert f"int row0 = ({number}) * 4;" in code
    assert "sum[k2] += a[row[k2] * depth + i] * b[i];" in code
    assert "sum[k2] = warp_sum(sum[k2]);" in code
    assert "            if (row0 + k2 < rows) {\n                c[row[k2]] = sum[k2];\n" in code
    assert "k<<<(rows + 15) / 16, 128>>>" in host(edited)
    assert_equal(
        site, [edited], ({"rows": 1, "cols": 1, "depth": 1}, {"rows": 21, "cols": 1, "depth": 70}), tolerance=0.0
    )
    compiles(edited)


def test_a_row_for_each_warp_after_a_row_for_each_thread() -> None:
    rows = WARPS[WARPS.index("__global__") :].replace("NUMBER", "blockIdx.x * blockDim.x + threadIdx.x")
    rows = rows.replace("    const int lane = threadIdx.x % 32;\n", "").replace(
        "lane; i < depth; i += 32", "0; i < depth; ++i"
    )
    rows = rows.replace("    sum = warp_sum(sum);\n", "").replace("if (lane == 0) ", "")
    launch = "    k<<<(rows + 127) / 128, 128>>>(a, b, c, d, rows, cols, depth);"
    site = make(rows, launch, sizes=[{"rows": 65536, "cols": 1, "depth": 64}], check=CHECK, elements=ELEMENTS)
    warps = one(site, "row_parallel", team="warp", block=256)
    edited = one(warps, "unroll_jam", index="row", factor=8)
    assert_equal(site, [edited], CHECK, tolerance=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        ("NUMBER", "blockIdx.x * 8 + threadIdx.x / 32"),  # every other warp's rows are left out
        ("NUMBER", "blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16"),  # half a warp for each row
        ("if (lane == 0)", "if (lane == blockIdx.x)"),  # the block's number is used besides
        ("if (lane == 0)", "if (lane == gridDim.x)"),
        ("    float sum", "    __syncthreads();\n    float sum"),
        ("    float sum", "    __shared__ float kept[4];\n    float sum"),
        ("if (row >= rows)", "if (row >= 2 * rows)"),
    ],
)
def test_what_is_no_row_for_each_warp(change: tuple[str, str]) -> None:
    source = WARPS.replace(*change).replace("NUMBER", NUMBERS[0])
    assert not propose(site_of(source, WARPS_LAUNCH), "unroll_jam")
