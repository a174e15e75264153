"""How far `optiml all --cluster` scales, simulated in virtual time: the real coordinator and its queue in SQLite, no workers.

    python benchmarks/campaign_scaling.py [--workers 1,2,4,16,64,256] [--kernels 500] [--arms time,each,again] [--record FILE]

`run_campaign` chooses kernels, gives them their budgets and writes its queue; its processor time advances the virtual clock. A worker is
simulated: a kernel's search takes as long as said below, and 10 ms until it begins. Efficiency: the time that workers search over the
number of workers times the time of the whole campaign. Arms:

    `time`   the default, a budget of time for the campaign: 60 s a kernel and worker on average, spread by weight (each kernel's share
             of the recorded time is drawn by 1/rank); a search takes its budget, and setting up 0 to 10 s of it or beyond it
    `each`   a budget of candidates for each kernel: a search takes 40 to 80 s, which nobody knows before
    `again`  the same, and each kernel has the result of an earlier run, which took 85 to 115 % of what this one takes
    `guess`  the same with 55 to 145 % (`--arms guess`): what a guess would have to be
    `slices` as `each`, without the coordinator (`--arms slices`): of the last kernels, two for each worker, a quarter of the budget first;
             the other quarters last, those that take longest first, each with setting up (0 to 10 s) again

Last it prints Spearman's rank correlations: of these earlier times with the true ones, and of what is known before a search of the suite
(the original's time, the length of its text) with the seconds that it took for each candidate (benchmarks/results/suite.json, one H200).
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.predict_correlation import spearman  # noqa: E402
from benchmarks.scaling import Clock  # noqa: E402
from engine.campaign import campaign  # noqa: E402
from engine.campaign.campaign import CampaignRequest, run_campaign  # noqa: E402
from engine.campaign.kernel_search import KernelEnd, KernelTask  # noqa: E402
from engine.campaign.survey import READY, Survey, SurveyedKernel  # noqa: E402
from engine.search.progress import Budget  # noqa: E402

WORKERS = (1, 2, 4, 16, 64, 256)
BEGIN_S = 0.010
EACH_S, SETUP_S, AVERAGE_S = (40.0, 80.0), (0.0, 10.0), 60.0
EARLIER = {"again": (0.85, 1.15), "guess": (0.55, 1.45)}
_SLICED, _SLICE = 2, 0.25  # kernels for each worker whose searches are done in two turns, and the first one's part
SUITE = ROOT / "benchmarks" / "results" / "suite.json"
CANDIDATES = 100


@dataclass
class Workers:
    """So many workers in virtual time."""

    clock: Clock
    slots: int
    busy_s: float = 0.0
    searched: int = 0
    _running: list[tuple[float, int]] = field(default_factory=list)

    def begin(self, task: KernelTask) -> None:
        takes = _each_s(task.rank) if task.seconds is None else task.seconds + _drawn(task.rank, SETUP_S) / 2
        self.busy_s += takes
        heapq.heappush(self._running, (self.clock.monotonic() + BEGIN_S + takes, task.rank))

    def ended(self) -> Sequence[tuple[int, KernelEnd]]:
        when, rank = heapq.heappop(self._running)
        self.clock.until(when)
        self.searched += 1
        return [(rank, KernelEnd("done", "simulated"))]


def _drawn(seed: int | str, bounds: tuple[float, float]) -> float:
    return random.Random(seed).uniform(*bounds)


def _each_s(rank: int) -> float:
    """What the search of a budget of candidates takes."""
    return _drawn(rank, EACH_S)


def _earlier_s(rank: int, arm: str) -> float:
    return _each_s(rank) * _drawn(f"earlier {rank}", EARLIER[arm])


def _searched_before(root: Path, kernels: Sequence[SurveyedKernel], arm: str) -> None:
    """Results of an earlier campaign."""
    for rank, kernel in enumerate(kernels, 1):
        result = root / ".optiml" / f"k-{kernel.kernel}" / "result.json"
        result.parent.mkdir(parents=True)
        elapsed_s = _earlier_s(rank, arm)
        result.write_text(json.dumps({"elapsed_s": elapsed_s, "counts": {"candidates": CANDIDATES}}))


def sliced(workers: int, kernels: int) -> dict[str, float]:
    """One campaign whose last searches are done in two turns."""
    whole = kernels - min(kernels, _SLICED * workers)
    first = [(rank, 1.0 if rank <= whole else _SLICE) for rank in range(1, kernels + 1)]
    rest: list[tuple[float, int]] = []  # the longest first
    running: list[tuple[float, int, bool]] = []  # until when, which, whether its rest is to come
    now, busy_s = 0.0, 0.0
    while first or rest or running:
        while (first or rest) and len(running) < workers:
            if first:
                rank, part = first.pop(0)
                takes = part * _each_s(rank)
                heapq.heappush(running, (now + BEGIN_S + takes, rank, part < 1))
            else:
                takes, rank = -rest[0][0], heapq.heappop(rest)[1]
                heapq.heappush(running, (now + BEGIN_S + takes + _drawn(f"again {rank}", SETUP_S), rank, False))
            busy_s += takes
        now, rank, more = heapq.heappop(running)
        if more:
            heapq.heappush(rest, ((_SLICE - 1) * _each_s(rank), rank))
    return {
        "workers": workers, "kernels": kernels, "campaign_s": now, "efficiency": busy_s / (workers * now), "coordinator_ms": 0.0,
    }  # fmt: skip


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Have the coordinator read the time on this clock."""
    campaign.time = clock  # type: ignore[assignment]
    try:
        yield
    finally:
        campaign.time = time


def measure(arm: str, workers: int, kernels: int) -> dict[str, float]:
    """One campaign over so many workers."""
    if arm == "slices":
        return sliced(workers, kernels)
    state = next(iter(READY))
    surveyed = tuple(
        SurveyedKernel("k.cu", f"k{n}", n, state, share=1 / n / 7, headroom=3.0) for n in range(1, kernels + 1)
    )  # fmt: skip
    clock = Clock()
    over = Workers(clock, workers)
    with tempfile.TemporaryDirectory() as folder, virtual(clock):
        (Path(folder) / ".git").mkdir()
        budget_s = AVERAGE_S * kernels / workers
        request = CampaignRequest(
            Path(folder), budget_s, least=0.0, each=None if arm == "time" else Budget(candidates=CANDIDATES)
        )
        if arm in EARLIER:
            _searched_before(Path(folder), surveyed, arm)
        begin, spent = clock.monotonic(), time.thread_time()
        run_campaign(request, over, Survey(surveyed, recorded=True, complete=True, arch="sm_90"))
        whole, spent = clock.monotonic() - begin, time.thread_time() - spent
    return {
        "workers": workers, "kernels": over.searched, "campaign_s": whole, "efficiency": over.busy_s / (workers * whole),
        "coordinator_ms": 1e3 * spent / max(1, over.searched),
    }  # fmt: skip


def agreement(kernels: int) -> dict[str, float | None]:
    """Rank correlations: of each arm's earlier times with the true ones, and in the suite of what is known before a search."""
    ranks = range(1, kernels + 1)
    true_s = [_each_s(rank) for rank in ranks]
    rows = [row for row in json.loads(SUITE.read_text())["rows"].values() if row["candidates"]]
    each_s = [row["elapsed_s"] / row["candidates"] for row in rows]
    times_us = [sum(case["original_us"] for case in row["cases"]) for row in rows]
    lengths = [len((ROOT / row["file"]).read_bytes()) for row in rows]
    found = {arm: spearman(true_s, [_earlier_s(rank, arm) for rank in ranks]) for arm in EARLIER}
    return found | {
        "suite, original's time": spearman(each_s, times_us),
        "suite, length of its text": spearman(each_s, lengths),
    }


def render(arms: dict[str, list[dict[str, float]]]) -> str:
    """A Markdown table for each arm."""
    lines = []
    for arm, rows in arms.items():
        lines += [
            f"| {arm}: workers | kernels searched | campaign | efficiency | coordinator ms a kernel |",
            "|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row['workers']:.0f} | {row['kernels']:.0f} | {row['campaign_s']:.0f} s | {100 * row['efficiency']:.1f} % | "
            f"{row['coordinator_ms']:.1f} |"
            for row in rows
        ] + [""]
    return "\n".join(lines).rstrip()


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Simulate a campaign over many workers.")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), metavar="LIST")
    parser.add_argument("--kernels", type=int, default=500)
    parser.add_argument("--arms", default="time,each,again", metavar="LIST")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    counts = [int(count) for count in options.workers.split(",")]
    arms = {arm: [measure(arm, count, options.kernels) for count in counts] for arm in options.arms.split(",")}
    print(render(arms))
    agrees = agreement(options.kernels)
    for name, value in agrees.items():
        print(f"rank correlation, {name}: {'-' if value is None else f'{value:.2f}'}")
    if options.record:
        record: dict[str, Any] = {
            "schema": "optiml.campaign_scaling/1",
            "command": ["python", "benchmarks/campaign_scaling.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "kernels": options.kernels, "arms": arms,
            "rank_correlation": agrees,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
