"""Processor time of one search by stage, for each candidate, with devices that answer at once: what a search costs beside its GPUs.

    python benchmarks/search_time.py [--runs optimize,tune] [--devices 4] [--candidates 400] [--repeats 3] [--beside FOLDER]
                                     [--record FILE] [FILE ...]

Each FILE (default: benchmarks/tuning/transpose.cu and gemm.cu) is searched through the links of `--cluster local`. The workers answer every
candidate at once with a made-up ratio: no GPU is needed, nothing is verified. A first search fills the cache of machine code, so that the
others compile little; each runs in a process of its own. Stages are milliseconds of processor time of the thread that is in them, without
the stages within; `all` is the whole process, `Dask` the rest of its loop's thread, `other` what is left. Beside it: `workers` read, write
and build candidates, `links` are Dask's processes. `sent`: the share of candidates that a device evaluated (others are twins, or cannot
be built); `read`: for so many programs proposals were asked for. Medians over the repeats. With `--beside` another checkout, into which
this script is copied, takes turns with this one. The rates say nothing of a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.builders.builders import BuildWorkers  # noqa: E402
from engine.cluster.connection import connect  # noqa: E402
from engine.cluster.links import links  # noqa: E402
from engine.cluster.scheduler import ClusterRequest  # noqa: E402
from engine.evaluate.build import Builder  # noqa: E402
from engine.evaluate.device_frames import BuiltHead, Reply, Request, pack, read_request  # noqa: E402
from engine.evaluate.remote import DeviceLost, RemoteEvaluator  # noqa: E402
from engine.evaluate.secret_cases import MOST  # noqa: E402
from engine.model import CaseTiming, Evaluation, Measurement, Outcome  # noqa: E402
from engine.process.decode import decode  # noqa: E402
from engine.process.interrupt import Interrupt  # noqa: E402
from engine.run.machine import make_machine  # noqa: E402
from engine.run.optimization import optimize  # noqa: E402
from engine.run.optimize_options import Options  # noqa: E402
from engine.run.template_run import tune  # noqa: E402
from engine.search import loop  # noqa: E402
from engine.search.books import Books  # noqa: E402
from engine.search.journal import Journal  # noqa: E402
from engine.search.loop import Search  # noqa: E402
from engine.search.progress import Budget, Progress  # noqa: E402
from engine.search.tree import Tree  # noqa: E402
from engine.spec.kernel_spec import KernelSpec  # noqa: E402
from engine.tune import tuner  # noqa: E402
from engine.tune.template import ConstantTemplate, RuleTemplate  # noqa: E402
from engine.tune.tune_options import TuneOptions  # noqa: E402
from engine.tune.tuner import Tuner  # noqa: E402
from engine.verify.secret_sizes import secret_cases, wide_sizes  # noqa: E402

FILES = ("benchmarks/tuning/transpose.cu", "benchmarks/tuning/gemm.cu")
_JOBS = 4  # builders at once, on any machine: the fewest with which candidates are built in other processes
_LIMIT_S = 600.0
_ROLES = {"builder_worker": "workers", "nvrtc_worker": "compilers", "spawn_main": "links", "own_scheduler": "links"}


# ---- a device that answers at once, in a worker of the cluster

_spec: KernelSpec
_worth: dict[str, float] = {}  # ratios of incumbents, by their keys


def answer(frame: bytes) -> bytes:
    """The reply of a device to which everything is correct, and as fast as the digest of its machine code says."""
    request, _ = read_request(frame)
    if request.op == "open":
        return pack(_opened(request))
    if request.op == "evaluate" and request.candidate is not None:
        return pack(_evaluated(request, request.candidate))
    return pack(Reply())


def _opened(request: Request) -> Reply:
    global _spec
    given = request.opening
    assert given is not None
    _spec = decode(KernelSpec, given.spec)
    drawn = random.Random(given.secret)
    cases = secret_cases(_spec, drawn)[:MOST]
    return Reply(
        _evaluation(given.original, 1.0), mode="measured", device=_state(), cases=repr(cases),
        sizes=(*wide_sizes(_spec, drawn), *(case.sizes for case in cases)),
    )  # fmt: skip


def _evaluated(request: Request, candidate: BuiltHead) -> Reply:
    key = request.incumbent
    if key is not None and request.incumbent_built is not None:
        _worth[key] = _ratio(request.incumbent_built)
    if key is not None and key not in _worth:
        return Reply(wanted=key)
    ratio = _ratio(candidate)
    return Reply(_evaluation(candidate, ratio), None if key is None else ratio / _worth[key])


def _ratio(head: BuiltHead) -> float:
    """Made up: one in ten is faster than the original, at most 1.2 times."""
    digest = hashlib.sha256(repr((head.binary.code_hash, head.launches)).encode()).digest()
    share = int.from_bytes(digest[:4], "little") / 2**32
    return 0.4 + share * 0.6 / 0.9 if share < 0.9 else 1.0 + 2 * (share - 0.9)


def _evaluation(head: BuiltHead, ratio: float) -> Evaluation:
    cases = tuple(
        CaseTiming(case.name, case.weight, 100.0, 100.0 / ratio, ratio, 0.99 * ratio, 1.01 * ratio, 30)
        for case in _spec.time
    )
    measured = Measurement(cases, ratio, 0.99 * ratio, 1.01 * ratio)
    outcome = Outcome.ACCEPTED if 0.99 * ratio > 1.0 else Outcome.SLOWER
    stages = {**head.stage_s, "verify": 0.004, "time": 0.01}
    return Evaluation(outcome, measured, None, head.binary.resources, head.binary.code_hash, stages, device=_state())


def _state() -> dict[str, object]:
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    return {"uuid": uuid, "driver": "570.86", "sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 40}


# ---- one search, in a process of its own


class Stages:
    """Processor time of threads by stage, each without the stages within; not while it is not `on`."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._within = threading.local()
        self._lock = threading.Lock()
        self.on = False

    def watch(self, holder: Any, name: str, stage: str) -> None:
        """Count what a function takes."""
        function = getattr(holder, name)

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            above = getattr(self._within, "taken", 0.0)
            self._within.taken, begin, counts = 0.0, time.thread_time(), self.on
            try:
                return function(*given, **named)
            finally:
                spent = time.thread_time() - begin
                if counts and self.on:
                    with self._lock:
                        self.spent[stage] += spent - self._within.taken
                        self.calls[stage] += 1
                self._within.taken = above + spent

        setattr(holder, name, timed)


_WATCHED: tuple[tuple[Any, str, str], ...] = (
    (Tree, "select", "select"),
    (loop, "edit_program", "rewrite"),
    (tuner, "edit_program", "rewrite"),
    (RuleTemplate, "proposal", "rewrite"),
    (ConstantTemplate, "proposal", "rewrite"),
    (Tuner, "_choose", "tuner's model"),
    (Tuner, "_book", "book"),
    (Builder, "candidate", "builder"),
    (BuildWorkers, "propose", "proposals"),
    (RemoteEvaluator, "submit", "to the device"),
    (RemoteEvaluator, "_answered", "from the device"),
    (Books, "enter", "book"),
    (Books, "write_up", "book"),
    (Journal, "book", "journal"),
)


class _Enough(Interrupt):
    """Ends the search after so many candidates, as its user would."""


def once(verb: str, file: str, devices: int, candidates: int) -> dict[str, Any]:
    """Milliseconds for each candidate by stage of one search, and how many candidates it had."""
    from benchmarks.search_time import answer as by_name  # Dask sends what is in this script anew for each call

    enough, stages = _Enough(), Stages()
    for holder, name, stage in _WATCHED:
        stages.watch(holder, name, stage)
    found: dict[str, Any] = {}

    def stop(progress: Progress) -> None:
        enough.asked = enough.asked or progress.evaluated >= candidates

    def counted(run: Callable[..., None]) -> Callable[..., None]:
        def measured(search: Search | Tuner, *given: Any, **named: Any) -> None:
            stages.on, begin, there, loop_s = True, time.process_time(), _others(), _dask_s()
            run(search, *given, **named)
            stages.on, spent, loop_s = False, time.process_time() - begin, _dask_s() - loop_s
            tried = search.progress.evaluated
            stages.spent["Dask"] = loop_s - stages.spent["from the device"]
            found["sent"] = stages.calls["to the device"] / tried
            found["read"] = stages.calls["proposals"] / tried
            found.update({"candidates": tried, "all": 1e3 * spent / tried})
            found["stages"] = {name: 1e3 * s / tried for name, s in stages.spent.items()}
            found["stages"]["other"] = found["all"] - sum(found["stages"].values())
            found["beside"] = {role: 1e3 * (s - there.get(role, 0.0)) / tried for role, s in _others().items()}
            raise KeyboardInterrupt  # nothing is confirmed

        return measured

    Search.run, Tuner.run = counted(Search.run), counted(Tuner.run)  # type: ignore[method-assign]
    budget = Budget(seconds=_LIMIT_S, exhaust=True, interrupt=enough)
    with (
        tempfile.TemporaryDirectory() as out,
        connect(ClusterRequest("local", "cpu", devices)) as cluster,
        links(cluster, by_name, DeviceLost) as found_links,
        closing(make_machine(device="cpu", arch="sm_90", jobs=_JOBS)) as here,
        suppress(KeyboardInterrupt),
    ):
        here.mode, here.devices = "measured", devices
        here.remote = lambda spec, builder: RemoteEvaluator(spec, builder.spec_path, builder, found_links, here.mode)
        if verb == "optimize":
            optimize(Options(ROOT / file, budget=budget, out=Path(out) / "out"), here, stop)
        else:
            tune(TuneOptions(ROOT / file, budget=budget, out=Path(out) / "out"), here, stop)
    return found


def _dask_s() -> float:
    """Processor time of the thread that carries Dask's messages."""
    clocks = [time.pthread_getcpuclockid(t.ident) for t in threading.enumerate() if t.name == "IO loop" and t.ident]
    return sum(map(time.clock_gettime, clocks))


def _others() -> dict[str, float]:
    """Processor time of the processes that this one started, by what they are."""
    parents, taken, roles = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int(fields[1])
            taken[int(folder.name)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
            roles[int(folder.name)] = next((role for name, role in _ROLES.items() if name in command), "")
    found: defaultdict[str, float] = defaultdict(float)
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and roles[process]:
            found[roles[process]] += taken[process]
    return found


# ---- all of them


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Medians by run; each search is this script again, after one that fills the cache. Checkouts take turns."""
    roots = [ROOT, *options.beside]
    for root in options.beside:
        shutil.copy(__file__, root / "benchmarks")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for file, verb in itertools.product(options.files, options.runs.split(",")):
            more = [file, "--runs", verb, "--devices", str(options.devices), "--candidates", str(options.candidates)]
            found: dict[Path, list[dict[str, Any]]] = {root: [] for root in roots}
            for _, root in itertools.product(range(1 + options.repeats), roots):
                command = [sys.executable, str(root / "benchmarks" / "search_time.py"), *more, "--once"]
                environment = {**os.environ, "OPTIML_CACHE": str(Path(cache) / root.name)}
                said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
                found[root].append(json.loads(said))
            for root, runs in found.items():
                rows[f"{verb} {file}" + (f" at {root.name}" if root != ROOT else "")] = _medians(runs[1:])
    return rows


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def of(values: Sequence[dict[str, float]]) -> dict[str, float]:
        names = {name: None for run in values for name in run}
        return {name: statistics.median(run.get(name, 0.0) for run in values) for name in names}

    whole = of([{name: run[name] for name in ("candidates", "sent", "read", "all")} for run in runs])
    each = sorted(run["all"] for run in runs)
    return {
        **whole,
        "each": each,
        "stages": of([run["stages"] for run in runs]),
        "beside": of([run["beside"] for run in runs]),
    }


def render(rows: dict[str, dict[str, Any]]) -> str:
    """A Markdown table: milliseconds for each candidate."""
    stages = list({stage: None for row in rows.values() for stage in row["stages"]})
    beside = list({role: None for row in rows.values() for role in row["beside"]})
    lines = [
        "| run | sent | read | all | "
        + " | ".join(stages)
        + " | "
        + " | ".join(f"{role} beside" for role in beside)
        + " |",
        "|---|" + "---:|" * (3 + len(stages) + len(beside)),
    ]
    for name, row in rows.items():
        cells = [row["all"], *(row["stages"].get(s, 0.0) for s in stages), *(row["beside"].get(r, 0.0) for r in beside)]
        lines.append(
            f"| {name} | {row['sent']:.0%} | {row['read']:.0%} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Processor time of a search by stage.")
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--runs", default="optimize,tune", metavar="LIST")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a checkout of another commit, measured in turn",
    )
    parser.add_argument("--once", action="store_true", help="one search in this process, as JSON")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    if options.once:
        print(json.dumps(once(options.runs, options.files[0], options.devices, options.candidates)))
        return 0
    rows = measure(options)
    print(render(rows))
    if options.record:
        record = {
            "schema": "optiml.search_time/1",
            "command": ["python", "benchmarks/search_time.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "rows": rows,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
