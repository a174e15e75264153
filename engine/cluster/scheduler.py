"""The scheduler behind an address of `--cluster`, started here or reached, and a client of it.

`local` starts one worker a GPU of this machine (on a machine without one: by cores), with temporary TLS certificates.
`tcp://HOST:PORT` and `tls://HOST:PORT` are running schedulers; certificates come from Dask's own configuration.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from engine.cluster.identity import visible_gpus
from engine.errors import MachineError, UsageError
from engine.process.cores import ONE_THREAD
from engine.settings.scratch import scratch_folder

Device = Literal["auto", "gpu", "cpu"]
INSTALL = "pip install 'optiml-cuda[cluster]'"
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]{1,253}):(\d{1,5})/?")
_MOST_EACH = 8  # workers without a GPU on one core. Ours
_CORES = 4  # of a worker without a GPU: it compiles, screens and searches. Ours
# For the scheduler to answer, workers to be there, local ones to start, and all to end. Ours
_CONNECT_S, _WORKERS_S, _START_S, _CLOSE_S = 5.0, 10.0, 60.0, 10.0
_TLS = ("tls_ca_file", "tls_client_cert", "tls_client_key")
# Of the schedulers and workers that are started here. Dask watches the machine from the loop that carries every message: with four GPUs
# it asked NVML 12 times a second there, and an answer took 110 ms to arrive instead of 15.
_QUIET: Mapping[str, object] = {
    "distributed.diagnostics.nvml": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.reuse-broadcast-comm": True,  # else each call of a link is a handshake of TLS
}
_WHICH = "start it with 'dask scheduler', or check host, port, and whether it is tcp:// or tls://"


@dataclass(frozen=True)
class ClusterRequest:
    """Which workers: "local" or a scheduler's address. `count` is how many local ones (None: by GPUs, else by cores)."""

    address: str
    device: Device = "auto"
    count: int | None = None
    gpus: tuple[str, ...] | None = None  # of the local ones, as CUDA_VISIBLE_DEVICES names them; None: those visible


def parse_address(text: str, where: str = "--cluster") -> str:
    """The address that `--cluster` (or what `where` says) names: "local" or a scheduler's. Raises UsageError."""
    address = text.strip()
    match = _ADDRESS.fullmatch(address)
    if address == "local" or (match is not None and 0 < int(match[3]) < 65536):
        return address.rstrip("/")
    raise UsageError(f"invalid cluster '{text[:80]}'", where, "expected local, tcp://HOST:PORT or tls://HOST:PORT")


@contextmanager
def dask_client(request: ClusterRequest) -> Iterator[Any]:
    """A client of the scheduler that a request names, once workers are there; ended with everything that was started for it.

    Raises UsageError for an address that is none, MachineError: Dask is not installed, the scheduler is not there, it has no workers.
    """
    address = parse_address(request.address)
    distributed = _distributed()
    with ExitStack() as held:
        held.enter_context(_quiet())
        target: Any = address
        security: Any = None
        if address == "local":
            target = held.enter_context(_local(distributed, request))
            security = target.security
        else:
            if address.startswith("tls://"):
                security = _security(distributed)
            check_scheduler(distributed, address, {} if security is None else security.get_connection_args("client"))
        try:
            # It answered above, so this is for a busy machine; a client whose connection breaks tries as long to have another.
            client = distributed.Client(target, timeout=_START_S, security=security, set_as_default=False)
        except OSError as error:
            raise _unanswered(error, address) from None
        held.callback(_closed, client)
        _await_workers(client, len(target.worker_spec) if address == "local" else 1, address)
        yield client


def _distributed() -> Any:
    try:
        # It would estimate the size of each message's objects, to write large ones on another thread; ours are bytes. It reads that once.
        importlib.import_module("dask").config.set({"distributed.comm.offload": False})
        # Loads Tornado and the scheduler: half a second that no other command needs.
        return importlib.import_module("distributed")
    except ImportError as error:
        raise MachineError(f"Dask is missing ({error.name or error})", "--cluster", INSTALL) from None


def _security(distributed: Any) -> Any:
    try:
        security = distributed.Security(require_encryption=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"invalid TLS settings of Dask: {error}", "distributed.comm.tls", "correct them") from None
    for name in _TLS:
        value = getattr(security, name)
        key = "distributed.comm.tls." + name.removeprefix("tls_").replace("_", "." if "client" in name else "-")
        if not value:
            do = f"set the PEM file in Dask's configuration, or in DASK_{key.upper().replace('.', '__').replace('-', '_')}"
            raise UsageError(f"tls:// needs {key}", "--cluster", do)
        if "\n" not in value and not os.access(value, os.R_OK):
            raise UsageError("cannot be read", f"{value} ({key})", "give a readable PEM file")
    try:
        security.get_connection_args("client")
    except OSError as error:  # of ssl too
        raise UsageError(f"invalid certificate files: {brief(error)}", "distributed.comm.tls", "correct them") from None
    return security


def check_scheduler(distributed: Any, address: str, connection: Mapping[str, Any]) -> None:
    """Raises MachineError where no scheduler answers: Dask's client would wait for what is none, or end in an error of its own."""

    async def answering() -> str:
        async with distributed.rpc(address, timeout=0.9 * _CONNECT_S, connection_args=dict(connection)) as peer:
            return str((await peer.identity())["type"])

    try:
        found = asyncio.run(asyncio.wait_for(answering(), _CONNECT_S))
    except OSError as error:  # TimeoutError is one
        raise _unanswered(error, address) from None
    except Exception:  # of whatever was read in place of Dask's greeting, such as a length that no memory holds
        raise MachineError("something other than a Dask scheduler answers", address, _WHICH) from None
    if found != "Scheduler":
        raise MachineError(f"is the address of a Dask {found.lower()}", address, "give the scheduler's")


@contextmanager
def _local(distributed: Any, request: ClusterRequest) -> Iterator[Any]:
    """Workers of this machine: a process for each, which a nanny of this process starts again where it ends."""
    gpus = request.gpus
    if gpus is None:
        gpus = () if request.device == "cpu" else visible_gpus()
    if request.device == "gpu" and not gpus:
        raise MachineError("no NVIDIA GPU found", "--cluster local", "use --device cpu to screen and predict")
    if gpus and request.count is not None:
        if request.count > len(gpus):
            raise UsageError(f"{request.count} workers requested, but {len(gpus)} GPUs are visible", "--workers")
        gpus = gpus[: request.count]
    cores = len(os.sched_getaffinity(0))
    count = len(gpus) or request.count or max(1, cores // _CORES)
    if count > _MOST_EACH * cores and not gpus:
        raise UsageError(f"{count} workers requested, but this machine has {cores} cores", "--workers", "request fewer")
    try:
        security = distributed.Security.temporary()
    except ImportError:
        raise MachineError("the package cryptography is missing", "--cluster local", INSTALL) from None
    from engine.cluster.own_scheduler import OwnScheduler  # Dask takes a second to import

    with scratch_folder() as scratch, importlib.import_module("dask").config.set(_QUIET):  # which workers inherit
        common = {
            "nthreads": 1, "resources": {"GPU" if gpus else "CPU_SLOT": 1}, "local_directory": str(scratch), "memory_limit": 0,
            "security": security, "protocol": "tls://", "host": "127.0.0.1", "silence_logs": logging.CRITICAL, "dashboard": False,
            "preload": [], "preload_nanny": [], "lifetime": None,
        }  # fmt: skip
        workers = {}
        for number in range(count):
            environment = {**ONE_THREAD, **({"CUDA_VISIBLE_DEVICES": gpus[number]} if gpus else {})}
            workers[number] = {"cls": distributed.Nanny, "options": {**common, "env": environment}}
        scheduler = {"cls": OwnScheduler, "options": {"security": security, "config": _QUIET}}
        try:
            cluster = distributed.SpecCluster(
                workers=workers, scheduler=scheduler, security=security, silence_logs=logging.CRITICAL, name="optiml"
            )
        except (OSError, RuntimeError) as error:
            raise MachineError(f"the workers cannot be started: {brief(error)}", "--cluster local") from None
        try:
            yield cluster
        finally:
            with suppress(Exception):  # whatever state it is in, its processes end with this one
                cluster.close(timeout=_CLOSE_S)


def _await_workers(client: Any, count: int, address: str) -> None:
    try:
        client.wait_for_workers(count, timeout=_START_S if address == "local" else _WORKERS_S)
    except (TimeoutError, OSError):
        if address == "local":
            raise MachineError("the workers did not start in time", "--cluster local", "run 'optiml doctor'") from None
        do = "start workers with: dask worker SCHEDULER --nthreads 1 --resources GPU=1"
        raise MachineError("the scheduler has no workers", address, do) from None


def _unanswered(error: OSError, address: str) -> MachineError:
    """No scheduler, and what the system said at last, as "Connection refused": Dask wraps it in sentences of its own."""
    cause: BaseException = error
    while isinstance(cause.__cause__, OSError):
        cause = cause.__cause__
    said = f"nothing within {_CONNECT_S:.0f} s" if isinstance(cause, TimeoutError) else brief(cause)
    return MachineError(f"no scheduler answers: {getattr(cause, 'strerror', None) or said}", address, _WHICH)


def brief(error: BaseException) -> str:
    """The first line of an exception."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _closed(client: Any) -> None:
    with suppress(Exception):  # the scheduler may be gone, and there is nobody to tell
        client.close(timeout=_CLOSE_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Dask's own messages: what matters of them is said in errors."""
    loggers = [logging.getLogger(name) for name in ("distributed", "bokeh", "tornado")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
