"""The original kernel with every float widened to double: the float64 reference that errors are held against.

Widening is textual, on the device slice: types, literals and math functions of single, half and bfloat16 precision become
those of double precision. What reinterprets bits, or packs halves, cannot be widened; then there is no float64 reference
and the tolerance says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|^[ \t]*\#[ \t]*(?:include|line|pragma|error)[^\n]*"
    r"|^[ \t]*\#[ \t]*(?:ifn?def|undef|define)[ \t]+\w+"
    r"|__u?int_as_float[ \t]*\([ \t]*(?P<bits>0[xX][0-9a-fA-F]{1,8})[uU]?[ \t]*\)"
    r"|(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fF](?![\w.]))"
    r"|(?P<other_number>0[xX][0-9a-fA-F.]+[pP]?[+-]?\w*|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?\w*)"
    r"|reinterpret_cast[ \t]*<(?P<cast>(?:[^<>;{}]|<[^<>;{}]*>)*)>"
    r"|(?P<name>[A-Za-z_]\w*)",
    re.S | re.M,
)

_INFINITY, _NAN = "__longlong_as_double(0x7ff0000000000000ll)", "__longlong_as_double(0x7ff8000000000000ll)"
_TYPES = {
    "float": "double", "half": "double", "__half": "double", "__nv_bfloat16": "double", "nv_bfloat16": "double",
    "float2": "double2", "float3": "double3", "float4": "double4",
    "make_float2": "make_double2", "make_float3": "make_double3", "make_float4": "make_double4",
    "cuComplex": "cuDoubleComplex", "cuFloatComplex": "cuDoubleComplex", "make_cuComplex": "make_cuDoubleComplex",
    "make_cuFloatComplex": "make_cuDoubleComplex",
    **{f"cu{name}f": f"cu{name}" for name in ("Creal", "Cimag", "Conj", "Cadd", "Csub", "Cmul", "Cdiv", "Cabs", "Cfma")},
}  # fmt: skip
# Constants keep their values, where a slice does not define them itself.
_CONSTANTS = {
    "FLT_MAX": "3.4028234663852886e38", "FLT_MIN": "1.1754943508222875e-38", "FLT_EPSILON": "1.1920928955078125e-07",
    "CUDART_INF_F": _INFINITY, "HUGE_VALF": _INFINITY, "INFINITY": _INFINITY, "NAN": _NAN, "CUDART_NAN_F": _NAN,
}  # fmt: skip

_F_SUFFIXED = [
    "acos",
    "asin",
    "atan",
    "atan2",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "hypot",
    "ldexp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "lrint",
    "lround",
    "modf",
    "nearbyint",
    "pow",
    "remainder",
    "rint",
    "round",
    "rsqrt",
    "scalbn",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
    "normcdf",
    "erfinv",
    "rcbrt",
]

_INTRINSICS = {
    "__expf": "exp", "__exp10f": "exp10", "__logf": "log", "__log2f": "log2", "__log10f": "log10", "__sinf": "sin",
    "__cosf": "cos", "__tanf": "tan", "__powf": "pow", "__fsqrt_rn": "sqrt", "__fmaf_rn": "fma", "__frsqrt_rn": "rsqrt",
    "__fdividef": "__optiml_div", "__fdiv_rn": "__optiml_div", "__frcp_rn": "__optiml_rcp", "__saturatef": "__optiml_sat",
    "__fadd_rn": "__optiml_add", "__fmul_rn": "__optiml_mul", "__fsub_rn": "__optiml_sub",
    "__half2float": "__optiml_same", "__float2half": "__optiml_same", "__float2half_rn": "__optiml_same",
    "__bfloat162float": "__optiml_same", "__float2bfloat16": "__optiml_same", "__float2bfloat16_rn": "__optiml_same",
    "__hadd": "__optiml_add", "__hmul": "__optiml_mul", "__hsub": "__optiml_sub", "__hdiv": "__optiml_div",
    "__hfma": "fma", "__hmax": "fmax", "__hmin": "fmin", "hexp": "exp", "hsqrt": "sqrt", "hlog": "log", "__habs": "fabs",
    "__float2int_rn": "__double2int_rn", "__float2int_rz": "__double2int_rz", "__float2int_rd": "__double2int_rd",
    "__float2int_ru": "__double2int_ru", "__int2float_rn": "__int2double_rn",
}  # fmt: skip

_PRELUDE = (
    "static __device__ __forceinline__ double __optiml_div(double a, double b) { return a / b; } "
    "static __device__ __forceinline__ double __optiml_rcp(double a) { return 1.0 / a; } "
    "static __device__ __forceinline__ double __optiml_sat(double a) { return fmin(fmax(a, 0.0), 1.0); } "
    "static __device__ __forceinline__ double __optiml_add(double a, double b) { return a + b; } "
    "static __device__ __forceinline__ double __optiml_sub(double a, double b) { return a - b; } "
    "static __device__ __forceinline__ double __optiml_mul(double a, double b) { return a * b; } "
    "static __device__ __forceinline__ double __optiml_same(double a) { return a; }\n"
)

_HOPELESS = re.compile(
    r"^(?:__float_as_(?:u?int)|__u?int_as_float|reinterpret_cast|union|asm|__asm__|half2|__half2|__nv_bfloat162|"
    r"memcpy|__half_as_\w+|__\w+_as_half|__nv_fp8\w*|wmma|nvcuda|tf32|__dp4a|short2|cub|cp_async|__pipeline_\w+)$"
)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
# As float vectors, elements may be loaded several at once. If the pointer's own elements are no floats, what comes out is far
# from the original's result, and a reference that is far from it is not used.
_VECTOR_CAST = re.compile(r"(?:\s|const\b|volatile\b)*float[234]?\b(?:\s|[*&]|const\b|__restrict__\b)*")
# What is assigned to, or declared with a type of whole numbers, is no type: `half` of a tree reduction.
_VARIABLE = re.compile(r"\bhalf(?=\s*(?:[-+*/]|<<|>>)?=(?!=))|(?<=\bint )half\b")
_FLOAT_WORD = re.compile(r"\b(?:float|cuComplex|cuFloatComplex|half|__half|__nv_bfloat16|nv_bfloat16)\b")


def widen(text: str, expressions: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """The slice and its kernel expressions in double precision; None where there is nothing to widen or no safe way to."""
    if not _FLOAT_WORD.search(text) and not any(_FLOAT_WORD.search(e) for e in expressions):
        return None
    hopeless = False
    defined = set(_DEFINED.findall(text))
    variables = set(_VARIABLE.findall(text))

    def replace(match: re.Match[str]) -> str:
        nonlocal hopeless
        if match["number"]:
            literal = match["number"][:-1]
            return literal if any(c in literal for c in ".eE") else literal + ".0"
        if match["bits"]:
            return _of_bits(int(match["bits"], 16))
        if match["cast"] is not None:
            hopeless = hopeless or _VECTOR_CAST.fullmatch(match["cast"]) is None
            return f"reinterpret_cast<{_TOKEN.sub(replace, match['cast'])}>"
        name = match["name"]
        if not name:
            return match[0]
        if name in _CONSTANTS and name not in defined:
            return _CONSTANTS[name]
        if _HOPELESS.match(name):
            hopeless = True
        if name in _TYPES and name not in variables:
            return _TYPES[name]
        if name in _INTRINSICS:
            return _INTRINSICS[name]
        if name.endswith("f") and name[:-1] in _FUNCTIONS:
            return name[:-1]
        return name

    widened = _TOKEN.sub(replace, text)
    if hopeless:
        return None
    return _PRELUDE + "#line 1\n" + widened, tuple(_TOKEN.sub(replace, e) for e in expressions)


_FUNCTIONS = frozenset(_F_SUFFIXED)


def _of_bits(bits: int) -> str:
    """The double of the value that these bits are as a float."""
    (value,) = struct.unpack("<f", bits.to_bytes(4, "little"))
    if math.isnan(value):
        return _NAN
    return ("-" if value < 0 else "") + _INFINITY if math.isinf(value) else repr(value)


def widened_spec(spec: KernelSpec) -> KernelSpec | None:
    """The spec with every float type a double; None where a vector of halves has no such twin, or a struct's fields would move."""
    if spec.has_fields:
        return None
    arguments = []
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if dtype.kind != "float":
            arguments.append(argument)
        elif dtype.lanes == 1:
            arguments.append(dataclasses.replace(argument, type="double"))
        elif dtype.is_struct:
            arguments.append(dataclasses.replace(argument, type=f"double[{dtype.lanes}]"))
        elif dtype.itemsize // dtype.lanes == 4:
            arguments.append(dataclasses.replace(argument, type=f"double{dtype.lanes}"))
        else:
            return None
    return dataclasses.replace(spec, arguments=tuple(arguments))


def wide_buffers(spec: KernelSpec, buffers: Arrays) -> Arrays:
    """A case's buffers on the host, with every float as a double."""
    widened = {}
    for name, array in buffers.items():
        dtype = parse_dtype(spec.argument(name).type)
        widened[name] = dtype.to_float64(array) if dtype.kind == "float" else array
    return widened


def wide_scalars(spec: KernelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """A case's scalars, with every float as a double."""
    widened = {}
    for name, value in values.items():
        dtype = parse_dtype(spec.argument(name).type)
        is_float = dtype.kind == "float" and dtype.lanes == 1
        widened[name] = np.float64(dtype.to_float64(np.asarray(value).reshape(1))[0]) if is_float else value
    return widened
