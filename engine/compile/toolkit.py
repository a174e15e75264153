"""Which CUDA compiles here: that of the base installation, or CUDA 12 of the extra `cuda12` where the driver is for CUDA 12."""

import ctypes
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from engine.errors import MachineError, UsageError

SWITCH = "OPTIML_CUDA"  # of the environment: 12 or 13, whatever the driver is
# The folders below `nvidia` that hold the packages of a major version, and the packages that decide about machine code.
_FOLDERS = {13: ("cu13",), 12: ("cuda_nvrtc", "cuda_runtime", "cuda_cccl", "cuda_nvcc")}
_PACKAGES = {
    13: ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl"),
    12: ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cccl-cu12"),
}
_INSTALL = {13: "optiml-cuda", 12: "'optiml-cuda[cuda12]'"}


@dataclass(frozen=True)
class Toolkit:
    """NVRTC's library and CUDA's header folders, of one major version. `version` names the packages they are from."""

    major: int
    library: Path
    include: tuple[Path, ...]
    version: str


def toolkit() -> Toolkit:
    """The one to compile with: as OPTIML_CUDA says, else what the driver takes, else the newest that is installed.

    Raises MachineError where it is not installed, UsageError where OPTIML_CUDA names none.
    """
    wanted = os.environ.get(SWITCH, "")
    if wanted and wanted not in map(str, _FOLDERS):
        raise UsageError(f"invalid CUDA version '{wanted[:20]}'", SWITCH, "write 12 or 13")
    driver = 0 if wanted else driver_cuda() // 1000
    majors = (int(wanted),) if wanted else (12, 13) if driver == 12 else (13, 12)
    for major in majors:
        found = installed(major)
        if found is not None:
            return found
    raise MachineError(f"NVRTC of CUDA {majors[0]} is missing", do=f"pip install {_INSTALL[majors[0]]}")


def requirement(major: int) -> str:
    """What pip installs to compile for and run on a driver of this major version of CUDA."""
    return "optiml-cuda[cuda12]" if major == 12 else "optiml-cuda[gpu]"


def for_driver() -> str:
    """What pip installs for the driver here; for the newest where there is none."""
    return requirement(driver_cuda() // 1000)


@lru_cache
def installed(major: int) -> Toolkit | None:
    """The packages of a major version; None where they are not here."""
    folders = [folder for name in _FOLDERS[major] for folder in nvidia_folders(name)]
    library = next((f for folder in folders if (f := folder / "lib" / f"libnvrtc.so.{major}").is_file()), None)
    if library is None:
        return None
    include = tuple(p for f in folders for p in (f / "include", f / "include" / "cccl") if p.is_dir())
    found = []
    for name in _PACKAGES[major]:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Toolkit(major, library, include, ", ".join(found))


@lru_cache
def driver_cuda() -> int:
    """The CUDA version that the driver is for, as 12040; 0 where there is no driver. Starts no context."""
    version = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def include_folders() -> tuple[Path, ...]:
    """CUDA's header folders: of the packages, else of an installed toolkit. Empty when there are none."""
    try:
        found = toolkit().include
    except MachineError:
        found = ()
    if found:
        return found
    roots = (
        Path(root, "include") for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if os.path.isabs(root)
    )
    there = (root for root in roots if (root / "cuda_runtime.h").is_file())
    return tuple(path for root in there for path in (root, root / "cccl") if path.is_dir())


def nvidia_folders(pattern: str) -> tuple[Path, ...]:
    """Folders of the CUDA packages from the package index, below their common one."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return tuple(path for root in roots for path in sorted(Path(root).glob(pattern)) if path.is_dir())
