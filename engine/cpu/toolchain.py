"""The host compiler, and what is built once with it: the precompiled header and the runtime's programs."""

import functools
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.compile.fallback_headers import FALLBACK
from engine.errors import CompileError, MachineError
from engine.settings.folders import read_regular

INCLUDE = Path(__file__).parent / "include"
_RUNTIME_NAME = "the CPU runtime"
_HEADER = "#include <optiml_cuda.h>\n"
RUNTIME = Path(__file__).parent / "runtime"
_BUILD_TIMEOUT_S = 240  # zig compiles a C library first
_SHARED_SOURCES = ("schedule", "job", "fiber")
_SCREEN_SOURCES = ("screen", "count")
_RACE_SOURCES = ("race",)


@dataclass(frozen=True)
class Toolchain:
    """A C++17 compiler: `argv` starts it. `version` is its own word."""

    kind: Literal["gcc", "clang", "zig"]
    argv: tuple[str, ...]
    version: str

    @property
    def folders(self) -> tuple[Path, ...]:
        """What the sandbox must show beside the system's folders."""
        return (Path(self.argv[0]).parent,) if self.kind == "zig" else ()

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        """Flags for kernels. Contraction to fused multiply-add is what a GPU's compiler does; fast-math is not.

        Signed numbers wrap, or an index of 32 bits that overflows would be computed in 64, and the overflow not show.
        """
        flags = ["-O1", "-g1", "-gdwarf-4", "-fPIC", "-fsanitize=thread", "-fwrapv", "-fno-exceptions"]
        flags += ["-fno-math-errno", "-ffp-contract=fast", "-fvisibility=hidden", "-w", *_machine_flags()]
        if self.kind == "gcc":
            # A float4 that is copied stays one access of 16 bytes.
            flags += ["-fno-tree-sra", "-fno-ipa-sra"]
            # nvcc takes a name that changes its meaning in a class; GCC does so only when told.
            flags.append("-fpermissive")
        return tuple(flags)

    @property
    def strict_flags(self) -> tuple[str, ...]:
        """Flags for kernels whose undefined behaviour must show: shifts by a type's width or more and indices outside an array
        of fixed length end the run, and variables start from a pattern instead of what a register held.
        """
        # An array at the end of a struct has the length that is written there.
        traps = "shift-exponent,bounds-strict" if self.kind == "gcc" else "shift-exponent,array-bounds"
        trap = "-fsanitize-undefined-trap-on-error" if self.kind == "gcc" else f"-fsanitize-trap={traps}"
        return (f"-fsanitize={traps}", trap, "-ftrivial-auto-var-init=pattern")


@dataclass(frozen=True)
class Prepared:
    """What `prepare` built. `race` is None where there is no ThreadSanitizer, and `race_missing` says why."""

    toolchain: Toolchain
    folder: Path
    header: Path  # to be given to -include; its precompiled form stands beside it
    screen: Path
    supervise: Path
    race: Path | None
    race_missing: str


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    words = set(text.split("flags", 1)[-1].split("\n", 1)[0].split())
    return tuple(flag for name, flag in (("fma", "-mfma"), ("f16c", "-mf16c")) if name in words)


def _version(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            [*argv, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def _path() -> str:
    """Where compilers are looked for, and where they look for their assembler and linker; a service's PATH may be bare."""
    # An empty entry would be the working directory, which may be a stranger's.
    given = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    return os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin", *given))


@functools.cache
def find_toolchain() -> Toolchain | None:
    """The compiler of this machine: g++, else clang++, else ziglang from the package index. None where there is none."""
    for kind, name in (("gcc", "g++"), ("clang", "clang++")):
        path = shutil.which(name, path=_path())
        version = _version([path]) if path and os.path.isabs(path) else ""
        if path and version:
            # On macOS g++ is clang by another name.
            return Toolchain("clang" if "clang" in version else kind, (path,), version)  # type: ignore[arg-type]
    spec = importlib.util.find_spec("ziglang")
    if spec and spec.origin:
        program = Path(spec.origin).parent / "zig"
        version = _version([str(program), "c++"])
        if version:
            return Toolchain("zig", (str(program), "c++"), version)
    return None


def _sources() -> list[Path]:
    # This file too: it says how the others are built.
    return [
        *sorted(p for folder in (INCLUDE, RUNTIME, FALLBACK) for p in folder.rglob("*") if p.is_file()),
        Path(__file__),
    ]


def run_compiler(
    argv: Sequence[str],
    what: str,
    do: str = "check the installation of this compiler, or report this",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Compile code of ours, which messages call `what`. Raises MachineError, and CompileError with the first error."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), "PATH": _path()}, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError("the C++ compiler could not be run", argv[0], str(error)[:300]) from None
    if done.returncode != 0:
        said = next((line.strip() for line in done.stderr.splitlines() if "error" in line), "no message")
        raise CompileError(f"{what} does not compile: {said[:300]}", argv[0], do, log=done.stderr[-4000:])


def build_once(folder: Path, build: Callable[[Path], None], whole: Callable[[Path], bool]) -> None:
    """Have `build` fill a folder of the cache, unless it is `whole`: beside it, to be moved there. Raises MachineError."""
    if whole(folder):
        return
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
    except OSError as error:
        raise _unwritable(cache, error) from None
    try:
        build(scratch)
        try:
            if folder.exists() and not whole(folder):
                damaged = cache / f"{scratch.name}.damaged"
                folder.rename(damaged)
                shutil.rmtree(damaged, ignore_errors=True)
            scratch.rename(folder)
        except OSError as error:  # another process was faster
            if not whole(folder):
                raise _unwritable(cache, error) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unwritable(cache: Path, error: OSError) -> MachineError:
    what = f"the cache folder cannot be written: {error.strerror}"
    return MachineError(what, str(cache), "set OPTIML_CACHE to another folder")


def zig_environment(folder: Path) -> dict[str, str]:
    """Where zig keeps what it compiles."""
    return {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}


def runtime_folder(toolchain: Toolchain, cache: Path, std: str) -> Path:
    """Where `prepare` keeps what it builds. It is complete when the file `done` stands in it, with a checksum of each other file."""
    digest = hashlib.sha256()
    for part in (*toolchain.argv, toolchain.version, *toolchain.kernel_flags, std, sys.platform, _HEADER):
        digest.update(part.encode() + b"\0")
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return cache / f"cpu-{digest.hexdigest()[:24]}"


def prepare(toolchain: Toolchain, cache: Path, std: str) -> Prepared:
    """Builds, or finds in `cache`, the header and the programs for a language standard ("c++17").

    The key is the compiler's version, the flags and every file of ours. Takes some seconds the first time. What was damaged
    since is built anew. Raises MachineError and CompileError.
    """
    folder = runtime_folder(toolchain, cache, std)

    def build(scratch: Path) -> None:
        _build(toolchain, scratch, std)
        _seal(scratch)
        scratch.chmod(0o755)  # in the sandbox another user reads it

    build_once(folder, build, _whole)
    if folder.stat().st_mode & 0o055 != 0o055:  # an earlier version kept it from the user of the sandbox
        folder.chmod(0o755)
    missing = folder / "race.missing"
    return Prepared(
        toolchain, folder, folder / "header" / "optiml_cuda.h", folder / "screen", folder / "supervise",
        None if missing.is_file() else folder / "race", missing.read_text() if missing.is_file() else "",
    )  # fmt: skip


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "done")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _seal(folder: Path) -> None:
    (folder / "done").write_text(json.dumps(_checksums(folder)))


def _whole(folder: Path) -> bool:
    try:
        return bool(json.loads(read_regular(folder / "done", 1 << 20) or b"") == _checksums(folder))
    except (OSError, ValueError):
        return False


def _build(toolchain: Toolchain, folder: Path, std: str) -> None:
    # Kept for the next build: zig compiles a C library and ThreadSanitizer first, which takes minutes.
    environment = zig_environment(folder.parent) if toolchain.kind == "zig" else {}
    header = folder / "header"
    header.mkdir()
    suffix = "gch" if toolchain.kind == "gcc" else "pch"
    # Found in -I: the cache is shared by installations, each with its own files.
    (header / "optiml_cuda.h").write_text(_HEADER)
    precompile = [*toolchain.argv, f"-std={std}", *toolchain.kernel_flags, "-I", str(INCLUDE), "-x", "c++-header"]
    # Clang's form names the header it was made of, and this folder is renamed when it is complete.
    origin = (header if toolchain.kind == "gcc" else INCLUDE) / "optiml_cuda.h"
    plain = [*toolchain.argv, "-std=c++17", "-O2", "-w"]
    races = toolchain.kind != "zig"
    # The runtime is not instrumented for races: only what is linked in is ThreadSanitizer.
    compiled = (*_SCREEN_SOURCES, *_SHARED_SOURCES, *(_RACE_SOURCES if races else ()))
    commands = [[*precompile, str(origin), "-o", str(header / f"optiml_cuda.h.{suffix}")]]
    commands += [[*plain, "-c", str(RUNTIME / f"{name}.cpp"), "-o", str(folder / f"{name}.o")] for name in compiled]
    commands.append([*plain, str(RUNTIME / "supervise.cpp"), "-o", str(folder / "supervise")])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        list(executor.map(lambda argv: run_compiler(argv, _RUNTIME_NAME, environment=environment), commands))
    _link([*toolchain.argv], _SCREEN_SOURCES, folder / "screen", environment)
    if not races:
        (folder / "race.missing").write_text(
            "ziglang's ThreadSanitizer does not support fibers; install g++ or clang++"
        )
        return
    try:
        _link([*toolchain.argv, "-fsanitize=thread"], _RACE_SOURCES, folder / "race", environment)
    except CompileError as error:
        (folder / "race.missing").write_text(f"{toolchain.argv[0]} has no ThreadSanitizer: {error.log.strip()[-300:]}")


def _link(argv: Sequence[str], own: Sequence[str], target: Path, environment: dict[str, str]) -> None:
    objects = [str(target.parent / f"{name}.o") for name in (*own, *_SHARED_SOURCES)]
    command = [*argv, *objects, "-rdynamic", "-o", str(target), "-ldl", "-lm"]
    run_compiler(command, _RUNTIME_NAME, environment=environment)
