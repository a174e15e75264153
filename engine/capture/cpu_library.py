"""The runtime that a program is linked with when its kernels run on the CPU: compiled once on this machine, and kept."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine.compile.cubin import package_folders
from engine.cpu.toolchain import INCLUDE, RUNTIME, Toolchain, build_once, find_toolchain, run_compiler
from engine.errors import MachineError

PROGRAM = Path(__file__).parent / "program"
_INJECTION = Path(__file__).parent / "injection"
# Thrust's algorithms on the host, without types of floats for which its headers want the real ones.
_THRUST = (
    "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP", "-DCCCL_DISABLE_FP16_SUPPORT", "-DCCCL_DISABLE_BF16_SUPPORT",
    "-DCCCL_DISABLE_NVFP8_SUPPORT",
)  # fmt: skip
_SLOTS, _SLOT_BITS = 514, 36  # allocations at once, and two: each has 64 GiB of addresses


@dataclass(frozen=True)
class CpuRuntime:
    """The host compiler, the flags that CUDA files are compiled with, and the objects that programs are linked with.

    `thrust` are flags for files that include Thrust: its libraries have names that ours for kernels have, too.
    """

    toolchain: Toolchain
    flags: tuple[str, ...]
    objects: tuple[Path, ...]
    thrust: tuple[str, ...] = ()


def cpu_runtime(cache: Path) -> CpuRuntime:
    """The runtime, from `cache` where it is there already. Raises MachineError, CompileError."""
    toolchain = find_toolchain()
    if toolchain is None or toolchain.kind == "zig":
        raise MachineError("no C++ compiler that can link programs was found", do="install g++ or clang++")
    real = next((f for f in package_folders("include") if (f / "cuda_runtime_api.h").is_file()), None)
    real = real or Path("/usr/local/cuda/include")
    if not (real / "cuda_runtime_api.h").is_file():
        raise MachineError("cuda_runtime_api.h was not found", do="pip install nvidia-cuda-runtime==13.0.*")
    names = [
        f'-DOPTIML_{name}="{real / header}"'
        for name, header in (("RUNTIME_API", "cuda_runtime_api.h"), ("LIBRARY_TYPES", "library_types.h"))
    ]
    folders = ["-isystem", str(PROGRAM), "-isystem", str(INCLUDE)]
    library = next((f for f in (real / "cccl", real) if (f / "thrust").is_dir()), None)
    thrust = ("-isystem", str(PROGRAM), "-isystem", str(library), *_THRUST) if library is not None else ()
    kept = [f for f in toolchain.kernel_flags if f not in ("-fno-exceptions", "-fvisibility=hidden")]
    flags = (*names, "-D__NVCC__=1", "-DOPTIML_PROGRAM=1", *folders, "-include", "cuda_runtime.h", *kept)
    sources = [
        PROGRAM / "runtime.cpp",
        PROGRAM / "blas.cpp",
        *(RUNTIME / f"{n}.cpp" for n in ("schedule", "fiber", "screen", "count")),
    ]
    key = hashlib.sha256()
    every = [p for folder in (PROGRAM, _INJECTION, INCLUDE, RUNTIME) for p in sorted(folder.rglob("*")) if p.is_file()]
    for path in every:
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    for part in (*toolchain.argv, toolchain.version, *flags, str(_SLOTS)):
        key.update(part.encode() + b"\0")
    folder = cache / f"program-{key.hexdigest()[:24]}"
    objects = tuple(folder / f"{source.stem}.o" for source in sources)
    build_once(folder, lambda scratch: _build(scratch, toolchain, (*names, *folders), sources), Path.is_dir)
    return CpuRuntime(toolchain, flags, objects, thrust)


def _build(folder: Path, toolchain: Toolchain, flags: tuple[str, ...], sources: list[Path]) -> None:
    def compile_one(source: Path) -> None:
        own = [*flags, "-I", str(_INJECTION), "-I", str(RUNTIME)] if source.parent == PROGRAM else []
        argv = [*toolchain.argv, "-std=c++17", "-O2", "-w", "-fPIC", f"-DOPTIML_SLOTS={_SLOTS}"]
        argv.append(f"-DOPTIML_SLOT_BITS={_SLOT_BITS}")
        argv += ["-DOPTIML_HOST_THREADS", *own, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]
        run_compiler(argv, "the CPU runtime", "report this")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, sources))
