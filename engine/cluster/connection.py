"""Connect to the workers that `--cluster` names, check each before work starts, and end what was started.

with connect(ClusterRequest("local", device="auto")) as cluster:
    cluster.workers      # ClusterWorker: address, name, identity, its cores
    cluster.resource     # {"GPU": 1}, or {"CPU_SLOT": 1} where nothing is measured: what a task takes of a worker
    cluster.submit(function, text, worker)  # runs on that worker: a function of an installed module, given and giving text or bytes
    cluster.fetch(task)                     # a future of the answer of a task that has ended
    cluster.question(function, text, worker=address)  # beside what it runs: a future of the answer of a quick function
    cluster.ask(function, text)             # the same of all workers, waited for; an exception is the answer
    cluster.refresh()    # the workers as they are now: lost ones are gone, restarted ones have new addresses
    cluster.dashboard    # address of Dask's dashboard, or ""
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from engine.cluster.identity import COMPILER, Identity, describe, read_identity, versions
from engine.cluster.scheduler import INSTALL, ClusterRequest, Device, brief, dask_client, parse_address
from engine.cluster.worker_call import alone
from engine.errors import MachineError
from engine.process.cores import shares

T = TypeVar("T", str, bytes)  # what travels: text, or frames of engine/process/wire.py
_MOST_NONCE = 1 << 10
_ANSWER_S = 30.0  # for the scheduler to answer; an event loop was seen to be held for 11 s at load 20. Ours
_END_IT = "end it, or see its log"


@dataclass(frozen=True)
class ClusterWorker:
    """One worker. `name` outlives a restart, `address` does not; `cores` are its share of its machine's."""

    address: str
    name: str
    identity: Identity
    resources: Mapping[str, float]
    cores: tuple[int, ...]


class Cluster:
    """A connection. Made by `connect`; calls do not overlap."""

    def __init__(self, client: Any, address: str, device: Device) -> None:
        self.client, self.address, self._device = client, address, device
        self._cores: dict[tuple[str, str], tuple[int, ...]] = {}  # by machine and name
        self._model: tuple[str, ...] | None = None
        self._left_out: set[str] = set()  # addresses of workers that do not fit
        self._unreadable: list[MachineError] = []  # of workers that cannot say what they are
        self.resource: Mapping[str, int] = {}
        self.workers: tuple[ClusterWorker, ...] = ()

    @property
    def dashboard(self) -> str:
        """The address of Dask's dashboard; "" where Bokeh is not installed."""
        if importlib.util.find_spec("bokeh") is None:
            return ""
        return str(self.client.dashboard_link or "")

    @property
    def measures(self) -> bool:
        """Whether its workers time on GPUs."""
        return "GPU" in self.resource

    def submit(self, function: Callable[[T], T], data: T, worker: ClusterWorker) -> Any:
        """Run a function of an installed module on a worker, alone on what `resource` stands for; a future of its answer.

        The task is lost with its worker: whoever submitted it decides where it goes on.
        """
        return self.client.submit(
            alone, function, data, workers=[worker.address], allow_other_workers=False, resources=dict(self.resource), pure=False,
            retries=0,
        )  # fmt: skip

    def question(self, function: Callable[..., Any], *data: Any, worker: str) -> Future[Any]:
        """What a quick function, or one that waits, answers on the worker of this address: a future of data, or of an exception.

        A worker that hangs never answers. Raises MachineError.
        """
        client = self.client

        async def asked() -> Any:
            answers = await client.run(function, *data, workers=[worker], on_error="return", asynchronous=True)
            found = answers.get(worker, OSError("it has ended"))
            if isinstance(found, BaseException):
                raise found
            return found

        return self._begin(asked())

    def fetch(self, task: Any) -> Future[Any]:
        """The answer of a task of `submit`, on its way from the worker once that has ended. Raises MachineError."""
        return self._begin(self.client.gather(task, asynchronous=True))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._reached():
            return asyncio.run_coroutine_threadsafe(work, self.client.loop.asyncio_loop)

    def ask(self, function: Callable[..., T], *data: T, workers: Sequence[str] | None = None) -> dict[str, Any]:
        """What a quick function answers now on the workers of these addresses (None: on all), by address: data, or the exception,
        TimeoutError where there is no answer within `_ANSWER_S`.

        Raises MachineError.
        """
        addresses = list(self.listed()) if workers is None else workers
        questions = {address: self.question(function, *data, worker=address) for address in addresses}
        wait(questions.values(), timeout=_ANSWER_S)
        return {address: answer_of(future) for address, future in questions.items()}

    def problems(self) -> list[MachineError]:
        """What forbids work on the workers of the last examination: one reason each."""
        return [*self._unreadable, *problems(self.workers, self.resource)]

    def refresh(self) -> tuple[ClusterWorker, ...]:
        """The workers as they are now. New ones are asked what they are, and left out where they do not fit. Raises MachineError."""
        there = self.listed()
        known = [worker for worker in self.workers if worker.address in there]
        new = [address for address in there if address not in {w.address for w in known} | self._left_out]
        for address in new:
            joined, unreadable = self._described({address: there[address]})
            fits = [
                w
                for w in joined
                if self._model in (None, w.identity.model) and not problems([*known, w], self.resource)
            ]
            known += fits
            if unreadable or (joined and not fits):
                self._left_out.add(address)
        if new or len(known) < len(self.workers):
            self.workers = self._with_cores(known)
        return self.workers

    def examine(self) -> tuple[ClusterWorker, ...]:
        """Every worker as it is, whether it can be used or not; see `problems`. Raises MachineError where the scheduler is gone."""
        found, self._unreadable = self._described(self.listed())
        self.workers = self._with_cores(found)
        self.resource = _resource(self._device, self.workers)
        return self.workers

    def keep(self, model: tuple[str, ...]) -> tuple[ClusterWorker, ...]:
        """The workers with devices of this model, which alone are used from now on."""
        self._model, self._left_out = model, set()
        self.workers = ()
        return self.refresh()

    def listed(self) -> dict[str, Any]:
        """What the scheduler reports of its workers now, by address. Raises MachineError where it does not answer.

        `Client.scheduler_info` returns what the client heard last, and the client itself asks every 2 s, without workers: on a busy
        machine that comes before the answer is read, and every worker seems lost.
        """
        client = self.client
        with self._reached():
            found = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_S)
        return dict(found.get("workers", {}))

    def _described(self, there: Mapping[str, Any]) -> tuple[list[ClusterWorker], list[MachineError]]:
        """What workers say they are, and what is wrong with those that cannot say it; one that has ended is in neither."""
        answers = self.ask(describe, workers=list(there))
        found, unreadable = [], []
        for address, said in sorted(answers.items()):
            name = str(there[address].get("name", address))
            if isinstance(said, TimeoutError):
                unreadable.append(MachineError("does not answer", f"worker {name}", _END_IT))
                continue
            if isinstance(said, OSError):
                continue  # it ended since it was listed
            if isinstance(said, BaseException):  # of whatever kind Dask makes of an import that fails there
                what = f"lacks optiml-cuda, or has another version of it ({brief(said)})"
                unreadable.append(MachineError(what, f"worker {name}", f"install it there: {INSTALL}"))
                continue
            resources = {str(k): float(v) for k, v in (there[address].get("resources") or {}).items()}
            try:
                identity = read_identity(said, f"worker {name}")
            except MachineError as error:
                unreadable.append(error)
            else:
                found.append(ClusterWorker(address, name, identity, resources, ()))
        return sorted(found, key=lambda worker: _natural(worker.name)), unreadable

    def _with_cores(self, workers: Sequence[ClusterWorker]) -> tuple[ClusterWorker, ...]:
        """The workers with their shares of cores: those that may use the same ones of a machine divide them; a share stays a name's."""
        alike: dict[tuple[str, tuple[int, ...]], list[ClusterWorker]] = {}
        for worker in workers:
            alike.setdefault((_machine(worker), worker.identity.cores), []).append(worker)
        for (machine, cores), some in alike.items():
            free = [
                shared for shared in self._cores if shared[0] == machine and shared[1] not in {w.name for w in some}
            ]
            wanting = [worker for worker in some if (machine, worker.name) not in self._cores]
            if wanting and len(free) >= len(wanting):  # in the place of those that were lost
                for worker, gone in zip(wanting, free, strict=False):
                    self._cores[machine, worker.name] = self._cores.pop(gone)
            elif wanting:
                parts = shares(cores, len(some))
                self._cores |= {(machine, w.name): tuple(part) for w, part in zip(some, parts, strict=True)}
        return tuple(replace(worker, cores=self._cores[_machine(worker), worker.name]) for worker in workers)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, TimeoutError) as error:
            raise self.lost() from error
        except Exception as error:  # Dask's own of a client whose scheduler is gone, or of what it cannot read
            if self.client.status == "running":
                do = "install the same versions of optiml-cuda and Dask on all, and see the workers' logs"
                raise MachineError(f"Dask failed: {brief(error)}", self.address, do) from error
            raise self.lost() from error

    def lost(self) -> MachineError:
        """What to raise where the scheduler no longer answers."""
        return MachineError("the scheduler no longer answers", self.address, "restart it, then resume with --resume")


@contextmanager
def connect(request: ClusterRequest, *, check: bool = True) -> Iterator[Cluster]:
    """A connection to workers that were all looked at (not refused, without `check`), ended with everything it started.

    Raises UsageError for an address that is none, MachineError: Dask is not installed, the scheduler is not there, versions differ,
    a worker has no GPU or one that another process uses, workers share a GPU.
    """
    with dask_client(request) as client:
        cluster = Cluster(client, parse_address(request.address), request.device)
        cluster.examine()
        wrong = cluster.problems()
        if check and wrong:
            raise wrong[0]
        if not cluster.workers and not wrong:
            raise MachineError("the scheduler has no workers left", cluster.address, "see their logs")
        yield cluster


def problems(workers: Sequence[ClusterWorker], resource: Mapping[str, int]) -> list[MachineError]:
    """What forbids work on these workers: one reason each."""
    seen: dict[tuple[str, str], str] = {}
    return [error for worker in workers if (error := _problem(worker, resource, seen)) is not None]


def _problem(
    worker: ClusterWorker, resource: Mapping[str, int], seen: dict[tuple[str, str], str]
) -> MachineError | None:
    where, gpu = f"worker {worker.name} on {worker.identity.host}", worker.identity.gpu
    if differ := _versions_differ(worker.identity):
        what, do = differ
        return MachineError(what, where, do)
    for name, amount in resource.items():
        if worker.resources.get(name, 0) < amount:
            do = f"start it with: dask worker --nthreads 1 --resources {name}={amount}"
            return MachineError(f"does not offer the resource {name}", where, do)
    if "GPU" not in resource:
        return None
    if gpu is None:
        return MachineError(f"has no GPU: {worker.identity.problem}", where, "leave it out, or use --device cpu")
    if gpu.mig:
        return MachineError("has a part of a GPU (MIG), which shares its memory bandwidth", where, "leave it out")
    if gpu.foreign:
        pids = ", ".join(map(str, gpu.foreign[:5]))
        return MachineError(
            f"another process uses its GPU (process {pids})", where, "end that process, or leave the worker out"
        )
    first = seen.setdefault((worker.identity.boot, gpu.uuid), worker.name)
    if first != worker.name:
        do = "start each with its own CUDA_VISIBLE_DEVICES, as dask cuda worker does"
        return MachineError(f"uses the same GPU as worker {first}", where, do)
    return None


def mixed(workers: Sequence[ClusterWorker]) -> dict[tuple[str, ...], list[ClusterWorker]]:
    """The workers by what must agree for their measurements to be compared: model, MIG, driver."""
    found: dict[tuple[str, ...], list[ClusterWorker]] = {}
    for worker in workers:
        found.setdefault(worker.identity.model, []).append(worker)
    return found


def names_of(models: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A name for each kind of device that a folder can have."""
    found = {model: re.sub(r"[^a-z0-9]+", "-", " ".join(model).lower()).strip("-") for model in models}
    taken = list(found.values())
    return {
        model: name if taken.count(name) == 1 else f"{name}-{place}"
        for place, (model, name) in enumerate(found.items())
    }


def check_alike(workers: Sequence[ClusterWorker], do: str) -> None:
    """Raises MachineError where the workers' measurements cannot be compared; `do` says what to do then."""
    models = mixed(workers)
    if len(models) > 1:
        named = "; ".join(f"{some[0].name}: {some[0].identity.device}" for some in models.values())
        raise MachineError(
            f"workers have different devices ({named}), so their times cannot be compared", "--cluster", do
        )


def check_shared(cluster: Cluster, folder: Path) -> None:
    """Raises MachineError where a worker does not see what is written to `folder` here."""
    mark = folder / f".shared-{secrets.token_hex(8)}"
    nonce = secrets.token_hex(32)
    try:
        mark.write_text(nonce)
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", str(folder)) from None
    try:
        answers = cluster.ask(read_nonce, str(mark))
    finally:
        mark.unlink(missing_ok=True)
    for worker in cluster.workers:
        if isinstance(answers.get(worker.address), BaseException):
            raise MachineError("does not answer", f"worker {worker.name} on {worker.identity.host}", _END_IT)
        if answers.get(worker.address) != nonce:
            do = "mount it there at the same path, or omit --shared to send the files"
            raise MachineError(
                "is not a shared folder", f"{folder} on worker {worker.name} ({worker.identity.host})", do
            )


def answer_of(question: Future[Any]) -> Any:
    """What a future has: data, or the exception that it ended with, TimeoutError while it has not ended."""
    try:
        return question.result(timeout=0)
    except (Exception, CancelledError) as error:
        return error


def read_nonce(path: str) -> str:
    """On a worker: the first bytes of a file, "" where there is none."""
    with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return file.read(_MOST_NONCE)
    return ""


def _resource(device: Device, workers: Sequence[ClusterWorker]) -> dict[str, int]:
    """What a task takes of a worker: a GPU where one is asked for, or where any worker offers one."""
    if device == "gpu" or (device == "auto" and any(worker.resources.get("GPU", 0) for worker in workers)):
        return {"GPU": 1}
    return {"CPU_SLOT": 1}


def _versions_differ(identity: Identity) -> tuple[str, str] | None:
    """What differs from the versions here, and what to do; None where nothing does."""
    here, same = dict(versions()), "install the same version on both"
    for package, version in identity.versions:
        if here.get(package, version) != version:
            do = (
                f"{same}, or have both compile with the same one: OPTIML_CUDA=12 or 13" if package == COMPILER else same
            )
            return f"{package} is {version or 'missing'} there and {here[package] or 'missing'} here", do
    if missing := sorted(set(here) - {package for package, _ in identity.versions}):
        return f"does not report its version of {missing[0]}", same
    return None


def _machine(worker: ClusterWorker) -> str:
    return worker.identity.boot or worker.identity.host


def _natural(name: str) -> tuple[int, str]:
    return int(name) if name.isdecimal() else -1, name
