"""Types: spellings, sizes, and rounding to bfloat16 against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SpecError
from engine.spec.dtypes import parse_dtype, type_names


@pytest.mark.parametrize(
    ("text", "name", "itemsize", "lanes", "kind"),
    [
        ("float", "float", 4, 1, "float"),
        ("const float", "float", 4, 1, "float"),
        ("double", "double", 8, 1, "float"),
        ("__half", "half", 2, 1, "float"),
        ("nv_half2", "half2", 4, 2, "float"),
        ("__nv_bfloat16", "bfloat16", 2, 1, "float"),
        ("unsigned int", "uint32", 4, 1, "int"),
        ("unsigned", "uint32", 4, 1, "int"),
        ("int unsigned", "uint32", 4, 1, "int"),
        ("long long int", "int64", 8, 1, "int"),
        ("unsigned long long", "uint64", 8, 1, "int"),
        ("unsigned char", "uint8", 1, 1, "int"),
        ("signed char", "int8", 1, 1, "int"),
        ("short", "int16", 2, 1, "int"),
        ("std::size_t", "uint64", 8, 1, "int"),
        ("cuda::std::int32_t", "int32", 4, 1, "int"),
        ("bool", "bool", 1, 1, "bool"),
        ("float3", "float3", 12, 3, "float"),
        ("uchar4", "uchar4", 4, 4, "int"),
        ("half2", "half2", 4, 2, "float"),
        ("struct:12", "struct:12", 12, 12, "bytes"),
        ("float[8]", "float[8]", 32, 8, "float"),
        ("unsigned char [3]", "uint8[3]", 3, 3, "int"),
    ],
)
def test_spellings(text: str, name: str, itemsize: int, lanes: int, kind: str) -> None:
    dtype = parse_dtype(text)
    assert (dtype.name, dtype.itemsize, dtype.lanes, dtype.kind) == (name, itemsize, lanes, kind)


def test_every_known_name_parses_and_its_canonical_name_parses_to_itself() -> None:
    for name in type_names():
        dtype = parse_dtype(name)
        assert parse_dtype(dtype.name) == dtype


@pytest.mark.parametrize(
    "text",
    [
        "",
        "floot",
        "float*",
        "void",
        "unsigned unsigned",
        "long char",
        "struct:0",
        "struct:9999999",
        "float[0]",
        "float[9999]",
        "float4[2]",
        "struct:4[2]",
        "[4]",
    ],
)
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_dtype(text)


def test_the_nearest_name_is_told() -> None:
    with pytest.raises(SpecError, match="'double'"):
        parse_dtype("duoble")


def _nearest_bfloat16(value: float) -> int:
    """The bits of the bfloat16 nearest to a finite value, by exact search among its two neighbours."""
    magnitude = Fraction(abs(value))
    low, high = 0, 0x7F80  # bit patterns of magnitudes are ordered

    def as_fraction(b: int) -> Fraction:
        return (
            Fraction(2) ** 128 if b == 0x7F80 else Fraction(float(np.array([b << 16], np.uint32).view(np.float32)[0]))
        )

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if as_fraction(middle) <= magnitude else (low, middle)
    below, above = magnitude - as_fraction(low), as_fraction(high) - magnitude
    bits = low if below < above or (below == above and low % 2 == 0) else high
    return bits | (0x8000 if math.copysign(1, value) < 0 else 0)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_bfloat16_rounds_once_to_nearest_even(value: float) -> None:
    got = int(parse_dtype("bfloat16").from_float64(np.array([value]))[0])
    assert got == _nearest_bfloat16(value)


@given(st.integers(0, 0x7F7F), st.sampled_from([0.0, 1e-12, -1e-12]))
def test_bfloat16_ties_are_decided_by_what_lies_below_float32(bits: int, nudge: float) -> None:
    # Halfway between two bfloat16 numbers, moved by less than a float32 can show: rounding twice would get this wrong.
    two = np.array([bits << 16, (bits + 1) << 16], np.uint32).view(np.float32).astype(np.float64)
    value = float((two[0] + two[1]) / 2) * (1 + nudge) if bits < 0x7F7F else float(two[0])
    assert int(parse_dtype("bfloat16").from_float64(np.array([value]))[0]) == _nearest_bfloat16(value)


def test_bfloat16_keeps_nan_and_infinity() -> None:
    dtype = parse_dtype("bfloat16")
    back = dtype.to_float64(dtype.from_float64(np.array([np.nan, np.inf, -np.inf, -0.0])))
    assert np.isnan(back[0])
    assert back[1] == np.inf
    assert back[2] == -np.inf
    assert np.signbit(back[3])


@given(st.integers(0, 0xFFFF))
def test_every_bfloat16_survives_the_way_there_and_back(bits: int) -> None:
    dtype = parse_dtype("bfloat16")
    value = dtype.to_float64(np.array([bits], np.uint16))
    if not np.isnan(value[0]):
        assert int(dtype.from_float64(value)[0]) == bits


@pytest.mark.parametrize(
    ("name", "largest", "smallest", "known"),
    [
        ("__nv_fp8_e4m3", 448.0, 2.0**-9, {0x38: 1.0, 0x39: 1.125, 0x08: 2.0**-6, 0x81: -(2.0**-9), 0x7F: math.nan}),
        ("__nv_fp8_e5m2", 57344.0, 2.0**-16, {0x3C: 1.0, 0x3D: 1.25, 0x7C: math.inf, 0xFC: -math.inf, 0x7F: math.nan}),
    ],
)
def test_floats_of_eight_bits(name: str, largest: float, smallest: float, known: dict[int, float]) -> None:
    dtype = parse_dtype(name)
    codes = np.arange(256, dtype=np.uint8)
    values = dtype.to_float64(codes)
    for code, value in known.items():
        np.testing.assert_equal(values[code], value)
    finite = np.isfinite(values)
    assert (values[finite].max(), values[finite & (values > 0)].min()) == (largest, smallest)
    assert dtype.limits == (-largest, largest)
    assert (dtype.from_float64(values)[finite] == codes[finite]).all()
    # Each value rounds to one of its neighbours, ties to the even code; too large ones saturate.
    ordered = np.sort(values[finite & (codes < 128)])
    middle = (ordered[1:] + ordered[:-1]) / 2
    found = dtype.from_float64(np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)]))
    even, below, above = found.reshape(3, -1)
    assert (even % 2 == 0).all()
    assert (dtype.to_float64(below) == ordered[:-1]).all()
    assert (dtype.to_float64(above) == ordered[1:]).all()
    assert dtype.to_float64(dtype.from_float64(np.array([1e9, -np.inf]))).tolist() == [largest, -largest]
    assert np.isnan(dtype.to_float64(dtype.from_float64(np.array([math.nan])))).all()


def test_vectors_of_floats_of_eight_bits() -> None:
    dtype = parse_dtype("__nv_fp8x4_e5m2")
    assert (dtype.name, dtype.itemsize, dtype.lanes, dtype.limits[1]) == ("fp8x4_e5m2", 4, 4, 57344.0)
