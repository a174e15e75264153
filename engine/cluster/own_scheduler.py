"""The scheduler of a local cluster, in a process of its own.

A search submits some hundred candidates a second. In the search's process the scheduler took 2 to 4 ms of the interpreter for each, and
every message waited for the threads that build.

    python -m engine.cluster.own_scheduler < certificates    # prints its address, and lives until its input closes
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import dask
from distributed import Scheduler, Security
from distributed.deploy.spec import ProcessInterface

from engine.process.sandbox import python_command

_HOST, _PROTOCOL = "127.0.0.1", "tls://"
_CERTIFICATES = ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key")
_STARTS_S, _ENDS_S = 60.0, 5.0


class OwnScheduler(ProcessInterface):
    """What a `SpecCluster` starts and ends; `security` has temporary certificates, as text, `config` is Dask's."""

    def __init__(self, security: Any, config: Mapping[str, object]) -> None:
        self._header = {"tls": {name: getattr(security, name) for name in _CERTIFICATES}, "config": dict(config)}
        self._process: Process | None = None
        super().__init__()  # type: ignore[no-untyped-call]

    async def start(self) -> None:
        """Start it and wait for its address. Raises RuntimeError, TimeoutError."""
        command = python_command("engine.cluster.own_scheduler")
        self._process = process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(self._header).encode() + b"\n")
        self.address = (await asyncio.wait_for(process.stdout.readline(), _STARTS_S)).decode().strip()
        if not self.address.startswith(_PROTOCOL):
            raise RuntimeError("the scheduler's process ended")
        await super().start()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """End it."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDS_S)
            if process.returncode is None:
                process.kill()
        await super().close()  # type: ignore[no-untyped-call]


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    header = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set(header["config"]):
        security = Security(require_encryption=True, **header["tls"])  # type: ignore[no-untyped-call]
        made = Scheduler(security=security, host=_HOST, port=0, protocol=_PROTOCOL, dashboard_address=f"{_HOST}:0")
        async with made as scheduler:
            print(scheduler.address, flush=True)
            await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
