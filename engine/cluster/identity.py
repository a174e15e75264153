"""What a worker is: host, cores, versions, and its GPU with UUID, MIG, driver, clocks, temperature and foreign processes.

`describe()` runs on the worker and returns JSON text; `read_identity()` parses it on the client, which trusts none of it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pynvml

from engine.compile.toolkit import toolkit
from engine.errors import MachineError, OptimlError
from engine.process.ancestry import descends
from engine.process.decode import NotThis, decode, load

# Client and workers must have the same of these: what they send each other, and the compiler whose code is timed.
_PACKAGES = ("optiml-cuda", "distributed")
COMPILER = "CUDA"
_MOST_TEXT = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """The GPU that a worker times on. `mig` says that it is a slice of one; `foreign` are compute processes not its own."""

    name: str
    uuid: str
    arch: str
    mig: bool
    driver: str
    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    foreign: tuple[int, ...] = ()


@dataclass(frozen=True)
class Identity:
    """One worker. `gpu` is None where NVML finds none; `problem` says why there is none to time on. `boot` names a running machine."""

    host: str
    boot: str
    pid: int
    cpu: str
    cores: tuple[int, ...]
    versions: tuple[tuple[str, str], ...]
    gpu: Gpu | None = None
    problem: str = ""

    @property
    def model(self) -> tuple[str, ...]:
        """What must agree between workers whose measurements are compared: GPU model, MIG, driver; without a GPU nothing."""
        gpu = self.gpu
        return ("cpu",) if gpu is None else (gpu.name, "MIG" if gpu.mig else "", gpu.driver)

    @property
    def device(self) -> str:
        """The device in a few words."""
        gpu = self.gpu
        if gpu is None:
            return f"{self.cpu}, {len(self.cores)} cores"
        return f"{gpu.name}{' (MIG)' if gpu.mig else ''}, driver {gpu.driver}"


def describe() -> str:
    """This process's identity as JSON."""
    gpu, problem = _gpu()
    found = Identity(
        socket.gethostname(), _boot(), os.getpid(), _cpu_model(), tuple(sorted(os.sched_getaffinity(0))), versions(), gpu, problem
    )  # fmt: skip
    return json.dumps(dataclasses.asdict(found))


def read_identity(text: object, where: str) -> Identity:
    """The identity that a worker sent. Raises MachineError for anything else."""
    try:
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise NotThis("is not text within the size limit")
        return decode(Identity, load(text))
    except NotThis as error:
        raise MachineError(
            f"the worker's identity {error}", where, "start it with this version of optiml-cuda"
        ) from None


def versions() -> tuple[tuple[str, str], ...]:
    """The versions that client and workers must share, by package; "" for one that is not installed.

    `COMPILER` is what compiles there: NVRTC and headers of CUDA 12 or 13, by the driver or by OPTIML_CUDA.
    """
    found = [("python", ".".join(platform.python_version_tuple()[:2]))]
    for package in _PACKAGES:
        version = ""
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
        found.append((package, version))
    compiler = ""
    with suppress(OptimlError):
        compiler = toolkit().version
    return (*found, (COMPILER, compiler))


def visible_gpus() -> tuple[str, ...]:
    """UUIDs of the GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, in its order; none without NVML."""
    try:
        pynvml.nvmlInit()
        every = [_uuid(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return ()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(every)
    found = []
    for word in (word.strip() for word in wanted.split(",")):
        if word.isdecimal() and int(word) < len(every):
            found.append(every[int(word)])
        elif word.startswith(("GPU-", "MIG-")):
            found.append(word)
        else:
            break  # as CUDA does: what stands behind an invalid entry is invisible
    return tuple(found)


def _gpu() -> tuple[Gpu | None, str]:
    visible = visible_gpus()
    if not visible:
        return None, "NVML finds no GPU, or CUDA_VISIBLE_DEVICES hides it"
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(visible[0])
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        mig = visible[0].startswith("MIG-") or _in_mig_mode(handle)
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        clocks = [
            _reading(pynvml.nvmlDeviceGetClockInfo, handle, kind)
            for kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
        ]
        heat = _reading(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        foreign = tuple(sorted(int(p.pid) for p in running if not descends(int(p.pid), os.getpid())))
        name = str(pynvml.nvmlDeviceGetName(handle))
        return Gpu(name, visible[0], f"sm_{major}{minor}", mig, driver, clocks[0], clocks[1], heat, foreign), ""
    except pynvml.NVMLError as error:
        return None, f"GPU {visible[0]} does not answer: {error}"


def _reading(question: object, handle: object, kind: int) -> int:
    """One number that a slice of a GPU does not have: 0 there."""
    try:
        return int(question(handle, kind))  # type: ignore[operator]
    except pynvml.NVMLError:
        return 0


def _in_mig_mode(handle: object) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        return False


def _uuid(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
