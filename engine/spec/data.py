"""Contents of a kernel's arguments: fresh, seeded, of several families, in NumPy or CuPy arrays."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine import arith
from engine.errors import SpecError
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec
from engine.spec.poison import plausible_word
from engine.spec.spec_checks import check_scalar, struct_bytes

FAMILIES = ("declared", "times3", "times001", "negated", "special")
NAN = "nan"  # NaN, denormals and runs of zeros: asked of a candidate where the original passes NaN on
# Each where the original's results with it are defined: infinities, and numbers of these powers of the type's largest one.
INFINITE, _POWERS = "infinite", {"huge": 0.8, "large": 0.4}
EXTREMES = (INFINITE, *_POWERS)
_MOST_SIGNED = 1 << 63  # of 64 bits, which no drawn number reaches
_SCALES = {"times3": 3.0, "times001": 0.01, "negated": -1.0}
_SPECIAL_SHARE = 16  # one element of so many becomes an awkward value
_NAN_SHARE = 64  # one element of so many becomes NaN or denormal: most rows keep a finite result
_ZEROS, _ZERO_SHARE = 64, 8  # beside NaN, one run of so many elements out of so many is zero: zero times NaN is no zero
_LARGE = 1e4  # finite and large, but its square and its exponential's argument stay legal for what kernels do with it
_MAX_ELEMENTS = 1 << 40
_INDEPENDENT = ("normal", "uniform", "integers", "constant")

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
            raise SpecError(
                f"the size of '{argument.name}' has no value in case {case.name}: {error.what}", spec.origin
            ) from None
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
    """The scalar arguments, each in its own type; structs and vectors as their bytes. Raises SpecError."""
    values: dict[str, np.generic | bytes] = {}
    for argument in spec.arguments:
        if argument.role != "scalar":
            continue
        dtype = parse_dtype(argument.type)
        check_scalar(argument, dtype, case, spec.origin)
        if dtype.kind == "bytes":
            values[argument.name] = struct_bytes(argument.value) or b""
            continue
        changed = case.changed.get(argument.name)
        number = _number(argument.value or argument.name, argument, spec, case) if changed is None else changed
        if dtype.kind == "float":
            lane = dtype.from_float64(np.full(dtype.lanes, float(number)))
        else:
            lane = np.full(dtype.lanes, int(number), dtype.storage)
        values[argument.name] = lane[0] if dtype.lanes == 1 else lane.tobytes()
    return values


def families_for(spec: KernelSpec) -> tuple[str, ...]:
    """The families that make different data for this spec, "declared" first."""
    read = [a for a in spec.arguments if a.role in ("in", "inout")]
    return ("declared", *(f for f in FAMILIES[1:] if any(_allows(spec, a, f) for a in read)))


def takes_nan(spec: KernelSpec) -> bool:
    """Whether the families NAN and EXTREMES make other data for this spec than the declared one."""
    return any(_allows(spec, a, NAN) for a in spec.arguments if a.role in ("in", "inout"))


def _allows(spec: KernelSpec, argument: Argument, family: str) -> bool:
    """Whether what the family makes of an argument's contents stays in the declared range, in every case."""
    dtype = parse_dtype(argument.type)
    if dtype.kind != "float" or family == "declared":
        return False
    if family in (NAN, *EXTREMES):
        return argument.fill.kind == "normal"
    if argument.fill.kind == "normal":
        # A mean other than zero says where the values are meant to be.
        return family == "special" or argument.fill.low in ("", "0", "0.0")
    if argument.fill.kind not in ("uniform", "sorted"):
        return False
    ranges = [_range(spec, case, argument, dtype) for case in (*spec.check, *spec.time)]
    if family == "times001":
        return all(low <= 0 < high for low, high in ranges)
    if family == "negated":
        return all(low == -high for low, high in ranges)
    return family == "special"


@dataclass(frozen=True)
class Draw:
    """The figures of one argument's contents, for a generator other than NumPy's.

    `low` and `high` are mean and deviation of a normal fill, else bounds; values are multiplied by `scale` and kept at or
    below `most`. With `special` some become 0, -0, ± `tiny`, or far out by `large` (normal), or an end of the range.
    """

    kind: str  # "normal", "uniform" or "integers"; `ordered`: ascending
    seed: int
    low: float
    high: float
    scale: float
    most: float
    special: bool
    tiny: float
    large: float
    ordered: bool = False


def figures(spec: KernelSpec, case: Case, argument: Argument, seed: int, family: str) -> Draw | None:
    """What `generate` would draw this argument from; None for fills that are no independent numbers. Raises SpecError."""
    dtype = parse_dtype(argument.type)
    kind = argument.fill.kind
    if argument.role not in ("in", "inout") or dtype.kind not in ("float", "int"):
        return None
    if kind not in ("normal", "uniform", "integers", "sorted"):
        return None
    own, ordered = seed_of(spec, case, argument, family, seed), kind == "sorted"
    if kind == "integers" or dtype.kind == "int":
        low, high = _range(spec, case, argument, dtype)
        return Draw("integers", own, math.ceil(low), math.ceil(high), 1.0, math.inf, False, 0.0, 0.0, ordered)
    changed = family if _allows(spec, argument, family) else "declared"
    if changed in (NAN, *EXTREMES):
        return None
    scale, special = _SCALES.get(changed, 1.0), changed == "special"
    if kind == "normal":
        mean, deviation = _moments(spec, case, argument)
        large = min(_LARGE * deviation, dtype.limits[1] / 4)
        return Draw("normal", own, mean, deviation, scale, math.inf, special, dtype.tiny, large)
    low, high = (float(v) for v in _range(spec, case, argument, dtype))
    most = _below(high, dtype)
    return Draw("uniform", own, low, high, scale, most if scale > 0 else math.inf, special, 0.0, 0.0, ordered)


@dataclass(frozen=True)
class Related:
    """The figures of contents that stand in a relation, for a generator other than NumPy's.

    "permutation": of as many numbers as the buffer holds. "csr": row offsets, with the name of their `columns`, which are below
    `width`. "csr_columns": made with their offsets.
    """

    kind: str
    seed: int
    columns: str = ""
    width: int = 0


def related(spec: KernelSpec, case: Case, argument: Argument, seed: int, family: str) -> Related | None:
    """What stands in this argument, if its numbers are no independent draws. Raises SpecError."""
    kind = argument.fill.kind
    if argument.role not in ("in", "inout") or parse_dtype(argument.type).kind != "int":
        return None
    own = seed_of(spec, case, argument, family, seed)
    if kind == "permutation":
        return Related(kind, own)
    pair = [argument, *(a for a in spec.arguments if a.name == argument.fill.of)]
    if len(pair) < 2 or any(a.role == "out" or parse_dtype(a.type).lanes > 1 for a in pair):
        return None
    if kind == "csr_offsets":
        return Related("csr", own, pair[1].name, int(_number(pair[1].fill.high or "1", pair[1], spec, case)))
    return Related(kind, own) if kind == "csr_columns" else None


def _moments(spec: KernelSpec, case: Case, argument: Argument) -> tuple[float, float]:
    fill = argument.fill
    mean = float(_number(fill.low, argument, spec, case)) if fill.low else 0.0
    return mean, float(_number(fill.high, argument, spec, case)) if fill.high else 1.0


def generate(spec: KernelSpec, case: Case, seed: int, family: str, xp: Any = np) -> dict[str, Array]:
    """First contents of all buffers that are read: flat arrays of the storage type, elements times lanes long.

    The same for the same seed, case, argument and family. Outputs are not in it.
    """
    draw, elements = _Draw(spec, case, seed, family, xp), buffer_elements(spec, case)
    values: dict[str, Array] = {}
    for argument in spec.arguments:
        if argument.role not in ("in", "inout"):
            continue
        count = elements[argument.name] * parse_dtype(argument.type).lanes
        values[argument.name] = _fill(draw, argument, count)
    _link_csr(draw, elements, values)
    return values


def poisoned(spec: KernelSpec, case: Case, seed: int, family: str) -> dict[str, Array]:
    """All buffers of one case, on the host: inputs as `generate` draws them, pure outputs filled with a word of this seed's."""
    values = generate(spec, case, seed, family)
    word = plausible_word(random.Random(f"poison {seed}")).to_bytes(4, "little")
    for name, count in buffer_elements(spec, case).items():
        if spec.argument(name).role == "out":
            dtype = parse_dtype(spec.argument(name).type)
            lanes = count * dtype.lanes
            words = lanes * dtype.storage.itemsize // len(word) + 1
            values[name] = np.frombuffer(word * words, dtype.storage, lanes).copy()
    return values


def any_bits(dtype: DType, lanes: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Any numbers of a type, on the host: whatever a kernel makes of the others, it gives these back where it only moves them. No NaN."""
    drawn = np.frombuffer(rng.bytes(lanes * dtype.storage.itemsize), dtype.storage).copy()
    if dtype.kind == "bool":
        drawn &= 1
    elif dtype.kind == "float":
        with np.errstate(invalid="ignore"):
            drawn[np.isnan(dtype.to_float64(drawn))] = 0  # moves need not keep the bits of one
    return drawn


class Tiles:
    """First contents of all buffers, on the host, of at most `most` elements each: repeated, they fill a buffer of any size.

    What is drawn for one case serves every other with the same figures, such as bounds: it begins alike. Contents that are no
    independent numbers are drawn whole, where those of a case have up to `whole` bytes.
    """

    def __init__(self, spec: KernelSpec, seed: int, most: int, *, whole: int = 0) -> None:
        self._spec, self._seed, self._most, self._whole = spec, seed, most, whole
        self._drawn: dict[tuple[object, ...], Array] = {}
        self._word = plausible_word(random.Random(f"poison {seed}")).to_bytes(4, "little")

    def of(self, case: Case) -> dict[str, Array] | None:
        """None where some contents are no independent numbers, and not drawn whole. Raises SpecError."""
        found, whole = dict[str, Array](), dict[str, Array]()
        related = tuple(
            a for a in self._spec.arguments if a.role in ("in", "inout") and a.fill.kind not in _INDEPENDENT
        )
        if related:
            own = replace(self._spec, arguments=related)
            if bytes_needed(own, case) > self._whole:
                return None
            whole = generate(own, case, self._seed, "declared")
        for name, elements in buffer_elements(self._spec, case).items():
            if name in whole:
                found[name] = whole[name]
                continue
            argument = self._spec.argument(name)
            dtype = parse_dtype(argument.type)
            key = (name, *self._figures(case, argument, dtype))
            if key not in self._drawn:
                self._drawn[key] = self._draw(case, argument, dtype)
            found[name] = self._drawn[key][: min(elements, self._most) * dtype.lanes]
        return found

    def _figures(self, case: Case, argument: Argument, dtype: DType) -> tuple[object, ...]:
        """What the contents of an argument depend on beside the seed."""
        if argument.role == "out":
            return ()
        if argument.fill.kind == "constant":
            return (_number(argument.fill.low or "0", argument, self._spec, case),)
        if argument.fill.kind == "normal" and dtype.kind == "float":
            return _moments(self._spec, case, argument)
        return _range(self._spec, case, argument, dtype)

    def _draw(self, case: Case, argument: Argument, dtype: DType) -> Array:
        count = self._most * dtype.lanes
        if argument.role == "out":
            words = count * dtype.storage.itemsize // len(self._word) + 1
            return np.frombuffer(self._word * words, dtype.storage, count).copy()
        return _fill(_Draw(self._spec, case, self._seed, "declared", np), argument, count)


def seed_of(spec: KernelSpec, case: Case, argument: Argument, family: str, seed: int) -> int:
    """The seed of an argument's own contents."""
    key = f"{seed}|{sorted(case.sizes.items())}|{argument.name}|{family}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class _Draw:
    """What the contents of one case's arguments are drawn with, in arrays of `xp`."""

    spec: KernelSpec
    case: Case
    seed: int
    family: str
    xp: Any


def _fill(draw: _Draw, argument: Argument, count: int) -> Array:
    spec, case, family, xp = draw.spec, draw.case, draw.family, draw.xp
    fill, dtype, seed = argument.fill, parse_dtype(argument.type), seed_of(spec, case, argument, family, draw.seed)
    rng = xp.random.default_rng(seed)
    kind = fill.kind
    if kind == "constant":
        value = _number(fill.low or "0", argument, spec, case)
        if dtype.kind == "float":
            return _cast(xp.full(count, float(value)), dtype)
        return xp.full(count, int(value), dtype.storage)
    if kind == "permutation":
        return _cast(xp.asarray(np.random.default_rng(seed).permutation(count)), dtype)
    if kind == "offsets":
        low, high = _range(spec, case, argument, dtype)
        steps = rng.integers(math.ceil(low), math.ceil(high), count, dtype=xp.int64)
        steps[:1] = 0
        return _cast(xp.minimum(xp.cumsum(steps), int(dtype.limits[1])), dtype)
    if kind in ("csr_offsets", "csr_columns"):
        return xp.zeros(count, dtype.storage)  # both are made together, once all sizes are known
    if kind == "integers" or dtype.kind != "float":
        low, high = _range(spec, case, argument, dtype)
        wide = xp.uint64 if low >= 0 and math.ceil(high) > _MOST_SIGNED else xp.int64
        drawn = rng.integers(math.ceil(low), math.ceil(high), count, dtype=wide)
        return _cast(_arranged(drawn, kind, xp), dtype)
    real = xp.float64 if dtype.storage == np.float64 else xp.float32
    if kind == "normal":
        data = rng.standard_normal(count, dtype=real)
        mean, deviation = _moments(spec, case, argument)
        bounds = None
    else:
        low, high = (float(v) for v in _range(spec, case, argument, dtype))
        data = rng.random(count, dtype=real)
        mean, deviation, bounds = low, high - low, (low, _below(high, dtype))
    if deviation != 1.0:
        data *= real(deviation)
    if mean != 0.0:
        data += real(mean)
    if family in _SCALES and _allows(spec, argument, family):
        data *= real(_SCALES[family])
    elif family == "special" and _allows(spec, argument, family):
        _put(data, _special(mean, deviation, bounds, dtype), _SPECIAL_SHARE, seed, xp)
    elif family == NAN and _allows(spec, argument, family):
        if bounds is None:
            _put_zeros(data, seed, xp)
        _put(data, [math.nan, math.nan, dtype.tiny / 4, -dtype.tiny / 4], _NAN_SHARE, seed, xp)
    elif family in EXTREMES and _allows(spec, argument, family):
        most = math.inf if family == INFINITE else dtype.limits[1] ** _POWERS[family]
        _put(data, [most, -most], _NAN_SHARE, seed, xp)
    if bounds is not None:
        # Rounding to the type may reach the exclusive end, where a logarithm or a division has no value.
        data = xp.minimum(data, real(bounds[1]))
    return _cast(_arranged(data, kind, xp), dtype)


def _arranged(data: Array, kind: str, xp: Any) -> Array:
    """Independent numbers as the kind of a fill has them: in order, or the lower triangle as a mirror of the upper one."""
    if kind == "sorted":
        return xp.sort(data)
    if kind == "symmetric":
        square = data.reshape(math.isqrt(data.size), -1)
        return (xp.triu(square) + xp.triu(square, 1).T).reshape(-1)
    return data


def _below(high: float, dtype: DType) -> float:
    """The largest value of the type below `high`."""
    if dtype.storage == np.float64:
        return float(np.nextafter(high, -np.inf))
    if dtype.eight is not None:
        values = dtype.to_float64(np.arange(256, dtype=np.uint8))
        return float(values[np.isfinite(values) & (values < high)].max())
    if dtype.bfloat:
        # The bits of a positive float order as integers; truncating them rounds toward zero.
        single = np.nextafter(np.float32(high), np.float32(-np.inf)) if np.float32(high) >= high else np.float32(high)
        bits = np.array([single], np.float32).view(np.uint32)
        away = np.uint32(0x10000) if single < 0 and bits[0] & 0xFFFF else np.uint32(0)
        return float(((bits + away) & np.uint32(0xFFFF0000)).view(np.float32)[0])
    nearest = dtype.storage.type(high)
    return float(nearest if nearest < high else np.nextafter(nearest, dtype.storage.type(-np.inf)))


def _special(mean: float, deviation: float, bounds: tuple[float, float] | None, dtype: DType) -> list[float]:
    """Awkward but legal values: zeros of both signs, the smallest normals, large ones, ties."""
    if bounds is None:
        large = min(_LARGE * deviation, dtype.limits[1] / 4)
        return [0.0, -0.0, dtype.tiny, -dtype.tiny, mean + large, mean - large, mean + deviation]
    low, high = bounds
    inside = [0.0, -0.0, dtype.tiny, -dtype.tiny]
    return [low, high, *(v for v in inside if low <= v <= high)]


def _put(data: Array, values: list[float], share: int, seed: int, xp: Any) -> None:
    """Set one element of so many, at least one, to one of these values."""
    count = max(1, data.size // share)
    rng = np.random.default_rng(seed ^ 0x5EED)
    places = rng.integers(0, data.size, count)
    drawn = np.array(values)[rng.integers(0, len(values), count)]
    data[xp.asarray(places)] = xp.asarray(drawn).astype(data.dtype)


def _put_zeros(data: Array, seed: int, xp: Any) -> None:
    runs = np.random.default_rng(seed ^ 0x2E50).random(-(-data.size // _ZEROS)) * _ZERO_SHARE < 1.0
    data[xp.repeat(xp.asarray(runs), _ZEROS)[: data.size]] = 0.0


def _cast(data: Array, dtype: DType) -> Array:
    if dtype.coded:
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


def _link_csr(draw: _Draw, elements: dict[str, int], values: dict[str, Array]) -> None:
    """Row offsets that end at the number of column indices, and columns ascending within each row."""
    spec, case, xp = draw.spec, draw.case, draw.xp
    for argument in spec.arguments:
        if argument.fill.kind != "csr_offsets" or argument.name not in values:
            continue
        columns = argument.fill.of
        if columns not in values:
            raise SpecError(f"'{argument.name}' needs fill.of, the name of its column indices", spec.origin)
        rows, entries = elements[argument.name] - 1, elements[columns]
        width = int(_number(spec.argument(columns).fill.high or "1", argument, spec, case))
        own = seed_of(spec, case, argument, draw.family, draw.seed)
        offsets, picked = _csr(rows, entries, width, np.random.default_rng(own))
        values[argument.name] = _cast(xp.asarray(offsets), parse_dtype(argument.type))
        values[columns] = _cast(xp.asarray(picked), parse_dtype(spec.argument(columns).type))


def _csr(rows: int, entries: int, width: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Row offsets and column indices of a sparse matrix with rows of very different lengths, some of them empty.

    Columns ascend within a row and do not repeat. `entries` is at most rows * width.
    """
    weights = rng.random(rows) ** 3 + 1e-9
    lengths = np.minimum(rng.multinomial(entries, weights / weights.sum()), width)
    room = width - lengths
    left = entries - int(lengths.sum())
    lengths = lengths + np.clip(left - (np.cumsum(room) - room), 0, room)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    row = np.repeat(np.arange(rows), lengths)
    place = np.arange(entries) - offsets[row]
    # Ascending draws from the width less the length, each moved by its place in the row, are distinct.
    drawn = np.floor(rng.random(entries) * (width - lengths[row] + 1)).astype(np.int64)
    before = row * (width + 1)  # rows stay in order while each one's draws are sorted
    return offsets, np.sort(before + drawn) - before + place
