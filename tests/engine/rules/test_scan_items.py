"""Several elements of a block's prefix sum to a thread: what matches, what must not, and that the sums stay the same."""

from __future__ import annotations

import re

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_warp_scan import LEVEL, LEVELS, SCAN
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

CHECK = ({"n": 1}, {"n": 1003}, {"n": 1024})
TOTALS = SCAN.replace("TYPE* y, int n", "TYPE* y, TYPE* sums, int n").replace(
    "    if (i < n) y[i] = part[t];",
    "    if (i < n) y[i] = part[t];\n    if (t == THREADS - 1) { sums[blockIdx.x] = part[t]; }",
)


def site_of(source: str = TOTALS, kind: str = "int", threads: int = 256) -> Site:
    code = source.replace("TYPE", kind).replace("THREADS", str(threads))
    arguments = "x, y, sums, n" if "sums" in source else "x, y, n"
    shared = ", threads * sizeof(int)" if "extern" in source else ""
    launch = f"    int threads = {threads};\n    scan<<<(n + threads - 1) / threads, threads{shared}>>>({arguments});"
    return make(code, launch, check=CHECK, elements={"sums": f"(n + {threads - 1}) / {threads}"})


def test_threads_load_several_elements_and_add_them_up() -> None:
    edited = one(site_of(threads=1024), "scan_items", items=4)
    code = device(edited)
    assert "for (int first = 0; first < 1024; first += 256) {" in code
    assert "int i = blockIdx.x * 1024 + t;" in code
    assert "scan<<<(n + threads - 1) / threads, 256>>>" in host(edited)
    compiles(edited)
    assert not propose(edited, "scan_items")


def test_elements_pass_shared_memory_in_packs_and_few_barriers() -> None:
    code = machine_code(one(site_of(threads=1024), "scan_items", items=4))
    assert len(re.findall(r"\bLDG\.E\b", code)) == 4
    assert len(re.findall(r"\bBAR\.SYNC", code)) == 3
    assert len(re.findall(r"\bSHFL\.UP\b", code)) == 6
    assert re.search(r"\bLDS\.128\b", code)
    assert re.search(r"\bSTS\.128\b", code)


@pytest.mark.parametrize(
    ("name", "kind", "threads"), [("", "int", 256), ("guarded", "float", 512), ("sums", "int", 1024)]
)
def test_the_sums_stay_the_same(name: str, kind: str, threads: int) -> None:
    source = TOTALS.replace(LEVEL, LEVELS[name] + "\n") if name else TOTALS
    if name == "sums":  # its loop begins with the barrier
        source = source.replace("    __syncthreads();\n    #pragma", "    #pragma")
    site = site_of(source, kind, threads)
    proposals = propose(site, "scan_items")
    assert [p.parameters["items"] for p in proposals] == ([4, 2] if threads == 256 else [4, 8, 2])
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


def test_a_loaded_value_is_not_carried_over_a_barrier() -> None:
    source = TOTALS.replace("part[t] = i < n ? x[i] : 0;", "TYPE own = i < n ? x[i] : 0;\n    part[t] = own;")
    assert propose(site_of(source), "scan_items")
    assert not propose(site_of(source.replace("y[i] = part[t]", "y[i] = part[t] - own")), "scan_items")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    if (i < n) y[i]", "    if (t < 64) __syncthreads();\n    if (i < n) y[i]"),
        ("    if (i < n) y[i]", "    if (i >= n) return;\n    if (i < n) y[i]"),
        ("    if (i < n) y[i] =", "    if (i < n) y[i] = __shfl_sync(0xffffffffu, t, 0) +"),
        ("__shared__ TYPE part", "volatile __shared__ TYPE part"),
        ("    #pragma unroll\n", "    for (int turn = 0; turn < 2; ++turn)\n"),
        ("step < THREADS", "step < THREADS / 2"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert old in TOTALS
    assert not propose(site_of(TOTALS.replace(old, new)), "scan_items")


def test_a_shared_array_declared_below_an_index_moves_in_front_of_the_loop() -> None:
    array = "    __shared__ TYPE part[THREADS];\n"
    index = "    int i = blockIdx.x * blockDim.x + t;\n"
    source = TOTALS.replace(array, "").replace(index, index + array)
    assert source != TOTALS
    edited = one(site_of(source), "scan_items", items=4)
    assert "    __shared__ int part[256];\n    #pragma unroll\n" in device(edited)
    assert_equal(site_of(source), [edited], CHECK)


def test_dynamic_shared_memory_keeps_its_size() -> None:
    site = site_of(TOTALS.replace("__shared__ TYPE part[THREADS]", "extern __shared__ TYPE part[]"))
    edited = one(site, "scan_items", items=4)
    assert "threads, 64, threads * sizeof(int)>>>" in host(edited)
    assert_equal(site, [edited], CHECK)


@pytest.mark.parametrize("threads", [64, 96])
def test_blocks_stay_large_enough(threads: int) -> None:
    assert not propose(site_of(threads=threads), "scan_items")
