"""The inner loop's compiler: NVRTC in a pool of long-lived, sandboxed worker processes, with a cache in front."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.compile.cache import DiskCache
from engine.compile.compiler import CompileTimeout, NeedsNvcc, Translation, check_arch, clean_log, compile_error
from engine.compile.nvcc import compile_nvcc, find_nvcc, needs_nvcc, too_hard_for_nvrtc
from engine.compile.resources import describe
from engine.compile.toolkit import SWITCH, toolkit
from engine.errors import CompileError, MachineError
from engine.model import Binary
from engine.process import sandbox as _sandbox
from engine.process.decode import decode
from engine.process.pool import Crew
from engine.process.sandbox import Limits, SandboxAccess
from engine.process.worker_process import Worker, WorkerLost

_TIMEOUT_S = 30.0  # of processor time; CUB's heaviest block headers take 3 s
_PATIENCE = 4  # times as long by the clock: other processes may have the cores
_MEMORY_BYTES = 6 << 30  # of address space per worker; precompiled headers reserve 1 GiB
_RECYCLE_BYTES = 1500 << 20  # a worker that grew beyond this is replaced: each header set keeps its precompiled state
_ANSWER_LIMIT = 256 << 20
_WARM = Translation(text="__global__ void warm() {}\n", path="warm.cu", expressions=("warm",))
_GET_NVCC = "NVRTC cannot compile this code; nvcc may: pip install 'optiml-cuda[nvcc]'"
_MALFORMED = (KeyError, TypeError, ValueError)


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
        group: bool = False,
    ) -> None:
        """`group`: worker processes stay in the caller's process group, for who is killed with it."""
        self.arch = check_arch(arch)
        chosen = toolkit()
        self.version, self._major = chosen.version, chosen.major
        self._nvcc = find_nvcc()  # once: looking for it costs more than all else that is done here for one text
        self._sandbox, self._timeout_s, self._group = sandbox, timeout_s, group
        self.stands_back = True  # workers started from now on let others go first, as long as nobody waits for them
        self._cache = DiskCache(cache)
        self._jobs = max(1, jobs or len(os.sched_getaffinity(0)))
        self._crews: dict[tuple[Path, ...], Crew] = {(): self._crew(())}  # by the folders that they may read
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
        translation.check()
        key = self._key(translation)
        kept = self._cache.get(key) if key else None
        if kept is not None:
            with contextlib.suppress(*_MALFORMED):
                return self._binary(translation, kept[0], kept[1], cached=True)
        nvcc, refused = self._nvcc is not None, needs_nvcc(translation.text)
        if refused and not nvcc:
            raise NeedsNvcc("it includes a header that only nvcc supports", translation.path, _GET_NVCC)
        header, cubin = ({}, b"") if refused else self._run(translation, owner)
        log = str(header.get("log", ""))
        if "refused" in header:
            raise CompileError(str(header["refused"])[:500], translation.path, log=log)
        if header.get("ok") is not True:
            if header and not too_hard_for_nvrtc(log):
                raise compile_error(log, translation.path)
            if not nvcc:
                error = compile_error(log, translation.path)
                raise NeedsNvcc(error.what, error.where, _GET_NVCC, log=error.log)
            cubin, names, log = compile_nvcc(translation, self.arch, sandbox=self._sandbox)
            header = {"described": describe(cubin, names, log, translation.path, kernels=translation.kernels)}
        try:
            binary = self._binary(translation, header["described"], cubin, cached=False)
        except _MALFORMED:
            raise CompileError("the compiler's process sent an invalid answer", translation.path) from None
        if key:
            self._cache.put(key, header["described"], cubin)
        return binary

    def give_up(self, owner: object) -> None:
        """End what is being compiled for `owner`, which wants none of it any more: it raises CompileTimeout."""
        with self._lock:
            unwanted = [worker for worker, whose in self._busy.items() if whose is owner]
        for worker in unwanted:
            worker.kill()

    def warm(self, count: int | None = None) -> None:
        """Start so many workers now, all but one if not said: that takes half a second each, beside what else there is to do."""
        self._crews[()].warm(self._jobs - 1 if count is None else count)

    def close(self) -> None:
        """End the workers. What is being compiled raises MachineError."""
        with self._lock:
            self._closed = True
            crews = list(self._crews.values())
        for crew in crews:
            crew.close()

    def __enter__(self) -> NvrtcCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _binary(self, translation: Translation, plain: Mapping[str, Any], cubin: bytes, *, cached: bool) -> Binary:
        """Raises one of `_MALFORMED` where `plain` is not what `describe` gives: it comes from a file or a worker."""
        binary = decode(Binary, {**plain, "cubin": None, "arch": self.arch, "cached": cached})
        entries = len(binary.entries)
        if {len(binary.resources), len(binary.most_threads), translation.kernels or entries} != {entries}:
            raise ValueError("not one of each for every entry")
        return replace(binary, cubin=cubin)

    def _key(self, translation: Translation) -> str:
        if translation.include:
            return ""  # what those folders hold may change without a sign
        parts = [
            11, self.version, self.arch, translation.text, translation.path, translation.expressions,
            translation.defines, translation.std, translation.line_info, str(self._nvcc) if self._nvcc else "",
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _run(self, translation: Translation, owner: object = None) -> tuple[dict[str, Any], bytes]:
        """One answer of a worker. Raises CompileTimeout when it was lost over this text."""
        request = self._request(translation)
        with self._crew_for(translation.include).worker() as worker:
            with self._lock:
                self._busy[worker] = owner
            try:
                header, blobs = worker.call(request, timeout_s=_PATIENCE * request["seconds"])
            except WorkerLost as lost:
                if self._closed:
                    raise MachineError("the compiler was closed while it worked") from None
                if lost.kind == "timeout" or worker.ended_by == signal.SIGPROF:
                    took = f"{request['seconds']:.0f} s of processor time, or {_PATIENCE} times that by the clock"
                    raise CompileTimeout(f"the compiler did not finish within {took}", translation.path) from None
                said = clean_log(lost.stderr)
                raise CompileTimeout("the compiler crashed on this code", translation.path, log=said) from None
            finally:
                with self._lock:
                    del self._busy[worker]
            if int(header.get("peak_bytes", 0)) > _RECYCLE_BYTES:
                worker.kill()
        return header, blobs[0] if blobs else b""

    def _request(self, translation: Translation) -> dict[str, Any]:
        return {
            "text": translation.text,
            "name": translation.path.replace("\0", "_") or "kernel.cu",
            "arch": self.arch,
            "std": translation.std,
            "expressions": list(translation.expressions),
            "defines": list(translation.defines),
            "include": [str(path) for path in translation.include],
            "line_info": translation.line_info,
            "seconds": self._timeout_s,
        }

    def _crew_for(self, include: tuple[Path, ...]) -> Crew:
        with self._lock:
            if self._closed:
                raise MachineError("the compiler is closed")
            if include not in self._crews:
                self._crews[include] = self._crew(include)
            return self._crews[include]

    def _crew(self, include: tuple[Path, ...]) -> Crew:
        return Crew(
            partial(self._start, include), self._ready, self._jobs, at_once=self._jobs, ended="the compiler is closed"
        )

    def _start(self, include: tuple[Path, ...]) -> Worker:
        argv = _sandbox.python_command("engine.compile.nvrtc_worker", *(["stand-back"] if self.stands_back else []))
        try:
            return Worker(
                self._sandbox.command(
                    argv,
                    SandboxAccess(readable=include, environment={SWITCH: str(self._major)}),
                    Limits(memory_bytes=_MEMORY_BYTES),
                ),
                limit=_ANSWER_LIMIT,
                group=self._group,
            )
        except OSError as error:
            raise _cannot_start(str(error)) from None

    def _ready(self, worker: Worker) -> None:
        """Its first compile, half a second long."""
        try:
            worker.call(self._request(_WARM), timeout_s=_PATIENCE * self._timeout_s)
        except WorkerLost as lost:
            raise _cannot_start(clean_log(lost.stderr)[-300:]) from None


def _cannot_start(said: str) -> MachineError:
    return MachineError(f"the compiler's process cannot start: {said}", do="run 'optiml doctor'")
