"""Answers a second over links to workers that only wait: what Dask and our links allow one search on several devices.

    python benchmarks/link_rate.py [--workers 1,2,4] [--takes 15] [--seconds 6] [--record FILE]

Local workers of `--cluster local` hold every request for `--takes` milliseconds and answer with 20 kB; requests have 100 kB, and three
are on their way to each worker, as in a search. Wanted: 1000 / takes for each worker. The machine's cores matter: the record names them.
The processor time of this process for each answer is what a search cannot use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.cluster.connection import connect  # noqa: E402
from engine.cluster.links import WorkerLink, links  # noqa: E402
from engine.cluster.scheduler import ClusterRequest  # noqa: E402
from engine.evaluate.remote import DeviceLost  # noqa: E402
from engine.search.progress import ON_DEVICE  # noqa: E402

_ANSWER, _REQUEST = 20_000, 100_000  # bytes


def held(frame: bytes) -> bytes:
    """What a worker does: the first bytes say for how many milliseconds."""
    time.sleep(int.from_bytes(frame[:4], "little") / 1e3)
    return bytes(_ANSWER)


def rate(workers: int, takes_ms: int, seconds: float) -> tuple[float, float]:
    """Answers for each second of so many workers together, and this process's milliseconds of processor time for each."""
    frame = takes_ms.to_bytes(4, "little") + bytes(_REQUEST)
    with connect(ClusterRequest("local", "cpu", workers)) as cluster, links(cluster, held, DeviceLost) as found:
        wait([link.call(frame) for link in found])  # so that each has begun
        running: dict[Future[bytes], WorkerLink] = {
            link.call(frame): link for link in found for _ in range(ON_DEVICE["measured"])
        }
        begin, used, answers = time.monotonic(), time.process_time(), 0
        while (spent := time.monotonic() - begin) < seconds:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            answers += len(done)
            for each in done:
                link = running.pop(each)
                running[link.call(frame)] = link
        used = time.process_time() - used
        for link in found:
            link.drop()
    return answers / spent, used / answers * 1e3


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Answers a second over links to workers that wait.")
    parser.add_argument("--workers", default="1,2,4", metavar="LIST")
    parser.add_argument("--takes", type=int, default=15, metavar="MS")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    found = {count: rate(int(count), options.takes, options.seconds) for count in options.workers.split(",")}
    for count, (answers, own_ms) in found.items():
        most = 1e3 / options.takes * int(count)
        print(
            f"{count} workers: {answers:.1f} answers a second ({answers / most:.0%} of {most:.0f}), {own_ms:.2f} ms of this process each"
        )
    if options.record:
        record = {
            "schema": "optiml.link_rate/1",
            "command": ["python", "benchmarks/link_rate.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "takes_ms": options.takes,
            "answers_per_second": {count: answers for count, (answers, _) in found.items()},
            "own_ms_per_answer": {count: own_ms for count, (_, own_ms) in found.items()},
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
