"""What recorded arguments mean for a kernel's parameters: scalar values, extents, roles and ranges of buffer contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.capture.manifest import Buffer, RecordedArgument, RecordedLaunch, read_blob
from engine.errors import OptimlError
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.extents import products, value_at
from engine.spec.kernel_spec import Argument, Fill, KernelSpec

_ADDRESS = 8  # bytes
_ROUNDED = 512  # bytes: caching allocators hand out multiples of it
_SAMPLE = 4 << 20  # bytes of a buffer that its range is read from
_SHORT, _MANY = 8, 64  # how far short the largest of so many random indices may fall, in the expected distance; ours
_CENTRED = 0.1  # of the deviation: a mean below it counts as zero
LARGE = 64  # a size above it is a length: what a recorded value of its own may be fitted to
MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class NamedLaunch:
    """A recorded launch with its arguments by the kernel's parameter names."""

    launch: RecordedLaunch
    arguments: Mapping[str, RecordedArgument]

    def buffer(self, name: str) -> Buffer | None:
        """What the parameter points to; None for a null pointer and for memory that is not the GPU's."""
        return next((b for b in self.arguments[name].buffers if b.at == 0), None)

    def room(self, name: str) -> int:
        """Bytes from the pointer to the end of its allocation, or to the next pointer of the launch into it."""
        own = self.buffer(name)
        if own is None:
            return 0
        others = [b.address for a in self.arguments.values() for b in a.buffers if own.address < b.address]
        end = min([own.address + own.room, *others])
        return end - own.address


def with_fields(spec: KernelSpec, arguments: Mapping[str, RecordedArgument]) -> dict[str, RecordedArgument]:
    """The recorded arguments, and for each field of the spec its part of the struct that it lies in."""
    found = dict(arguments)
    for a in spec.arguments:
        whole = arguments.get(a.parameter)
        if a.name in found or whole is None:
            continue
        size = parse_dtype(a.type).itemsize if a.role == "scalar" else _ADDRESS
        data = whole.data[2 * a.offset : 2 * (a.offset + size)]
        buffers = tuple(replace(b, at=0) for b in whole.buffers if b.at == a.offset)
        found[a.name] = RecordedArgument(size, data, buffers)
    return found


def scalar_value(argument: RecordedArgument, dtype: DType) -> int | float | None:
    """The value of a number passed by value; None where its size is not the type's, or it has several lanes."""
    data = bytes.fromhex(argument.data)
    if len(data) != dtype.itemsize or dtype.lanes != 1 or dtype.kind == "bytes":
        return None
    raw = np.frombuffer(data, dtype.storage)
    if dtype.kind == "float":
        value = float(dtype.to_float64(raw)[0])
        return value if np.isfinite(value) else None
    return int(raw[0])


def written_number(value: int | float, dtype: DType) -> str:
    """The shortest text that gives the value back in its type."""
    if isinstance(value, int):
        return str(value)
    if dtype.storage == np.float32:
        return str(np.float32(value))
    return repr(value) if dtype.storage == np.float64 else f"{value:.6g}"


def fitting_size(
    names: Sequence[str],
    trials: Sequence[tuple[Mapping[str, int], int]],
    itemsize: int,
    blocks: Sequence[int] = (),
    likely: Callable[[str], bool] = lambda text: False,
) -> str:
    """The simplest product of sizes that fills the recorded room of every launch: exactly, else but for an allocator's rounding.

    `trials` are sizes and room in bytes, `blocks` numbers of elements that a thread block may leave one result of. Where no
    product fits several launches of one room the size is a constant. Of several that fit a `likely` one is taken. "" where nothing fits.
    """
    if not trials or any(room < itemsize for _, room in trials):
        return ""
    options = [p if k == 1 else f"{k}*{p}" for k in MULTIPLES for p in products(names)]
    # A size may count bytes.
    partial = [f"cdiv({p}, {b})" for b in dict.fromkeys((itemsize, *blocks)) if b > 1 for p in products(names)]
    partial += [f"{name} + 1" for name in names]  # where the last row ends
    several = len({tuple(sorted(sizes.items())) for sizes, _ in trials}) > 1
    constant = [str(trials[0][1] // itemsize)] if several and len({room for _, room in trials}) == 1 else []
    # One result of each block comes after what needs no rounding.
    for slack, tried in ((itemsize, options), (itemsize, constant), (itemsize, partial), (_ROUNDED, options)):
        found = [
            text
            for text in tried
            if all(0 <= room - (value_at(text, sizes) or 0) * itemsize < slack for sizes, room in trials)
        ]
        if found:
            return next(filter(likely, found), found[0])
    return ""


def filling_size(
    names: Sequence[str], trials: Sequence[tuple[Mapping[str, int], int]], itemsize: int, drafted: str
) -> str:
    """The product of sizes that fills every recorded allocation where the drafted size explains none of them; "" where there is none."""
    if any((value_at(drafted, sizes) or 0) * itemsize == room for sizes, room in trials):
        return ""
    fitting = (p for p in products(names) if all(value_at(p, sizes) == room / itemsize for sizes, room in trials))
    return next((p for p in fitting if any(value_at(p, sizes) > LARGE for sizes, _ in trials)), "")  # type: ignore[operator]


def changed(blobs: Sequence[tuple[str, str]]) -> bool:
    """Whether a launch changed a buffer: pairs of contents before and after."""
    return any(before and after and before != after for before, after in blobs)


def contents(folder: Path, buffer: Buffer, dtype: DType, elements: int) -> np.ndarray | None:
    """Up to the first `elements` of a buffer before the launch, in the type's storage; None where they are not there."""
    most = min(elements * dtype.itemsize, buffer.recorded, _SAMPLE)
    if not buffer.before or most < dtype.itemsize:
        return None
    try:
        data = read_blob(folder, buffer.before, most)
    except OptimlError:
        return None
    return np.frombuffer(data, dtype.storage, len(data) // dtype.storage.itemsize)


def fill_of(found: np.ndarray, dtype: DType, sizes: Mapping[str, int], drafted: Fill) -> tuple[Fill, str]:
    """A fill like the recorded contents, and what was seen of them; the drafted one where they agree with it or say little."""
    if dtype.kind == "float":
        return _float_fill(dtype.to_float64(found), drafted)
    if dtype.kind != "int" or dtype.lanes > 1:
        return drafted, ""
    low, high = int(found.min()), int(found.max())
    if low == high:
        own = low == 0 or drafted.kind == "normal"  # which integers cannot have
        return (Fill("constant", str(low)) if own else drafted), f"recorded: all {low}"
    if low == 0 and high == found.size - 1 and np.array_equal(np.sort(found), np.arange(found.size)):
        return Fill("permutation"), "recorded: a permutation"
    bound = value_at(drafted.high, sizes) if drafted.kind == "integers" and drafted.high else None
    floor = value_at(drafted.low or "0", sizes)
    if bound is not None and floor is not None and floor <= low and high < bound <= 2 * high + 2:
        return drafted, f"recorded: {low} to {high}"
    # Random indices seldom reach the last one: of so many the largest falls short by about the size over their number.
    # A check's size may be smaller than a least value above zero.
    short = _SHORT / found.size if found.size >= _MANY else 0
    named = sorted((v, n) for n, v in sizes.items() if low <= 0 and high < v <= high + 1 + short * v)
    kind = "sorted" if bool((np.diff(found.astype(np.int64)) >= 0).all()) and found.size > 2 else "integers"
    fill = Fill(kind, str(low), named[0][1] if named else str(high + 1))  # type: ignore[arg-type]
    return fill, f"recorded: {low} to {high}"


def _float_fill(found: np.ndarray, drafted: Fill) -> tuple[Fill, str]:
    finite = found[np.isfinite(found)]
    if finite.size < max(1, found.size // 2):
        return drafted, "recorded: mostly not finite"
    low, high = float(finite.min()), float(finite.max())
    said = f"recorded: {low:.3g} to {high:.3g}"
    if low == high:
        return (Fill("constant", "0"), said) if low == 0 and drafted.kind == "constant" else (drafted, said)
    if low == 0 and high == 1 and np.isin(finite, (0, 1)).all():
        return Fill("integers", "0", "2"), "recorded: 0 and 1 alone"  # flags: of fractions a cast makes zeros
    if low >= 0:
        return Fill("uniform", _down(low), f"{high * 1.001:.3g}"), said
    mean, deviation = float(finite.mean()), float(finite.std())
    centre = "" if abs(mean) < _CENTRED * deviation else f"{mean:.3g}"
    if not centre and 0.5 <= deviation <= 2:
        return Fill(), said
    return Fill("normal", centre or "0", f"{deviation:.3g}"), said


def _down(low: float) -> str:
    return f"{low * 0.999:.3g}" if low > 0 else "0"


def may_hold_addresses(argument: Argument) -> bool:
    """Whether the elements are wide enough: pairs of 32-bit indices look like addresses now and then."""
    dtype = parse_dtype(argument.type)
    return dtype.kind == "bytes" or (dtype.kind == "int" and dtype.storage.itemsize == 8)
