"""The inner loop's compiler: NVRTC in a pool of long-lived, sandboxed worker processes, with a cache in front."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine import sandbox as _sandbox
from engine.compile.cache import DiskCache
from engine.compile.compiler import CompileTimeout, Translation, check_arch, clean_log, compile_error
from engine.compile.describe import describe
from engine.compile.nvcc import compile_nvcc, find_nvcc, needs_nvcc, too_hard_for_nvrtc
from engine.errors import CompileError, MachineError, OptimlError
from engine.model import Binary, Resources
from engine.worker import Worker, WorkerLost

_TIMEOUT_S = 30.0  # CUB's heaviest block headers take 3 s
_MEMORY_BYTES = 6 << 30  # of address space per worker; precompiled headers reserve 1 GiB
_RECYCLE_BYTES = 1500 << 20  # a worker that grew beyond this is replaced: each header set keeps its precompiled state
_ANSWER_LIMIT = 256 << 20
_MALFORMED = (KeyError, TypeError, ValueError, OverflowError)
_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "cuda-bindings")


class NvrtcCompiler:
    """Compiles device code for `arch` through NVRTC, and through nvcc what NVRTC refuses. Thread-safe.

    `jobs` worker processes at most, each started when it is first needed. A worker that hangs or dies costs the one
    compile it was at. `cache` is a folder, or None for no cache on disk. Raises MachineError when NVRTC is not there.
    """

    def __init__(
        self,
        arch: str,
        *,
        cache: Path | None,
        sandbox: _sandbox.Sandbox | _sandbox.NoSandbox,
        jobs: int | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.arch = check_arch(arch)
        self.version = nvrtc_version()
        self._nvcc = find_nvcc()  # once: looking for it costs more than all else that is done here for one text
        self._sandbox, self._timeout_s = sandbox, timeout_s
        self._cache = DiskCache(cache)
        # Each thread owns one worker process: no call waits for another's answer.
        self._jobs = max(1, jobs or os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="compile")
        self._own = threading.local()
        self._workers: set[Worker] = set()
        self._busy: dict[Worker, object] = {}  # and for whom
        self._lock = threading.Lock()
        self._closed = False

    @property
    def cache_problem(self) -> str:
        """Why compiled code is no longer kept on disk, "" while it is."""
        return self._cache.problem

    def compile(self, translation: Translation, owner: object = None) -> Binary:
        """Machine code for all expressions, with what each uses.

        Raises CompileError (`where` is the first error's `path:line`, `log` the cleaned messages), CompileTimeout,
        MachineError when the code needs nvcc and there is none, or when workers cannot start.
        """
        return self.submit(translation, owner).result()

    def submit(self, translation: Translation, owner: object = None) -> Future[Binary]:
        """Start compiling and return at once. The future raises what `compile` raises."""
        translation.check()
        if self._closed:
            raise MachineError("the compiler is closed")
        return self._threads.submit(self._compile, translation, owner)

    def give_up(self, owner: object) -> None:
        """End what is being compiled for `owner`, which wants none of it any more: it raises CompileTimeout."""
        with self._lock:
            unwanted = [worker for worker, whose in self._busy.items() if whose is owner]
        for worker in unwanted:
            worker.kill()

    def warm(self) -> None:
        """Start all workers but one now, beside what else there is to do: the first compile of each takes half a second."""
        for _ in range(self._jobs - 1):
            self._threads.submit(self._start)

    def _start(self) -> None:
        with contextlib.suppress(OptimlError):  # whoever compiles next will meet the reason
            self._run(Translation(text="__global__ void warm() {}\n", path="warm.cu", expressions=("warm",)))

    def close(self) -> None:
        """End the workers. What is being compiled raises MachineError."""
        with self._lock:
            self._closed = True
            workers, self._workers = list(self._workers), set()
        for worker in workers:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> NvrtcCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, translation: Translation, owner: object) -> Binary:
        begin = time.perf_counter()
        key = self._key(translation)
        kept = self._cache.get(key) if key else None
        if kept is not None:
            with contextlib.suppress(*_MALFORMED):
                return self._binary(translation, kept[0], kept[1], begin, cached=True)
        nvcc = self._nvcc is not None
        header, cubin = ({}, b"") if nvcc and needs_nvcc(translation.text) else self._run(translation, owner)
        log = str(header.get("log", ""))
        if "refused" in header:
            raise CompileError(str(header["refused"])[:500], translation.path, log=log)
        if header.get("ok") is not True:
            if header and not too_hard_for_nvrtc(log):
                raise compile_error(log, translation.path)
            if not nvcc:
                error = compile_error(log, translation.path)
                error.do = "NVRTC does not take this code; with nvcc it may compile: pip install 'optiml[nvcc]'"
                raise error
            cubin, names, log = compile_nvcc(translation, self.arch, sandbox=self._sandbox)
            header = {"described": describe(cubin, names, log, translation.path)}
        try:
            binary = self._binary(translation, header["described"], cubin, begin, cached=False)
        except _MALFORMED:
            raise CompileError("the compiler's process answered what is no answer", translation.path) from None
        if key:
            self._cache.put(key, header["described"], cubin)
        return binary

    def _binary(
        self, translation: Translation, plain: Mapping[str, Any], cubin: bytes, begin: float, *, cached: bool
    ) -> Binary:
        """Raises one of `_MALFORMED` where `plain` is not what `describe` gives: it comes from a file or a worker."""
        entries = tuple(map(str, plain["entries"]))
        resources = tuple(Resources(*map(int, each)) for each in plain["resources"])
        most_threads = tuple(None if most is None else int(most) for most in plain["most_threads"])
        if {len(resources), len(most_threads), len(translation.expressions) or len(entries)} != {len(entries)}:
            raise ValueError("not one of each for every entry")
        return Binary(
            cubin=cubin,
            arch=self.arch,
            entries=entries,
            resources=resources,
            code_hash=str(plain["code_hash"]),
            most_threads=most_threads,
            kept_bytes=int(plain["kept_bytes"]),
            compile_s=time.perf_counter() - begin,
            cached=cached,
            log=str(plain["log"]),
        )

    def _key(self, translation: Translation) -> str:
        if translation.include:
            return ""  # what those folders hold may change without a sign
        parts = [
            2, self.version, self.arch, translation.text, translation.path, translation.expressions,
            translation.defines, translation.std, translation.line_info, str(self._nvcc) if self._nvcc else "",
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _run(self, translation: Translation, owner: object = None) -> tuple[dict[str, Any], bytes]:
        """One answer of this thread's worker. Raises CompileTimeout when the worker was lost over this text."""
        request = {
            "text": translation.text,
            "name": translation.path.replace("\0", "_") or "kernel.cu",
            "arch": self.arch,
            "std": translation.std,
            "expressions": list(translation.expressions),
            "defines": list(translation.defines),
            "include": [str(path) for path in translation.include],
            "line_info": translation.line_info,
        }
        worker = self._worker(translation.include)
        with self._lock:
            self._busy[worker] = owner
        try:
            header, blobs = worker.call(request, timeout_s=self._timeout_s)
        except WorkerLost as lost:
            self._drop(worker)
            if self._closed:
                raise MachineError("the compiler was closed while it worked") from None
            if lost.kind == "timeout":
                raise CompileTimeout(
                    f"the compiler did not finish within {self._timeout_s:.0f} s", translation.path
                ) from None
            said = clean_log(lost.stderr)
            if not getattr(self._own, "answered", False):
                raise MachineError(
                    f"the compiler's process cannot start: {said[-300:]}", do="run 'optiml doctor'"
                ) from None
            raise CompileTimeout("the compiler died over this code", translation.path, log=said) from None
        finally:
            with self._lock:
                del self._busy[worker]
        self._own.answered = True
        if int(header.get("peak_bytes", 0)) > _RECYCLE_BYTES:
            self._drop(worker)
        return header, blobs[0] if blobs else b""

    def _worker(self, include: tuple[Path, ...]) -> Worker:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is not None and worker.alive and set(include) <= self._own.include:
            return worker
        if worker is not None:
            self._drop(worker)
        command = self._sandbox.command(
            _sandbox.python_command("engine.compile.worker"), readable=include, memory_bytes=_MEMORY_BYTES
        )
        worker = Worker(command, limit=_ANSWER_LIMIT)
        with self._lock:
            if self._closed:
                worker.kill()
                raise MachineError("the compiler is closed")
            self._workers.add(worker)
        self._own.worker, self._own.include = worker, set(include)
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        self._own.worker = None
        worker.kill()


def nvrtc_version() -> str:
    """Versions of what decides about the machine code. Raises MachineError when NVRTC is not installed."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            if name == "cuda-bindings":
                raise MachineError("the package cuda-bindings is missing", do="pip install optiml") from None
    return ", ".join(found)
