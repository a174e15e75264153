"""Several rows of a block to a thread: what matches, what is written between barriers, and that it gives the same."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, host, make, one, propose

SIZES = ({"h": 512, "w": 512},)
CHECK = ({"h": 1, "w": 1}, {"h": 7, "w": 70}, {"h": 33, "w": 64})
ELEMENTS = {"x": "h*w", "y": "h*w"}
TURN = """__global__ void k(const float* x, float* y, int h, int w) {
    __shared__ float tile[32][33];
    const int side = blockIdx.x * 32;
    int c = side + threadIdx.x;
    int r = blockIdx.y * 32 + threadIdx.y;
    if (r < h && c < w) {
        tile[threadIdx.y][threadIdx.x] = x[r * w + c];
    }
    __syncthreads();
    c = blockIdx.x * 32 + threadIdx.y;  // the other way
    r = blockIdx.y * 32 + threadIdx.x;
    if (c < w && r < h) {
        y[c * h + r] = tile[threadIdx.x][threadIdx.y];
    }
}"""
# Names of rows that both sides of the barrier use.
NAMED = """__global__ void k(const float* x, float* y, int h, int w) {
    __shared__ float tile[32][33];
    int tx = threadIdx.x;
    int ty = threadIdx.y;
    int r = blockIdx.y * 32 + ty;
    tile[ty][tx] = r < h && blockIdx.x * 32 + tx < w ? x[r * w + blockIdx.x * 32 + tx] : 0.0f;
    __syncthreads();
    float left = tx > 0 ? tile[ty][tx - 1] : 0.0f;
    if (r < h && blockIdx.x * 32 + tx < w) {
        y[r * w + blockIdx.x * 32 + tx] = left + tile[ty][tx];
    }
}"""
LAUNCH = "    k<<<dim3((w + 31) / 32, (h + 31) / 32), dim3(32, 32)>>>(x, y, h, w);"


def site(source: str = TURN, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def test_each_side_of_a_barrier_gets_a_loop_over_the_rows() -> None:
    edited = one(site(), "block_rows", factor=4)
    assert device(edited).endswith(
        """    const int side = blockIdx.x * 32;
    #pragma unroll
    for (int first = 0; first < 32; first += 8) {
        const int line = first + threadIdx.y;
        int c = side + threadIdx.x;
        int r = blockIdx.y * 32 + line;
        if (r < h && c < w) {
            tile[line][threadIdx.x] = x[r * w + c];
        }
    }
    __syncthreads();
    #pragma unroll
    for (int first = 0; first < 32; first += 8) {
        const int line = first + threadIdx.y;
        int c = blockIdx.x * 32 + line;  // the other way
        int r = blockIdx.y * 32 + threadIdx.x;
        if (c < w && r < h) {
            y[c * h + r] = tile[threadIdx.x][line];
        }
    }
}"""
    )
    assert "dim3(32, 8)>>>" in host(edited)


def test_what_a_row_is_called_by_is_worked_out_once_more_behind_the_barrier() -> None:
    edited = device(one(site(NAMED), "block_rows", factor=2))
    behind = edited[edited.index("__syncthreads") :]
    assert (
        """        const int line = first + threadIdx.y;
        int ty = line;
        int r = blockIdx.y * 32 + ty;
        float left = tx > 0 ? tile[ty][tx - 1] : 0.0f;
"""
        in behind
    )


# A name declared after work, one that is used before it changes, one that is the same in all rows.
MIXED = (
    NAMED.replace(
        "    __syncthreads();",
        "    const int ahead = tx + 1;\n    int at = ty;\n    __syncthreads();\n    r += at - at;",
    )
    .replace("tile[ty][tx - 1]", "tile[at][ahead - 2]")
    .replace("    if (r < h", "    at = ty + ahead - tx - 1;\n    left += 0.0f * at;\n    if (r < h")
)


@pytest.mark.parametrize("source", [TURN, NAMED, MIXED])
def test_what_is_written_compiles_and_gives_the_same(source: str) -> None:
    there = site(source)
    edited = [after(there, p) for p in propose(there, "block_rows")]
    assert len(edited) == 3
    assert_equal(there, edited, CHECK, tolerance=0.0)
    compiles(edited[0])


def test_lines_end_as_the_author_ends_them() -> None:
    edited = one(site(newline="\r\n"), "block_rows", factor=4)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


BAD = {
    "a value is carried over the barrier": (NAMED, "    __syncthreads();", "    float v = x[r * w];\n    __syncthreads();\n    y[r] = v;"),
    "a sum is carried over": (NAMED, "    __syncthreads();", "    float v = 0.0f;\n    v += tx;\n    __syncthreads();\n    y[r] = v;"),
    "a name changes what it was made of": (NAMED, "    __syncthreads();", "    __syncthreads();\n    ty = 31 - ty;"),
    "threads leave": (TURN, "    if (r < h", "    if (r >= h) return;\n    if (r < h"),
    "a barrier in a loop": (TURN, "    __syncthreads();", "    for (int i = 0; i < 2; ++i) {\n        __syncthreads();\n    }"),
    "no barrier": (TURN, "    __syncthreads();\n", ""),
    "the number of rows counts": (TURN, "blockIdx.y * 32", "blockIdx.y * blockDim.y"),
    "warps talk": (TURN, "x[r * w + c];", "__shfl_sync(0xffffffffu, x[r * w + c], 0);"),
    "an array of its own": (TURN, "    __syncthreads();", "    float m[2];\n    m[0] = r;\n    __syncthreads();\n    y[0] = m[0];"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_match(name: str) -> None:
    source, old, new = BAD[name]
    assert old in source
    assert not propose(site(source.replace(old, new, 1)), "block_rows")


def test_blocks_of_one_row_or_of_few_threads_are_left_alone() -> None:
    flat = TURN.replace("threadIdx.y", "0")
    assert not propose(site(flat, LAUNCH.replace("dim3(32, 32)", "dim3(32, 1)")), "block_rows")
    small = site(launch=LAUNCH.replace("dim3(32, 32)", "dim3(32, 4)"))
    assert [p.parameters["factor"] for p in propose(small, "block_rows")] == [2]
