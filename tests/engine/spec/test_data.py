"""Contents of arguments: seeded, in range, of several families; checked against what the fills promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SpecError
from engine.spec.data import (
    EXTREMES,
    FAMILIES,
    NAN,
    buffer_elements,
    bytes_needed,
    families_for,
    generate,
    scalars,
    takes_nan,
)
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from engine.verify.propagation import is_extreme

CASE = Case("n=4001", {"n": 4001})


def _spec(*arguments: Argument) -> KernelSpec:
    return KernelSpec("k.cu", (Step("k", "", tuple(a.name for a in arguments)),), arguments, (CASE,), (CASE,))


def _one(type_: str = "float", fill: Fill = Fill(), family: str = "declared", seed: int = 1) -> np.ndarray:  # noqa: B008
    data = generate(_spec(Argument("x", type_, "in", "n", fill)), CASE, seed, family)["x"]
    assert data.dtype == parse_dtype(type_).storage
    return parse_dtype(type_).to_float64(data)


def test_the_same_seed_gives_the_same_data_and_another_does_not() -> None:
    assert np.array_equal(_one(seed=3), _one(seed=3))
    assert not np.array_equal(_one(seed=3), _one(seed=4))
    for family in FAMILIES[1:]:
        assert not np.array_equal(_one(seed=3), _one(seed=3, family=family))


def test_arguments_and_cases_draw_their_own() -> None:
    spec = _spec(Argument("x", "float", "in", "n"), Argument("y", "float", "in", "n"))
    data = generate(spec, CASE, 1, "declared")
    assert not np.array_equal(data["x"], data["y"])
    other = generate(spec, Case("m", {"n": 4001, "m": 2}), 1, "declared")
    assert not np.array_equal(data["x"], other["x"])


@pytest.mark.parametrize("high", [1 << 63, (1 << 63) + 1, (1 << 64) - 1, 1 << 64])
def test_whole_numbers_use_all_bits_of_their_type(high: int) -> None:
    """A recorded range above 2^63 ended in an internal error."""
    spec = _spec(Argument("x", "uint64", "in", "n", Fill("integers", "5", str(high))))
    data = generate(spec, CASE, 1, "declared")["x"]
    assert data.dtype == np.uint64
    assert 5 <= int(data.min()) < high >> 9
    assert high - (high >> 9) < int(data.max()) < high


@pytest.mark.parametrize("type_", ["float", "double", "half", "bfloat16"])
def test_normal_has_its_mean_and_deviation(type_: str) -> None:
    data = _one(type_, Fill("normal", "2", "0.5"))
    assert abs(data.mean() - 2) < 0.05
    assert abs(data.std() - 0.5) < 0.05


def test_families_scale_a_normal_fill() -> None:
    assert _one(family="times3").std() == pytest.approx(3, rel=0.05)
    assert _one(family="times001").std() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("type_", ["float", "half", "bfloat16", "double"])
def test_nan_and_denormals_are_few_and_both_there(type_: str) -> None:
    dtype = parse_dtype(type_)
    data = np.concatenate([_one(type_, family=NAN, seed=seed) for seed in range(20)])
    for kind in (np.isnan(data), (data != 0) & (np.abs(data) < dtype.tiny)):
        assert 0.002 < kind.mean() < 0.02
    assert not np.isinf(data).any()


def test_beside_nan_stand_runs_of_zeros_as_long_as_a_warp() -> None:
    """Zeros that an edit passes over hid a NaN in the other factor, and a warp of zeros one in what it was multiplied with."""
    zero = _one(family=NAN, seed=3) == 0
    assert 0.05 < zero.mean() < 0.25
    assert zero[: len(zero) // 32 * 32].reshape(-1, 32).all(axis=1).any()


def test_a_declared_range_has_no_nan_in_it() -> None:
    uniform = Argument("x", "float", "in", "n", Fill("uniform", "0", "1"))
    assert not takes_nan(_spec(uniform, Argument("i", "int", "in", "n")))
    assert takes_nan(_spec(uniform, Argument("y", "float", "in", "n")))
    assert np.isfinite(_one(fill=Fill("uniform", "0", "1"), family=NAN)).all()


def test_special_values_are_awkward_and_finite() -> None:
    for type_ in ("float", "half", "bfloat16", "double"):
        dtype, data = parse_dtype(type_), _one(type_, family="special")
        assert np.isfinite(data).all()
        for value in (dtype.tiny, -dtype.tiny, float(dtype.to_float64(dtype.from_float64(np.array([1e4])))[0])):
            assert value in data
        zeros = data[data == 0]
        assert np.signbit(zeros).any()
        assert not np.signbit(zeros).all()


def test_families_stay_in_the_declared_range() -> None:
    cases = {
        ("uniform", "0", "1"): ("declared", "times001", "special"),
        ("uniform", "-1", "1"): ("declared", "times001", "negated", "special"),
        ("uniform", "1", "2"): ("declared", "special"),
        ("sorted", "0", "1"): ("declared", "times001", "special"),
        ("normal", "", ""): FAMILIES,
        ("normal", "5", "1"): ("declared", "special"),
        ("constant", "1", ""): ("declared",),
    }
    for (kind, low, high), families in cases.items():
        fill = Fill(kind, low, high)  # type: ignore[arg-type]
        assert families_for(_spec(Argument("x", "float", "in", "n", fill))) == families
        if kind in ("uniform", "sorted"):
            for family in families:
                for type_ in ("float", "half", "bfloat16"):
                    data = _one(type_, fill, family)
                    assert data.min() >= float(low)
                    assert data.max() < float(high)
                    assert kind != "sorted" or (np.diff(data) >= 0).all()
    assert families_for(_spec(Argument("i", "int", "in", "n", Fill("integers", "0", "5")))) == ("declared",)


def test_the_end_of_a_uniform_fill_is_not_reached_by_rounding() -> None:
    case = Case("n=400000", {"n": 400000})
    for type_ in ("half", "bfloat16", "float"):
        data = generate(_spec(Argument("x", type_, "in", "n", Fill("uniform", "0", "1"))), case, 1, "declared")["x"]
        assert parse_dtype(type_).to_float64(data).max() < 1
        below = generate(_spec(Argument("x", type_, "in", "n", Fill("uniform", "-2", "-1"))), case, 1, "declared")["x"]
        assert parse_dtype(type_).to_float64(below).max() < -1


def test_integers_cover_their_range_and_nothing_else() -> None:
    for type_, low, high in (("uint8", 0, 256), ("int", -3, 4), ("long long", 10**12, 10**12 + 3), ("bool", 0, 2)):
        data = _one(type_, Fill("integers", str(low), str(high)))
        assert set(data) == set(range(low, high))


def test_permutation_constant_and_sorted() -> None:
    assert np.array_equal(np.sort(_one("int", Fill("permutation"))), np.arange(4001))
    assert (_one("half", Fill("constant", "n/1000.0")) == np.float16(4.001)).all()
    assert (np.diff(_one("int", Fill("sorted", "0", "50"))) >= 0).all()


@pytest.mark.parametrize("type_", ["int", "uint8", "float", "double", "half"])
def test_a_symmetric_matrix_is_its_own_transpose_in_its_range(type_: str) -> None:
    case = Case("n=61", {"n": 61})
    data = generate(_spec(Argument("x", type_, "in", "n * n", Fill("symmetric", "1", "9"))), case, 1, "declared")["x"]
    found = parse_dtype(type_).to_float64(data).reshape(61, 61)
    assert np.array_equal(found, found.T)
    assert 1 <= found.min() < found.max() < 9
    assert len(np.unique(found[0])) > 5


def test_vectors_and_structs_fill_all_lanes() -> None:
    spec = _spec(
        Argument("v", "float4", "in", "n"),
        Argument("s", "struct:12", "in", "n", Fill("integers", "0", "256")),
        Argument("z", "struct:12", "in", "n", Fill("constant", "7")),
        Argument("o", "float", "out", "n"),
    )
    data = generate(spec, CASE, 1, "declared")
    assert {k: len(v) for k, v in data.items()} == {"v": 4 * 4001, "s": 12 * 4001, "z": 12 * 4001}
    assert set(data["z"]) == {7}
    assert buffer_elements(spec, CASE) == dict.fromkeys("vszo", 4001)
    assert bytes_needed(spec, CASE) == 4001 * (16 + 12 + 12 + 4)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 30), st.integers(0, 2**31))
def test_offsets_ascend_from_zero_by_steps_in_their_range(count: int, low: int, wide: int, seed: int) -> None:
    case = Case("c", {"n": count, "low": low, "most": low + wide})
    argument = Argument("begin", "int", "in", "n + 1", Fill("offsets", "low", "most"))
    spec = replace(_spec(argument), check=(case,), time=(case,))
    begin = generate(spec, case, seed, "declared")["begin"]
    steps = np.diff(begin)
    assert (begin[0], len(begin)) == (0, count + 1)
    assert low <= steps.min()
    assert steps.max() < low + wide


@given(st.integers(1, 40), st.integers(1, 30), st.floats(0, 1), st.integers(0, 2**31))
def test_a_sparse_matrix_is_one(rows: int, width: int, share: float, seed: int) -> None:
    entries = max(1, int(rows * width * share))
    case = Case("c", {"rows": rows, "width": width, "entries": entries})
    spec = replace(
        _spec(
            Argument("offsets", "int", "in", "rows + 1", Fill("csr_offsets", of="columns")),
            Argument("columns", "int", "in", "entries", Fill("csr_columns", "", "width", "offsets")),
        ),
        check=(case,),
        time=(case,),
    )
    data = generate(spec, case, seed, "declared")
    offsets, columns = data["offsets"], data["columns"]
    assert offsets[0] == 0
    assert offsets[-1] == entries == len(columns)
    assert (np.diff(offsets) >= 0).all()
    for row in range(rows):
        held = columns[offsets[row] : offsets[row + 1]]
        assert (np.diff(held) > 0).all()
        assert len(held) == 0 or (held[0] >= 0 and held[-1] < width)


def test_scalars_have_their_type() -> None:
    spec = _spec(
        Argument("n", "size_t", "scalar"),
        Argument("h", "half", "scalar", value="0.5"),
        Argument("b", "bfloat16", "scalar", value="1"),
        Argument("v", "float2", "scalar", value="2"),
        Argument("s", "struct:3", "scalar", value="hex:010203"),
    )
    got = scalars(spec, CASE)
    assert got["n"] == np.uint64(4001)
    assert got["n"].dtype == np.uint64  # type: ignore[union-attr]
    assert got["h"] == np.float16(0.5)
    assert got["b"] == np.uint16(0x3F80)
    assert got["v"] == np.array([2, 2], np.float32).tobytes()
    assert got["s"] == b"\1\2\3"


@pytest.mark.parametrize(
    ("type_", "value"), [("uint8", "n"), ("int", "0.5"), ("int", "1e400"), ("float", "1e39"), ("int", "m")]
)
def test_scalars_that_do_not_fit_are_refused(type_: str, value: str) -> None:
    with pytest.raises(SpecError):
        scalars(_spec(Argument("a", type_, "scalar", value=value)), CASE)


@pytest.mark.parametrize("size", ["0", "-n", "n*1.5", "m", "1<<60"])
def test_sizes_without_sense_are_refused(size: str) -> None:
    with pytest.raises(SpecError):
        buffer_elements(_spec(Argument("x", "float", "in", size)), CASE)


@pytest.mark.parametrize("family", EXTREMES)
@pytest.mark.parametrize("type_", ["float", "double", "half", "bfloat16"])
def test_extreme_numbers_are_few_and_of_one_magnitude_in_a_family(type_: str, family: str) -> None:
    """Where the square of one of them overflows, what comes of the others was not asked for either."""
    dtype, data = parse_dtype(type_), _one(type_, family=family)
    extreme = np.abs(data[is_extreme(dtype, data)])
    assert 0.002 < extreme.size / data.size < 0.02
    assert np.isinf(extreme).all() == (family == "infinite")
    assert extreme.max() == extreme.min()
