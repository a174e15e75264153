"""The injection library: compiled once on this machine against CUPTI's headers, and kept."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.compile.cubin import package_folders
from engine.compile.toolkit import include_folders
from engine.cpu.toolchain import build_once, find_toolchain, run_compiler
from engine.errors import MachineError

_SOURCE = Path(__file__).parent / "injection" / "record.cpp"
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden")
_VERSION = re.compile(r"^#define CUPTI_API_VERSION (\d+)", re.MULTILINE)
_OLDEST = 130000  # the first API whose record of a kernel is the one that the library reads
_MISSING = "pip install 'optiml-cuda[capture]', or install CUDA's toolkit with CUPTI and set CUDA_HOME"


@dataclass(frozen=True)
class Cupti:
    """CUPTI on this machine: the folder of its header and its library, of the same major version."""

    include: Path
    library: Path
    version: int  # CUPTI_API_VERSION


def find_cupti() -> Cupti | None:
    """CUPTI of the packages, else of CUDA_HOME, CUDA_PATH or /usr/local/cuda; None where there is none that fits."""
    roots = [(i, tuple(i.parent / name for name in ("lib", "lib64"))) for i in package_folders("include")]
    named = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    for root in [Path(name) for name in named if os.path.isabs(name)]:
        for place in (root / "extras" / "CUPTI", root, *sorted(root.glob("targets/*-linux"))):
            roots.append((place / "include", (place / "lib64", place / "lib")))
    folders = [folder for _, libraries in roots for folder in libraries]
    for include, libraries in roots:
        try:
            found = _VERSION.search((include / "cupti_version.h").read_text(errors="replace"))
        except OSError:
            continue
        if not found or int(found[1]) < _OLDEST or not (include / "cupti.h").is_file():
            continue
        name = f"libcupti.so.{int(found[1]) // 10000}"
        # A toolkit may have its headers in one place and its library in another.
        for folder in (*libraries, *folders):
            if (folder / name).is_file():
                return Cupti(include, (folder / name).resolve().parent / name, int(found[1]))
    return None


def injection_library(cache: Path, cupti: Cupti) -> Path:
    """The compiled library, from `cache` where it is there already. Raises MachineError, CompileError."""
    toolchain = find_toolchain()
    if toolchain is None:
        raise MachineError("no C++ compiler was found", do="install g++ or clang++")
    key = hashlib.sha256(_SOURCE.read_bytes() + (_SOURCE.parent / "record_lines.h").read_bytes())
    for part in (*toolchain.argv, toolchain.version, *_FLAGS, str(cupti.version)):
        key.update(part.encode() + b"\0")
    target = cache / f"capture-{key.hexdigest()[:24]}" / "librecord.so"
    if target.is_file():
        return target
    cuda = cuda_include(cupti)
    if cuda is None:
        raise MachineError("cuda.h was not found", do="pip install nvidia-cuda-runtime==13.0.*, or set CUDA_HOME")
    include = (cupti.include, cuda)
    build_once(
        target.parent,
        lambda scratch: compile_library(_SOURCE, scratch / target.name, include),
        lambda folder: (folder / target.name).is_file(),
    )
    return target


def compile_library(source: Path, target: Path, include: tuple[Path, ...]) -> None:
    """Compile a shared library with the host's C++ compiler. Raises MachineError, CompileError."""
    toolchain = find_toolchain()
    if toolchain is None:
        raise MachineError("no C++ compiler was found", do="install g++ or clang++")
    argv = [*toolchain.argv, *_FLAGS, *(f"-I{folder}" for folder in include), str(source), "-o", str(target)]
    run_compiler(
        [*argv, "-ldl", "-lpthread"],
        "the capture library",
        "check that g++ and the CUPTI headers are complete; otherwise report this",
    )


# Some packages (PyTorch's among them) bring the one without what it includes.
_HEADERS = ("cuda.h", "crt/host_defines.h")


def cuda_include(cupti: Cupti | None = None) -> Path | None:
    """The folder of cuda.h that belongs to CUPTI's header, else any that is here."""
    beside = (
        []
        if cupti is None
        else [cupti.include, cupti.include.parents[1] / "include", cupti.include.parents[2] / "include"]
    )
    return next(
        (
            f
            for f in (*beside, *include_folders(), Path("/usr/local/cuda/include"))
            if all((f / name).is_file() for name in _HEADERS)
        ),
        None,
    )


def require_cupti() -> Cupti:
    """As `find_cupti`. Raises MachineError where there is none."""
    found = find_cupti()
    if found is None:
        raise MachineError("CUPTI 13 was not found (cupti.h and libcupti.so.13)", do=_MISSING)
    return found
