"""`optiml doctor`: what this machine has, what each missing part costs, and how to get it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pynvml
from rich.text import Text

from engine.commands.json_answer import print_json
from engine.compile import cubin, toolkit
from engine.compile.program import nvrtc_version
from engine.cpu import toolchain
from engine.errors import OptimlError
from engine.process import sandbox
from engine.report.console import Console

_TOOL_S = 1.5  # a tool that does not give its version by then counts as broken


@dataclass(frozen=True)
class MachinePart:
    """One part of the machine. `detail` is its version, or why it cannot be used; `costs` what its absence costs."""

    name: str
    found: bool
    detail: str
    costs: str = ""
    get: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Print the parts. Exit code 0 when kernels can be screened on the CPU here, 1 when not even that."""
    parts = examine()
    ready = all(part.found for part in parts if part.name in _NEEDED)
    measured = ready and all(part.found for part in parts if part.name in _FOR_GPU)
    if arguments.format == "json":
        found = [asdict(part) for part in parts]
        print_json("optiml.doctor/1", version=1, screens=ready, measures=measured, parts=found)
        return 0 if ready else 1

    console = Console(soft_wrap=True)  # one line a part: lines are grepped and pasted into reports
    width = max(len(part.name) for part in parts) + 2
    for part in parts:
        mark = Text("ok  ", "green") if part.found else Text("--  ", "yellow")
        text = part.detail if part.found else f"{part.detail}: {part.costs}. {part.get}".strip()
        console.print(mark + Text(part.name.ljust(width)) + Text(text))
    if measured:
        verdict = "Kernels are verified and measured on the GPU here."
    elif ready:
        verdict = "Kernels are screened on the CPU here and their speed is predicted; measuring needs a GPU with CuPy."
    else:
        missing = ", ".join(part.name for part in parts if part.name in _NEEDED and not part.found)
        verdict = f"Nothing can be optimised here yet; missing: {missing}."
    console.print(Text(verdict))
    return 0 if ready else 1


_NEEDED = ("NVRTC", "bubblewrap", "C++ compiler")
_FOR_GPU = ("GPU", "CuPy")


def examine() -> tuple[MachinePart, ...]:
    """Look at every part, side by side (under two seconds). Never raises: a part that breaks is missing."""
    checks: tuple[tuple[str, Callable[[], MachinePart | tuple[MachinePart, ...]]], ...] = (
        ("GPU", _gpu), ("CuPy", _cupy), ("NVRTC", _nvrtc), ("nvcc", _nvcc), ("nvdisasm", _nvdisasm),
        ("bubblewrap", _bubblewrap), ("C++ compiler", _compiler), ("ncu", _ncu), ("counters", _counters),
        ("compute-sanitizer", _sanitizer), ("model endpoint", _endpoint),
    )  # fmt: skip

    def safely(name: str, check: Callable[[], MachinePart | tuple[MachinePart, ...]]) -> tuple[MachinePart, ...]:
        try:
            found = check()
        except Exception as error:  # a broken driver or package fails in its own ways, and this is where one looks
            return (MachinePart(name, False, f"{type(error).__name__}: {str(error)[:120]}"),)
        return found if isinstance(found, tuple) else (found,)

    with ThreadPoolExecutor(len(checks)) as pool:
        found = [pool.submit(safely, name, check) for name, check in checks]
        return tuple(part for future in found for part in future.result())


def _gpu() -> tuple[MachinePart, ...]:
    costs = "kernels are screened on the CPU and speed is predicted, not measured"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        nothing = MachinePart(
            "GPU", False, f"none ({error})", costs, "Run on a machine with an NVIDIA GPU and its driver"
        )
        return (
            nothing,
            MachinePart("driver", False, "none", "no GPU is usable", "Install NVIDIA's driver, 580 or newer"),
        )
    try:
        names = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            names.append(f"{pynvml.nvmlDeviceGetName(handle)} (sm_{major}{minor})")
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        driver = f"{pynvml.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    # A driver loads machine code of its own major version and of earlier ones.
    chosen, command = toolkit.toolkit().major, f"pip install '{toolkit.requirement(cuda // 1000)}'"
    return (
        MachinePart("GPU", bool(names), ", ".join(names) or "none", costs),
        MachinePart(
            "driver",
            cuda // 1000 >= chosen,
            driver,
            f"the generated machine code needs a driver for CUDA {chosen}",
            "Install driver 580 or newer" + (f", or: {command}" if cuda // 1000 == 12 else ""),
        ),
    )


def _cupy() -> MachinePart:
    if importlib.util.find_spec("cupy") is None:
        return MachinePart(
            "CuPy", False, "missing", "nothing can run on a GPU", f"pip install '{toolkit.for_driver()}'"
        )
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            return MachinePart("CuPy", True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return MachinePart("CuPy", True, "installed")


def _nvrtc() -> MachinePart:
    costs = "nothing can be compiled"
    try:
        major, minor = nvrtc_version()
    except OptimlError as problem:
        return MachinePart("NVRTC", False, problem.what[:120], costs, problem.do)
    if not toolkit.include_folders():
        return MachinePart(
            "NVRTC", False, f"{major}.{minor} without CUDA's headers", costs, "pip install nvidia-cuda-runtime"
        )
    return MachinePart("NVRTC", True, f"{major}.{minor}", costs)


def _nvcc() -> MachinePart:
    costs, get = "code that includes <cub/cub.cuh> or Thrust cannot be compiled", "pip install 'optiml-cuda[nvcc]'"
    return _tool("nvcc", cubin.find_tool("nvcc"), r"V(\d+[.\d]*)", costs, get)


def _nvdisasm() -> MachinePart:
    costs, get = "speed cannot be predicted", "pip install nvidia-cuda-nvdisasm"
    return _tool("nvdisasm", cubin.find_tool("nvdisasm"), r"V(\d+[.\d]*)", costs, get)


def _bubblewrap() -> MachinePart:
    works, why = sandbox.available()
    path = sandbox.find_bwrap()
    if works:
        return MachinePart("bubblewrap", True, f"works ({path})")
    costs = "untrusted code cannot run safely, so nothing is compiled or run"
    get = sandbox.how_to_get()
    return MachinePart("bubblewrap", False, why, costs, get[:1].upper() + get[1:])


def _compiler() -> tuple[MachinePart, ...]:
    costs = "kernels cannot be screened without a GPU"
    get = "Install g++ or clang++, or 'pip install optiml-cuda[zig]'"
    there = toolchain.find_toolchain()  # what screening uses, which looks beyond PATH
    if there is not None and there.kind != "zig":
        path = there.argv[0]
        compiler = MachinePart("C++ compiler", True, there.version, costs, get)
        # Both compilers name the library they would link; a bare name comes back when there is none.
        said = [
            _output([path, f"-print-file-name={lib}"]).strip() for lib in ("libtsan.so", "libtsan.a", "libtsan.so.2")
        ]
        if there.kind == "clang":
            said.append(_output([path, "-print-file-name=libclang_rt.tsan-x86_64.a"]).strip())
        tsan = next((line for line in said if line.startswith("/")), "")
        races = MachinePart(
            "ThreadSanitizer", bool(tsan), tsan or "missing", "data races are not detected without a GPU",
            "Install libtsan of your compiler's version (Debian, Ubuntu: libtsan2; Fedora: libtsan)",
        )  # fmt: skip
        return compiler, races
    races = MachinePart("ThreadSanitizer", False, "missing", "data races are not detected without a GPU", "Install g++")
    version = f"ziglang {there.version}" if there is not None else "missing"
    return MachinePart("C++ compiler", there is not None, version, costs, get), races


def _ncu() -> MachinePart:
    costs = "no profiler counters; the search uses only times"
    get = "Install Nsight Compute (package nsight-compute of NVIDIA's repository)"
    return _tool("ncu", cubin.find_tool("ncu"), r"Version (\d+[.\d]*)", costs, get)


def _counters() -> MachinePart:
    costs = "ncu may not read counters"
    get = "Load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"
    try:
        text = Path("/proc/driver/nvidia/params").read_text()
    except OSError:
        return MachinePart("counters", False, "no NVIDIA driver loaded", costs, "")
    match = re.search(r"^RmProfilingAdminOnly:\s*(\d)", text, re.MULTILINE)
    if match and match[1] == "0":
        return MachinePart("counters", True, "open to every user")
    if os.geteuid() == 0:
        # The sandbox takes root's rights away, and ncu runs inside of it.
        return MachinePart(
            "counters", False, "for administrators only, and sandboxed processes are not administrators", costs, get
        )
    return MachinePart("counters", False, "for administrators only (ERR_NVGPUCTRPERM)", costs, get)


def _sanitizer() -> MachinePart:
    costs = "memory errors on the GPU are detected only by guard zones"
    return _tool(
        "compute-sanitizer",
        cubin.find_tool("compute-sanitizer"),
        r"[Vv]ersion (\d+[.\d]*)",
        costs,
        "Install the CUDA toolkit",
    )


def _endpoint() -> MachinePart:
    base, key = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
    costs, get = (
        "edits come only from rules and the tuner",
        "Set OPENAI_API_KEY, and OPENAI_BASE_URL for your own server",
    )
    if not base and not key:
        return MachinePart("model endpoint", False, "not set", costs, get)
    try:
        parts = urlsplit(base or "https://api.openai.com/v1")
        host = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return MachinePart("model endpoint", False, "OPENAI_BASE_URL is not a valid address", costs, get)
    # The host alone: an address may carry a name and a password.
    said = f"{host}, {'a key is set' if key else 'no key is set'}"
    if importlib.util.find_spec("openai") is None:
        return MachinePart(
            "model endpoint",
            False,
            f"{said}, but the package 'openai' is missing",
            costs,
            "pip install 'optiml-cuda[llm]'",
        )
    return MachinePart("model endpoint", True, f"{said} (not tried)")


def _tool(name: str, path: Path | None, pattern: str, costs: str, get: str) -> MachinePart:
    if path is None:
        return MachinePart(name, False, "missing", costs, get)
    said = _output([str(path), "--version"])
    versions = re.findall(pattern, said)
    return MachinePart(name, bool(versions), versions[-1] if versions else f"{path} does not answer", costs, get)


def _output(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TOOL_S, stdin=subprocess.DEVNULL, cwd="/")
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
