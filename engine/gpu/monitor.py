"""What NVML says of the GPU around a measurement: throttling, temperature, other processes."""

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

from engine.errors import MachineError
from engine.process.ancestry import began, descends

# Reasons that change what a kernel's time means; idle and the applications' own clock settings do not.
_THROTTLES = {
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "thermal slowdown (software)",
    0x0000000000000040: "thermal slowdown (hardware)",
    0x0000000000000080: "power brake",
}


_RECENT_S = 0.02  # NVML itself samples what processes use no faster than this


@dataclass(frozen=True)
class Snapshot:
    """One reading: clocks in MHz, temperature in °C, reasons that clocks are held down, other processes."""

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    throttles: tuple[str, ...]
    others: tuple[int, ...]  # process ids


class Monitor:
    """Reads one GPU."""

    def __init__(self, index: int = 0) -> None:
        # Only where there is a GPU.
        import pynvml

        self._nvml: Any = pynvml
        self._last: Snapshot | None = None
        self._read_at = 0.0
        self._own: dict[int, str] = {}  # processes that this one started, and when each began
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._seen = time.time_ns() // 1000  # NVML stamps its samples in µs of the wall clock
        except pynvml.NVMLError as error:
            raise MachineError(f"NVML does not answer: {error}", do="check the driver with nvidia-smi") from None

    def read(self) -> Snapshot:
        """A reading; costs about three milliseconds. Processes that this one started do not count as others.

        Raises MachineError when the GPU is lost.
        """
        self._last = self._read()
        self._read_at = time.monotonic()
        return self._last

    def recent(self) -> Snapshot:
        """The last reading if nothing can have changed since (20 ms), else a new one. Raises as `read`."""
        if self._last is not None and time.monotonic() - self._read_at < _RECENT_S:
            return self._last
        return self.read()

    def _read(self) -> Snapshot:
        nvml = self._nvml
        try:
            # A process that only holds a context disturbs nobody; one that computes does.
            others: list[int] = []
            self._seen = min(self._seen, time.time_ns() // 1000)  # the clock may have been set back
            with contextlib.suppress(nvml.NVMLError):
                for sample in nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen):
                    self._seen = max(self._seen, int(sample.timeStamp))
                    if sample.smUtil > 0 and not self._is_own(int(sample.pid)):
                        others.append(int(sample.pid))
            reasons = 0
            with contextlib.suppress(nvml.NVMLError):
                reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
            return Snapshot(
                nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
                nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
                nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
                tuple(name for bit, name in _THROTTLES.items() if reasons & bit),
                tuple(others),
            )
        except nvml.NVMLError as error:
            raise MachineError(f"the GPU does not answer: {error}", do="check it with nvidia-smi") from None

    def _is_own(self, pid: int) -> bool:
        """Whether this process started it. Asked of the same few in every reading, and the way up to this process is long."""
        start = began(pid)
        if start is None or self._own.get(pid) != start:
            if not descends(pid, os.getpid()):
                return False
            if start is not None:
                self._own[pid] = start
        return True

    def uuid(self) -> str:
        return str(self._nvml.nvmlDeviceGetUUID(self._handle))

    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())


def disturbance(before: Snapshot, after: Snapshot) -> str | None:
    """Why the time between two readings cannot be trusted, or None."""
    if after.throttles or before.throttles:
        return f"the GPU's clocks were throttled: {', '.join(sorted({*before.throttles, *after.throttles}))}"
    if after.others or before.others:
        return f"another process used the GPU (process {', '.join(map(str, sorted({*before.others, *after.others})))})"
    return None
