"""Rounds of several elements for each thread: which prefix sums have them, which must not, and that the sums stay the same."""

from __future__ import annotations

import re

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

SCAN = """__global__ void scan(TYPE* sums, int n) {
    __shared__ TYPE part[THREADS];
    int t = threadIdx.x;
    TYPE before = 0;
    for (int start = 0; start < n; start += THREADS) {
        TYPE own = start + t < n ? sums[start + t] : 0;
        part[t] = own;
        __syncthreads();
        for (int step = 1; step < THREADS; step *= 2) {
            TYPE left = t >= step ? part[t - step] : 0;
            __syncthreads();
            part[t] += left;
            __syncthreads();
        }
        if (start + t < n) {
            sums[start + t] = before + part[t] - own;
        }
        before += part[THREADS - 1];
        __syncthreads();
    }
}"""
# Inclusive, by index, into another array; the sum of all is stored behind the rounds.
TOTAL = """__global__ void scan(const TYPE* x, TYPE* sums, TYPE* total, int n) {
    __shared__ TYPE part[THREADS];
    TYPE carry = 0;
    for (int base = 0; base < n; base += blockDim.x) {
        const int i = threadIdx.x + base;
        part[threadIdx.x] = i < n ? x[i] : 0;
        __syncthreads();
        for (int step = 1; step < blockDim.x; step <<= 1) {
            TYPE both = 0;
            if (threadIdx.x >= step) both = part[threadIdx.x - step] + part[threadIdx.x];
            __syncthreads();
            if (threadIdx.x >= step) part[threadIdx.x] = both;
            __syncthreads();
        }
        if (i < n) sums[i] = part[threadIdx.x] + carry;
        carry = carry + part[THREADS - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) *total = carry;
}"""
CHECK = ({"n": 1}, {"n": 255}, {"n": 1003}, {"n": 4099})


def site_of(source: str = SCAN, kind: str = "int", threads: int = 128) -> Site:
    code = source.replace("TYPE", kind).replace("THREADS", str(threads))
    arguments = "x, sums, total, n" if "total" in source else "sums, n"
    return make(code, f"    scan<<<1, {threads}>>>({arguments});", check=CHECK, elements={"total": "1"})


def test_a_round_has_several_elements_for_each_thread() -> None:
    edited = one(site_of(threads=1024), "scan_rounds", items=8)
    code = device(edited)
    assert "__shared__ int part[8192];" in code
    assert "for (int start = 0; start < n; start += 8192) {\n        int own[8];\n        #pragma unroll" in code
    assert "own[k] = start + item < n ? sums[start + item] : 0;" in code
    assert "sums[start + item] = before + part[item] - own[k];" in code
    assert "before += part[8191];" in code
    compiles(edited)
    assert not propose(edited, "scan_rounds")


def test_the_loads_of_a_round_are_in_flight_together() -> None:
    code = machine_code(one(site_of(threads=1024), "scan_rounds", items=4))
    first = code.index("BAR.SYNC")
    assert len(re.findall(r"\bLDG\.E\b", code[:first])) == 4
    assert not re.search(r"\b(?:LDL|STL)\b", code)


@pytest.mark.parametrize(
    ("source", "kind", "threads"), [(SCAN, "int", 128), (TOTAL, "int", 128), (TOTAL, "float", 128), (SCAN, "int", 512)]
)
def test_the_sums_stay_the_same(source: str, kind: str, threads: int) -> None:
    site = site_of(source, kind, threads)
    proposals = propose(site, "scan_rounds")
    assert [p.parameters["items"] for p in proposals] == [8, 4, 16, 2]
    assert all(("total = lane < 16" in device(after(site, p))) == (threads == 512) for p in proposals)
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


def test_rounds_fit_in_shared_memory() -> None:
    assert [p.parameters["items"] for p in propose(site_of(threads=1024), "scan_rounds")] == [8, 4, 2]
    assert [p.parameters["items"] for p in propose(site_of(kind="double", threads=1024), "scan_rounds")] == [4, 2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("before + part[t] - own", "part[t] - own"),  # the sum begins anew in each round
        ("before + part[t] - own", "before + part[t] - own + start"),
        ("before + part[t] - own", "before + part[t] * 2 - own"),
        ("before + part[t] - own", "before - part[t] - own"),
        ("before + part[t] - own", "before + part[t] - own + t"),
        ("before + part[t] - own", "before + part[t] + before - own"),
        ("before + part[t] - own", "before + part[0] - own"),
        ("part[t] = own;", "part[t] = own + part[t];"),
        ("part[t] = own;", "if (t < n) part[t] = own;"),
        ("start += THREADS", "start += THREADS / 2"),
        ("start < n;", "start < n - t;"),
        ("before += part[THREADS - 1]", "before += part[THREADS - 2]"),
        ("before += part[THREADS - 1]", "before -= part[THREADS - 1]"),
        ("__shared__ TYPE part", "__shared__ TYPE other[32];\n    __shared__ TYPE part"),
        ("        part[t] = own;", "        part[t] = own;\n        if (start > n) return;"),
        ("        part[t] = own;", "        part[t] = own;\n        before += 1;"),
    ],
)
def test_what_depends_on_where_a_round_begins_is_left_alone(old: str, new: str) -> None:
    assert old in SCAN
    assert propose(site_of(), "scan_rounds")
    assert not propose(site_of(SCAN.replace(old, new, 1)), "scan_rounds")


def test_a_scan_of_one_round_has_none() -> None:
    source = SCAN.replace("for (int start = 0; start < n; start += THREADS) {", "{ int start = 0;")
    assert source != SCAN
    assert not propose(site_of(source), "scan_rounds")
