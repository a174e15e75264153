"""Text to machine code through NVRTC, in this process.

Through NVRTC's own binding: cuda.core wraps it too, but importing that takes a process as long as compiling ten kernels, and a
search starts one process for every core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import nvrtc

from engine.errors import OptimlError

_PCH_HEAP_BYTES = 1 << 30  # NVRTC's default heap is too small for a precompiled CUB header


@dataclass
class Refused(OptimlError):
    """NVRTC compiled nothing. `log` holds what it said of the text."""

    log: str = ""


@dataclass(frozen=True)
class Compiled:
    """A cubin, the lowered names of the expressions in their order, and what the compiler and the assembler said."""

    code: bytes
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
        raise Refused(f"it holds what UTF-8 cannot say: {error.reason}") from None
    program = _get(nvrtc.nvrtcCreateProgram(source, called, 0, [], []))
    try:
        for expression in wanted:
            _get(nvrtc.nvrtcAddNameExpression(program, expression))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(plain), plain)
        log = bytearray(_get(nvrtc.nvrtcGetProgramLogSize(program)))
        _get(nvrtc.nvrtcGetProgramLog(program, log))
        said = log.rstrip(b"\0").decode("utf-8", "replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise Refused(f"NVRTC compiles nothing of it ({status.name})", log=said)
        code = bytearray(_get(nvrtc.nvrtcGetCUBINSize(program)))
        _get(nvrtc.nvrtcGetCUBIN(program, code))
        names = tuple(_get(nvrtc.nvrtcGetLoweredName(program, e)).decode() for e in wanted)
        return Compiled(bytes(code), names, said)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def allow_precompiled_headers() -> None:
    """Give this process's precompiled headers room. To be called before its first compile."""
    nvrtc.nvrtcSetPCHHeapSize(_PCH_HEAP_BYTES)


def _get(answer: tuple[Any, ...]) -> Any:
    """What a call of the binding gives beside its status. Raises Refused where that is no success."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise Refused(f"NVRTC: {status.name}")
    return values[0] if values else None
