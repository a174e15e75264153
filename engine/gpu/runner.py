"""The parent's side of the GPU worker: starts it, talks to it, replaces it when a candidate took it down."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.compile.built import Built
from engine.errors import MachineError
from engine.gpu.monitor import Monitor
from engine.gpu.process import gpu_process
from engine.model import Binary, LaunchConfig
from engine.process.sandbox import NoSandbox, Sandbox
from engine.process.worker_process import Worker, WorkerLost
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import ALL, Defences
from engine.verify.plan import Check

_START_S = 60.0  # CUDA's context and CuPy's import, on a busy machine
_VALIDATE_S = 120.0
_WATCHER_S = 20.0


@dataclass
class DeviceFault(MachineError):
    """A request failed on the device. `kind`: "launch" (refused), "device" (fault that broke the context), "out_of_memory",
    "timeout", "died"."""

    kind: str = "device"


@dataclass(frozen=True)
class Wide:
    """The widened original."""

    binary: Binary
    launches: tuple[tuple[LaunchConfig, ...], ...]


def wide_launches(launches: Sequence[Sequence[LaunchConfig]]) -> tuple[tuple[LaunchConfig, ...], ...]:
    """The launches of the widened original: dynamic shared memory that held floats, or halves, must hold doubles."""
    return tuple(
        tuple(LaunchConfig(s.grid, s.block, min(s.shared_bytes * 4, 200 << 10)) for s in case) for case in launches
    )


@dataclass(frozen=True)
class Timing:
    """Time the programs in turn on these cases; the last one is given up below the speedup `bar` over the first."""

    programs: tuple[str, ...]
    cases: tuple[int, ...]
    effort: str
    seed: int
    bar: float

    def request(self) -> dict[str, Any]:
        return {"op": "time", **vars(self)}


@dataclass(frozen=True)
class WorkerStart:
    """On which GPU a worker starts, and under which tool (its argv). `process` is the first worker, where one was started before
    (`gpu_process`)."""

    device: int = 0
    watcher: Sequence[str] = ()
    process: Worker | None = None


_FIRST_GPU = WorkerStart()


class GpuRunner:
    """One worker on one GPU, for one spec at a time. Not thread-safe. `scratch` holds the worker's own compile cache.

    With a watcher it is there for `run` alone.
    """

    def __init__(
        self, box: Sandbox | NoSandbox, tools: bytes, scratch: Path, start: WorkerStart = _FIRST_GPU, defences: Defences = ALL
    ) -> None:  # fmt: skip
        self._defences = defences
        self._ahead = start.process
        self._box, self._tools, self._scratch, self._index = box, tools, scratch, start.device
        self._watcher = tuple(start.watcher)
        self._worker: Worker | None = None
        self._greeting: threading.Thread | None = (
            None  # sends the first request of a worker that has not answered it yet
        )
        self._session: tuple[dict[str, Any], list[bytes]] | None = None
        self._kept: dict[str, tuple[object, ...]] = {}
        self._sent: Timing | None = None  # what the worker was asked for beside the checks before it
        self.monitor = Monitor(start.device)
        self.device: Mapping[str, Any] = {}

    def start_ahead(self) -> None:
        """Start the worker if none runs, without waiting for it: `start` does, and starts another where this one has died."""
        if self._worker is None:
            self._launch()

    def start(self) -> Mapping[str, Any]:
        """Start the worker if none runs, wait until it answers; returns what the device says of itself. Raises MachineError."""
        if self._sent is not None:
            self.kill()  # its next answer would be to what nobody fetched
        if self._greeting is None and self._worker_lives():
            return self.device
        ahead = self._greeting is not None
        if not ahead:
            self._launch()
        try:
            self.device = self._greeted()
            if not self._worker_lives():  # it answered, and has been killed since
                return self.start()
            if self._session is not None:
                self._request(*self._session, timeout_s=_START_S)
        except DeviceFault as fault:
            if ahead:
                return self.start()
            raise MachineError(
                f"the GPU worker cannot start: {fault.what}", do="run 'optiml doctor' to see what is missing"
            ) from None
        return self.device

    def _worker_lives(self) -> bool:
        return self._worker is not None and self._worker.alive

    def _launch(self) -> None:
        self._kept, self._sent = {}, None
        worker, self._ahead = self._ahead, None
        if worker is None or not worker.alive:
            worker = gpu_process(self._box, self._scratch, self._index, self._watcher)
        self._worker = worker
        hello = {"op": "hello", "bare": bool(self._watcher)}
        # The request is larger than a pipe holds, and the worker reads it only once it has started.
        self._greeting = threading.Thread(target=worker.send, args=(hello, [self._tools]), daemon=True)
        self._greeting.start()

    def _greeted(self) -> dict[str, Any]:
        """The answer to the first request."""
        try:
            return self._answer(lambda worker: worker.receive(timeout_s=_START_S))[0]
        finally:
            self._greeting = None

    def bandwidth(self) -> float:
        """Device-to-device copy bandwidth in bytes per second, read plus written."""
        self.start()
        return float(self._request({"op": "bandwidth"}, timeout_s=_START_S)["bytes_per_s"])

    def copies_us(self, sizes: Sequence[tuple[int, int]]) -> tuple[float, ...]:
        """For each (bytes read, bytes written): the time in µs of a kernel that does only that, flushed and timed as kernels are.

        0.0 where the device has no memory for it.
        """
        answer = self._request({"op": "copies", "bytes": [list(pair) for pair in sizes]}, timeout_s=_START_S)
        return tuple(float(value) for value in answer["us"])

    def open(self, spec: KernelSpec, original: Built, wide: Wide | None) -> None:
        """Make `spec` and its original the session's."""
        header = {
            "op": "open",
            "defences": dataclasses.asdict(self._defences),
            "spec": dataclasses.asdict(spec),
            "entries": original.binary.entries,
            "constants": original.binary.constants,
            "launches": _plain(original.launches),
            "wide_entries": wide.binary.entries if wide else (),
            "wide_constants": wide.binary.constants if wide else (),
            "wide_launches": _plain(wide.launches) if wide else None,
        }
        self._session = None
        self.start()
        session = (header, [original.binary.cubin, *([wide.binary.cubin] if wide else [])])
        self._request(*session, timeout_s=_START_S)
        self._session = session

    def validate(self, timeout_s: float = _VALIDATE_S) -> Mapping[str, Any]:
        """Run the spec's validation on the original: `problems`, `widened`, `noise`."""
        return self._request({"op": "validate"}, timeout_s=timeout_s)

    def load(self, key: str, built: Built) -> None:
        """Put a candidate's machine code on the device under `key`."""
        self.start()
        self._request({"op": "load", "load": _load(key, built)}, [built.binary.cubin], timeout_s=20.0)

    def keep(self, key: str, built: Built) -> None:
        """As `load`, but only if it is not there already."""
        if self._kept.get(key) != built.identity:
            self.load(key, built)
            self._kept[key] = built.identity

    def verify(
        self, key: str, checks: Sequence[Check], *, timeout_s: float, built: Built | None = None, then: Timing | None = None,
        states: bool = False,
    ) -> Mapping[str, Any]:  # fmt: skip
        """Run checks in order until one fails: `failure` (None or data), `checks` run, `seconds`.

        With `built`, first put that on the device under `key`, as `load` does. With `then` the worker begins that timing as soon as no
        check has failed, without being asked again; `time` has its results. With `states` every other check runs on a module that was
        loaded anew, and the others behind thirty launches in a row.
        """
        header: dict[str, Any] = {"op": "verify", "key": key, "plan": [(c.case, c.family, c.seed) for c in checks]}
        if states:
            header["states"] = True
        if built is not None:
            header["load"] = _load(key, built)
        blobs = [built.binary.cubin] if built is not None else []
        if then is None:
            return self._request(header, blobs, timeout_s=timeout_s)

        def both(worker: Worker) -> tuple[dict[str, Any], list[bytes]]:
            worker.send(header, blobs)
            worker.send({**then.request(), "if_right": True})
            return worker.receive(timeout_s=timeout_s)

        self._sent = then
        try:
            answer = self._answer(both)[0]
        except DeviceFault:
            self._skipped()
            raise
        if answer["failure"]:
            self._skipped()
        return answer

    def _skipped(self) -> None:
        """Fetch what the worker, if it is still there, says instead of timing what has failed."""
        self._sent = None
        if self._worker is not None:
            with contextlib.suppress(DeviceFault):  # it ends behind what it found
                self._answer(lambda worker: worker.receive(timeout_s=_START_S))

    def repeats(self, key: str, checks: Sequence[Check], *, timeout_s: float) -> Mapping[str, Any]:
        """Run each check twice: `argument` is the first output that differs to the last bit (with its `case`), or None."""
        plan = [(c.case, c.family, c.seed) for c in checks]
        return self._request({"op": "repeats", "key": key, "plan": plan}, timeout_s=timeout_s)

    def run(self, key: str, checks: Sequence[Check], *, timeout_s: float) -> None:
        """Only run a program, for the tool that watches the worker."""
        plan = [(c.case, c.family, c.seed) for c in checks]
        self._request({"op": "run", "key": key, "plan": plan}, timeout_s=timeout_s)

    def outputs(
        self, key: str, case: int, buffers: Mapping[str, np.ndarray[Any, Any]], poison: int, *, timeout_s: float
    ) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
        """Run a program on these first contents (flat, in storage types): where it strayed, and what it left in its outputs."""
        self.start()
        names = list(buffers)
        header = {"op": "outputs", "key": key, "case": case, "names": names, "poison": poison & 1}
        blobs = [np.ascontiguousarray(buffers[name]).tobytes() for name in names]
        answer, out = self._exchange(header, blobs, timeout_s=timeout_s)
        found = {}
        for name, blob in zip(answer["names"], out, strict=True):
            if name not in buffers or len(blob) != buffers[name].nbytes:
                raise MachineError("the GPU worker returned outputs of a wrong size", do="please report this")
            found[name] = np.frombuffer(blob, buffers[name].dtype)
        return str(answer["strayed"]), found

    def time(
        self, timing: Timing, *, timeout_s: float, meanwhile: Callable[[], object] = lambda: None
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """Time programs in turn, per case: `samples_us` in the order of the programs, `failure`, `host_over_events`.

        `meanwhile` is called while the worker is busy with it.
        """

        def timed(worker: Worker) -> tuple[dict[str, Any], list[bytes]]:
            if self._sent != timing:
                worker.send(timing.request())
            self._sent = None
            try:
                meanwhile()
            except BaseException:
                worker.kill()  # its answer would be taken for that to the next request
                raise
            return worker.receive(timeout_s=timeout_s)

        results: list[Mapping[str, Any]] = self._answer(timed)[0]["results"]
        return results

    def _request(self, header: Mapping[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float) -> dict[str, Any]:
        return self._exchange(header, blobs, timeout_s=timeout_s)[0]

    def _exchange(
        self, header: Mapping[str, Any], blobs: Sequence[bytes], *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        return self._answer(lambda worker: worker.call(header, blobs, timeout_s=timeout_s))

    def _answer(
        self, receive: Callable[[Worker], tuple[dict[str, Any], list[bytes]]]
    ) -> tuple[dict[str, Any], list[bytes]]:
        assert self._worker is not None
        try:
            answer, out = receive(self._worker)
        except WorkerLost as lost:
            self._worker = None
            what = (
                "the GPU did not finish in time"
                if lost.kind == "timeout"
                else f"the GPU worker ended: {lost.stderr[-300:]}"
            )
            raise DeviceFault(what, kind="timeout" if lost.kind == "timeout" else "died") from None
        if "error" in answer:
            kind = str(answer.get("error_kind"))
            if kind == "device":
                self.close()
            if kind in ("internal", "protocol"):
                raise MachineError(f"the GPU worker failed: {answer['error']}", do="please report this")
            raise DeviceFault(str(answer["error"]), kind=kind)
        return answer, out

    def kill(self) -> None:
        """End the worker without waiting for it."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = self._greeting = None

    def close(self) -> None:
        """End the worker; one under a watcher gets the time to write its report."""
        if self._worker is not None:
            if self._greeting is not None:
                self._worker.kill()  # it has not read its first request yet: there is nothing to wait for
            else:
                self._worker.close(_WATCHER_S if self._watcher else 2.0)
            self._worker = self._greeting = None


def _load(key: str, built: Built) -> dict[str, Any]:
    binary = built.binary
    return {"key": key, "entries": binary.entries, "constants": binary.constants, "launches": _plain(built.launches)}


def _plain(launches: Sequence[Sequence[LaunchConfig]]) -> list[list[tuple[Any, ...]]]:
    return [[(s.grid, s.block, s.shared_bytes) for s in case] for case in launches]
