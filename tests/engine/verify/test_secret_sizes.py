"""Secret sizes: near the named ones, never one of them, other ones in each run, and never much larger."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.selftest.cases import original_text
from engine.spec.data import buffer_elements, bytes_needed
from engine.spec.find import find_spec
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.secret_sizes import (
    MOST_BLOCKS_Y,
    large_sizes,
    long_sizes,
    million_sizes,
    sampled_sizes,
    secret_cases,
    wide_sizes,
)


def _spec(folder: Path, name: str) -> KernelSpec:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / f"{name}.cu").write_bytes(original_text(name))
    return find_spec(folder, folder / f"{name}.cu")[0]


@pytest.mark.parametrize("name", ["scale", "softmax", "matmul", "histogram"])
def test_sizes_are_new_bounded_and_differ_from_run_to_run(tmp_path: Path, name: str) -> None:
    spec = _spec(tmp_path, name)
    largest = max(bytes_needed(spec, case) for case in spec.check)
    named = [case.sizes for case in (*spec.check, *spec.time)]
    seen = set()
    for seed in range(30):
        cases = secret_cases(spec, random.Random(seed))
        assert len(cases) == 6
        assert not any(case.sizes in named for case in cases)
        assert all(bytes_needed(spec, case) <= max(4 * largest, 64 << 10) for case in cases)
        seen.add(tuple(case.name for case in cases))
    assert len(seen) == 30


def test_neighbours_odd_values_and_edges_of_blocks_are_among_them(tmp_path: Path) -> None:
    spec = _spec(tmp_path, "scale")
    values = {case.sizes["n"] for seed in range(200) for case in secret_cases(spec, random.Random(seed))}
    assert {902, 904, 4099, 4101} <= values
    for block in (32, 64, 128, 256):
        assert {v % block for v in values} >= {0, 1, block - 1}
    assert {v % 2 for v in values} == {0, 1}


def test_aligned_sizes_keep_what_the_named_ones_have_in_common(tmp_path: Path) -> None:
    text = original_text("scale").replace(
        b"{ n = 1 }, { n = 903 }, { n = 4100 }", b"{ n = 12 }, { n = 904 }, { n = 4100 }"
    )
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_bytes(text)
    spec = find_spec(tmp_path, tmp_path / "k.cu")[0]
    values = [c.sizes["n"] for seed in range(50) for c in secret_cases(spec, random.Random(seed), aligned=True)]
    assert all(value % 4 == 0 for value in values)
    assert any(c.sizes["n"] % 4 for seed in range(50) for c in secret_cases(spec, random.Random(seed)))


def test_with_room_sizes_between_the_checked_and_the_timed_ones_are_drawn(tmp_path: Path) -> None:
    """A kernel that is wrong for sizes between the largest check and the timed size alone passed."""
    spec = _spec(tmp_path, "scale")
    cases = [c for seed in range(50) for c in secret_cases(spec, random.Random(seed), large_bytes=256 << 20)]
    assert sum(10_000 < case.sizes["n"] < 33_554_432 for case in cases) > 50
    assert all(bytes_needed(spec, case) <= 256 << 20 for case in cases)


def test_wide_sizes_have_more_rows_than_a_grid_has_blocks_in_y(tmp_path: Path) -> None:
    wide = wide_sizes(_spec(tmp_path, "rowsum"), random.Random(1))
    assert [next(n for n, v in sizes.items() if v > MOST_BLOCKS_Y) for sizes in wide] == ["cols", "rows"]


def test_tiles_of_16_rows_reach_a_million_in_a_grids_y_and_tiles_of_8_do_not(tmp_path: Path) -> None:
    many = [max(int(v) for v in sizes.values()) for sizes in million_sizes(_spec(tmp_path, "rowsum"))]
    assert len(many) == 2
    for value in many:
        assert -(-value // 16) <= MOST_BLOCKS_Y < value // 8


def test_no_size_is_so_wide_that_its_buffers_cannot_be_had(tmp_path: Path) -> None:
    text = original_text("scale").replace(b'size = "n"', b'size = "n*n"').replace(b"33554432", b"4096")
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_bytes(text)
    spec = find_spec(tmp_path, tmp_path / "k.cu")[0]
    assert [sizes["n"] < 1 << 17 for sizes in wide_sizes(spec, random.Random(1))] == [True]


def test_without_a_size_in_any_buffer_there_are_none(tmp_path: Path) -> None:
    text = original_text("scale").replace(b'size = "n"', b'size = "5000"')
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_bytes(text)
    spec = find_spec(tmp_path, tmp_path / "k.cu")[0]
    assert secret_cases(spec, random.Random(1)) == ()


@pytest.mark.parametrize("name", ["scale", "softmax", "matmul", "doubles"])
def test_sampled_sizes_lie_between_the_cases_and_large_ones_far_beyond(tmp_path: Path, name: str) -> None:
    spec = _spec(tmp_path, name)
    named = [case.sizes for case in spec.check]
    found = sampled_sizes(spec, random.Random(3), 96)
    assert len(found) >= 92  # a small one may be named
    assert not any(sizes in named for sizes in found)
    every = sampled_sizes(spec, random.Random(3), 384)
    for size in spec.check[0].sizes:
        small = sorted({(int(sizes[size]) - 1) // 2 for sizes in every if sizes[size] <= 32})
        assert len(small) >= 15, "an interval of few sizes below the check cases was met by a draw alone"
        values = {int(sizes[size]) for sizes in found}
        assert max(values) > 500
        assert len({v % 256 for v in values}) >= 16
    large = large_sizes(spec, random.Random(3), 1 << 34)
    elements = [max(buffer_elements(spec, Case("", sizes)).values()) for sizes in large]
    assert elements[0] == max(buffer_elements(spec, spec.time[0]).values())
    assert all(1 << 29 < count <= 1 << 30 for count in elements[1:])
    assert all(bytes_needed(spec, Case("", sizes)) <= 3 << 34 for sizes in large)
    every = long_sizes(spec, random.Random(3), 1 << 36)
    elements = [max(buffer_elements(spec, Case("", sizes)).values()) for sizes in every]
    assert sum(1 << 32 < count <= 1 << 33 for count in elements) >= (len(spec.check[0].sizes) > 1)
    few = [sizes for sizes, count in zip(every, elements, strict=True) if count > 1 << 32]
    others = [sorted(sizes.values())[:-1] for sizes in few]
    assert not few or any(max(each) <= 600 for each in others), (
        "a block that goes through a timed case's rows takes too long"
    )
    long = [sizes for sizes, count in zip(every, elements, strict=True) if count < 1 << 32]
    smallest = min(spec.check, key=lambda case: bytes_needed(spec, case)).sizes
    for size in smallest:
        others = [{o: sizes[o] / smallest[o] for o in smallest if o != size} for sizes in long if sizes[size] > 1 << 19]
        assert any(set(times.values()) <= {1.0} for times in others)
        assert any(all(2 <= t <= 7 for t in times.values()) for times in others)
        beside = [int(sizes[size]) - 1 for sizes in long if sizes[size] > 1 << 24]
        assert any(value & (value - 1) == 0 for value in beside)
    for size, value in spec.check[0].sizes.items():
        own = sorted(int(sizes[size]) for sizes in long if sizes[size] > 1 << 19)
        assert own[0] < 1 << 21
        assert all(
            sizes[other] <= 600 for sizes in long if sizes[size] > 1 << 19 for other in sizes if other != size
        ), value


def test_other_sizes_are_drawn_around_a_pad_of_zero(tmp_path: Path) -> None:
    text = original_text("scale").replace(b'size = "n"', b'size = "n + pad"')
    text = text.replace(b"{ n = ", b"{ pad = 0, n = ")
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_bytes(text)
    spec = find_spec(tmp_path, tmp_path / "k.cu")[0]
    for seed in range(30):
        rng = random.Random(seed)
        drawn = [case.sizes for case in secret_cases(spec, rng, large_bytes=256 << 20)]
        drawn += [*sampled_sizes(spec, rng, 96), *large_sizes(spec, rng, 1 << 32), *long_sizes(spec, rng, 1 << 34)]
        assert {sizes["pad"] > 0 for sizes in drawn} == {True, False}
