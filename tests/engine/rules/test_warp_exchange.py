"""Compare-exchange stages by shuffles: what matches, what must not, and that the order stays the same."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, make, one, propose

WORK = """if (partner > t) {
                bool ascending = (t & size) == 0;
                int a = row[t];
                int b = row[partner];
                if ((a > b) == ascending) {
                    row[t] = b;
                    row[partner] = a;
                }
            }"""
SORT = f"""__global__ void sort(int* keys, int rows) {{
    __shared__ int row[THREADS];
    int t = threadIdx.x;
    row[t] = keys[blockIdx.x * THREADS + t];
    __syncthreads();
    for (int size = 2; size <= THREADS; size *= 2) {{
        for (int stride = size / 2; stride > 0; stride /= 2) {{
            int partner = t ^ stride;
            {WORK}
            __syncthreads();
        }}
    }}
    keys[blockIdx.x * THREADS + t] = row[t];
}}"""
# Indices are sorted by the values that they stand for, and values go along with their keys.
BY_INDEX = """__device__ void exchange(int& a, int& b) { int c = a; a = b; b = c; }

__global__ void sort(const float* x, int* order, int rows) {
    extern __shared__ int place[];
    const int col = threadIdx.x;
    const float* own = x + blockIdx.x * THREADS;
    place[col] = col;
    __syncthreads();
    for (int k = 2; k <= THREADS; k *= 2) {
        for (int j = k / 2; j > 0; j /= 2) {
            int ixj = col ^ j;
            if (ixj > col) {
                if ((col & k) == 0 ? own[place[col]] > own[place[ixj]] : own[place[col]] < own[place[ixj]]) {
                    exchange(place[col], place[ixj]);
                }
            }
            __syncthreads();
        }
    }
    order[blockIdx.x * THREADS + col] = place[col];
}"""
PAIRS = SORT
for old, new in {
    "int* keys, int rows": "int* keys, float* x, int rows",
    "    __syncthreads();\n    for (int size": (
        "    __shared__ float with[THREADS];\n    with[t] = x[blockIdx.x * THREADS + t];\n"
        "    __syncthreads();\n    for (int size"
    ),
    "row[partner] = a;": "row[partner] = a; float c = with[t]; with[t] = with[partner]; with[partner] = c;",
    "= row[t];\n}": "= row[t];\n    x[blockIdx.x * THREADS + t] = with[t];\n}",
}.items():
    assert old in PAIRS
    PAIRS = PAIRS.replace(old, new)
CHECK = ({"rows": 1}, {"rows": 3})


def site_of(source: str = SORT, threads: int = 128, arguments: str = "keys, rows") -> Site:
    code = source.replace("THREADS", str(threads))
    shared = f", {threads} * sizeof(int)" if "extern" in source else ""
    elements = dict.fromkeys(("keys", "x", "order"), f"rows*{threads}")
    return make(
        code, f"    sort<<<rows, {threads}{shared}>>>({arguments});",
        sizes=({"rows": 16384},), check=CHECK, elements=elements,
    )  # fmt: skip


def test_stages_within_a_warp_need_no_barrier() -> None:
    edited = one(site_of(), "warp_exchange", buffers=1)
    code = device(edited)
    assert "row_other = __shfl_xor_sync(0xffffffffu, row_own, stride);" in code
    assert (
        "row_own = lower == (((t & ~stride) & size) == 0) ? min(row_own, row_other) : max(row_own, row_other);" in code
    )
    assert "    row[t] = row_own;\n    __syncthreads();\n    keys[" in code
    compiles(edited)
    assert not propose(edited, "warp_exchange")


@pytest.mark.parametrize("threads", [32, 256])
def test_the_order_stays_the_same(threads: int) -> None:
    site = site_of(threads=threads)
    proposals = propose(site, "warp_exchange")
    assert len(proposals) == 2
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


INLINE = """if (partner > t) {
                if ((row[t] > row[partner]) == ((t & size) == 0)) {
                    int c = row[t];
                    row[t] = row[partner];
                    row[partner] = c;
                }
            }"""
SWAPPED = WORK.replace("(a > b) == ascending", "ascending == (b < a)")


@pytest.mark.parametrize("work", [INLINE, SWAPPED])
def test_whole_numbers_are_ordered_by_min_and_max(work: str) -> None:
    site = site_of(SORT.replace(WORK, work))
    proposals = propose(site, "warp_exchange")
    edited = [after(site, p) for p in proposals]
    assert all("? min(row_own, row_other) : max(row_own, row_other);" in device(each) for each in edited)
    assert_equal(site, edited, CHECK)


def test_floats_are_not_ordered_by_min_and_max() -> None:
    source = SORT
    for old in ("int* keys", "int row[", "int a =", "int b ="):
        assert old in source
        source = source.replace(old, old.replace("int", "float"))
    (edited, *_) = [after(site_of(source), p) for p in propose(site_of(source), "warp_exchange")]
    assert "min(" not in device(edited)  # a NaN stays where it is


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(a > b) == ascending", "(a >= b) == ascending"),  # another form
        ("bool ascending = (t & size) == 0;", "int ascending = t & size;"),  # 0 or size, not 0 or 1
        ("int a = row[t];", "unsigned int a = row[t];"),  # another order
        ("row[t] = b;", "row[t] = a;"),
    ],
)
def test_other_work_is_done_as_it_stands(old: str, new: str) -> None:
    assert old in SORT
    site = site_of(SORT.replace(old, new))
    edited = [after(site, p) for p in propose(site, "warp_exchange")]
    assert all("min(" not in device(each) for each in edited)
    assert_equal(site, edited, CHECK)


@pytest.mark.parametrize(("source", "arguments"), [(BY_INDEX, "x, order, rows"), (PAIRS, "keys, x, rows")])
def test_other_elements_and_several_arrays(source: str, arguments: str) -> None:
    site = site_of(source, arguments=arguments)
    proposals = propose(site, "warp_exchange")
    assert len(proposals) == (1 if "extern" in source else 2)
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("row[partner] = a;", "row[partner + 1] = a;"),  # not the partner's element
        ("row[partner] = a;", "row[partner] = a; keys[t] = a;"),  # both threads would write
        ("row[partner] = a;", "row[partner] = a; atomicAdd(keys, 1);"),
        ("row[partner] = a;", "row[partner] = a; int* q = keys + rows; *q = b;"),
        ("bool ascending = (t & size) == 0;", "bool ascending = (lane & size) == 0;"),  # differs between the two
        ("int b = row[partner];", "int b = row[partner]; if (b == 0) continue;"),
        ("if (partner > t)", "if (partner < t)"),
        ("stride /= 2", "stride -= 1"),
        ("int partner = t ^ stride;", "int partner = t + stride;"),
        ("    row[t] = keys[blockIdx.x * THREADS + t];\n", "    if (t < 8) row[t] = keys[blockIdx.x * THREADS + t];\n"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    source = SORT.replace("int t = threadIdx.x;", "int t = threadIdx.x;\n    int lane = t % 32;")
    assert propose(site_of(source), "warp_exchange")
    assert old in source
    assert not propose(site_of(source.replace(old, new)), "warp_exchange")


@pytest.mark.parametrize("threads", [16, 96])
def test_blocks_in_which_a_partner_may_be_missing_are_left_alone(threads: int) -> None:
    assert not propose(site_of(threads=threads), "warp_exchange")
