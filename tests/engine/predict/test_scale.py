from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RefusedError
from engine.evaluate.size_relations import relations
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
from engine.predict.probe_sizes import ProbeLimits, Relations, Sizes, probe_sizes
from engine.predict.scale import CountedRuns, Full, extrapolate
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step

ONE_WARP = LaunchConfig((1, 1, 1), (32, 1, 1))


def product(sizes: Sizes) -> AccessCounts:
    """The exact counts of a naive m×k by k×n product, one thread per element."""
    m, n, k = (int(sizes[name]) for name in "mnk")
    warps = m * n / 32
    sites = (
        SiteCounts(5, "global", "load", 4, warps * k, m * n * k, warps * k, "a"),
        SiteCounts(5, "global", "load", 4, warps * k, m * n * k, warps * k * 4, "b"),
        SiteCounts(7, "global", "store", 4, warps, m * n, warps * 4, "c"),
    )
    launch = LaunchConfig((m * n // 256, 1, 1), (256, 1, 1))
    return AccessCounts((KernelCounts(launch, sites, 4.0 * (m * k + k * n), 4.0 * m * n, 0.0, float(2 * k)),))


def counted(sizes: Sizes, count: Callable[[Sizes], AccessCounts] = product) -> CountedRuns:
    small = probe_sizes(sizes)
    return CountedRuns(small.base, [count(small.base)], [(each, count(each)) for each in small.doubled])


def test_products_of_powers_are_exact() -> None:
    sizes = {"m": 2048, "n": 1024, "k": 4096}
    runs = counted(sizes)
    assert len(runs.grown) == 3
    assert all(max(p.values()) <= 128 for p, _ in runs.grown)
    launch = LaunchConfig((1, 1, 1), (256, 1, 1))
    found = extrapolate(runs, Full(sizes, [launch])).kernels[0]
    wanted = product(sizes).kernels[0]
    for ours, exact in zip(found.sites, wanted.sites, strict=True):
        assert ours.requests == pytest.approx(exact.requests)
        assert ours.passes == pytest.approx(exact.passes)
        assert ours.lanes == pytest.approx(exact.lanes)
        assert (ours.array, ours.line) == (exact.array, exact.line)
    assert found.unique_store_bytes == pytest.approx(wanted.unique_store_bytes)
    # A sum of two products is near, not exact, and never more than what there is.
    assert found.unique_load_bytes == pytest.approx(wanted.unique_load_bytes, rel=0.7)
    held = extrapolate(runs, Full(sizes, [launch], load_bytes=wanted.unique_load_bytes)).kernels[0]
    assert held.unique_load_bytes == wanted.unique_load_bytes
    assert found.launch.grid == (1, 1, 1)


def test_another_run_as_the_start_gives_the_same_where_all_are_powers() -> None:
    sizes = {"m": 2048, "n": 1024, "k": 4096}
    small = probe_sizes(sizes)
    assert small.held_out is not None
    assert small.held_out not in small.fitted
    full = Full(sizes, [ONE_WARP], load_bytes=1.0)
    other = extrapolate(counted(sizes), full, start=(small.held_out, product(small.held_out))).kernels[0]
    for ours, exact in zip(other.sites, product(sizes).kernels[0].sites, strict=True):
        assert ours.passes == pytest.approx(exact.passes)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 1 << 28), min_size=1))
def test_probes_are_small_and_within_the_sizes(sizes: dict[str, int]) -> None:
    small = probe_sizes(sizes)
    base = small.base
    assert set(base) == set(sizes)
    assert all(1 <= base[name] <= min(sizes[name], 32_768) for name in sizes)
    for other in small.doubled:
        changed = [name for name in sizes if other[name] != base[name]]
        assert len(changed) == 1
        assert base[changed[0]] < other[changed[0]] <= sizes[changed[0]]


def test_multiples_stay_multiples_and_factors_stay() -> None:
    base = probe_sizes({"n": 3 << 20, "alpha": 0.5}).base
    assert base["alpha"] == 0.5
    assert base["n"] == 3 << 13
    assert probe_sizes({"n": 100}).fitted == ({"n": 100},)
    # 112 pixels are seven blocks of 16: 14 of them would leave a part of each block without work.
    assert probe_sizes({"images": 64, "height": 112, "width": 112}).base == {"images": 64, "height": 48, "width": 48}
    assert probe_sizes({"n": 320}, ProbeLimits(lambda s: s["n"] < 100)).base == {"n": 64}


def test_no_size_becomes_so_small_that_a_buffer_has_no_elements() -> None:
    """An output of `length - 13` elements a row: the lengths of the base, of what is doubled, and of what is held out leave some."""
    sizes = {"rows": 64, "features": 192, "length": 16384}

    def fits(s: Mapping[str, int | float]) -> bool:
        return s["rows"] * s["features"] * s["length"] <= 512

    assert probe_sizes(sizes, ProbeLimits(fits)).base["length"] < 14
    small = probe_sizes(sizes, ProbeLimits(fits, legal=lambda s: s["length"] > 13))
    assert small.held_out is not None
    assert all(s["length"] > 13 for s in (*small.fitted, small.held_out))
    assert small.base["rows"] < 64
    assert small.base["features"] < 192


def test_the_largest_size_is_shrunk_and_what_is_small_stays() -> None:
    """A histogram of 1024 bins was counted with 256: more additions met at one address than at full size."""
    apart = Relations(multiplied=(frozenset({"n"}), frozenset({"bins"})))
    assert probe_sizes({"n": 1 << 24, "bins": 1024}, related=apart).base == {"n": 1 << 15, "bins": 1024}


def sparse() -> KernelSpec:
    arguments = (
        Argument("offsets", "int", "in", "rows + 1", Fill("csr_offsets", of="columns"), ""),
        Argument("columns", "int", "in", "entries", Fill("csr_columns", high="cols", of="offsets"), ""),
        Argument("values", "float", "in", "entries", Fill(), ""),
        Argument("x", "float", "in", "cols", Fill(), ""),
        Argument("y", "float", "out", "rows", Fill(), ""),
    )
    sizes = {"rows": 65536, "cols": 65536, "entries": 4194304}
    return KernelSpec("k.cu", (Step("k", "", ("y",)),), arguments, (), (Case("large", sizes),))


def test_sizes_that_belong_together_shrink_and_grow_together() -> None:
    """Capped one by one, 65536 rows of 64 entries became 256 rows of a quarter of an entry."""
    spec = sparse()
    small = probe_sizes(spec.time[0].sizes, related=relations(spec))
    assert small.base == {"rows": 512, "cols": 512, "entries": 512 * 64}
    assert small.doubled == ({"rows": 1024, "cols": 1024, "entries": 1024 * 64},)
    assert small.held_out == {"rows": 2048, "cols": 2048, "entries": 2048 * 64}


def test_sizes_of_one_buffer_multiply_and_those_of_an_index_belong_to_its_range() -> None:
    arguments = (
        Argument("source", "int", "in", "edges", Fill("integers", high="nodes"), ""),
        Argument("x", "float", "in", "nodes*width", Fill(), ""),
    )
    case = Case("large", {"nodes": 1 << 17, "edges": 1 << 19, "width": 64})
    spec = KernelSpec("k.cu", (Step("k", "", ("x",)),), arguments, (), (case,))
    found = relations(spec)
    assert found.together == (frozenset({"edges", "nodes"}),)
    assert set(found.multiplied or ()) == {frozenset({"edges"}), frozenset({"nodes", "width"})}
    assert probe_sizes(case.sizes, related=found).base == {"nodes": 1024, "edges": 4096, "width": 64}


def test_a_tile_that_holds_all_of_a_small_run_gets_a_larger_one() -> None:
    # 128 by 128 results per block: at 64 by 64 the counts of one block would not grow as the grid does.
    sizes = {"m": 2048, "n": 2048, "k": 2048}
    small = probe_sizes(sizes, ProbeLimits(blocks=lambda s: -(-int(s["m"]) // 128) * -(-int(s["n"]) // 128)))
    assert small.base == {"m": 128, "n": 128, "k": 64}
    assert [other["k"] for other in small.doubled] == [64, 64, 128]
    by_256 = ProbeLimits(blocks=lambda s: int(s["m"]) * int(s["n"]) // 256)
    assert probe_sizes(sizes, by_256).base == {"m": 64, "n": 64, "k": 64}


def test_a_capped_grid_is_counted_where_it_is_capped() -> None:
    def blocks(sizes: Sizes) -> int:
        return min(1024, -(-int(sizes["n"]) // 256))

    base, other = probe_sizes({"n": 1 << 26}, ProbeLimits(lambda s: s["n"] <= 1 << 14, blocks, lambda s: True)).fitted
    assert blocks(base) == blocks(other) == 1024
    assert (base["n"], other["n"]) == (2 * 1024 * 256, 4 * 1024 * 256)
    small, _ = probe_sizes({"n": 1 << 26}, ProbeLimits(blocks=blocks, fits_at_most=lambda s: s["n"] <= 1 << 16)).fitted
    assert small["n"] == 1 << 16


def test_a_grid_of_one_size_is_counted_where_all_of_it_has_work() -> None:
    """Doubling the size that is furthest from full, as long as there is room; a size that moves no work stays."""
    sizes = {"rows": 8192, "cols": 4096, "steps": 512}

    def work(sizes: Sizes) -> int:
        return int(sizes["rows"]) * int(sizes["cols"])

    least = 2 * 4224 * 128
    limits = ProbeLimits(
        lambda s: work(s) <= 1 << 14, fits_at_most=lambda s: work(s) <= 1 << 24, work=work, least_work=least
    )
    base, *others = probe_sizes(sizes, limits).fitted
    assert least <= work(base) < 2 * least
    assert (base["rows"] / base["cols"], base["steps"]) == (2, 64)
    assert len(others) == 3
    held = probe_sizes(sizes, replace(limits, fits_at_most=lambda s: work(s) <= 1 << 16)).base
    assert work(held) == 1 << 16
    assert probe_sizes(sizes, ProbeLimits(work=work)).base == {"rows": 64, "cols": 64, "steps": 64}


def test_small_sizes_need_no_probe_and_stay_as_counted() -> None:
    sizes = {"m": 32, "n": 64, "k": 16}
    counts = product(sizes)
    assert extrapolate(CountedRuns(sizes, [counts]), Full(sizes, [counts.kernels[0].launch])) == counts


def test_a_site_that_the_base_run_never_reached_is_kept() -> None:
    def counts(n: int) -> AccessCounts:
        sites = (SiteCounts(3, "global", "load", 4, 1.0, 32.0, 4.0),) if n > 32768 else ()
        return AccessCounts((KernelCounts(LaunchConfig((1, 1, 1), (32, 1, 1)), sites, 1.0, 1.0),))

    sizes = {"n": 1 << 20}
    runs = counted(sizes, lambda s: counts(int(s["n"])))
    assert extrapolate(runs, Full(sizes, [ONE_WARP])).kernels[0].sites[0].requests >= 1


def test_an_exponent_within_the_sampling_error_is_a_plain_one() -> None:
    """Twelve doublings made two times of 2 % more passes than twice as many."""
    draw = random.Random(1)

    def counts(n: float, noise: float) -> AccessCounts:
        passes = n / 32 * (1 + noise)
        sites = (SiteCounts(3, "global", "atomic", 4, n / 32, n, passes),)
        return AccessCounts((KernelCounts(ONE_WARP, sites, 1.0, 1.0),))

    full = Full({"n": 1 << 27}, [ONE_WARP])
    for _ in range(20):
        base = [counts(1 << 15, draw.gauss(0.1, 0.02)) for _ in range(2)]
        runs = CountedRuns({"n": 1 << 15}, base, [({"n": 1 << 16}, counts(1 << 16, 0.1 + draw.gauss(0, 0.02)))])
        assert extrapolate(runs, full).kernels[0].sites[0].passes == pytest.approx(1.1 * (1 << 22), rel=0.06)


def test_an_exponent_that_is_no_plain_one_stays() -> None:
    def counts(n: float) -> AccessCounts:
        return AccessCounts((KernelCounts(ONE_WARP, (), 1.0, 1.0, barriers=n**1.25),))

    runs = CountedRuns({"n": 1024}, [counts(1024)], [({"n": 2048}, counts(2048))])
    found = extrapolate(runs, Full({"n": 1 << 20}, [ONE_WARP])).kernels[0].barriers
    assert found == pytest.approx(float(1 << 25))


def test_counts_are_capped_by_lanes() -> None:
    """A gather that still finds more sectors with each doubling touches at most one for each lane."""

    def counts(n: float, each: float) -> AccessCounts:
        sites = (SiteCounts(3, "global", "load", 4, n / 32, n, n / 32 * each),)
        return AccessCounts((KernelCounts(ONE_WARP, sites, 1.0, 1.0),))

    runs = CountedRuns({"n": 1024}, [counts(1024, 20)], [({"n": 2048}, counts(2048, 25))])
    site = extrapolate(runs, Full({"n": 1 << 22}, [ONE_WARP])).kernels[0].sites[0]
    assert site.passes == pytest.approx(site.lanes) == pytest.approx(float(1 << 22))


def test_what_does_not_match_is_refused() -> None:
    sizes = {"m": 32, "n": 64, "k": 16}
    with pytest.raises(RefusedError):
        extrapolate(CountedRuns(sizes, []), Full(sizes, []))
    with pytest.raises(RefusedError):
        extrapolate(CountedRuns(sizes, [product(sizes)]), Full(sizes, []))
