"""What the GPU worker answers: checks, timings and outputs of the programs of one spec."""

from __future__ import annotations

import traceback
from typing import Any

import cupy as cp

from engine.gpu import timing
from engine.gpu.checks import Checker, Run
from engine.gpu.device import Call, Loaded, Tools
from engine.gpu.outputs import run_on
from engine.model import LaunchConfig
from engine.process.decode import decode
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import Defences

_IN_A_ROW = 30


class GpuRequests:
    """Answers one request after the other; it keeps the session, and whether what was last checked held."""

    def __init__(self) -> None:
        self._session: DeviceSession | None = None
        self._tools: Any = None
        self._right = True  # the last request was answered, and what it checked did not fail

    def answer(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes], bool]:
        """The answer, its blobs, and whether the context is lost."""
        broken = False
        answer: dict[str, Any]
        out: list[bytes] = []
        try:
            answer, out = self._answer(header, blobs)
        except Exception as error:
            kind, broken = _classify(error)
            answer = {"error": f"{type(error).__name__}: {error}"[:2000], "error_kind": kind}
            if kind == "internal":
                traceback.print_exc()
        self._right = "error" not in answer and not answer.get("failure")
        return answer, out, broken

    def _answer(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        session = self._session
        if session and "load" in header:
            session.load(header["load"], blobs)
        match header["op"]:
            case _ if header.get("if_right") and not self._right:
                return {"skipped": True}, []
            case "hello":
                self._tools = Tools(blobs[0], bare=bool(header.get("bare")))
                return _device(), []
            case "bandwidth":
                return _copy_bandwidth(), []
            case "open":
                session = self._session = None  # its buffers are freed before others are made
                self._session = DeviceSession(self._tools, header, blobs)
                return {}, []
            case "load" if session:
                return {}, []
            case "validate" if session:
                return session.validate(), []
            case "verify" if session:
                return session.verify(header), []
            case "repeats" if session:
                return session.repeats(header), []
            case "run" if session:
                return session.run(header), []
            case "outputs" if session:
                return session.outputs(header, blobs)
            case "copies" if session:
                return session.copies(header), []
            case "time" if session:
                return session.time(header), []
            case other:
                return {"error": f"unknown request {other!r}", "error_kind": "protocol"}, []


class DeviceSession:
    """What the worker knows of the spec under work."""

    def __init__(self, tools: Any, header: dict[str, Any], blobs: list[bytes]) -> None:
        self.spec = decode(KernelSpec, header["spec"])
        original = Loaded(blobs[0], header["entries"], header["constants"])
        wide = Loaded(blobs[1], header["wide_entries"], header["wide_constants"]) if header["wide_entries"] else None
        self.launches = _launches(header["launches"])
        self.checker = Checker(
            self.spec,
            tools,
            original,
            self.launches,
            wide,
            _launches(header["wide_launches"] or header["launches"]),
            defences=Defences(**header["defences"]),
        )
        self.timer = None if tools.bare else timing.Timer(self.checker)
        self.loaded: dict[str, tuple[Any, Any]] = {"original": (original, self.launches)}
        self.code: dict[str, tuple[Any, ...]] = {"original": (blobs[0], header["entries"], header["constants"])}

    def load(self, figures: dict[str, Any], blobs: list[bytes]) -> None:
        code = self.code[figures["key"]] = (blobs[0], figures["entries"], figures["constants"])
        self.loaded[figures["key"]] = (Loaded(*code), _launches(figures["launches"]))

    def validate(self) -> dict[str, Any]:
        problems = self.checker.validate()
        return {
            "problems": problems,
            "widened": self.checker.wide is not None,
            "noise": [[*key, noise.error, noise.rms] for key, noise in self.checker.noise.items()],
        }

    def verify(self, header: dict[str, Any]) -> dict[str, Any]:
        loaded, launches = self.loaded[header["key"]]
        states = bool(header.get("states"))
        calls: dict[int, Any] = {}
        runs = []
        for place, (index, family, seed) in enumerate(header["plan"]):
            buffers = self.checker.buffers(index)
            if states and place % 2:  # a module of its own: what it keeps begins anew
                call = Call(Loaded(*self.code[header["key"]]), launches[index], buffers.arguments(buffers.main))
            else:
                call = calls.get(index) or Call(loaded, launches[index], buffers.arguments(buffers.main))
                calls[index] = call
            runs.append(Run(call, index, family, seed))
        if states and runs:
            self._in_a_row(runs[0])
        failure, checks = self.checker.check(runs)
        return {"failure": failure, "checks": checks}

    def _in_a_row(self, run: Any) -> None:
        """Many launches before the checks: what counts launches has counted enough to show itself."""
        buffers = self.checker.buffers(run.index)
        buffers.draw(run.seed, run.family, widen=False)
        buffers.reset(buffers.main, 0)
        for _ in range(_IN_A_ROW):
            run.call(self.checker.stream)

    def repeats(self, header: dict[str, Any]) -> dict[str, Any]:
        """The first output that differs from run to run on the same inputs, or None."""
        loaded, launches = self.loaded[header["key"]]
        for index, family, seed in header["plan"]:
            buffers = self.checker.buffers(index)
            call = Call(loaded, launches[index], buffers.arguments(buffers.main))
            name = self.checker.differs_from_run_to_run(call, index, family, seed)
            if name:
                return {"argument": name, "case": self.checker.cases[index].name}
        return {"argument": None}

    def run(self, header: dict[str, Any]) -> dict[str, Any]:
        """Only run a program on fresh inputs, for a tool that watches this process.

        Outputs are left as they were allocated, so that initcheck reports reads of what the program did not write.
        """
        loaded, launches = self.loaded[header["key"]]
        for index, family, seed in header["plan"]:
            buffers = self.checker.buffers(index)
            buffers.draw(seed, family, widen=False)
            buffers.reset(buffers.main, None)
            Call(loaded, launches[index], buffers.arguments(buffers.main))(self.checker.stream)
            self.checker.stream.synchronize()
        return {}

    def outputs(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Run a program on contents that the parent gives, and hand back what it left."""
        loaded, launches = self.loaded[header["key"]]
        contents = dict(zip(header["names"], blobs, strict=True))
        return run_on(self.checker, loaded, launches, header["case"], contents, header["poison"])

    def copies(self, header: dict[str, Any]) -> dict[str, Any]:
        """How long copies of so many bytes read and written take, behind the flush that timing uses."""
        assert self.timer is not None
        return {"us": [self.timer.copy_us(int(read), int(written)) for read, written in header["bytes"]]}

    def time(self, header: dict[str, Any]) -> dict[str, Any]:
        effort = {"look": timing.LOOK, "duel": timing.DUEL, "close": timing.CLOSE, "final": timing.FINAL}[
            header["effort"]
        ]
        results = []
        for index in header["cases"]:
            programs = [(self.loaded[key][0], self.loaded[key][1][index]) for key in header["programs"]]
            assert self.timer is not None
            result = self.timer.time(index, programs, effort, header["seed"], header["bar"])
            results.append(result)
            if result["failure"]:
                break
        return {"results": results}


def _launches(values: list[list[list[Any]]]) -> list[list[Any]]:
    return [[LaunchConfig(tuple(g), tuple(b), s) for g, b, s in case] for case in values]


def _device() -> dict[str, Any]:
    properties = cp.cuda.runtime.getDeviceProperties(0)
    return {
        "name": properties["name"].decode(),
        "arch": f"sm_{properties['major']}{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "l2_bytes": properties["l2CacheSize"],
        "memory_bytes": properties["totalGlobalMem"],
        "free_bytes": cp.cuda.runtime.memGetInfo()[0],
        "uuid": "GPU-" + "-".join(
            properties["uuid"][a:b].hex() for a, b in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))
        ) if isinstance(properties.get("uuid"), bytes) else "",
        "runtime": cp.cuda.runtime.runtimeGetVersion(),
        "driver": cp.cuda.runtime.driverGetVersion(),
        "cupy": cp.__version__,
    }  # fmt: skip


def _copy_bandwidth() -> dict[str, Any]:
    """Device-to-device copy, bytes read plus bytes written, the best of several: the memory roof."""
    source = cp.zeros(1 << 28, cp.uint32)
    target = cp.empty_like(source)
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    best = 0.0
    for _ in range(8):
        start.record()
        cp.cuda.runtime.memcpyAsync(
            target.data.ptr, source.data.ptr, source.nbytes, 3, cp.cuda.get_current_stream().ptr
        )
        stop.record()
        stop.synchronize()
        best = max(best, 2 * source.nbytes / (cp.cuda.get_elapsed_time(start, stop) * 1e-3))
    del source, target
    cp.get_default_memory_pool().free_all_blocks()
    return {"bytes_per_s": best}


# Errors of a launch or a module that leave the context whole.
_REFUSALS = (
    "InvalidValue", "INVALID_VALUE", "InvalidConfiguration", "LAUNCH_OUT_OF_RESOURCES", "LaunchOutOfResources",
    "INVALID_IMAGE", "NO_BINARY", "NOT_FOUND",
)  # fmt: skip


def _classify(error: Exception) -> tuple[str, bool]:
    """(kind, whether the context is lost) of an exception of the worker."""
    text = str(error)
    if isinstance(error, cp.cuda.memory.OutOfMemoryError) or "OUT_OF_MEMORY" in text.upper().replace(" ", "_"):
        return "out_of_memory", False
    if isinstance(error, cp.cuda.driver.CUDADriverError | cp.cuda.runtime.CUDARuntimeError):
        name = text.split(":")[0]
        if any(word in name for word in _REFUSALS):
            return "launch", False
        return "device", True
    return "internal", False
