from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RefusedError
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
from engine.predict.scale import Sizes, extrapolate, probe_sizes


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


def test_products_of_powers_are_exact() -> None:
    sizes = {"m": 2048, "n": 1024, "k": 4096}
    probes = [(p, product(p)) for p in probe_sizes(sizes)]
    assert len(probes) == 4
    assert all(max(p.values()) <= 128 for p, _ in probes)
    found = extrapolate(probes, sizes, [LaunchConfig((1, 1, 1), (256, 1, 1))]).kernels[0]
    wanted = product(sizes).kernels[0]
    for ours, exact in zip(found.sites, wanted.sites, strict=True):
        assert ours.requests == pytest.approx(exact.requests)
        assert ours.passes == pytest.approx(exact.passes)
        assert ours.lanes == pytest.approx(exact.lanes)
        assert (ours.array, ours.line) == (exact.array, exact.line)
    assert found.unique_store_bytes == pytest.approx(wanted.unique_store_bytes)
    # A sum of two products is near, not exact, and never more than what there is.
    assert found.unique_load_bytes == pytest.approx(wanted.unique_load_bytes, rel=0.7)
    held = extrapolate(probes, sizes, [found.launch], load_bytes=wanted.unique_load_bytes).kernels[0]
    assert held.unique_load_bytes == wanted.unique_load_bytes
    assert found.launch.grid == (1, 1, 1)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 1 << 28), min_size=1))
def test_probes_are_small_and_within_the_sizes(sizes: dict[str, int]) -> None:
    base, *others = probe_sizes(sizes)
    assert set(base) == set(sizes)
    assert all(1 <= base[name] <= min(sizes[name], 16_384) for name in sizes)
    for other in others:
        changed = [name for name in sizes if other[name] != base[name]]
        assert len(changed) == 1
        assert base[changed[0]] < other[changed[0]] <= sizes[changed[0]]


def test_multiples_stay_multiples_and_factors_stay() -> None:
    base = probe_sizes({"n": 3 << 20, "alpha": 0.5})[0]
    assert base["alpha"] == 0.5
    assert base["n"] == 3 << 12
    assert probe_sizes({"n": 100}) == ({"n": 100},)


def test_a_tile_that_holds_all_of_a_small_run_gets_a_larger_one() -> None:
    # 128 by 128 results per block: at 64 by 64 the counts of one block would not grow as the grid does.
    sizes = {"m": 2048, "n": 2048, "k": 2048}
    base, *others = probe_sizes(sizes, blocks=lambda s: -(-int(s["m"]) // 128) * -(-int(s["n"]) // 128))
    assert base == {"m": 128, "n": 128, "k": 64}
    assert [other["k"] for other in others] == [64, 64, 128]
    assert probe_sizes(sizes, blocks=lambda s: int(s["m"]) * int(s["n"]) // 256)[0] == {"m": 64, "n": 64, "k": 64}


def test_a_capped_grid_is_counted_where_it_is_capped() -> None:
    def blocks(sizes: Sizes) -> int:
        return min(1024, -(-int(sizes["n"]) // 256))

    base, other = probe_sizes({"n": 1 << 26}, lambda s: s["n"] <= 1 << 14, blocks=blocks, fits_at_most=lambda s: True)
    assert blocks(base) == blocks(other) == 1024
    assert (base["n"], other["n"]) == (2 * 1024 * 256, 4 * 1024 * 256)
    small, _ = probe_sizes({"n": 1 << 26}, blocks=blocks, fits_at_most=lambda s: s["n"] <= 1 << 16)
    assert small["n"] == 1 << 16


def test_a_grid_of_one_size_is_counted_where_all_of_it_has_work() -> None:
    """Doubling the size that is furthest from full, as long as there is room; a size that moves no work stays."""
    sizes = {"rows": 8192, "cols": 4096, "steps": 512}

    def work(sizes: Sizes) -> int:
        return int(sizes["rows"]) * int(sizes["cols"])

    least = 2 * 4224 * 128
    base, *others = probe_sizes(
        sizes, lambda s: work(s) <= 1 << 14, fits_at_most=lambda s: work(s) <= 1 << 24, work=work, least_work=least
    )
    assert least <= work(base) < 2 * least
    assert (base["rows"] / base["cols"], base["steps"]) == (2, 64)
    assert len(others) == 3
    held, *_ = probe_sizes(
        sizes, lambda s: work(s) <= 1 << 14, fits_at_most=lambda s: work(s) <= 1 << 16, work=work, least_work=least
    )
    assert work(held) == 1 << 16
    assert probe_sizes(sizes, work=work)[0] == {"rows": 64, "cols": 64, "steps": 64}


def test_small_sizes_need_no_probe_and_stay_as_counted() -> None:
    sizes = {"m": 32, "n": 64, "k": 16}
    counts = product(sizes)
    assert extrapolate([(sizes, counts)], sizes, [counts.kernels[0].launch]) == counts


def test_a_site_that_the_base_run_never_reached_is_kept() -> None:
    def counts(n: int) -> AccessCounts:
        sites = (SiteCounts(3, "global", "load", 4, 1.0, 32.0, 4.0),) if n > 16384 else ()
        return AccessCounts((KernelCounts(LaunchConfig((1, 1, 1), (32, 1, 1)), sites, 1.0, 1.0),))

    sizes = {"n": 1 << 20}
    probes = [(p, counts(int(p["n"]))) for p in probe_sizes(sizes)]
    assert extrapolate(probes, sizes, [LaunchConfig((1, 1, 1), (32, 1, 1))]).kernels[0].sites[0].requests >= 1


def test_what_does_not_match_is_refused() -> None:
    sizes = {"m": 32, "n": 64, "k": 16}
    with pytest.raises(RefusedError):
        extrapolate([], sizes, [])
    with pytest.raises(RefusedError):
        extrapolate([(sizes, product(sizes))], sizes, [])
