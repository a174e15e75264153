"""Links to workers: answers in futures of the standard library, and a loss noticed while somebody waits."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from engine.cluster import links as links_module
from engine.cluster import worker_call
from engine.cluster.links import WorkerLink, links
from engine.evaluate.remote import DeviceLost
from tests.engine.cluster import workers
from tests.engine.cluster.workers import Client, cluster, worker


class Task(Future[Any]):
    """A task that ends when the test says so, and its answer on the way."""

    def end(self, found: Any) -> None:
        if isinstance(found, BaseException):
            self.set_exception(found)
        else:
            self.set_result(found)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Any:
    connected = cluster(worker("0"), worker("1"))
    connected.examine()
    tasks: list[Task] = []

    forgotten: list[Any] = []
    real = connected.question

    def question(function: Any, *data: Any, worker: str) -> Future[Any]:
        if function is worker_call.forget:
            forgotten.append((*data, worker))
        elif function is worker_call.call:
            assert data[0] is bytes.upper
            tasks.append(Task())
            return tasks[-1]
        return real(function, *data, worker=worker)

    monkeypatch.setattr(connected, "question", question)
    found = WorkerLink(connected, connected.workers[0], bytes.upper, DeviceLost)
    found.tasks, found.connected, found.forgotten = tasks, connected, forgotten  # type: ignore[attr-defined]
    return found


def test_answers_come_as_bytes_and_anything_else_is_a_loss(link: Any) -> None:
    answers = [link.call(b"a") for _ in range(3)]
    assert not answers[0].done()
    for task, found in zip(link.tasks, (b"A", "text", RuntimeError("killed")), strict=True):
        task.end(found)
    assert answers[0].result(0) == b"A"
    for answer in answers[1:]:
        with pytest.raises(DeviceLost):
            answer.result(0)
    assert not link.waits


def test_an_answer_on_its_way_holds_up_no_other(link: Any) -> None:
    """Dask's one thread for callbacks fetched one answer after the other."""
    slow, quick = link.call(b"a"), link.call(b"b")
    link.tasks[1].end(b"B")
    assert quick.result(0) == b"B"
    assert not slow.done()


def test_what_says_what_a_device_is_goes_into_the_result(link: Any) -> None:
    assert link.name == "0 on node"
    assert link.identity["gpu"]["uuid"] == "GPU-a"
    assert link.identity["gpu"]["driver"] == "580.1"


def test_a_worker_that_is_gone_is_noticed_while_an_answer_is_awaited(
    monkeypatch: pytest.MonkeyPatch, link: Any
) -> None:
    monkeypatch.setattr(links_module, "_LOOK_S", 0.01)
    with links(link.connected, bytes.upper, DeviceLost) as (first, second):
        gone, there = first.call(b"a"), second.call(b"b")
        client: Client = link.connected.client
        client.workers = [each for each in client.workers if each.name == "1"]
        with pytest.raises(DeviceLost):
            gone.result(20)
        assert not there.done()
        with pytest.raises(DeviceLost):
            first.call(b"c").result(0)
        client.error = OSError("refused")  # the scheduler is gone
        with pytest.raises(DeviceLost):
            there.result(20)


def test_what_is_dropped_is_cancelled(link: Any) -> None:
    answer = link.call(b"a")
    link.drop()
    assert answer.cancelled()
    assert link.forgotten == [(link._caller, "tcp://0")]
    link.tasks[0].end(b"late")  # to nobody


def test_a_scheduler_that_is_late_costs_no_device(monkeypatch: pytest.MonkeyPatch, link: Any) -> None:
    """It was busy with a large message for a second, and every worker counted as lost."""
    monkeypatch.setattr(links_module, "_LOOK_S", 0.01)
    asked: list[int] = []
    there, answered = link.connected.client.identity, threading.Event()

    async def late(n_workers: int) -> Any:
        asked.append(n_workers)
        if len(asked) < 3:
            raise TimeoutError
        answered.set()
        return await there(n_workers)

    monkeypatch.setattr(link.connected.client, "identity", late)
    with links(link.connected, bytes.upper, DeviceLost) as (first, _):
        awaited = first.call(b"a")
        assert answered.wait(20)
        link.tasks[-1].end(b"A")
        assert awaited.result(20) == b"A"


@pytest.mark.timeout(60)
def test_a_worker_that_hangs_is_a_loss_and_a_busy_one_is_none(monkeypatch: pytest.MonkeyPatch, link: Any) -> None:
    """A search waited for its answers, and at last for its confirmation, for as long as the scheduler kept it."""
    monkeypatch.setattr(links_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(links_module, "_SILENT_S", 0.3)
    client, asked, answers = link.connected.client, [], threading.Event()
    real = client.run

    async def run(function: Any, *data: Any, workers: list[str], **more: Any) -> Any:
        if workers == ["tcp://0"]:
            await asyncio.Event().wait()
        asked.append(workers)
        if len(asked) > 40:
            answers.set()
        return await real(function, *data, workers=workers, **more)

    monkeypatch.setattr(client, "run", run)
    with links(link.connected, bytes.upper, DeviceLost) as found:
        hangs, busy = found[0].call(b"a"), found[1].call(b"b")
        with pytest.raises(DeviceLost):
            hangs.result(20)
        assert answers.wait(20)
        assert not busy.done()
        assert [each.address for each in found] == ["tcp://1"]  # the other is not linked again


def test_a_worker_that_joins_or_comes_back_gets_a_link(monkeypatch: pytest.MonkeyPatch, link: Any) -> None:
    """The search went on without it to its end."""
    monkeypatch.setattr(links_module, "_LOOK_S", 0.01)
    came, seen = threading.Event(), []
    other = dataclasses.replace(workers.H200, name="NVIDIA H100", uuid="GPU-c")

    def joined(new: WorkerLink) -> None:
        seen.append(new)
        came.set()

    with links(link.connected, bytes.upper, DeviceLost) as found:
        found.joined = joined
        client: Client = link.connected.client
        gone = found[0].call(b"a")
        found[1].call(b"b")
        client.workers = [each for each in client.workers if each.name == "1"]
        with pytest.raises(DeviceLost):
            gone.result(20)
        back = dataclasses.replace(worker("0", dataclasses.replace(workers.H200, uuid="GPU-b")), address="tcp://0b")
        client.workers = [*client.workers, back, worker("2", other)]
        assert came.wait(20)
        assert [each.address for each in seen] == ["tcp://0b"]  # and none of another kind
        assert [each.address for each in found] == ["tcp://1", "tcp://0b"]
