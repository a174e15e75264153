"""A file built whole with nvcc, as its user builds it: host code preprocessed, host object, machine code of every kernel.

No address of a kernel is taken in device code: that alone changes the machine code (CUDA 13.0).
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from engine.compile.compiler import CompileTimeout, compile_error
from engine.compile.cubin import package_folders
from engine.compile.fallback_headers import library_folders
from engine.compile.nvcc import find_nvcc
from engine.compile.toolkit import include_folders
from engine.errors import CompileError, MachineError
from engine.process.sandbox import Limits, NoSandbox, Sandbox, SandboxAccess

_TIMEOUT_S = 20.0  # a file that takes longer includes a framework: the result says that it was not built. Ours
_MEMORY_BYTES = 12 << 30
_FILE_BYTES = 512 << 20
_OUTPUT_BYTES = 256 << 20  # of all that comes back
_PARTS = 5
_REGISTERED = re.compile(r"__cudaRegisterEntry\(\s*\w+\s*,\s*(\(\([^;]*?\))\s*,\s*(\w+)\s*,\s*\(-1\)\s*\)")
_INTEGER_CAST = re.compile(r"\((?:(?:un)?signed|int|short|long|char|size_t|\s)+\)(?=-?\d)")
# Each part with its size before it. A file of host code alone has no cubin.
_SCRIPT = (
    'd=$(mktemp -d) && mkdir "$d/tree" && cd "$d/tree" && tar -xf - && "$@" -keep -keep-dir "$d" -o "$d/out.o" 1>&2 || exit 1\n'
    'for p in "$d"/*.cpp4.ii "$d"/*.cubin "$d"/out.o "$d"/*.cudafe1.stub.c "$d"/*.ptx; do\n'
    '  if [ -f "$p" ]; then wc -c <"$p"; cat "$p"; else echo 0; fi\n'
    'done; rm -rf "$d"'
)


@dataclass(frozen=True)
class WholeOptions:
    """How files are built: defines ("NAME=VALUE"), C++ standard, include folders relative to the root, architecture.

    `device_only`: only the machine code is made, in a third of the time.
    """

    defines: tuple[str, ...]
    std: str
    include: tuple[str, ...]
    arch: str
    device_only: bool = False


@dataclass(frozen=True)
class WholeFile:
    """What nvcc makes of one file: its host half preprocessed (with line markers), its machine code, its host object.

    `stubs` is the code that registers the file's kernels with CUDA's runtime, `ptx` what ptxas made the machine code of.
    """

    host: str
    cubin: bytes
    object: bytes
    stubs: str = field(default="", repr=False)
    ptx: str = field(default="", repr=False)

    @cached_property
    def kernels(self) -> Mapping[str, str]:
        """The name expression of each kernel that host code refers to, by its entry: "ns::k<__half, 128>"."""
        return dict(_registered(self.stubs))


def build_whole(
    files: Mapping[str, bytes],
    unit: str,
    options: WholeOptions,
    sandbox: Sandbox | NoSandbox,
    instances: Sequence[str] = (),
) -> WholeFile:
    """Build the file `unit` of a tree of `files` (by relative path) in the sandbox.

    `instances` are expressions such as "k<float, 256>" whose machine code is wanted although nothing in the unit may use them.
    Raises CompileError with the first error, CompileTimeout, MachineError when there is no nvcc.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise MachineError("nvcc is not installed", unit, "pip install 'optiml-cuda[nvcc]'")
    tree = {**files, unit: files[unit] + _uses(instances)} if instances else files
    argv = [str(nvcc), "-cubin" if options.device_only else "-c", f"-arch={options.arch}", f"-std={options.std}"]
    argv += ["-Xcompiler", "-ffunction-sections,-fmerge-constants"]
    argv += [f"-D{define}" for define in options.defines]
    argv += ["-I."] + [f"-I{PurePosixPath(part)}" for part in options.include]
    if nvcc.parent in package_folders("bin"):
        argv += [f"-I{part}" for part in (*include_folders(), *library_folders())]
    command = sandbox.command(
        ["/bin/sh", "-c", _SCRIPT, "sh", *argv, f"./{unit}"],
        SandboxAccess(readable=[nvcc.resolve().parent]),
        Limits(memory_bytes=_MEMORY_BYTES, cpu_s=int(_TIMEOUT_S) * 2, file_bytes=_FILE_BYTES),
    )
    whole = _run(command, _packed(tree), unit)
    return WholeFile("", whole.object, b"", ptx=whole.ptx) if options.device_only else whole


def _packed(files: Mapping[str, bytes]) -> bytes:
    """The files as an archive, which is unpacked in the sandbox: there is no folder here that its user would have to read."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _run(command: Sequence[str], archive: bytes, unit: str) -> WholeFile:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            code = subprocess.run(command, input=archive, stdout=out, stderr=err, timeout=_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            raise CompileTimeout(f"nvcc did not finish within {_TIMEOUT_S:.0f} s", unit) from None
        except OSError as error:
            raise MachineError(f"nvcc could not be started ({error.strerror})", unit) from None
        if code:
            err.seek(0)
            raise compile_error(err.read(1 << 20).decode("utf-8", "replace"), unit)
        out.seek(0)
        host, cubin, made, stubs, ptx = _parts(out.read(_OUTPUT_BYTES + 1), unit)
        host_text, stub_text, ptx_text = (part.decode("utf-8", "replace") for part in (host, stubs, ptx))
        return WholeFile(host_text, cubin, made, stub_text, ptx_text)


def _parts(data: bytes, unit: str) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    for _ in range(_PARTS):
        line = data.find(b"\n", at)
        size = data[at:line].strip() if line >= 0 else b""
        if not size.isdigit() or line + 1 + int(size) > len(data):
            raise CompileError("nvcc's output is incomplete", unit)
        at = line + 1 + int(size)
        found.append(data[line + 1 : at])
    return found


def _registered(stubs: str) -> Iterator[tuple[str, str]]:
    """(entry, name expression) of `__cudaRegisterEntry(handle, ((void (*)(float *))k<float> ), _Z1kIfEvPf, (-1))`."""
    for match in _REGISTERED.finditer(stubs):
        inner, depth = match[1].strip().removeprefix("(").removesuffix(")"), 0
        for at, char in enumerate(inner):  # past the cast
            depth += (char == "(") - (char == ")")
            if depth == 0:
                yield match[2], plain_expression(inner[at + 1 :])
                break


def plain_expression(written: str) -> str:
    """A name expression as people write it, of one as nvcc does: `k<    ::__half, (int)128,  (bool)1>` is `k<__half, 128, true>`."""
    plain = re.sub(r"(?<![\w>:])\s*::(?=\s*\w)", "", written.replace("_NV_ANON_NAMESPACE::", ""))
    plain = re.sub(r"\(bool\)([01])", lambda m: "true" if m[1] == "1" else "false", plain)
    plain = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", _INTEGER_CAST.sub("", " ".join(plain.split())))
    return re.sub(r"\s*<\s*", "<", re.sub(r"\s*>", ">", re.sub(r"\s*,\s*", ", ", plain))).strip()


def _uses(instances: Sequence[str]) -> bytes:
    """Host code that instantiates kernel templates by taking their addresses."""
    lines = [
        f"static const void* optiml_instance_{i}() {{ return (const void*)&{e}; }}" for i, e in enumerate(instances)
    ]
    return ('\n#pragma GCC diagnostic ignored "-Wunused-function"\n' + "\n".join(lines) + "\n").encode()
