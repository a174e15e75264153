"""What a worker does with calls and tasks: one at a time, and none that was forgotten before it began."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from engine.cluster.worker_call import alone, call, forget


@pytest.mark.timeout(60)
def test_calls_and_tasks_run_one_at_a_time_on_a_worker_with_several_threads() -> None:
    """A worker of dask-jobqueue has a thread for each core: a candidate would be timed beside another's kernels."""
    running, most = 0, 0

    def work(frame: bytes) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threading.Event().wait(0.02)
        running -= 1
        return frame.upper()

    async def all_of_them() -> list[bytes]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as threads:
            worker = SimpleNamespace(executor=threads)
            tasks = [loop.run_in_executor(threads, alone, work, b"task") for _ in range(3)]
            calls = [call(work, b"call", "a search", worker) for _ in range(3)]
            return await asyncio.gather(*tasks, *calls)

    assert asyncio.run(all_of_them()) == [b"TASK"] * 3 + [b"CALL"] * 3
    assert most == 1


@pytest.mark.timeout(60)
def test_what_a_caller_forgets_is_not_begun_and_others_go_on() -> None:
    gate, begun = threading.Event(), []

    def work(frame: bytes) -> bytes:
        begun.append(frame)
        gate.wait(30)
        return frame

    async def answers() -> list[bytes]:
        with ThreadPoolExecutor(1) as thread:
            worker = SimpleNamespace(executor=thread)
            asked = [
                asyncio.create_task(call(work, frame, caller, worker))
                for frame, caller in ((b"1", "one"), (b"2", "one"), (b"3", "other"))
            ]
            while not begun:
                await asyncio.sleep(0.001)
            forget("one")
            gate.set()
            return await asyncio.gather(*asked)

    assert asyncio.run(answers()) == [b"1", b"", b"3"]
    assert begun == [b"1", b"3"]
