"""A campaign on workers that are killed: nothing booked is lost, and `--resume` ends with the same counts.

Scheduler, workers and client are processes; the searches in them are scripted (tests/engine/cluster/scripted.py), their journals real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.campaign import cluster_executor
from engine.campaign.campaign import CampaignRequest, run_campaign
from engine.campaign.cluster_executor import ClusterEvent, ClusterExecutor, Searches
from engine.campaign.cluster_task import MachineWish
from engine.campaign.survey import Survey, SurveyedKernel
from engine.cluster import connection
from engine.cluster import scheduler as scheduler_module
from engine.cluster.connection import Cluster, connect
from engine.cluster.scheduler import ClusterRequest
from engine.errors import MachineError
from engine.process.sandbox import NoSandbox
from tests.engine.cluster.processes import Processes, booked, kill, processes, total, until
from tests.engine.cluster.scripted import repository

pytestmark = pytest.mark.slow

EACH, KERNELS = 25, 3
WHOLE = KERNELS * (EACH + 1)


def test_workers_scheduler_and_client_can_be_killed(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", KERNELS)
    with processes(tmp_path) as all:
        scheduler, address = all.scheduler()
        first = all.worker(address)
        all.worker(address)
        # The files of kernels are sent, and journals carried back. A worker is killed, then the client.
        campaign = all.campaign(root, address, "--budget-each", str(EACH))
        until(lambda: total(root) > 5, f"candidates are carried back; {all.said()}", campaign)
        kill(first)
        before = total(root)
        until(lambda: total(root) > before + 5, "the campaign goes on without the worker", campaign)
        kept = booked(root)
        kill(campaign)
        assert not _lost(kept, booked(root))
        # Another client goes on, on the worker that is left; then the scheduler is killed, with which that worker ends.
        kept = booked(root)
        campaign = all.campaign(root, address, "--budget-each", str(EACH), "--resume")
        until(lambda: total(root) > sum(map(len, kept.values())) + 3, f"it goes on; {all.said()}", campaign)
        kill(scheduler)
        assert campaign.wait(240) == 1
        assert "the scheduler no longer answers; restart it, then resume with --resume" in all.said()
        kept = booked(root)
        _, address = all.scheduler()
        all.worker(address)
        campaign = all.campaign(root, address, "--budget-each", str(EACH), "--resume")
        assert campaign.wait(240) == 0, all.said()
        ended = booked(root)
        assert not _lost(kept, ended)
        assert {name: len(rows) for name, rows in ended.items()} == {f"k{n}-k{n}": EACH + 1 for n in range(KERNELS)}
        lines = all.lines()
        assert {line["event"] for line in lines if line["schema"] == "optiml.event/1"} >= {
            "begin",
            "progress",
            "lost",
            "end",
        }
        assert [k["state"] for k in lines[-1]["kernels"]] == ["done"] * KERNELS
        assert not list(root.glob(".optiml/*.1"))  # no run was set aside and begun anew


BUDGET_S, RESERVE_S = 20.0, 8.0


@dataclass
class Live:
    """A campaign of two kernels with a budget of time on two workers, and what is done to it once both are searched."""

    all: Processes
    root: Path
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    events: list[ClusterEvent] = field(default_factory=list)
    error: MachineError | None = None
    kernels: dict[str, str] = field(default_factory=dict)  # what was said of them

    def run(self, address: str, break_it: Callable[[Cluster, ClusterEvent], None]) -> float:
        """The seconds that the campaign took."""
        surveyed = tuple(SurveyedKernel(f"k{n}.cu", f"k{n}", 1, "declared", None, 4.0) for n in range(2))
        done = False

        def saw(event: ClusterEvent) -> None:
            nonlocal done
            self.events.append(event)
            if not done and len({e.rank for e in self.events if e.event == "progress" and e.candidates > 3}) == 2:
                done = True
                break_it(cluster, event)

        with connect(ClusterRequest(address, "cpu")) as cluster:
            until(lambda: len(cluster.refresh()) == 2, "two workers")
            wish = MachineWish("cpu", "sm_90")
            executor = ClusterExecutor(
                cluster, self.root, wish, Searches(self.root, NoSandbox()), shared=False, on_event=saw
            )
            begin = time.monotonic()
            try:
                end = run_campaign(
                    CampaignRequest(self.root, BUDGET_S), executor, Survey(surveyed, False, True, "sm_90")
                )
                self.kernels = {kernel.kernel: kernel.said for kernel in end.kernels}
            except MachineError as error:
                self.error = error
            finally:
                executor.close()
        assert done
        return time.monotonic() - begin


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Live, str]]:
    monkeypatch.setattr(cluster_executor, "_RESERVE_S", RESERVE_S)
    monkeypatch.setattr(connection, "_ANSWER_S", RESERVE_S / 2)
    monkeypatch.setattr(scheduler_module, "_WORKERS_S", 60.0)  # they are starting
    with processes(tmp_path) as all:
        scheduler, address = all.scheduler()
        yield Live(all, repository(tmp_path / "r", 2), scheduler, [all.worker(address) for _ in range(2)]), address


def test_a_worker_that_hangs_does_not_hold_up_the_campaign(live: tuple[Live, str]) -> None:
    """`all` never came to an end, and the other worker's search ended because nobody asked about it."""
    made, address = live
    took = made.run(address, lambda cluster, event: os.kill(_pid(cluster, event), signal.SIGSTOP))
    assert took < BUDGET_S + RESERVE_S + 15
    (stopped,) = [said for said in made.kernels.values() if "did not end within 8 s of its time" in said]
    assert int(stopped.split()[-2]) > 3  # candidates, which the journal has
    assert [said for said in made.kernels.values() if said.endswith(" candidates") and said != stopped]
    assert total(made.root) > 60


def test_a_scheduler_that_hangs_ends_the_campaign_with_one_sentence(live: tuple[Live, str]) -> None:
    made, address = live
    took = made.run(address, lambda cluster, event: os.kill(made.scheduler.pid, signal.SIGSTOP))
    assert took < BUDGET_S + RESERVE_S + 15
    assert str(made.error).endswith("the scheduler no longer answers; restart it, then resume with --resume")
    assert total(made.root) > 8


def test_a_connection_that_breaks_costs_no_more_than_the_time_it_takes(live: tuple[Live, str]) -> None:
    """Dask gives up all tasks then."""
    made, address = live

    def break_it(cluster: Cluster, event: ClusterEvent) -> None:
        cluster.client.loop.add_callback(cluster.client.scheduler_comm.comm.abort)

    took = made.run(address, break_it)
    assert BUDGET_S - 2 < took < BUDGET_S + RESERVE_S + 15
    assert [e.said for e in made.events if e.event == "lost"] == ["the connection broke"] * 2
    assert all(said.endswith(" candidates") for said in made.kernels.values())
    rows = booked(made.root)
    assert sum(map(len, rows.values())) > 100
    assert all([number for number, _ in some] == list(range(len(some))) for some in rows.values())


def _pid(cluster: Cluster, event: ClusterEvent) -> int:
    (pid,) = [worker.identity.pid for worker in cluster.workers if worker.name == event.worker]
    return pid


def _lost(before: dict[str, list[tuple[int, str]]], after: dict[str, list[tuple[int, str]]]) -> list[tuple[int, str]]:
    return [row for name, rows in before.items() for row in rows if row not in after.get(name, [])]
