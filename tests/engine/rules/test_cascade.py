"""Several elements to each thread before a block's tree: what matches, what is written, and that it gives the same."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, host, make, one, propose

SIZES = ({"n": 1 << 22},)
CHECK = ({"n": 1}, {"n": 903}, {"n": 5000})
TREE = """    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) {
            part[threadIdx.x] += part[threadIdx.x + s];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(total, part[0]);
    }
}"""
SUM = (
    """__global__ void k(const float* x, float* total, int n) {
    __shared__ float part[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    // The square.
    float v = i < n ? x[i] : 0.0f;
    part[threadIdx.x] = v * v;
"""
    + TREE
)
LAUNCH = "    k<<<(n + 127) / 128, 128>>>(x, total, n);"


def site(source: str = SUM, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements={"x": "n", "total": "1"}, newline=newline)


def test_a_loop_with_grid_stride_stands_before_the_tree() -> None:
    edited = one(site(), "cascade", blocks=2112)
    assert """    float thread_sum = 0.0f;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        // The square.
        float v = x[i];
        thread_sum += v * v;
    }
    part[threadIdx.x] = thread_sum;
    __syncthreads();
""" in device(edited)
    assert "k<<<min((n + 127) / 128, 2112), 128>>>" in host(edited)
    compiles(edited)
    assert not propose(edited, "cascade")
    assert propose(edited, "warp_reduce")
    assert propose(edited, "row_vectorize")


GOOD = {
    "a choice": SUM,
    "in the store": SUM.replace("    float v = i < n ? x[i] : 0.0f;\n", "").replace("v * v", "i < n ? x[i] : 0"),
    "a condition": SUM.replace("float v = i < n ? x[i] : 0.0f;", "float v = 0.0f;\n    if (n > i) {\n        v = x[i];\n    }"),
    "two values": SUM.replace("v * v", "v * w").replace("    part[", "    const float w = i < n ? 2.0f * x[i] : 1.0f;\n    part[", 1),
    "its name": SUM.replace("    int i", "    int t = threadIdx.x;\n    int i").replace("part[threadIdx.x] = v", "part[t] = v"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_is_written_compiles_and_gives_the_same(name: str) -> None:
    # Whole numbers add up to the same in every order.
    whole = GOOD[name].replace("0.0f", "0").replace("2.0f", "2").replace("1.0f", "1").replace("float", "int")
    there = site(whole)
    edited = [after(there, p) for p in propose(there, "cascade")]
    assert len(edited) == 3
    assert_equal(there, edited[:1], CHECK, tolerance=0.0)
    compiles(edited[0])


def test_lines_end_as_the_author_ends_them() -> None:
    edited = one(site(newline="\r\n"), "cascade", blocks=2112)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


BAD = {
    "a result for each block": ("atomicAdd(total, part[0]);", "total[blockIdx.x] = part[0];"),
    "a maximum": ("part[threadIdx.x] += part[threadIdx.x + s];", "part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]);"),
    "the index is used later": ("if (threadIdx.x == 0) {", "if (i == 0) {"),
    "a value is used later": ("part[0]);", "part[0] + v);"),
    "a store for each element": ("    part[threadIdx.x] = v", "    total[i] = v;\n    part[threadIdx.x] = v"),
    "another bound as well": ("v * v", "i < 77 ? v : 0.0f"),
    "no bound": ("i < n ? x[i] : 0.0f", "x[i]"),
    "the thread counts": ("v * v", "v * threadIdx.x"),
    "another place": ("part[threadIdx.x] = v", "part[127 - threadIdx.x] = v"),
    "the element's own work has a barrier": ("    part[threadIdx.x] = v", "    __syncthreads();\n    part[threadIdx.x] = v"),
    "threads leave": ("    // The square.", "    if (i >= n) return;"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_match(name: str) -> None:
    old, new = BAD[name]
    assert old in SUM
    assert not propose(site(SUM.replace(old, new)), "cascade")


def test_few_blocks_have_nothing_to_share_out() -> None:
    few = make(SUM, LAUNCH, sizes=({"n": 4096},), check=CHECK, elements={"x": "n", "total": "1"})
    assert not propose(few, "cascade")


def test_a_grid_that_covers_only_a_part_is_left_alone() -> None:
    assert not propose(site(launch="    k<<<n / 256, 128>>>(x, total, n);"), "cascade")
