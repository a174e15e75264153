"""Which device a run computes on. It loads little: a GPU's worker starts with it, beside the imports of all else."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pynvml

from engine.compile.toolkit import for_driver
from engine.errors import MachineError
from engine.gpu.process import gpu_process
from engine.process.sandbox import NoSandbox, Sandbox, sandbox
from engine.process.worker_process import Worker
from engine.settings.folders import cache_folder, private_folder

_CPU_ARCH = "sm_90"
WORKER_CACHE = "worker"  # folder of the cache
Device = Literal["auto", "gpu", "cpu"]


@dataclass(frozen=True)
class ChosenDevice:
    """The device of a run, the sandbox and the cache it works with; `process` is a GPU's worker that was started ahead."""

    mode: Literal["measured", "predicted"]
    arch: str
    index: int
    box: Sandbox | NoSandbox
    cache: Path
    process: Worker | None = None


def choose_device(
    *, device: Device = "auto", arch: str | None = None, unsafe: bool = False, ahead: bool = False
) -> ChosenDevice:
    """What `make_machine` works with; with `ahead` a GPU's worker starts at once. Raises MachineError as that does."""
    index, found = usable_gpu(device) or (0, None)
    if found is not None and arch is not None and arch.rstrip("a") != found:
        raise MachineError(
            f"this machine's GPU is {found}, so nothing can be measured for {arch}",
            do="omit --arch, or use --device cpu",
        )
    box = sandbox(unsafe)
    cache = private_folder(cache_folder())
    process = gpu_process(box, cache / WORKER_CACHE, index) if ahead and found is not None else None
    return ChosenDevice("measured" if found else "predicted", arch or found or _CPU_ARCH, index, box, cache, process)


def visible_gpu() -> tuple[int, str] | None:
    """NVML's index of the first GPU that CUDA_VISIBLE_DEVICES leaves, and its architecture ("sm_90"); None: none that answers.

    Raises MachineError where the variable names a part of a GPU (MIG), which cannot be timed alone.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if wanted.startswith("MIG-"):
        raise MachineError("a MIG instance shares its GPU's memory bandwidth, so nothing can be timed", wanted)
    try:
        pynvml.nvmlInit()
        if wanted.startswith("GPU-"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(wanted)
        elif wanted.isdecimal():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(wanted))
        else:
            return None
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(pynvml.nvmlDeviceGetIndex(handle)), f"sm_{major}{minor}"
    except pynvml.NVMLError:
        return None


def gpu_name(index: int) -> str:
    """A GPU by NVML's index, with its driver; "" where NVML does not answer."""
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return f"{pynvml.nvmlDeviceGetName(handle)}, driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError:
        return ""


def usable_gpu(device: str) -> tuple[int, str] | None:
    """The GPU that a run with this `device` ("auto", "gpu" or "cpu") measures on, as `visible_gpu`; None: it predicts.

    Raises MachineError where "gpu" is asked for and missing.
    """
    found = None if device == "cpu" else visible_gpu()
    if device == "gpu" and found is None:
        raise MachineError("no NVIDIA GPU answers here", do="use --device cpu to screen and predict without one")
    if found is None or _has_cupy():
        return found
    if device == "gpu":
        raise MachineError("CuPy is missing, so nothing can run on the GPU", do=f"pip install '{for_driver()}'")
    return None


def _has_cupy() -> bool:
    return importlib.util.find_spec("cupy") is not None
