"""Text to machine code through NVRTC, in this process.

Through NVRTC's C interface, which is the same in CUDA 12 and 13: a Python binding is for one of them, and a search starts one
process for every core, which imports it.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.compile.toolkit import toolkit
from engine.errors import MachineError, OptimlError

_PCH_HEAP_BYTES = 1 << 30  # NVRTC's default heap is too small for a precompiled CUB header


@dataclass
class Refused(OptimlError):
    """NVRTC compiled nothing. `log` holds what it said of the text."""

    log: str = ""


@dataclass(frozen=True)
class Compiled:
    """A cubin, the PTX that it was assembled from, the expressions' lowered names in order, and what compiler and assembler said."""

    code: bytes
    ptx: str
    names: tuple[str, ...]
    log: str


def compile_text(text: str, name: str, expressions: Sequence[str], options: Sequence[str]) -> Compiled:
    """Compile `text`, which messages call `name`, with each of `expressions` instantiated. Raises Refused.

    `options` are NVRTC's, one a string: https://docs.nvidia.com/cuda/nvrtc/#supported-compile-options
    """
    try:
        source, called = text.encode(), name.encode()
        wanted, plain = [e.encode() for e in expressions], [o.encode() for o in options]
    except UnicodeEncodeError as error:
        raise Refused(f"it is not valid UTF-8: {error.reason}") from None
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _call("CreateProgram", ctypes.byref(program), source, called, 0, None, None)
    try:
        for expression in wanted:
            _call("AddNameExpression", program, expression)
        status = nvrtc.nvrtcCompileProgram(program, len(plain), (ctypes.c_char_p * len(plain))(*plain))
        said = _bytes("ProgramLog", program).rstrip(b"\0").decode("utf-8", "replace")
        if status != 0:
            raise Refused(f"NVRTC compiles none of it ({_name(status)})", log=said)
        code = _bytes("CUBIN", program)
        ptx = _bytes("PTX", program).rstrip(b"\0").decode("utf-8", "replace")
        names = []
        for expression in wanted:
            lowered = ctypes.c_char_p()
            _call("GetLoweredName", program, expression, ctypes.byref(lowered))
            names.append((lowered.value or b"").decode())
        return Compiled(code, ptx, tuple(names), said)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def allow_precompiled_headers() -> None:
    """Give this process's precompiled headers room. To be called before its first compile."""
    _nvrtc().nvrtcSetPCHHeapSize(ctypes.c_size_t(_PCH_HEAP_BYTES))


def nvrtc_version() -> tuple[int, int]:
    """NVRTC's own version. Raises MachineError where it is missing or does not load."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("Version", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


@lru_cache
def _nvrtc() -> ctypes.CDLL:
    path = toolkit().library
    try:
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))  # NVRTC looks for it by name, and not beside itself
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise MachineError(f"NVRTC cannot be loaded: {error}", str(path), "reinstall its package") from None
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: object) -> None:
    """Call a function of NVRTC. Raises Refused where it reports an error."""
    status = getattr(_nvrtc(), f"nvrtc{name}")(*arguments)
    if status != 0:
        raise Refused(f"NVRTC: {_name(status)}")


def _bytes(what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(f"Get{what}Size", program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    _call(f"Get{what}", program, data)
    return data.raw


def _name(status: int) -> str:
    return str(_nvrtc().nvrtcGetErrorString(status).decode("ascii", "replace"))
