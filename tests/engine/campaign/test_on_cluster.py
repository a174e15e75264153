"""A campaign on workers that are killed: nothing booked is lost, and `--resume` ends with the same counts.

Scheduler, workers and client are processes; the searches in them are scripted (tests/engine/cluster/scripted.py), their journals real.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.cluster.processes import booked, kill, processes, total, until
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
        lines = [json.loads(line) for line in all.said().splitlines() if line.startswith("{")]
        assert {line["event"] for line in lines if line["schema"] == "optiml.event/1"} >= {
            "begin",
            "progress",
            "lost",
            "end",
        }
        assert [k["state"] for k in lines[-1]["kernels"]] == ["done"] * KERNELS
        assert not list(root.glob(".optiml/*.1"))  # no run was set aside and begun anew


def _lost(before: dict[str, list[tuple[int, str]]], after: dict[str, list[tuple[int, str]]]) -> list[tuple[int, str]]:
    return [row for name, rows in before.items() for row in rows if row not in after.get(name, [])]
