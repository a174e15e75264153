"""Contents of a kernel's arguments: fresh, seeded, of several families, in NumPy or CuPy arrays."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from engine import arith
from engine.errors import SpecError
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.model import Argument, Case, KernelSpec

FAMILIES = ("declared", "times3", "times001", "negated", "special")
_SCALES = {"times3": 3.0, "times001": 0.01, "negated": -1.0}
_SPECIAL_SHARE = 16  # one element of so many becomes an awkward value
_LARGE = 1e4  # finite and large, but its square and its exponential's argument stay legal for what kernels do with it
_MAX_ELEMENTS = 1 << 40

Array = Any  # numpy.ndarray or cupy.ndarray


def buffer_elements(spec: KernelSpec, case: Case) -> dict[str, int]:
    """The number of elements of each buffer. Raises SpecError where a size has no value or is not positive."""
    elements = {}
    for argument in spec.arguments:
        if argument.role == "scalar":
            continue
        try:
            count = arith.evaluate_int(argument.size, case.sizes)
        except arith.ArithmeticError_ as error:
            raise SpecError(f"the size of '{argument.name}' has no value in case {case.name}: {error.what}", spec.origin) from None
        if not 0 < count < _MAX_ELEMENTS:
            raise SpecError(f"'{argument.name}' would have {count} elements in case {case.name}", spec.origin)
        elements[argument.name] = count
    return elements


def bytes_needed(spec: KernelSpec, case: Case) -> int:
    """Bytes of all buffers of one case, once."""
    return sum(
        count * parse_dtype(spec.argument(name).type).itemsize for name, count in buffer_elements(spec, case).items()
    )


def scalars(spec: KernelSpec, case: Case) -> dict[str, np.generic | bytes]:
    """The scalar arguments, each in its own type; a struct by value is zero bytes. Raises SpecError."""
    values: dict[str, np.generic | bytes] = {}
    for argument in spec.arguments:
        if argument.role != "scalar":
            continue
        dtype = parse_dtype(argument.type)
        if dtype.kind == "bytes":
            values[argument.name] = bytes(dtype.itemsize)
            continue
        number = _number(argument.value or argument.name, argument, spec, case)
        if dtype.kind == "float":
            lane = dtype.from_float64(np.full(dtype.lanes, float(number)))
        else:
            low, high = dtype.limits
            if number != int(number) or not low <= number <= high:
                raise SpecError(f"{number} does not fit '{argument.name}' ({dtype.name}) in case {case.name}", spec.origin)
            lane = np.full(dtype.lanes, int(number), dtype.storage)
        values[argument.name] = lane[0] if dtype.lanes == 1 else lane.tobytes()
    return values


def families_for(spec: KernelSpec) -> tuple[str, ...]:
    """The families that make different data for this spec, "declared" first."""
    wanted = ["declared"]
    for family in FAMILIES[1:]:
        if any(_allows(argument, family) for argument in spec.arguments if argument.role in ("in", "inout")):
            wanted.append(family)
    return tuple(wanted)


def _allows(argument: Argument, family: str) -> bool:
    """Whether the declared range still holds for what the family makes of it."""
    if parse_dtype(argument.type).kind != "float":
        return False
    if argument.fill.kind == "normal":
        return True
    return family == "special" and argument.fill.kind in ("uniform",)


def generate(spec: KernelSpec, case: Case, seed: int, family: str, xp: Any = np) -> dict[str, Array]:
    """First contents of all buffers that are read: flat arrays of the storage type, elements times lanes long.

    The same for the same seed, case, argument and family. Outputs are not in it.
    """
    elements = buffer_elements(spec, case)
    values: dict[str, Array] = {}
    for argument in spec.arguments:
        if argument.role not in ("in", "inout"):
            continue
        dtype = parse_dtype(argument.type)
        key = f"{seed}|{case.name}|{argument.name}|{family}|{sorted(case.sizes.items())}"
        words = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
        count = elements[argument.name] * dtype.lanes
        values[argument.name] = _fill(spec, case, argument, dtype, count, words, family, xp)
    _link_csr(spec, case, elements, values, seed, xp)
    return values


def _fill(
    spec: KernelSpec, case: Case, argument: Argument, dtype: DType, count: int, seed: int, family: str, xp: Any
) -> Array:
    fill = argument.fill
    rng = xp.random.default_rng(seed)
    kind = fill.kind
    if dtype.kind == "bytes":
        return rng.integers(0, 256, count, dtype=xp.uint8)
    if kind == "constant":
        value = _number(fill.low or "0", argument, spec, case)
        return _cast(xp.full(count, float(value)), dtype) if dtype.kind == "float" else xp.full(count, int(value), dtype.storage)
    if kind == "permutation":
        return _cast(xp.asarray(np.random.default_rng(seed).permutation(count)), dtype)
    if kind in ("integers", "csr_offsets", "csr_columns"):
        low, high = _range(spec, case, argument, dtype)
        if xp is np:
            return _cast(rng.integers(int(low), int(high), count), dtype)
        return _cast(rng.integers(int(low), int(high), count, dtype=xp.int64), dtype)
    if dtype.kind != "float":
        low, high = _range(spec, case, argument, dtype)
        drawn = rng.integers(int(low), int(high), count) if xp is np else rng.integers(int(low), int(high), count, dtype=xp.int64)
        return _cast(xp.sort(drawn) if kind == "sorted" else drawn, dtype)
    wide = dtype.storage == np.float64
    real = xp.float64 if wide else xp.float32
    if kind == "normal":
        data = rng.standard_normal(count, dtype=real)
        mean = _number(fill.low, argument, spec, case) if fill.low else 0.0
        deviation = _number(fill.high, argument, spec, case) if fill.high else 1.0
    else:
        low, high = _range(spec, case, argument, dtype)
        data = rng.random(count, dtype=real)
        mean, deviation = float(low), float(high) - float(low)
    if deviation != 1.0:
        data *= real(deviation)
    if mean != 0.0:
        data += real(mean)
    if kind == "sorted":
        data = xp.sort(data)
    if family in _SCALES and _allows(argument, family):
        data *= real(_SCALES[family])
    elif family == "special" and _allows(argument, family):
        _make_special(data, argument, dtype, seed, xp)
    return _cast(data, dtype)


def _make_special(data: Array, argument: Argument, dtype: DType, seed: int, xp: Any) -> None:
    """Set some elements to awkward but legal values: zeros of both signs, the smallest normals, large ones, ties."""
    count = max(1, data.size // _SPECIAL_SHARE)
    rng = np.random.default_rng(seed ^ 0x5EED)
    places = rng.integers(0, data.size, count)
    if argument.fill.kind == "normal":
        choices = np.array([0.0, -0.0, dtype.tiny, -dtype.tiny, _LARGE, -_LARGE, 1.0, 1.0])
    else:
        choices = np.array([float(data.min()), float(data.max())])
    values = choices[rng.integers(0, len(choices), count)]
    data[xp.asarray(places)] = xp.asarray(values).astype(data.dtype)


def _cast(data: Array, dtype: DType) -> Array:
    if dtype.bfloat:
        return dtype.from_float64(data)
    return data.astype(dtype.storage, copy=False)


def _range(spec: KernelSpec, case: Case, argument: Argument, dtype: DType) -> tuple[arith.Number, arith.Number]:
    fill = argument.fill
    low = _number(fill.low, argument, spec, case) if fill.low else 0
    high: arith.Number = 1
    if fill.high:
        high = _number(fill.high, argument, spec, case)
    elif dtype.kind != "float":
        high = min(int(dtype.limits[1]) + 1, 1 << 16)
    if high <= low:
        raise SpecError(f"the range of '{argument.name}' is empty: {low} to {high} in case {case.name}", spec.origin)
    return low, high


def _number(text: str, argument: Argument, spec: KernelSpec, case: Case) -> arith.Number:
    try:
        return arith.evaluate(text, case.sizes)
    except arith.ArithmeticError_ as error:
        raise SpecError(f"'{argument.name}' has no value in case {case.name}: {error.what}", spec.origin) from None


def _link_csr(
    spec: KernelSpec, case: Case, elements: dict[str, int], values: dict[str, Array], seed: int, xp: Any
) -> None:
    """Row offsets that end at the number of column indices, and columns ascending within each row."""
    for argument in spec.arguments:
        if argument.fill.kind != "csr_offsets" or argument.name not in values:
            continue
        columns = argument.fill.of
        if columns not in values:
            raise SpecError(f"'{argument.name}' needs fill.of, the name of its column indices", spec.origin)
        rows, entries = elements[argument.name] - 1, elements[columns]
        rng = np.random.default_rng(seed ^ 0xC5A)
        cuts = np.sort(rng.integers(0, entries + 1, max(0, rows - 1)))
        offsets = np.concatenate([[0], cuts, [entries]])[: rows + 1] if rows else np.zeros(1, np.int64)
        width = int(_number(spec.argument(columns).fill.high or "1", argument, spec, case))
        picked = rng.integers(0, width, entries)
        row_of = np.repeat(np.arange(max(rows, 1)), np.diff(offsets) if rows else [entries])
        picked = picked[np.lexsort((picked, row_of))]
        values[argument.name] = _cast(xp.asarray(offsets), parse_dtype(argument.type))
        values[columns] = _cast(xp.asarray(picked), parse_dtype(spec.argument(columns).type))
