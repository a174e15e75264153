"""The scheduler of a local cluster lives in a process of its own, and no longer than its caller."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from engine.cluster.own_scheduler import OwnScheduler
from engine.process.sandbox import python_command

distributed = pytest.importorskip("distributed")


def certificates() -> Any:
    """Temporary ones, as a local cluster makes them."""
    return distributed.Security.temporary()


def test_clients_with_its_certificates_connect_and_others_do_not() -> None:
    async def connect() -> None:
        security = certificates()
        scheduler = OwnScheduler(security, {})
        await scheduler.start()
        try:
            assert scheduler.address.startswith("tls://127.0.0.1:")
            async with distributed.Client(scheduler.address, security=security, asynchronous=True) as client:
                assert (await client.scheduler.identity())["workers"] == {}
            with pytest.raises(OSError):  # noqa: PT011 - certificates of another authority, in the words of this OpenSSL
                await distributed.Client(scheduler.address, security=certificates(), asynchronous=True, timeout=2)
        finally:
            await scheduler.close()

    asyncio.run(connect())


def test_it_ends_with_its_input() -> None:
    security = certificates()
    names = ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key")
    header = json.dumps({"tls": {name: getattr(security, name) for name in names}, "config": {}}).encode()
    command = python_command("engine.cluster.own_scheduler")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(header + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"tls://")
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_header_that_is_none_is_an_error() -> None:
    """The caller died before it had written: no address, and no scheduler without certificates."""
    done = subprocess.run(
        python_command("engine.cluster.own_scheduler"), input=b"", capture_output=True, check=False, timeout=30
    )
    assert done.returncode != 0
    assert done.stdout == b""
