"""Several elements of compare-exchange stages to a thread: what matches, what must not, and that the order stays the same."""

from __future__ import annotations

import re

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_warp_exchange import BY_INDEX, CHECK, INLINE, PAIRS, SORT, WORK, site_of
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, one, propose


def test_threads_hold_several_elements() -> None:
    edited = one(site_of(threads=1024), "exchange_items", items=8)
    code = device(edited)
    assert "    __shared__ int row[1024 + 128];" in code
    assert "row_own[first / 128] = keys[blockIdx.x * 1024 + t];" in code
    assert "= row_own[first / 128];\n" in code
    assert "regroup(row_own, row, spread, spread ? size / 2 : 0);" in code
    assert "for (int first = 0; first < 1024; first += 128) {" in code
    assert "sort<<<rows, 128>>>" in host(edited)
    compiles(edited)
    assert not propose(edited, "exchange_items")
    assert not propose(edited, "warp_exchange")


def counts(site: Site, items: int, sums: int = 0) -> dict[str, int]:
    code = machine_code(one(site, "exchange_items", items=items, sums=sums))
    return {
        name: len(re.findall(rf"\b{name}\b", code))
        for name in ("VIMNMX", "SHFL", "LOP3", "BAR", "STS", "STS.128", "LDS.128", "IMAD", "IADD3", "LDL", "STL")
    }


def test_every_stage_of_a_sort_stays_within_a_thread() -> None:
    count = counts(site_of(threads=1024), 32)
    assert count["VIMNMX"] == 55 * 32  # nothing is compared twice
    assert count["SHFL"] == 0
    assert count["STS"] == 5 * 32 + 6 * 8  # five runs go to the other order and back, and the last one once more
    assert (count["STS.128"], count["LDS.128"]) == (6 * 8, 5 * 8)  # consecutive elements of a thread are vectors
    assert count["LOP3"] <= 32  # no complements: all elements go up
    assert count["LDL"] == count["STL"] == 0


def test_sums_leave_the_pipeline_of_minima() -> None:
    plain, summed = (counts(site_of(threads=1024), 32, sums) for sums in (0, 3))
    shuffled = summed["SHFL"]
    assert shuffled == 32  # the one far stride of the runs of 64
    replaced = plain["VIMNMX"] - summed["VIMNMX"]
    assert 0.9 < replaced / (54 * 16 / 3) < 1.1  # of the other 54 stages with 16 pairs each
    # Two multiply-adds each (an addition is one with 1), not one addition of three numbers, which has the pipeline of minima.
    assert summed["IMAD"] - plain["IMAD"] > 1.9 * replaced
    assert summed["IADD3"] <= plain["IADD3"] + 8
    assert summed["STS"] == 4 * 32 + 5 * 8
    assert summed["LDL"] == summed["STL"] == 0


@pytest.mark.parametrize("kind", ["int", "unsigned int"])
@pytest.mark.parametrize("up", ["==", "!="])
def test_sums_wrap_around(kind: str, up: str) -> None:
    loaded = "= keys[blockIdx.x * THREADS + t];"
    source = SORT.replace("(t & size) == 0", f"(t & size) {up} 0").replace(loaded, loaded[:-1] + " * 238609294;")
    for old in ("int* keys", "int row[", "int a =", "int b ="):
        assert old in source
        source = source.replace(old, old.replace("int", kind))
    site = site_of(source, threads=1024)
    assert_equal(site, [one(site, "exchange_items", items=32, sums=3)], ({"rows": 2},), tolerance=0.0)


def test_sums_are_for_pairs_of_one_thread_in_32_bits() -> None:
    found = propose(site_of(threads=1024), "exchange_items")
    assert {(p.parameters["items"], p.parameters["sums"]) for p in found} == {(32, 0), (32, 3), (16, 0), (8, 0)}
    source = SORT
    for old in ("int* keys", "int row[", "int a =", "int b ="):
        source = source.replace(old, old.replace("int", "long long"))
    assert not any(p.parameters["sums"] for p in propose(site_of(source, threads=1024), "exchange_items"))


def test_strides_that_neither_order_has_take_shuffles() -> None:
    count = counts(site_of(threads=1024), 16)
    assert count["SHFL"] == (6 + 5) * 16  # strides 16 and 32, in runs of at least 32 and 64
    assert count["VIMNMX"] == (55 + 11) * 16
    assert count["LDL"] == count["STL"] == 0


def test_stages_in_both_directions_turn_keys_between_runs() -> None:
    """Not a whole sort: what is above the first four stages may be in any order."""
    count = counts(site_of(SORT.replace("int size = 2", "int size = 4"), threads=1024), 32)
    assert count["SHFL"] == 0
    assert 0 < count["LOP3"] <= 19 * 32
    assert count["LDL"] == count["STL"] == 0


@pytest.mark.parametrize("threads", [64, 512])
def test_the_order_stays_the_same(threads: int) -> None:
    site = site_of(threads=threads)
    proposals = propose(site, "exchange_items")
    assert [p.parameters["items"] for p in proposals] == ([2] if threads == 64 else [16, 8, 4])
    assert_equal(site, [after(site, p) for p in proposals], CHECK, races=True)


def test_a_whole_row_in_one_warp() -> None:
    site = site_of(threads=1024)
    assert_equal(site, [one(site, "exchange_items", items=32, sums=0)], ({"rows": 2},))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int size = 2", "int size = 4"),
        ("size <= THREADS", "size <= THREADS / 2"),
        ("stride = size / 2", "stride = size / 4"),
        ("(t & size) == 0", "(t & stride * 2) == 0"),
        ("(t & size) == 0", "(rows & size) == 0"),
    ],
)
def test_stages_that_are_no_whole_sort_keep_their_directions(old: str, new: str) -> None:
    assert old in SORT
    site = site_of(SORT.replace(old, new))
    edited = one(site, "exchange_items", items=4)
    assert "mirrored" not in device(edited)
    assert "^= (" in device(edited)
    assert_equal(site, [edited], CHECK)


@pytest.mark.parametrize(
    "old", ["row[t] = keys[blockIdx.x * THREADS + t];", "keys[blockIdx.x * THREADS + t] = row[t];"]
)
def test_elements_of_other_threads_go_through_shared_memory(old: str) -> None:
    new = {
        "row[t] = keys[blockIdx.x * THREADS + t];": "row[THREADS - 1 - t] = 0;\n    __syncthreads();\n    " + old,
        "keys[blockIdx.x * THREADS + t] = row[t];": "keys[blockIdx.x * THREADS + t] = row[THREADS - 1 - t];",
    }[old]
    assert old in SORT
    site = site_of(SORT.replace(old, new))
    edited = one(site, "exchange_items", items=4)
    into, back = "row_own[k] = row[k * 32 + threadIdx.x];", "row[k * 32 + threadIdx.x] = row_own[k];"
    assert (into in device(edited), back in device(edited)) == ((True, False) if "= 0;" in new else (False, True))
    assert_equal(site, [edited], CHECK, races=True)


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


def test_without_a_barrier_before_the_stages_there_is_one_in_them() -> None:
    """Threads read elements that others have stored."""
    before = "    __syncthreads();\n    for (int size"
    assert before in SORT
    site = site_of(SORT.replace(before, "    for (int size"))
    assert_equal(site_of(), [one(site, "exchange_items", items=4)], CHECK, races=True)


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
