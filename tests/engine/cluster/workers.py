"""Workers and a scheduler that are only described: for what is checked before work starts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from engine.cluster.connection import Cluster, ClusterWorker
from engine.cluster.identity import Gpu, Identity, versions

H200 = Gpu("NVIDIA H200", "GPU-a", "sm_90", False, "580.1", 1980, 3201, 34)


def identity(gpu: Gpu | None = None, **more: Any) -> Identity:
    problem = "" if gpu is not None else "NVML finds no GPU"
    return Identity(**{"host": "node", "boot": "b", "pid": 7, "cpu": "a CPU", "cores": (0, 1, 2, 3), "versions": versions(),
                       "gpu": gpu, "problem": problem, **more})  # fmt: skip


def worker(name: str, gpu: Gpu | None = H200, **more: Any) -> ClusterWorker:
    resources = {"GPU": 1.0} if gpu is not None else {"CPU_SLOT": 1.0}
    return ClusterWorker(f"tcp://{name}", name, identity(gpu, **more), resources, ())


class Client:
    """A scheduler with workers, and what a function answers on each."""

    status = "running"
    dashboard_link = "http://here:8787/status"
    loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())

    def __init__(self, *workers: ClusterWorker) -> None:
        self.workers = list(workers)
        self.answers: Mapping[str, object] | None = None
        self.error: BaseException | None = None

    @property
    def scheduler(self) -> Any:
        """What answers the scheduler's own methods."""
        return SimpleNamespace(identity=self.identity)

    def sync(self, function: Callable[..., Awaitable[Any]], callback_timeout: float, **given: Any) -> Any:
        """As a client's."""
        assert callback_timeout > 0
        return asyncio.run_coroutine_threadsafe(function(**given), self.loop.asyncio_loop).result()

    async def identity(self, n_workers: int) -> dict[str, Any]:
        """As a scheduler's."""
        assert n_workers == -1
        if self.error is not None:
            raise self.error
        return {"workers": {w.address: {"name": w.name, "resources": dict(w.resources)} for w in self.workers}}

    async def run(
        self, function: Callable[..., str], *text: str, workers: list[str], on_error: str, asynchronous: bool
    ) -> dict[str, object]:
        """As a client's."""
        assert (on_error, asynchronous) == ("return", True)
        if self.error is not None:
            raise self.error
        (asked,) = [w for w in self.workers if w.address in workers]
        if self.answers is not None and asked.address in self.answers:
            return {asked.address: self.answers[asked.address]}
        if function.__name__ == "describe":
            return {asked.address: json.dumps(dataclasses.asdict(asked.identity))}
        return {asked.address: function(*text)}

    async def gather(self, task: Any, asynchronous: bool) -> object:
        """As a client's, of what tests give for tasks."""
        assert asynchronous
        return task.result(0)


threading.Thread(target=Client.loop.asyncio_loop.run_forever, daemon=True).start()


def cluster(*workers: ClusterWorker, device: Any = "auto") -> Cluster:
    return Cluster(Client(*workers), "tcp://scheduler:8786", device)
