"""Campaigns on a cluster, cut short by kill -9 of a worker, of the scheduler or of the client, and gone on with.

    python -m benchmarks.cluster_kills --trials 20 --record benchmarks/results/cluster_kills.json

Scheduler, workers and clients are processes of Dask's and ours over tcp://; kernels' files are sent and journals carried back. Searches
are scripted (tests/engine/cluster/scripted.py): they book candidates in real journals and compile nothing. In a trial a campaign runs
until a random number of candidates has come back, one process is killed, and where that ended the campaign `--resume` goes on. It is
right when every candidate that had come back is there in the end, unchanged, and each kernel has as many as its budget says.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.examples import commit, machine
from engine.cluster.identity import versions
from tests.engine.cluster.processes import Processes, booked, kill, processes, total, until
from tests.engine.cluster.scripted import repository

KINDS = ("worker", "scheduler", "client")
_END_S = 300.0


class Trials:
    """Trials on one scheduler and its workers, replaced as they are killed."""

    def __init__(self, all: Processes, options: argparse.Namespace) -> None:
        self._all, self._options = all, options
        self._chance = random.Random(options.seed)
        self._start()

    def _start(self) -> None:
        self._scheduler, self._address = self._all.scheduler()
        self._workers = [self._all.worker(self._address) for _ in range(self._options.workers)]

    def one(self, number: int) -> dict[str, Any]:
        """One trial: what was killed when, and what was lost."""
        options, kind = self._options, KINDS[number % len(KINDS)]
        root = repository(self._all.folder / f"repository{number}", options.kernels)
        begin = time.monotonic()
        campaign = self._campaign(root)
        whole = options.kernels * (options.candidates + 1)
        wanted = self._chance.randint(2, whole * 2 // 3)
        until(lambda: total(root) >= wanted, f"{wanted} candidates; {self._all.said()}", campaign)
        time.sleep(self._chance.uniform(0.0, 1.0))
        kept = booked(root)
        self._kill(kind, campaign)
        code = campaign.wait(_END_S)
        if kind == "scheduler":
            self._start()
        if kind != "worker":
            code = self._campaign(root, "--resume").wait(_END_S)
        after = booked(root)
        lost = sum(row not in after.get(name, []) for name, rows in kept.items() for row in rows)
        counts = sorted(len(rows) - 1 for rows in after.values())
        right = code == 0 and not lost and counts == [options.candidates] * options.kernels
        return {
            "killed": kind, "booked_when_killed": sum(map(len, kept.values())), "booked": sum(map(len, after.values())), "lost": lost,
            "status": code, "right": right, "wall_s": round(time.monotonic() - begin, 1),
        }  # fmt: skip

    def _campaign(self, root: Path, *more: str) -> subprocess.Popen[bytes]:
        return self._all.campaign(root, self._address, "--budget-each", str(self._options.candidates), *more)

    def _kill(self, kind: str, campaign: subprocess.Popen[bytes]) -> None:
        if kind == "client":
            kill(campaign)
        elif kind == "scheduler":
            kill(self._scheduler)
            for worker in self._workers:  # they end with it
                worker.wait(_END_S)
        else:
            kill(self._workers.pop(self._chance.randrange(len(self._workers))))
            self._workers.append(self._all.worker(self._address))


def main() -> int:
    """Exit code 0 when every trial is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kernels", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=20, help="of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder, processes(Path(folder)) as all:
        trials = Trials(all, options)
        for number in range(options.trials):
            found.append(trials.one(number))
            print(json.dumps(found[-1]), flush=True)
    right = sum(trial["right"] for trial in found)
    print(f"{right} of {len(found)} right")
    if options.record is not None:
        record = {
            "command": "python -m benchmarks.cluster_kills " + " ".join(sys.argv[1:]), "commit": commit(), "machine": machine(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "versions": dict(versions()),
            "searches": "scripted", "right": right, "trials": found,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 0 if right == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
