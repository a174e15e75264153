"""Several elements of compare-exchange stages to a thread: what matches, what must not, and that the order stays the same."""

from __future__ import annotations

import re

import pytest

from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_warp_exchange import BY_INDEX, CHECK, INLINE, PAIRS, SORT, WORK, site_of
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, one, propose


def test_threads_hold_several_elements() -> None:
    edited = one(site_of(threads=1024), "exchange_items", items=8)
    code = device(edited)
    assert "row_own[k] = row[base + k];" in code
    assert "row_other[k] = __shfl_xor_sync(0xffffffffu, row_own[k], stride / 8);" in code
    assert "for (int first = 0; first < 1024; first += 128) {" in code
    assert "sort<<<rows, 128>>>" in host(edited)
    compiles(edited)
    assert not propose(edited, "exchange_items")
    assert not propose(edited, "warp_exchange")


def test_known_stages_leave_comparisons_alone() -> None:
    code = machine_code(one(site_of(threads=1024), "exchange_items", items=8))
    count = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("VIMNMX", "SHFL", "LOP3", "BAR", "LDL", "STL")}
    assert count["SHFL"] == 25 * 8  # of 55 stages, 27 are within threads and 3 between warps
    assert count["VIMNMX"] <= (27 + 2 * 28) * 8
    assert count["LOP3"] <= 13 * 8  # keys turn to their complements between sizes, not between strides
    assert count["BAR"] <= 9
    assert count["LDL"] == count["STL"] == 0
    assert len(re.findall(r"^\s+/\*[0-9a-f]+\*/", code, flags=re.M)) < 1300


@pytest.mark.parametrize("threads", [64, 512])
def test_the_order_stays_the_same(threads: int) -> None:
    site = site_of(threads=threads)
    proposals = propose(site, "exchange_items")
    assert [p.parameters["items"] for p in proposals] == ([2] if threads == 64 else [8, 4, 16, 2])
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [(BY_INDEX, "x, order, rows"), (PAIRS, "keys, x, rows"), (SORT.replace(WORK, INLINE), "keys, rows")],
)
def test_other_elements_and_several_arrays(source: str, arguments: str) -> None:
    site = site_of(source, 128, arguments)
    proposals = propose(site, "exchange_items")
    assert [p.parameters["items"] for p in proposals] == [4, 2]
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


def test_floats_and_descending_order() -> None:
    source = SORT.replace("(t & size) == 0", "(t & size) != 0")
    for old in ("int* keys", "int row[", "int a =", "int b ="):
        assert old in source
        source = source.replace(old, old.replace("int", "float"))
    site = site_of(source)
    edited = [after(site, p) for p in propose(site, "exchange_items")]
    assert all("min(" not in device(each) for each in edited)  # a NaN stays where it is
    assert_equal(site, edited, CHECK)
    descending = site_of(SORT.replace("(t & size) == 0", "(t & size) != 0"))
    assert_equal(descending, [after(descending, p) for p in propose(descending, "exchange_items")], CHECK)


SWAP = "int c = row[t]; row[t] = row[partner]; row[partner] = c;"
BOTH_WAYS = f"""if (partner > t) {{
                if ((t & size) == 0) {{
                    if (row[t] > row[partner]) {{ {SWAP} }}
                }} else {{
                    if (row[t] < row[partner]) {{ {SWAP} }}
                }}
            }}"""


def test_padded_elements_and_a_branch_for_each_direction() -> None:
    source = SORT.replace(WORK, BOTH_WAYS).replace(
        "    row[t] = keys[blockIdx.x * THREADS + t];\n",
        "    if (t < THREADS - 5) row[t] = keys[blockIdx.x * THREADS + t];\n    else row[t] = 2147483647;\n",
    )
    assert "2147483647" in source
    site = site_of(source)
    for rule in ("exchange_items", "warp_exchange"):
        edited = [after(site, p) for p in propose(site, rule)]
        assert all("min(" in device(each) for each in edited)
        assert_equal(site, edited, CHECK)
    assert not propose(site_of(source.replace("    else row[t] = 2147483647;\n", "")), "exchange_items")
    assert not propose(
        site_of(source.replace("else row[t] = 2147483647", "else row[0] = 2147483647")), "exchange_items"
    )


def test_the_number_of_threads_may_bound_the_loops() -> None:
    source = SORT.replace("size <= THREADS", "size <= blockDim.x")
    site = site_of(source)
    edited = one(site, "exchange_items", items=4)
    assert "size <= 128" in device(edited)
    assert_equal(site, [edited], CHECK)


def test_without_a_barrier_before_the_stages_there_is_one_after() -> None:
    """Threads read elements that others have stored."""
    before = "    __syncthreads();\n    for (int size"
    assert before in SORT
    site = site_of(SORT.replace(before, "    for (int size"))
    edited = one(site, "exchange_items", items=4)
    assert "    }\n    __syncthreads();\n    // Each thread holds 4" in device(edited)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__shared__ int row[", "volatile __shared__ int row["),
        (
            "    keys[blockIdx.x * THREADS + t] = row[t];",
            "    if (t < 64) __syncthreads();\n    keys[blockIdx.x * THREADS + t] = row[t];",
        ),
        ("    row[t] = keys[", "    int mine = keys[blockIdx.x];\n    row[t] = mine + keys["),  # used across a barrier
        ("row[partner] = a;", "row[partner + 1] = a;"),
        ("    for (int size = 2;", "    if (rows > 1) for (int size = 2;"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert old in SORT
    source = SORT.replace(old, new)
    if "mine" in new:
        source = source.replace("= row[t];\n}", "= row[t] - mine;\n}")
    assert propose(site_of(), "exchange_items")
    assert not propose(site_of(source), "exchange_items")
