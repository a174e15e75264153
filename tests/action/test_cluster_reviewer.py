"""Kernels of a pull request as tasks on the workers of a cluster; the searches in it are short, and without a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from action import cluster_reviewer, kept_reviews, kernel_review
from action.cluster_reviewer import ClusterReviewer
from action.kept_reviews import ANSWERED, COMPARED_ONLY
from action.request import Request
from action.search_job import JobInputs, run
from bot.bundle import Bundle, Comparison, read_bundle
from bot.review import Settings, make_review
from engine.campaign.cluster_executor import ClusterEvent
from engine.campaign.cluster_task import Order
from engine.campaign.kernel_search import KernelEnd
from engine.cluster.connection import Cluster
from engine.errors import MachineError
from engine.process.decode import decode
from engine.process.wire import pack, unpack
from tests.action.scripted_review import CANDIDATES
from tests.action.test_search_job import FAST, SLOW, clone, commit, kept
from tests.bot.make import measurement, result
from tests.engine.campaign.test_cluster_executor import Client, Future
from tests.engine.cluster import workers as described
from tests.engine.cluster.processes import processes

__all__ = ["clone", "kept"]
SCRIPTED = Path(__file__).with_name("scripted_review.py")


class Script:
    """A cluster of two workers that is only described: what they are sent, and what they answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[tuple[Order, dict[str, bytes]]] = []
        self.ends: dict[str, KernelEnd | str] = {}  # by kernel; text is the state of Dask's future
        self.files: dict[str, bytes] = {}  # that come back with an end
        self.client = Client(described.worker("0", None), described.worker("1", None))
        self.client.submit = self._submit  # type: ignore[method-assign]
        cluster = Cluster(self.client, "tls://scheduler:8786", "cpu")
        cluster.examine()

        class Connected:
            def __enter__(self) -> Cluster:
                return cluster

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(cluster_reviewer, "connect", lambda request: Connected())

    def _submit(self, alone: Any, function: Any, frame: bytes, workers: list[str], **more: Any) -> Any:
        assert function is kernel_review.run_review
        assert more["resources"] == {"CPU_SLOT": 1}
        header, blobs = unpack(frame)
        order = decode(Order, header)
        self.orders.append((order, dict(zip((*order.files, *order.extra), blobs, strict=True))))
        end = self.ends.get(order.task.kernel, KernelEnd("done", ""))
        if isinstance(end, str):
            if end == "lost":  # its worker is gone, and another comes in its place
                self.client.workers = [w for w in self.client.workers if w.address not in workers]
                self.client.workers.append(described.worker(f"n{len(self.orders)}", None))
            return Future(end)
        header = {"end": dataclasses.asdict(end), "files": list(self.files), "rows": {}}
        return Future(pack(header, list(self.files.values())))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def two(clone: Path, settings: str = "") -> tuple[str, str]:
    """A pull request that changes two kernels; each has a file of the same name as the other."""
    (clone / ".optiml.yml").write_text(settings)
    for folder in ("a", "b"):
        (clone / folder).mkdir()
        (clone / folder / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / ".optiml.yml").write_text("guardrails: {case: 9.0}\n")
    for folder in ("a", "b"):
        (clone / folder / "k.cu").write_text(SLOW.replace("2.0f", "2.0f " if folder == "b" else "2.0f"))
    return base, commit(clone, "head")


def review(clone: Path, base: str, head: str, out: Path, **asked: Any) -> tuple[Bundle, list[str]]:
    said: list[str] = []
    cluster = asked.pop("cluster", "tls://scheduler:8786")
    run(Request(1, base, head, False, **asked), clone, out, JobInputs("cpu", cluster=cluster), said.append)
    return read_bundle(out, head=head), said


def test_workers_get_both_sides_and_the_base_s_settings_as_plain_data(
    clone: Path, tmp_path: Path, script: Script
) -> None:
    settings = "guardrails: {case: 1.5}\ncompile: {define: [FACTOR=2]}\n"
    base, head = two(clone, settings)
    slower = Comparison("slower", measurement(0.5, predicted=True))
    more = {"comparison": dataclasses.asdict(slower), "device": {"arch": "sm_90"}}
    script.ends["scale"] = KernelEnd("done", "", more=more)
    bundle, said = review(clone, base, head, tmp_path / "out", command="check")
    assert sorted(order.task.file for order, _ in script.orders) == ["a/k.cu", "b/k.cu"]
    for order, files in script.orders:
        assert files[".optiml.yml"] == settings.encode()
        assert order.spec is not None
        assert list(order.spec["compile"]["defines"]) == ["FACTOR=2"]  # the trees had no settings
        assert (order.asked, order.task.proposers) == ({"compare": True, "search": False, "draft": False}, ("rules",))
        assert order.extra == (order.task.file,)
        assert files[order.task.file] == FAST.encode()  # the last of this name: the base's
    assert len({order.task.folder(tmp_path, "scale") for order, _ in script.orders}) == 2
    for looked in bundle.kernels:
        assert (looked.spec_from, looked.error, looked.comparison) == ("base", COMPARED_ONLY, slower)
        assert looked.restore  # made here, of what a worker found
    assert "a/k.cu: scale: on worker 0" in said


def test_what_workers_found_is_not_asked_for_again(clone: Path, tmp_path: Path, script: Script) -> None:
    base, head = two(clone)
    same = Comparison("no difference", measurement(1.0, predicted=True))
    script.ends["scale"] = KernelEnd("done", "", more={"comparison": dataclasses.asdict(same), "device": {}})
    first, _ = review(clone, base, head, tmp_path / "one", command="check")
    second, said = review(clone, base, head, tmp_path / "two", command="check")
    assert first.kernels == second.kernels
    assert len(script.orders) == 2
    assert said == ["a/k.cu: scale: " + ANSWERED, "b/k.cu: scale: " + ANSWERED]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"comparison": {"standing": "won"}}, "is not one of"),
        ({"device": {"name": 7}}, "is not of type str"),
        ({"key": "x"}, "has the unknown field 'key'"),
    ],
)
def test_an_answer_of_another_form_is_a_sentence_about_its_kernel(
    clone: Path, tmp_path: Path, script: Script, more: Mapping[str, Any], error: str
) -> None:
    script.ends["scale"] = KernelEnd("done", "", more=more)
    bundle, _ = review(clone, *two(clone), tmp_path / "out")
    assert bundle.complete
    assert all(error in looked.error for looked in bundle.kernels)
    assert len(bundle.kernels) == 2


def test_a_kernel_that_takes_down_its_workers_leaves_the_others_their_review(
    clone: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.campaign import cluster_executor

    monkeypatch.setattr(cluster_executor, "_POLL_S", 0.0)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    (clone / "l.cu").write_text(FAST.replace("scale", "killer").replace("other", "bare"))
    script.ends = {"killer": "lost", "scale": KernelEnd("done", "", more={})}
    bundle, said = review(clone, base, commit(clone, "head"), tmp_path / "out", command="check")
    found = {looked.changed.kernel: looked.error for looked in bundle.kernels}
    assert found["killer"] == "3 workers were lost while they searched it"
    assert found["scale"] == COMPARED_ONLY
    assert sum("was lost, another continues" in line for line in said) == 3


def test_a_scheduler_that_is_lost_leaves_what_was_found(
    clone: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, head = two(clone)

    def lost(cluster: Cluster) -> None:
        raise MachineError("the scheduler no longer answers", "tls://10.0.0.7:8786")

    monkeypatch.setattr(Cluster, "refresh", lost)
    script.ends["scale"] = "pending"
    bundle, _ = review(clone, base, head, tmp_path / "out")
    assert bundle.complete
    assert [k.error for k in bundle.kernels] == ["not searched on the cluster: the scheduler no longer answers"] * 2


@pytest.mark.parametrize("there", ["nothing", "another program"])
def test_a_scheduler_that_is_not_there_is_one_sentence_of_the_review(clone: Path, tmp_path: Path, there: str) -> None:
    base, head = two(clone)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        if there == "another program":
            taken.listen()
        bundle, said = review(clone, base, head, tmp_path / "out", cluster=address)
    assert bundle.complete
    found = make_review(bundle, (), Settings())
    (skipped,) = found.not_looked
    assert skipped.path == "this pull request"
    assert skipped.reason.startswith("not searched on the cluster: no scheduler answers: ")
    assert "127.0.0.1" not in skipped.reason
    assert any(address in line for line in said)  # the log has it


def test_a_worker_s_result_stands_in_the_bundle_and_a_model_is_not_asked(
    clone: Path, tmp_path: Path, script: Script
) -> None:
    base, head = two(clone, "model: {enabled: true, name: qwen}\n")
    script.files = {
        "result.json": json.dumps(dataclasses.asdict(result(2.0, predicted=True))).encode(),
        "best.patch": b"--- a/a/k.cu\n",
    }
    script.ends["scale"] = KernelEnd("done", "said", folder="there")
    bundle, _ = review(clone, base, head, tmp_path / "out")
    for (order, _), looked in zip(script.orders, bundle.kernels, strict=True):
        assert (order.task.proposers, order.asked["search"]) == (("rules",), True)
        assert looked.result is not None
        assert looked.result.notes[-1] == cluster_reviewer.NO_MODEL
        assert looked.patch == "--- a/a/k.cu\n"
    runs = sorted(path.name for path in (tmp_path / "out" / "runs").iterdir())
    assert runs == ["1-k", "2-k"]
    assert (tmp_path / "out" / "runs" / "1-k" / "journal.sqlite").is_file()


def test_workers_that_are_started_here_see_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPTIML_TOKEN", "GITHUB_TOKEN", "ACTIONS_RUNTIME_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    for name in ("OPTIML_CACHE", "CUDA_VISIBLE_DEVICES", "DASK_DISTRIBUTED__COMM__TLS__CA_FILE"):
        monkeypatch.setenv(name, "kept")
    with cluster_reviewer._without_secrets():
        assert "secret" not in os.environ.values()
        assert list(os.environ.values()).count("kept") == 3
        assert os.environ["PATH"]
    assert os.environ["OPENAI_API_KEY"] == "secret"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_local_cluster_reviews_as_the_runner_does(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that got slower, and one without a spec, for which a draft is tried."""
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    bare = FAST.replace("scale", "bare").replace("other", "odd")
    (clone / "new.cu").write_text("".join(line for line in bare.splitlines(True) if "optiml:" not in line))
    head = commit(clone, "head")
    here, _ = review(clone, base, head, tmp_path / "here", cluster="", command="optimize", budget_s=240.0)
    monkeypatch.setattr(kept_reviews, "folder", lambda: tmp_path / "others")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    there, said = review(clone, base, head, tmp_path / "there", cluster="local", command="optimize", budget_s=240.0)
    assert any("on worker" in line for line in said)
    for one, other in zip(here.kernels, there.kernels, strict=True):
        assert one.changed == other.changed
        assert (one.spec_from, one.restore, one.draft) == (other.spec_from, other.restore, other.draft)
        assert (one.result is None) == (other.result is None), other.error
        if one.comparison is not None:
            assert other.comparison is not None
            assert one.comparison.standing == other.comparison.standing
    found = {looked.changed.kernel: looked for looked in there.kernels}
    assert found["scale"].restore
    assert found["bare"].draft
    assert found["scale"].result is not None
    assert found["scale"].result.counts["candidates"] > 0
    assert (tmp_path / "there" / "runs").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_costs_no_recorded_candidate(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, head = two(clone)
    killed: list[tuple[int, int, set[str]]] = []
    real = ClusterReviewer._saw

    def saw(reviewer: ClusterReviewer, event: ClusterEvent) -> None:
        real(reviewer, event)
        if event.event == "progress" and not killed:
            turn = reviewer._executor._turns[event.rank]
            rows = candidates(turn.out) if turn.out is not None else set()
            if len(rows) > 2:
                (pid,) = [w.identity.pid for w in reviewer._executor._cluster.workers if w.name == event.worker]
                killed.append((event.rank, pid, rows))
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(ClusterReviewer, "_saw", saw)
    with processes(tmp_path) as all:
        _, address = all.scheduler()
        all.worker(address, SCRIPTED)
        all.worker(address, SCRIPTED)
        bundle, said = review(clone, base, head, tmp_path / "out", cluster=address, budget_s=60.0)
    ((rank, _, rows),) = killed
    assert any("was lost, another continues" in line for line in said)
    assert [looked.error for looked in bundle.kernels] == [""] * 2
    looked = bundle.kernels[rank]
    assert looked.result is not None
    journal = candidates(tmp_path / "out" / "runs" / f"{rank + 1}-k")
    assert rows <= journal
    assert looked.result.counts["candidates"] == len(journal) - 1 == CANDIDATES


def candidates(folder: Path) -> set[str]:
    """Checksums of the candidates in a journal."""
    with closing(sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        return {checksum for (checksum,) in db.execute("SELECT checksum FROM candidates")}
