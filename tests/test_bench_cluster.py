"""`optiml bench --gpus` and `--cluster`: rows of several tables at once, each in a process of its own that costs only itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, cluster_rows, peers
from benchmarks.tables import TABLES
from engine import cli
from engine.cluster.connection import Cluster, ClusterWorker
from engine.cluster.scheduler import ClusterRequest
from engine.commands import bench_row
from engine.errors import UsageError
from engine.process.cores import shares
from tests.engine.cluster import workers

ROOT = Path(__file__).resolve().parent.parent
# A row's process: writes down when it ran and where, then does what its key says.
PROGRAM = """
import json, os, pathlib, signal, sys, time
table, key, target, log = sys.argv[1:]
begin = time.monotonic()
words = key.split("-")
if "slow" in words: time.sleep(0.4)
if "meets" in words:  # ends when two rows of this table have begun; waits long where they never run at once
    pathlib.Path(log).with_name(f"{table}-{key}.begun").touch()
    while len(list(pathlib.Path(log).parent.glob(f"{table}-*.begun"))) < 2 and time.monotonic() - begin < 30: time.sleep(0.02)
if "long" in words: time.sleep(60)
if "killed" in words: os.kill(os.getpid(), signal.SIGKILL)
if "mute" in words: print("lost my way", file=sys.stderr); sys.exit(3)
row = {"error": "broke down" if "bad" in words else None, "value": 1, "date": "2026", "commit": "", "wall_s": 1.0}
seen = {"table": table, "key": key, "cpus": sorted(os.sched_getaffinity(0)),
        "begin": begin, "end": time.monotonic(), "pid": os.getpid()}
with open(log, "a") as lines: lines.write(json.dumps(seen) + "\\n")
pathlib.Path(target).write_text(json.dumps(row))
"""


class Client(workers.Client):
    """Workers that are threads of this process."""

    def __init__(self, *there: ClusterWorker) -> None:
        super().__init__(*there)
        self.threads = ThreadPoolExecutor(len(there))

    def submit(self, alone: Any, function: Callable[[bytes], bytes], frame: bytes, **more: Any) -> Any:
        future: Any = self.threads.submit(function, frame)  # each is a process of its own elsewhere
        future.status = "finished"
        return future


def _table(name: str, rows: Sequence[str], row_s: Callable[[str], float] = lambda row: 1.0, **more: Any) -> bench.Table:
    def measure(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        raise AssertionError("rows are measured elsewhere")

    return bench.Table(
        name, "a table for tests", bench.Settings(), lambda place, settings: list(rows), measure,
        lambda kept: {"sum": len(kept)}, lambda record: f"sum {record['summary']['sum']}", lambda settings, row: row_s(row), **more,
    )  # fmt: skip


class Call:
    """One call over two workers, with `PROGRAM` in the place of the command."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        there = workers.worker("0"), workers.worker("1", replace(workers.H200, uuid="GPU-b"))
        self.cluster = Cluster(Client(*there), "tcp://scheduler:8786", "auto")
        self.cluster.examine()
        monkeypatch.setattr(bench_row, "command_of", self._command)
        monkeypatch.setattr(cluster_rows, "_POLL_S", 0.1)
        self.place = bench.Place(ROOT, tmp_path / "results", tmp_path / "work")
        self.log = tmp_path / "log"
        self.said: list[str] = []

    def run(
        self, *tables: bench.Table, only: Sequence[str] = (), resume: bool = False, **more: Any
    ) -> list[bench.Progress]:
        ledgers = [
            bench.Ledger(t, self.place, bench.Settings(), ["optiml", "bench"], only=only, resume=resume) for t in tables
        ]
        return cluster_rows.run(ledgers, self.cluster, say=self.said.append, **more)

    def _command(self, arguments: Sequence[str], target: Path) -> list[str]:
        table, key = arguments[1], arguments[3]
        return [sys.executable, "-S", "-c", PROGRAM, table, key, str(target), str(self.log)]

    def workers(self) -> dict[tuple[str, str], str]:
        """Where each row of a table ran."""
        found = [re.fullmatch(r"(\S+): (\S+) on worker (\S+) …", line) for line in self.said]
        return {(each[1], each[2]): each[3] for each in found if each}

    def seen(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(tmp_path, monkeypatch)


def test_rows_of_two_tables_run_at_once_on_two_gpus_and_stay_in_the_record(call: Call) -> None:
    first, second = call.run(_table("first", ["a-meets", "b-meets", "c"]), _table("second", ["d"]))
    assert (first.path.name, second.path.name) == ("first.json", "second.json")
    seen = {one["key"]: one for one in call.seen()}
    assert set(call.workers().values()) == {"0", "1"}
    assert seen["a-meets"]["begin"] < seen["b-meets"]["end"]  # at once
    assert seen["b-meets"]["begin"] < seen["a-meets"]["end"]
    record = json.loads(first.path.read_text())
    assert list(record["rows"]) == ["a-meets", "b-meets", "c"]
    assert record["gpus_at_once"] == 2
    for key, row in record["rows"].items():
        index = call.workers()["first", key]
        uuid = {"0": "GPU-a", "1": "GPU-b"}[index]
        made = row["gpu"]
        assert (made["index"], made["name"], made["uuid"]) == (index, "NVIDIA H200", uuid)
        assert made["at_once"] in (1, 2)


def test_a_row_runs_on_the_cores_of_its_worker(call: Call) -> None:
    call.run(_table("one", ["a-meets", "b-meets"]))
    cores = {worker.name: set(worker.cores) for worker in call.cluster.workers}
    usable = os.sched_getaffinity(0)
    for one in call.seen():
        wanted = cores[call.workers()["one", one["key"]]] & usable
        assert set(one["cpus"]) == (wanted or usable)
    assert shares([0, 1, 2, 3, 4, 5], 4) == [[0], [1, 2], [3], [4, 5]]
    assert shares([7], 3) == [[7], [7], [7]]


def test_a_row_that_is_killed_or_fails_costs_only_itself(call: Call) -> None:
    (progress,) = call.run(_table("one", ["a-killed", "b-mute", "c-bad", "d"]))
    assert progress.failed == ("a-killed", "b-mute", "c-bad")
    assert progress.path.name == "one.part.json"
    rows = json.loads(progress.path.read_text())["rows"]
    assert "ended with signal 9" in rows["a-killed"]["error"]
    assert "exit code 3" in rows["b-mute"]["error"]
    assert "lost my way" in rows["b-mute"]["error"]
    assert (rows["c-bad"]["error"], rows["d"]["error"]) == ("broke down", None)
    (again,) = call.run(_table("one", ["a-killed", "b-mute", "c-bad", "d"]), resume=True)
    assert [one["key"] for one in call.seen()].count("d") == 1
    assert again.failed == progress.failed


def test_that_nothing_is_left_is_said_of_the_rows_asked_for(call: Call) -> None:
    table = _table("one", ["a", "b"])
    call.run(table, only=["a"])
    call.said.clear()
    call.run(table, only=["a"], resume=True)
    assert call.said == ["one: every row that was asked for is there"]
    call.run(table, resume=True)
    call.said.clear()
    call.run(table, resume=True)
    assert call.said == ["one: every row is there"]


def test_the_longest_rows_come_first_and_what_passes_the_limit_is_left(call: Call) -> None:
    seconds = {"a": 1.0, "b": 900.0, "c": 5.0, "d": 30.0}
    (progress,) = call.run(_table("one", list(seconds), seconds.__getitem__), limit_s=100.0)
    assert progress.missing == ("b",)
    assert sum("left for the next call" in line for line in call.said) == 1
    order = [line.split()[1] for line in call.said if line.endswith("…")]
    assert order == ["d", "c", "a"]


def test_a_row_waits_for_the_row_that_it_needs_and_is_left_with_it(call: Call) -> None:
    # "a" is the first that a free GPU would take; its need is the longest row of the other table.
    user = _table("user", ["a", "b"], needs=lambda place, row: [("maker", f"{row}-slow")])
    maker = _table("maker", ["a-slow", "b-slow"], lambda row: 900.0 if row.startswith("b") else 1.0)
    used, made = call.run(user, maker, limit_s=100.0)
    assert (used.missing, made.missing) == (("b",), ("b-slow",))
    seen = {one["key"]: one for one in call.seen()}
    assert seen["a"]["begin"] > seen["a-slow"]["end"]


def test_rows_of_a_group_stay_on_the_gpu_where_it_began(call: Call) -> None:
    tables = [_table(name, ["a-meets", "b-meets"], group=lambda row: row) for name in ("one", "two", "three")]
    call.run(*tables)
    homes: dict[str, set[str]] = {}
    for (_, key), worker in call.workers().items():
        homes.setdefault(key, set()).add(worker)
    assert sorted(map(len, homes.values())) == [1, 1]
    assert homes["a-meets"] != homes["b-meets"]


def test_an_interruption_ends_the_rows_that_run(call: Call) -> None:
    begin = time.monotonic()
    kept_rows = call.place.results / "one.part.json"

    def refresh() -> Any:
        if len(call.workers()) == 3 and kept_rows.exists():
            raise KeyboardInterrupt
        return call.cluster.workers

    call.cluster.refresh = refresh  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        call.run(_table("one", ["a", "b-long", "c-long"]))
    assert time.monotonic() - begin < 50.0  # and not the minute that they take
    while bench_row._RUNNING:  # killed, and not yet waited for
        assert time.monotonic() - begin < 50.0
        time.sleep(0.01)
    assert list(json.loads(kept_rows.read_text())["rows"]) == ["a"]


def test_a_row_whose_worker_is_lost_says_so_and_the_others_go_on(call: Call) -> None:
    there = call.cluster.workers

    def refresh() -> Any:
        call.cluster.workers = there[1:] if ("one", "a-long") in call.workers() else there
        return call.cluster.workers

    call.cluster.refresh = refresh  # type: ignore[method-assign]
    (progress,) = call.run(_table("one", ["a-long", "b", "c"]))
    bench_row.stop_row("")
    rows = progress.record["rows"]
    assert (progress.missing, progress.failed) == ((), ("a-long",))
    assert "its worker was lost" in rows["a-long"]["error"]


def test_a_row_ends_with_the_call_that_began_it() -> None:
    """Also where that is killed and can end nothing: its end of the pipe closes."""
    program = (
        "import time; from engine.commands.bench_row import end_with_parent; end_with_parent(); "
        "print('up', flush=True); time.sleep(60)"
    )
    row = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, process_group=0
    )
    assert row.stdin is not None
    assert row.stdout is not None
    assert row.stdout.readline() == b"up\n"
    row.stdin.close()
    assert row.wait(60.0) == -signal.SIGKILL
    row.stdout.close()


@pytest.mark.parametrize("text", ["0", "", "a", "1,1", "-1", "0,GPU", "1.5"])
def test_lists_of_gpus_that_make_no_sense_are_wrong_use(text: str) -> None:
    with pytest.raises(UsageError):
        cluster_rows.request(None, text, "cpu", None)


def test_gpus_are_counted_or_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_rows.request(None, "3", "cpu", None) == ClusterRequest("local", "cpu", 3)
    assert cluster_rows.request("tls://a:1", None, "auto", None) == ClusterRequest("tls://a:1", "auto")
    monkeypatch.setattr(cluster_rows, "visible_gpus", lambda: ("GPU-a", "GPU-b", "GPU-c"))
    for text, wanted in (("2", ("GPU-a", "GPU-b")), ("2,0", ("GPU-c", "GPU-a")), ("1,", ("GPU-b",))):
        assert cluster_rows.request(None, text, "auto", None) == ClusterRequest("local", "gpu", None, wanted)
    for text in ("4", "0,3"):
        with pytest.raises(UsageError, match="3 are visible"):
            cluster_rows.request(None, text, "auto", None)
    with pytest.raises(UsageError, match="means a local cluster"):
        cluster_rows.request("local", "2", "auto", None)


def test_peers_need_the_suite_and_comparisons_with_memory_what_was_learnt() -> None:
    place = bench.Place(ROOT, ROOT, ROOT)
    pytorch, calls = TABLES["peers-pytorch"], TABLES["peers-cublas-cub"]
    assert pytorch.needs(place, "adamw") == [("suite", "adamw")]
    assert list(calls.needs(place, "copy")) == list(calls.needs(place, "control_transpose")) == []
    suite = TABLES["suite"].rows(place, bench.Settings())
    for table in (pytorch, calls):
        assert {row for key in table.rows(place, bench.Settings()) for _, row in table.needs(place, key)} <= set(suite)
    memory = TABLES["ablation-memory"]
    assert ("ablation-memory", "learn:softmax") in memory.needs(place, "dot")
    assert list(memory.needs(place, "learn:dot")) == []
    assert memory.group("learn:dot") == memory.group("dot") == TABLES["ablation-search"].group("dot")


def test_peers_take_the_newest_row_of_the_suite(tmp_path: Path) -> None:
    """While the suite is measured anew its rows stand in parts beside the last whole record."""

    def put(name: str, **rows: str) -> None:
        held = {kernel: {"error": None, "files": {"k.cu": text}} for kernel, text in rows.items()}
        record = {"settings": {}, "commands": [], "device": {}, "versions": {}, "rows": held}
        (tmp_path / name).write_text(json.dumps({"schema": bench.SCHEMA, "name": "suite", **record}))

    place = bench.Place(ROOT, tmp_path, tmp_path)
    put("suite.json", adamw="old", scan="old")
    put("suite.part.json", adamw="new")
    assert peers.suggestion(place, "adamw") == {"k.cu": "new"}
    assert peers.suggestion(place, "scan") == {"k.cu": "old"}
    assert peers.suggestion(place, "control_scale") == {}
    with pytest.raises(UsageError, match="no row for topk"):
        peers.suggestion(place, "topk")


def test_a_row_is_measured_by_the_command_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of a row does what the table's `measure` says, errors of any kind included, and touches no record."""

    def measure(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        if row == "b":
            raise AssertionError("of a library")
        return {"value": settings.seconds, "results": str(place.results)}

    table = bench.Table(**{**_table("fake", ["a", "b"]).__dict__, "measure": measure})
    monkeypatch.setitem(TABLES, "fake", table)
    monkeypatch.setattr(bench_row, "end_with_parent", lambda: None)
    place = bench.Place(ROOT, tmp_path / "results", tmp_path)
    ledger = bench.Ledger(table, place, bench.Settings(seconds=7.0), ["optiml"])
    rows = {}
    for key in "ab":
        assert cli.main([*cluster_rows.row_arguments(ledger, key), "--row-to", str(tmp_path / key)]) == 0
        rows[key] = json.loads((tmp_path / key).read_text())
    assert (rows["a"]["error"], rows["a"]["value"], rows["a"]["results"]) == (None, 7.0, str(place.results))
    assert rows["b"]["error"].startswith("AssertionError: of a library")
    assert not place.results.exists()
    assert capsys.readouterr().out == ""


def test_several_tables_in_one_call_take_the_rows_that_each_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, str]] = []

    def made(name: str, rows: Sequence[str]) -> bench.Table:
        def measure(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
            measured.append((name, row))
            return {"value": 1}

        return bench.Table(**{**_table(name, rows).__dict__, "measure": measure})

    monkeypatch.setitem(TABLES, "first", made("first", ["a", "b"]))
    monkeypatch.setitem(TABLES, "second", made("second", ["b", "c"]))
    out = ["--out", str(tmp_path)]
    assert cli.main(["bench", "first", "second", "--only", "b", *out]) == 4
    assert measured == [("first", "b"), ("second", "b")]
    assert cli.main(["bench", "first", "second", "--resume", *out]) == 0
    assert measured[2:] == [("first", "a"), ("second", "c")]
    assert cli.main(["bench", "first", "second", "--only", "z", *out]) == 2
