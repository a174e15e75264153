"""What a coordinator makes of workers' answers: a cluster that is only described, whose workers answer what a test says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from engine.campaign import cluster_executor, cluster_task, kernel_search
from engine.campaign.campaign import CampaignRequest, run_campaign
from engine.campaign.cluster_executor import ClusterEvent, ClusterExecutor, Searches
from engine.campaign.cluster_task import MachineWish, Order
from engine.campaign.kernel_search import KernelEnd, KernelTask, search_kernel
from engine.campaign.survey import Survey, SurveyedKernel
from engine.commands import all_on_cluster
from engine.errors import MachineError, UsageError
from engine.process.decode import decode
from engine.process.sandbox import NoSandbox
from engine.process.wire import pack, unpack
from engine.report import device_table
from engine.report.campaign_progress import CampaignProgress
from engine.search.progress import Budget, Progress
from tests.engine.cluster import scripted, workers
from tests.engine.cluster.scripted import repository

Answer = Callable[[Order], object]


class Future:
    """A task's future, ended when it was made."""

    status = "finished"

    def __init__(self, value: object) -> None:
        self._value = value
        if isinstance(value, str):
            self.status = value

    def done(self) -> bool:
        return self.status != "pending"

    def result(self, timeout: float) -> object:
        return self._value

    def exception(self) -> Exception:
        return ValueError("inside")

    def release(self) -> None:
        pass

    def add_done_callback(self, call: Callable[[object], None]) -> None:
        pass


class Client(workers.Client):
    """Workers whose tasks end at once with what `answer` says of the order."""

    answer: Answer
    resource: ClassVar[dict[str, int]] = {"CPU_SLOT": 1}

    def submit(self, alone: object, function: object, frame: bytes, workers: list[str], **more: Any) -> Future:
        assert (more["resources"], more["allow_other_workers"], more["retries"]) == (self.resource, False, 0)
        order = decode(Order, unpack(frame)[0])
        assert set(order.cores) <= set(self.workers[0].identity.cores)
        self.orders.append((order.task.rank, workers[0]))
        return Future(self.answer(order))

    def __init__(self, *there: Any) -> None:
        super().__init__(*there)
        self.orders: list[tuple[int, str]] = []


class GpuClient(Client):
    """The same with GPUs."""

    resource: ClassVar[dict[str, int]] = {"GPU": 1}


def executor(
    tmp_path: Path, answer: Answer, count: int = 2, *, shared: bool = True
) -> tuple[ClusterExecutor, Client, list[ClusterEvent]]:
    client = Client(*(workers.worker(str(n), None) for n in range(count)))
    client.answer = answer
    found = cluster_executor.Cluster(client, "tcp://scheduler:8786", "auto")
    found.examine()
    events: list[ClusterEvent] = []
    root = tmp_path if (tmp_path / ".git").exists() else repository(tmp_path / "r", 3)
    return (
        ClusterExecutor(
            found, root, MachineWish("cpu"), Searches(root, NoSandbox()), shared=shared, on_event=events.append
        ),
        client,
        events,
    )


def task(rank: int = 1) -> KernelTask:
    return KernelTask(rank, f"k{rank - 1}.cu", f"k{rank - 1}", candidates=5, campaign="c")


def done(order: Order) -> bytes:
    return pack({"end": dataclasses.asdict(KernelEnd("done", "said", candidates=5))})


def test_kernels_are_spread_and_the_queue_has_what_came_of_them(tmp_path: Path) -> None:
    made, client, events = executor(
        tmp_path, lambda order: pack({"end": dataclasses.asdict(KernelEnd("done", "said"))})
    )
    kernels = tuple(SurveyedKernel(f"k{n}.cu", f"k{n}", 1, "declared", None, 4.0) for n in range(3))
    request = CampaignRequest(tmp_path / "r", 600.0, each=Budget(candidates=5))
    end = run_campaign(request, made, Survey(kernels, False, True, "sm_90"))
    assert [k.state for k in end.kernels] == ["done"] * 3
    assert sorted(client.orders) == [(1, "tcp://0"), (2, "tcp://1"), (3, "tcp://0")]
    assert [e.event for e in events].count("end") == 3


def test_each_of_two_workers_gets_the_whole_time_where_there_are_two_kernels(tmp_path: Path) -> None:
    seconds: list[float | None] = []

    def answer(order: Order) -> bytes:
        seconds.append(order.task.seconds)
        return done(order)

    made, _, _ = executor(tmp_path, answer)
    kernels = tuple(SurveyedKernel(f"k{n}.cu", f"k{n}", 1, "declared", None, 4.0) for n in range(2))
    run_campaign(CampaignRequest(tmp_path / "r", 600.0), made, Survey(kernels, False, True, "sm_90"))
    assert [round(s or 0) for s in seconds] == [600, 600]


@pytest.mark.parametrize("status", ["cancelled", "lost"])
def test_a_kernel_that_loses_its_workers_is_given_up(
    tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_POLL_S", 0.0)

    def dies(order: Order) -> str:  # and another comes in its place
        gone = client.orders[-1][1]
        client.workers = [w for w in client.workers if w.address != gone]
        client.workers.append(workers.worker(f"n{len(client.orders)}", None))
        return status

    made, client, events = executor(tmp_path, dies)
    made.begin(task())
    ((rank, end),) = made.ended()
    assert (rank, end.state) == (1, "failed")
    assert "3 workers were lost" in end.said
    assert len(client.orders) == 3
    assert [e.event for e in events].count("lost") == 3


def test_a_connection_that_breaks_is_no_lost_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Dask gave up all tasks three times in a row, and each of two kernels counted three lost workers."""
    monkeypatch.setattr(cluster_executor, "_POLL_S", 0.0)
    frames: list[dict[str, Any]] = []
    real = cluster_executor.Cluster.question

    def question(cluster: Any, function: Any, *data: bytes, worker: str) -> Any:
        if function is cluster_task.report:
            frames.append(unpack(data[0])[0])
        asked = real(cluster, function, *data, worker=worker)
        asked.exception(20)
        return asked

    monkeypatch.setattr(cluster_executor.Cluster, "question", question)
    attempts: list[str] = []

    def breaks(order: Order) -> object:
        attempts.append(order.attempt)
        return "cancelled" if len(attempts) < 6 else "pending" if len(attempts) == 6 else done(order)

    made, _, _ = executor(tmp_path, breaks)
    made.begin(task())
    turn = made._turns[1]
    monkeypatch.setattr(cluster_executor, "_ATTEMPTS", 1)

    for _ in range(12):
        ends = [end for end in [made._end_of(turn)] if end is not None]
        assert not ends
        if len(attempts) == 6 and attempts[5] in frames[-1]["attempts"]:
            break
        made._look()
    assert frames[-1]["given_up"] == attempts[:5]
    assert list(frames[-1]["attempts"]) == attempts[5:]
    assert (turn.lost, turn.breaks) == (0, 5)


class Hanging(Client):
    """Workers 0 never answer, and the tasks that they take never end."""

    async def run(self, function: Any, *data: Any, **more: Any) -> Any:
        if function is cluster_task.report and more["workers"] == ["tcp://0"]:
            await asyncio.Event().wait()
        return await super().run(function, *data, **more)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ClusterExecutor, Client, list[Order]]:
    monkeypatch.setattr(cluster_executor, "_POLL_S", 0.01)
    orders: list[Order] = []

    def answer(order: Order) -> object:
        orders.append(order)
        return "pending" if client.orders[-1][1] == "tcp://0" else done(order)

    monkeypatch.setitem(globals(), "Client", Hanging)
    made, client, _ = executor(tmp_path, answer)
    return made, client, orders


@pytest.mark.timeout(60)
def test_a_worker_that_hangs_holds_up_no_other_and_the_time_of_its_kernel_holds(
    hanging: tuple[ClusterExecutor, Client, list[Order]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers were asked at once: the searches of the others ended because nobody asked, and the campaign never did."""
    monkeypatch.setattr(cluster_executor, "_RESERVE_S", 0.5)
    made, client, _ = hanging
    for rank in (1, 2):
        made.begin(dataclasses.replace(task(rank), candidates=None, seconds=0.5))
    ends = dict(made.ended())
    assert [end.state for end in ends.values()] == ["done"]
    began = time.monotonic()
    ends |= made.ended()
    assert time.monotonic() - began < 30
    assert ends[1].state == "failed"
    assert ends[1].said == "its search on worker 0 did not end within 0 s of its time; the journal has 0 candidates"
    made.begin(task(3))
    assert client.orders[-1] == (3, "tcp://1")  # and it is given nothing more
    assert dict(made.ended())[3].state == "done"


@pytest.mark.timeout(60)
def test_a_kernel_whose_worker_is_silent_goes_to_another_with_what_is_left_of_its_time(
    hanging: tuple[ClusterExecutor, Client, list[Order]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had its whole time again."""
    monkeypatch.setattr(cluster_executor, "_SILENT_S", 0.5)
    made, client, orders = hanging
    made.begin(dataclasses.replace(task(), candidates=None, seconds=600.0))
    assert dict(made.ended())[1].state == "done"
    assert client.orders == [(1, "tcp://0"), (1, "tcp://1")]
    first, second = (order.task for order in orders)
    assert (first.seconds, first.whole_s) == (600.0, None)
    assert second.seconds is not None
    assert 500.0 < second.seconds < 599.6
    assert second.whole_s == 600.0  # what the same request is known by


def test_a_search_that_nobody_asked_about_goes_on_elsewhere(tmp_path: Path) -> None:
    """A client that was held up for a minute ended the whole campaign."""
    answers = [pack({"unasked": True})]
    made, client, events = executor(tmp_path, lambda order: answers.pop() if answers else done(order))
    made.begin(task())
    assert dict(made.ended())[1].state == "done"
    assert len(client.orders) == 2
    assert [e.said for e in events if e.event == "lost"] == ["the connection broke"]


def test_a_worker_whose_search_nobody_asks_about_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ended(turn: cluster_task.Served) -> KernelEnd:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_task, "make_machine", lambda **given: None)
    order = Order("a", task(), MachineWish("cpu"), (0,), root=str(tmp_path))
    assert unpack(cluster_task.serve(pack(dataclasses.asdict(order)), ended))[0] == {"unasked": True}


def test_a_journal_that_a_hanging_worker_holds_fails_its_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_task, "_LEASE_S", 0.0)

    def locked() -> KernelEnd:
        raise MachineError(f"{cluster_task.IN_USE} here", "k", "wait for it")

    assert cluster_task._unlocked(locked).state == "failed"


def test_a_worker_ends_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It searched on until its lease was over, and the kernel's next turn waited for it."""
    live = cluster_task._Live("a")
    monkeypatch.setattr(cluster_task._worker, "live", live)
    cluster_task.report(pack({"attempts": {}, "given_up": ["other"]}))
    live.saw(Progress(evaluated=3))
    cluster_task.report(pack({"attempts": {}, "given_up": ["a"]}))
    with pytest.raises(KeyboardInterrupt):
        live.saw(Progress(evaluated=4))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("error", "a search failed: ValueError: inside"),
        (pack({"error": ["the GPU fell off the bus", "", "look"]}), "the GPU fell off the bus"),
        (b"no frame", "a worker's answer cannot be read"),
        (pack({}), "a worker's answer"),
        (pack({"end": {"state": "won", "said": ""}}), "is not one of running, done, failed"),
        (pack({"end": {"state": "done", "said": "", "speedup": "fast"}}), "a worker's answer"),
        (pack({"error": "x"}), "a worker's answer"),
        (pack({"end": {"state": "done", "said": "", "folder": "/etc"}}), "names a folder other than"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_ends_the_campaign_with_a_sentence(tmp_path: Path, answer: Any, said: str) -> None:
    made, _, _ = executor(tmp_path, lambda order: answer)
    made.begin(task())
    with pytest.raises(MachineError, match=said):
        made.ended()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "journal.sqlite", "k0.cu"])
def test_a_worker_writes_no_file_but_its_results(tmp_path: Path, name: str) -> None:
    frame = pack({"end": dataclasses.asdict(KernelEnd("done", "said")), "files": [name], "rows": {}}, [b"x"])
    made, _, _ = executor(tmp_path, lambda order: frame, shared=False)
    made.begin(task())
    with pytest.raises(MachineError, match="names files other than results"):
        made.ended()


def test_a_kernel_without_a_spec_fails_alone(tmp_path: Path) -> None:
    made, client, _ = executor(tmp_path, done, shared=False)
    (tmp_path / "r" / "k0.cu").write_text("__global__ void k0(float* x")
    made.begin(task())
    ((_, end),) = made.ended()
    assert end.state == "failed"
    assert not client.orders


def test_a_command_of_the_whole_repository_needs_a_shared_folder(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", 1)
    (root / ".optiml.yml").write_text("guardrails:\n  command: make test\n")
    with pytest.raises(UsageError, match="add --shared"):
        executor(root, done, shared=False)
    executor(root, done, shared=True)


def test_a_search_that_nobody_asks_about_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    live = cluster_task._Live("a")
    live.saw(Progress(evaluated=3))
    monkeypatch.setattr(cluster_task, "_LEASE_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        live.saw(Progress(evaluated=4))


def test_a_report_is_for_who_asks_for_this_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_task._worker, "live", cluster_task._Live("a"))
    other = pack({"attempts": {"b": {"candidate": -1, "profiles": 0, "identity": ""}}})
    assert unpack(cluster_task.report(other))[0] == {}
    mine = pack({"attempts": {"a": {"candidate": -1, "profiles": 0, "identity": ""}}})
    assert unpack(cluster_task.report(mine))[0]["seen"]["attempt"] == "a"


def test_files_that_lead_out_are_not_written() -> None:
    for name in ("../x", "/x", "a/../../x", ".git/config"):
        order = Order("a", task(), MachineWish("cpu"), (0,), files=(name,), spec={})
        frame = pack(dataclasses.asdict(order), [b"data"])
        assert unpack(cluster_task.run_order(frame))[0]["error"][0] == "leads out of the repository"


def test_a_turn_that_was_cut_short_ends_with_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on adds no budget within one campaign; another campaign adds its own, as `optimize` does."""
    monkeypatch.setattr(kernel_search, "optimize", scripted.optimize)
    monkeypatch.setattr(scripted, "STEP_S", 0.0)
    root = repository(tmp_path / "r", 1)
    machine: Any = SimpleNamespace(arch="sm_90", mode="predicted", name="", box=NoSandbox())

    def cut(progress: Progress) -> None:
        if progress.evaluated == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_kernel(task(), root, machine, cut)
    assert search_kernel(task(), root, machine).candidates == 5
    assert search_kernel(dataclasses.replace(task(), campaign="next"), root, machine).candidates == 10


def test_events_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    event = ClusterEvent("progress", 1, "k.cu", "k", "0", 7, 1.5, 30.0, "searching")
    shown = CampaignProgress("json", "http://here:8787/status", workers=3)
    with shown.shown():
        shown.saw(event)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    link = {"event": "cluster", "workers": 3, "dashboard": "http://here:8787/status"}
    assert first == {"schema": "optiml.event/1", **link}
    assert second == {"schema": "optiml.event/1", **dataclasses.asdict(event)}
    text = CampaignProgress("text", "http://here:8787/status")
    with text.shown():
        text.saw(dataclasses.replace(event, event="begin"))
        text.saw(dataclasses.replace(event, event="lost"))
        text.saw(dataclasses.replace(event, event="end", said="said"))
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "dashboard: http://here:8787/status", "k.cu:k: on worker 0, 30 s", "k.cu:k: worker 0 was lost, another continues", "k.cu:k: said",
    ]  # fmt: skip
    text.saw(event)
    (row,) = [list(column.cells) for column in text.table().columns[2:3]]
    assert [str(cell) for cell in row] == ["7"]


def test_different_devices_are_refused_or_searched_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", 2)
    other = dataclasses.replace(workers.H200, name="NVIDIA H100", uuid="GPU-b")
    client = GpuClient(workers.worker("0"), workers.worker("1", other))
    client.answer = done
    found = cluster_executor.Cluster(client, "tls://scheduler:8786", "auto")
    found.examine()

    @contextmanager
    def connect(request: object) -> Iterator[cluster_executor.Cluster]:
        yield found

    monkeypatch.setattr(all_on_cluster, "connect", connect)
    kernels = tuple(SurveyedKernel(f"k{n}.cu", f"k{n}", 1, "declared", None, 4.0) for n in range(2))
    survey = Survey(kernels, False, True, "sm_90")
    request = CampaignRequest(root, 600.0, each=Budget(candidates=5))
    machine = SimpleNamespace(arch="sm_90", box=NoSandbox(), close=lambda: None)
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(all_on_cluster, "make_machine", lambda **given: made.append(given) or machine)
    options = {
        "cluster": "tls://scheduler:8786",
        "device": "auto",
        "workers": None,
        "shared": True,
        "jobs": None,
        "arch": None,
        "format": "json",
    }
    arguments = Namespace(**options, unsafe_no_sandbox=False, per_device=False)
    surveys: list[Survey] = []

    def surveyed(machine: Any) -> Survey:
        surveys.append(survey)
        return survey

    with pytest.raises(MachineError, match=r"0: NVIDIA H200, driver 580.1; 1: NVIDIA H100.*--per-device"):
        all_on_cluster.search(arguments, request, surveyed)
    assert not client.orders
    assert not made
    assert not surveys  # which takes minutes for a large repository
    arguments.per_device = True
    arguments.device = "gpu"  # the workers': here is none
    ends, dispatch = all_on_cluster.search(arguments, request, surveyed)
    assert dispatch == device_table.CampaignDispatch()  # no kernel has a suggestion
    assert [[k.state for k in end.kernels] for end in ends] == [["done"] * 2] * 2
    assert [(row.kernel, row.device) for row in device_table.of_campaigns(ends)] == [
        (name, end.device) for end in ends for name in ("k0", "k1")
    ]
    assert not device_table.of_campaigns(ends[:1])
    assert client.orders == [(1, "tcp://0"), (2, "tcp://0"), (1, "tcp://1"), (2, "tcp://1")]
    assert sorted(p.name for p in (root / ".optiml").glob("all@*")) == [
        "all@nvidia-h100-580-1",
        "all@nvidia-h200-580-1",
    ]
