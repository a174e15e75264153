"""nvcc, for code that NVRTC refuses: `<cub/cub.cuh>`, Thrust, headers with host functions."""

import contextlib
import re
import subprocess
from pathlib import Path

from engine.compile.compiler import CompileTimeout, Translation, compile_error
from engine.compile.cubin import Cubin, find_tool, package_folders
from engine.compile.fallback_headers import library_folders
from engine.compile.toolkit import driver_cuda, include_folders
from engine.errors import CompileError, MachineError
from engine.process.bounded_output import BoundedOutput
from engine.process.sandbox import Limits, NoSandbox, Sandbox, SandboxAccess

_MARK = "optiml_entry_"
_MEMORY_BYTES = 12 << 30  # cicc takes 2 GB for the largest CUB headers
_FILE_BYTES = 512 << 20
_CUBIN_BYTES = 256 << 20
# What NVRTC says of code that is meant for a compiler with a host side, and that nvcc may take.
_TOO_HARD = re.compile(
    r"JIT mode|cannot open source file \"(?:c[a-z]+|[a-z_]+)\"|not supported (?:by|with|in) NVRTC|__CUDACC_RTC__"
)

# Headers that NVRTC is known to refuse after seconds of reading.
_HOST_HEADERS = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:cub/cub\.cuh|cub/device/[\w/]+\.cuh|thrust/[\w/]+\.h)>", re.MULTILINE
)


def needs_nvcc(text: str) -> bool:
    """Whether the text includes a header that only nvcc takes."""
    return bool(_HOST_HEADERS.search(text))


def too_hard_for_nvrtc(log: str) -> bool:
    """Whether NVRTC refused the text for what it is, not for an error in it."""
    return bool(_TOO_HARD.search(log))


def find_nvcc() -> Path | None:
    """nvcc of the extra `optiml-cuda[nvcc]` or of an installed toolkit, or None.

    Beside NVRTC of CUDA 12 only that of a toolkit of CUDA 12 counts: the driver loads no machine code of a later one.
    """
    found = find_tool("nvcc")
    if found is None or driver_cuda() // 1000 != 12:
        return found
    header = found.resolve().parent.parent / "include" / "cuda.h"
    with contextlib.suppress(OSError):
        if re.search(r"^#define CUDA_VERSION 12\d{3}$", header.read_text(errors="replace"), re.MULTILINE):
            return found
    return None


def with_markers(translation: Translation) -> str:
    """The text with a device variable per expression that holds the kernel's address.

    It instantiates the template, and its relocation tells the entry's symbol: nvcc has no name expressions.
    """
    name = re.sub(r"[\"\\\n\r]", "_", translation.path)
    lines = [f'#line 1 "{name}"', translation.text, '#line 1 "kernel expressions"']
    addresses = [e if e.startswith("&") else f"&{e}" for e in translation.expressions]
    lines += [f"__device__ decltype({a}) {_MARK}{i} = {a};" for i, a in enumerate(addresses)]
    return "\n".join(lines) + "\n"


def compile_nvcc(
    translation: Translation, arch: str, *, sandbox: Sandbox | NoSandbox, timeout_s: float = 120.0
) -> tuple[bytes, tuple[str, ...], str]:
    """(cubin, one entry symbol per expression, log) from nvcc in the sandbox; nothing is written outside of it.

    Raises CompileError; CompileTimeout after `timeout_s`; MachineError when there is no nvcc.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise MachineError(
            "this code needs nvcc, which is not installed", translation.path, "pip install 'optiml-cuda[nvcc]'"
        )
    argv = [str(nvcc), "-cubin", f"-arch={arch}", f"-std={translation.std}", "-Xptxas", "-v"]
    argv += ["-lineinfo"] if translation.line_info else []
    argv += [f"-D{define}" for define in translation.defines]
    argv += [f"-I{folder}" for folder in translation.include]
    if nvcc.parent in package_folders("bin"):
        argv += [f"-I{folder}" for folder in (*include_folders(), *library_folders())]
    script = (
        'd=$(mktemp -d) && cat >"$d/in.cu" && cd "$d" && "$@" -o "$d/out.cubin" "$d/in.cu" 1>&2 && cat "$d/out.cubin"\n'
        's=$?; rm -rf "$d"; exit $s'
    )
    command = sandbox.command(
        ["/bin/sh", "-c", script, "sh", *argv],
        SandboxAccess(readable=[nvcc.resolve().parent, *translation.include]),
        Limits(memory_bytes=_MEMORY_BYTES, cpu_s=int(timeout_s), file_bytes=_FILE_BYTES),
    )
    with BoundedOutput(_CUBIN_BYTES) as out, BoundedOutput(1 << 20) as err:
        try:
            source = with_markers(translation).encode()
            code = subprocess.run(
                command, input=source, stdout=out.fileno(), stderr=err.fileno(), timeout=timeout_s
            ).returncode
        except subprocess.TimeoutExpired:
            raise CompileTimeout(f"nvcc did not finish within {timeout_s:.0f} s", translation.path) from None
        except OSError as error:
            raise MachineError(f"nvcc could not be started ({error.strerror})", str(nvcc)) from None
        log = err.head(1 << 20).decode("utf-8", "replace")
        if code:
            raise compile_error(log, translation.path)
        cubin = out.head(_CUBIN_BYTES)
    entries = Cubin(cubin).pointed_at(_MARK)
    if len(entries) != len(translation.expressions):
        raise CompileError("nvcc's output does not identify the kernels' entries", translation.path, log=log)
    return cubin, entries, log
