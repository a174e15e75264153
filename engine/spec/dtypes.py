"""Types of buffer elements and scalar arguments: their C spellings, storage and precision."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from engine.errors import SpecError

Kind = Literal["float", "int", "bool", "bytes"]
Array = Any  # numpy.ndarray or cupy.ndarray: both carry the methods used here

_MAX_STRUCT = 4096  # CUDA passes at most 4 KiB of arguments by value before 12.1; no element needs to be larger


@dataclass(frozen=True)
class _Eight:
    """A float of eight bits: a sign, an exponent with a bias, `fraction` bits. `last` are the bits of its largest number, `infinity` 0
    where it has none (OCP 8-bit Floating Point Specification 1.0)."""

    fraction: int
    bias: int
    last: int
    infinity: int

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(self.values(np.array([self.last], np.uint8))[0])

    def values(self, array: Array) -> Array:
        """float64 values of bits."""
        bits = array.astype("int64")
        magnitude = bits & 0x7F
        exponent = magnitude >> self.fraction
        count = (magnitude & ((1 << self.fraction) - 1)) + ((exponent > 0).astype("int64") << self.fraction)
        found = count * 2.0 ** (exponent.clip(1, None) - self.bias - self.fraction).astype("float64")
        found[magnitude > self.last] = np.nan
        if self.infinity:
            found[magnitude == self.infinity] = np.inf
        return found * (1.0 - 2.0 * (bits >> 7))

    def bits(self, array: Array) -> Array:
        """Bits of float64 values, rounded to nearest even; what is too large becomes the largest number."""
        wide = array.astype("float64")
        nan, sign = wide != wide, (wide.view("int64") < 0).astype("int64") << 7
        size = abs(wide).clip(0.0, 2 * self.largest)
        size[nan] = 0.0
        exponent = ((size.view("int64") >> 52) - 1023).clip(1 - self.bias, None)
        count = (size * 2.0 ** (self.fraction - exponent).astype("float64")).round().astype("int64")
        found = (((exponent - 1 + self.bias) << self.fraction) + count).clip(0, self.last) | sign
        found[nan] = 0x7F
        return found.astype("uint8")


@dataclass(frozen=True)
class DType:
    """The type of one element.

    A flat array of n elements has n * `lanes` entries of `storage`. `kind` tells how the bits are read; `coded` floats lie in
    whole numbers, as numpy has none of them, and bool in uint8, because not every byte is a bool. `epsilon` is the distance
    from 1 to the next larger number (0 for types without fractions).
    """

    name: str
    kind: Kind
    storage: np.dtype[Any]
    lanes: int = 1
    epsilon: float = 0.0
    bfloat: bool = False
    eight: _Eight | None = None  # of floats of eight bits

    @property
    def coded(self) -> bool:
        """Whether `storage` holds the bits of floats."""
        return self.bfloat or self.eight is not None

    @property
    def itemsize(self) -> int:
        """Bytes of one element, all lanes."""
        return self.storage.itemsize * self.lanes

    @property
    def lane(self) -> str:
        """The name of the type of one lane; "" of opaque bytes."""
        same = self.kind, self.storage, self.bfloat, self.eight
        return next((n for n, t in _SCALARS.items() if (t.kind, t.storage, t.bfloat, t.eight) == same), "")

    @property
    def is_struct(self) -> bool:
        """Whether it stands for a struct, whose name a spec cannot read: of opaque bytes, or of numbers of one type."""
        return self.kind == "bytes" or self.name.endswith("]")

    @property
    def limits(self) -> tuple[float, float] | tuple[int, int]:
        """Smallest and largest finite value of a lane."""
        if self.bfloat:
            return -_BF16_MAX, _BF16_MAX
        if self.eight is not None:
            return -self.eight.largest, self.eight.largest
        if self.kind == "float":
            info = np.finfo(self.storage)
            return float(info.min), float(info.max)
        if self.kind == "bool":
            return 0, 1
        integers = np.iinfo(self.storage)
        return int(integers.min), int(integers.max)

    @property
    def tiny(self) -> float:
        """The smallest normal number above zero; 0 for types without fractions."""
        if self.kind != "float":
            return 0.0
        if self.eight is not None:
            return 2.0 ** (1 - self.eight.bias)
        return float(np.finfo(np.float32 if self.bfloat else self.storage).tiny)

    def to_float64(self, array: Array) -> Array:
        """The values of a storage array as float64, same shape. Exact but for integers beyond 2**53."""
        if self.bfloat:
            return (array.astype("uint32") << 16).view("float32").astype("float64")
        if self.eight is not None:
            return self.eight.values(array)
        return array.astype("float64")

    def from_float64(self, array: Array) -> Array:
        """float64 values as a storage array, same shape.

        Floats round to nearest, ties to even (bfloat16 once, not by way of a rounded float32); those of eight bits saturate.
        Integers truncate and must be in range.
        """
        if self.bfloat:
            return _to_bfloat16(array)
        if self.eight is not None:
            return self.eight.bits(array)
        return array.astype(self.storage)


_BF16_MAX = float(np.array([0x7F7F0000], dtype=np.uint32).view(np.float32)[0])


def _to_bfloat16(array: Array) -> Array:
    wide = array.astype("float64")
    nan = wide != wide
    # float64 -> float32 "to odd" keeps the sticky bit, so the second rounding sees ties as they are.
    with np.errstate(over="ignore"):
        narrow = wide.astype("float32")
    back = narrow.astype("float64")
    bits = narrow.view("uint32")
    bits = bits - (abs(back) > abs(wide)).astype("uint32")
    bits = bits | ((back != wide) & ~nan).astype("uint32")
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("uint16")
    rounded[nan] = 0x7FC0
    return rounded


def _scalars() -> dict[str, DType]:
    types = [
        DType("float", "float", np.dtype(np.float32), epsilon=2.0**-23),
        DType("double", "float", np.dtype(np.float64), epsilon=2.0**-52),
        DType("half", "float", np.dtype(np.float16), epsilon=2.0**-10),
        DType("bfloat16", "float", np.dtype(np.uint16), epsilon=2.0**-7, bfloat=True),
        DType("fp8_e4m3", "float", np.dtype(np.uint8), epsilon=2.0**-3, eight=_Eight(3, 7, 0x7E, 0)),
        DType("fp8_e5m2", "float", np.dtype(np.uint8), epsilon=2.0**-2, eight=_Eight(2, 15, 0x7B, 0x7C)),
        DType("bool", "bool", np.dtype(np.uint8)),
    ]
    for bits in (8, 16, 32, 64):
        types.append(DType(f"int{bits}", "int", np.dtype(f"int{bits}")))
        types.append(DType(f"uint{bits}", "int", np.dtype(f"uint{bits}")))
    return {t.name: t for t in types}


_SCALARS = _scalars()

_SPELLINGS: dict[str, str] = {
    "float32": "float", "float64": "double", "float16": "half", "__half": "half", "nv_half": "half", "fp16": "half", "half_t": "half",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "__nv_bfloat16_raw": "bfloat16", "bf16": "bfloat16",
    "__half_raw": "half", "float_t": "float", "double_t": "double",
    "size_t": "uint64", "ssize_t": "int64", "ptrdiff_t": "int64", "intptr_t": "int64", "uintptr_t": "uint64",
    "uchar": "uint8", "ushort": "uint16", "uint": "uint32", "ulong": "uint64", "ulonglong": "uint64",
    "longlong": "int64", "schar": "int8", "byte": "uint8", "clock_t": "int64",
    "at::Half": "half", "c10::Half": "half", "at::BFloat16": "bfloat16", "c10::BFloat16": "bfloat16",
    "__nv_fp8_e4m3": "fp8_e4m3", "__nv_fp8_e5m2": "fp8_e5m2", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "cutlass::float_e4m3_t": "fp8_e4m3", "cutlass::float_e5m2_t": "fp8_e5m2",
    **{f"{u}int{b}_t": f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip

# Vector types: prefix -> lane type. `long` has 64 bits on every system OptiML runs on.
_VECTORS: dict[str, str] = {
    "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32",
    "long": "int64", "ulong": "uint64", "longlong": "int64", "ulonglong": "uint64", "float": "float",
    "double": "double",
}  # fmt: skip
_VECTOR_SPELLINGS: dict[str, str] = {
    "__half2": "half2", "nv_half2": "half2", "__nv_bfloat162": "bfloat162", "nv_bfloat162": "bfloat162", "bf162": "bfloat162",
    "cuComplex": "float2", "cuFloatComplex": "float2", "cuDoubleComplex": "double2", "dim3": "uint3",
    "double4_16a": "double4", "double4_32a": "double4",
    **{f"__nv_fp8x{n}_e{e}": f"fp8x{n}_e{e}" for n in (2, 4) for e in ("4m3", "5m2")},
}  # fmt: skip


def _vectors() -> dict[str, DType]:
    found: dict[str, DType] = {}
    for prefix, lane in _VECTORS.items():
        base = _SCALARS[lane]
        for lanes in (1, 2, 3, 4):
            name = f"{prefix}{lanes}"
            found[name] = DType(name, base.kind, base.storage, lanes, base.epsilon)
    small = [("half2", "half", 2), ("bfloat162", "bfloat16", 2)]
    small += [(f"fp8x{n}_{form}", f"fp8_{form}", n) for n in (2, 4) for form in ("e4m3", "e5m2")]
    for name, lane, lanes in small:
        found[name] = replace(_SCALARS[lane], name=name, lanes=lanes)
    return found


_VECTOR_TYPES = _vectors()
_INTEGER_WORDS = frozenset({"unsigned", "signed", "char", "short", "int", "long"})
_QUALIFIERS = frozenset({"const", "volatile", "struct", "enum", "typename", "__restrict__", "__restrict", "restrict"})


def _integer(words: list[str]) -> str | None:
    """The name of a C integer type written as words in any order, or None."""
    rest = sorted(w for w in words if w not in ("unsigned", "signed"))
    if words.count("unsigned") + words.count("signed") > 1:
        return None
    bits = {
        ("char",): 8, ("short",): 16, ("int", "short"): 16, (): 32, ("int",): 32,
        ("long",): 64, ("int", "long"): 64, ("long", "long"): 64, ("int", "long", "long"): 64,
    }.get(tuple(rest))  # fmt: skip
    if bits is None:
        return None
    return f"uint{bits}" if "unsigned" in words else f"int{bits}"


def type_names() -> tuple[str, ...]:
    """Every name `parse_dtype` knows, but for combinations of C's integer words and `struct:N`."""
    return tuple(sorted({*_SCALARS, *_SPELLINGS, *_VECTOR_TYPES, *_VECTOR_SPELLINGS, "unsigned int", "long long"}))


def _several(one: DType, count: int) -> DType:
    if one.lanes > 1 or one.kind == "bytes":
        raise SpecError(f"{count} of {one.name} as one type", do="write the type of a number, such as float[8]")
    if not 1 <= count * one.itemsize <= _MAX_STRUCT:
        raise SpecError(f"a struct of {count * one.itemsize} bytes", do=f"the size must be between 1 and {_MAX_STRUCT}")
    return replace(one, name=f"{one.name}[{count}]", lanes=count)


@lru_cache(maxsize=512)
def parse_dtype(text: str) -> DType:
    """The type that `text` names, in C's or CUDA's spelling; `struct:N` stands for N opaque bytes, `float[N]` for a struct of N floats.

    Raises SpecError, with the nearest known name, for anything else, pointers included.
    """
    match = re.fullmatch(r"\s*struct\s*:\s*([0-9]{1,9})\s*", text)
    if match:
        size = int(match[1])
        if not 1 <= size <= _MAX_STRUCT:
            raise SpecError(f"a struct of {size} bytes", do=f"the size must be between 1 and {_MAX_STRUCT}")
        return DType(f"struct:{size}", "bytes", np.dtype(np.uint8), size)
    if match := re.fullmatch(r"([^\[\]]+)\[\s*([0-9]{1,9})\s*\]\s*", text):
        return _several(parse_dtype(match[1]), int(match[2]))
    words = [w for w in text.split() if w not in _QUALIFIERS]
    name = " ".join(words)
    for prefix in ("::", "cuda::", "std::"):
        name = name.removeprefix(prefix)
    if words and _INTEGER_WORDS.issuperset(words):
        name = _integer(words) or name
    name = _SPELLINGS.get(name, _VECTOR_SPELLINGS.get(name, name))
    found = _SCALARS.get(name) or _VECTOR_TYPES.get(name)
    if found:
        return found
    shown = text.strip()[:60]
    near = difflib.get_close_matches(name[:60], type_names(), n=1, cutoff=0.5)
    hint = f"the nearest known type is '{near[0]}'" if near else "use a type such as float, int32, half or float4"
    raise SpecError(f"unknown type '{shown}'", do=f"{hint}; write struct:N for N opaque bytes")
