"""What a worker does with what comes to it: one thing at a time, whichever way it came.

A search on several devices sends hundreds of candidates a second. As a task of Dask's scheduler each took the search's process twice the
time of a call through the scheduler (docs/scale.md). A call waits on the worker's thread behind its tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T", str, bytes)

_ALONE = threading.Lock()
_waiting: dict[str, set[Future[bytes]]] = {}  # calls that have not ended, by who called; of the event loop's thread


def alone(function: Callable[[T], T], data: T) -> T:
    """What a function gives, while nothing else runs so in this process: a worker may have been started with several threads."""
    with _ALONE:
        return function(data)


async def call(function: Callable[[bytes], bytes], frame: bytes, caller: str, dask_worker: Any) -> bytes:
    """The answer of a function to a frame; none where the caller forgot about it first. Dask gives the worker."""
    mine = _waiting.setdefault(caller, set())
    future: Future[bytes] = dask_worker.executor.submit(alone, function, frame)
    mine.add(future)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        return b""
    finally:
        mine.discard(future)


def forget(caller: str) -> str:
    """Drop a caller's calls that have not begun; on the thread of the event loop, as Dask calls it."""
    for future in list(_waiting.pop(caller, ())):
        future.cancel()
    return ""
