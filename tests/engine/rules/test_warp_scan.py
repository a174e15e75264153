"""Prefix sums in shared memory by shuffles: what matches, what must not, and that the sums stay the same."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

LEVEL = """        TYPE left = t >= step ? part[t - step] : 0;
        __syncthreads();
        part[t] += left;
        __syncthreads();
"""
SCAN = f"""__global__ void scan(const TYPE* x, TYPE* y, int n) {{
    __shared__ TYPE part[THREADS];
    const int t = threadIdx.x;
    int i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0;
    __syncthreads();
    #pragma unroll
    for (int step = 1; step < THREADS; step *= 2) {{
{LEVEL}    }}
    if (i < n) y[i] = part[t];
}}"""
CHECK = ({"n": 1}, {"n": 1003})


def site_of(source: str = SCAN, kind: str = "int", threads: int = 128) -> Site:
    code = source.replace("TYPE", kind).replace("THREADS", str(threads))
    return make(code, f"    scan<<<(n + {threads - 1}) / {threads}, {threads}>>>(x, y, n);", check=CHECK)


def test_a_scan_of_the_block_becomes_a_call() -> None:
    edited = one(site_of(), "warp_scan")
    code = device(edited)
    assert "    __syncthreads();\n    block_scan(part);\n    if (i < n) y[i] = part[t];" in code
    assert code.startswith("// Adds to each of the block's elements of `part` all those before it.")
    assert "step" not in code
    compiles(edited)
    assert not propose(edited, "warp_scan")


LEVELS = {
    "statements": "TYPE left = 0; if (t >= step) { left = part[t - step]; } __syncthreads(); part[t] = part[t] + left; __syncthreads();",
    "guarded": "TYPE left = 0; if (step <= t) left = part[t - step]; __syncthreads(); if (t >= step) part[t] += left; __syncthreads();",
    "barrier first": "__syncthreads(); TYPE left = threadIdx.x >= step ? part[t - step] : 0.0f; __syncthreads(); part[t] = left + part[t];",
    "not set": "TYPE left; if (t >= step) left = part[t - step]; __syncthreads(); if (t >= step) part[t] += left; __syncthreads();",
    "sums": (
        "__syncthreads(); TYPE both; if (t >= step) { both = part[t] + part[t - step]; } __syncthreads(); "
        "if (t >= step) { part[t] = both; }"
    ),
    "sums from zero": (
        "TYPE both = 0; if (t >= step) both = part[t - step] + part[t]; __syncthreads(); "
        "if (step <= t) part[t] = both; __syncthreads();"
    ),
}


@pytest.mark.parametrize(
    ("name", "kind", "threads"),
    [
        ("statements", "float", 96),
        ("guarded", "unsigned int", 1024),
        ("barrier first", "float", 32),
        ("sums", "float", 64),
        ("not set", "int", 64),
        ("sums from zero", "int", 128),
    ],
)
def test_the_sums_stay_the_same(name: str, kind: str, threads: int) -> None:
    site = site_of(
        SCAN.replace(LEVEL, LEVELS[name] + "\n").replace("    if (i < n) y", "    __syncthreads();\n    if (i < n) y"),
        kind,
        threads,
    )
    assert_equal(site, [one(site, "warp_scan")], CHECK)


def test_levels_counted_to_half_of_the_block() -> None:
    site = site_of(SCAN.replace("step < THREADS", "step <= THREADS / 2"))
    assert_equal(site, [one(site, "warp_scan")], CHECK)


def test_a_scan_within_a_loop_may_use_the_same_place_again() -> None:
    source = SCAN.replace("    #pragma unroll\n", "    for (int turn = 0; turn < 2; ++turn)\n")
    assert_equal(site_of(source), [one(site_of(source), "warp_scan")], CHECK[1:], races=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step < THREADS", "step < THREADS / 2"),  # not the whole block
        ("step < THREADS", "step <= THREADS / 4"),
        ("part[t - step] : 0;", "part[t - step] : 0; TYPE both; if (t >= step) both = 1;"),
        ("step *= 2", "step += 2"),
        ("int step = 1", "int step = 2"),
        ("t >= step", "t > step"),
        ("part[t - step] : 0", "part[t - step] : 1"),
        ("part[t - step]", "part[t - 1]"),
        ("part[t] += left", "part[t] -= left"),
        ("part[t] += left", "part[t + 1] += left"),
        ("TYPE left", "long long left"),  # sums of another type
        ("        __syncthreads();\n        part[t] +=", "        part[t] +="),
        ("int t = threadIdx.x", "int t = threadIdx.x ^ 1"),
        ("part[t] += left;", "part[t] += left; y[t] = left;"),
    ],
)  # fmt: skip
def test_what_is_no_scan_of_the_block(old: str, new: str) -> None:
    assert old in SCAN
    assert not propose(site_of(SCAN.replace(old, new)), "warp_scan")


def test_blocks_of_whole_warps_alone() -> None:
    assert not propose(site_of(threads=48), "warp_scan")
