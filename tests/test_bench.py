"""`optiml bench`: records kept row by row, gone on with, never lost; names and versions that do not fit are said so."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench
from benchmarks.tables import TABLES
from engine import cli
from engine.commands import bench as command
from engine.errors import MachineError, UsageError
from engine.report.terminal import Live

ROOT = Path(__file__).resolve().parent.parent


class Counted:
    """A table of three rows whose measuring is counted; `fails` names rows that fail."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.fails: set[str] = set()
        self.table = bench.Table(
            "counted", "a table for tests", bench.Settings(seconds=2.0), lambda place, settings: ["a", "b", "c"], self.measure,
            lambda rows: {"sum": sum(row["value"] for row in rows.values())}, lambda record: f"sum {record['summary']['sum']}",
            lambda settings, row: 100.0 if row == "c" else 1.0,
        )  # fmt: skip

    def measure(self, place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        self.measured.append(row)
        if row in self.fails:
            raise MachineError("broke down")
        return {"value": 1, "device": {"name": "none"}}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are run on trees with changes as well."""
    monkeypatch.setattr(bench, "commit", lambda: "f59775c")


@pytest.fixture
def counted() -> Counted:
    return Counted()


def _run(counted: Counted, tmp_path: Path, **more: Any) -> bench.Progress:
    place = bench.Place(ROOT, tmp_path / "results", tmp_path / "work")
    settings, limit_s = more.pop("settings", bench.Settings()), more.pop("limit_s", None)
    ledger = bench.Ledger(counted.table, place, settings, ["optiml", "bench", "counted"], **more)
    return bench.run(ledger, limit_s=limit_s, say=lambda text: None)


def test_rows_are_counted_with_the_time_left(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row was named, and not how many there are."""
    seen: list[str] = []

    class Seen(Live):
        def count(self, done: int, of: int, what: str) -> None:
            super().count(done, of, what)
            seen.append(self.line())

    monkeypatch.setattr("benchmarks.bench_command.Live", Seen)
    assert _call(counted, tmp_path, monkeypatch) == 0
    assert [line.split(", about")[0] for line in seen] == [f"counted, {row}: {i} of 3" for i, row in enumerate("abc")]
    assert "s left" in seen[2]
    assert "counted: b …" in capsys.readouterr().err


def test_a_row_that_would_pass_the_limit_is_left_for_the_next_call(counted: Counted, tmp_path: Path) -> None:
    first = _run(counted, tmp_path, limit_s=50.0)
    assert (first.missing, first.path.name) == (("c",), "counted.part.json")
    second = _run(counted, tmp_path, resume=True)
    assert counted.measured == ["a", "b", "c"]
    assert (second.missing, second.failed, second.path.name) == ((), (), "counted.json")
    assert not first.path.exists()
    record = json.loads(second.path.read_text())
    assert record["summary"] == {"sum": 3}
    assert record["device"] == {"name": "none"}
    assert len(record["commands"]) == 2
    assert all("commit" in row and row["date"] for row in record["rows"].values())  # outside git there is none


def test_what_failed_stays_in_the_record_and_is_measured_again(counted: Counted, tmp_path: Path) -> None:
    counted.fails = {"b"}
    first = _run(counted, tmp_path)
    assert (first.missing, first.failed) == ((), ("b",))
    assert "broke down" in json.loads(first.path.read_text())["rows"]["b"]["error"]
    counted.fails = set()
    assert _run(counted, tmp_path, resume=True).path == tmp_path / "results" / "counted.json"
    assert counted.measured == ["a", "b", "c", "b"]


def test_no_error_of_a_row_ends_the_table(counted: Counted, tmp_path: Path) -> None:
    """A library that asserts (CuPy's histogram did) ended the whole table."""

    def asserts(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        assert row != "b"
        return counted.measure(place, settings, row)

    counted.table = bench.Table(**{**counted.table.__dict__, "measure": asserts})
    progress = _run(counted, tmp_path)
    assert (progress.failed, counted.measured) == (("b",), ["a", "c"])
    error = progress.record["rows"]["b"]["error"]
    assert error.startswith("AssertionError")
    assert "test_bench.py" in error


def test_a_whole_record_stays_while_it_is_measured_anew(counted: Counted, tmp_path: Path) -> None:
    whole = _run(counted, tmp_path).path
    before = whole.read_bytes()
    _run(counted, tmp_path, only=["a"])
    assert whole.read_bytes() == before


def test_an_interrupt_keeps_the_rows_before_it(counted: Counted, tmp_path: Path) -> None:
    def interrupted(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        if row == "b":
            raise KeyboardInterrupt
        return counted.measure(place, settings, row)

    broken = bench.Table(**{**counted.table.__dict__, "measure": interrupted})
    place = bench.Place(ROOT, tmp_path / "results", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        bench.run(bench.Ledger(broken, place, bench.Settings(), ["optiml"]), say=lambda text: None)
    assert _run(counted, tmp_path, resume=True).missing == ()
    assert counted.measured == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["counted.json", "counted.part.json"])
@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "optiml.bench/0", "name": "counted", "rows": {}}',
        '{"schema": "optiml.bench/1", "name": "x"}',
        "[]",
        "{",
        '{"schema": "optiml.bench/1", "name": "counted"}',
        '{"schema": "optiml.bench/1", "name": "counted", "settings": {}, "commands": [], "device": {}, "versions": {}, "rows": []}',
        '{"schema": "optiml.bench/1", "name": "counted", "settings": {}, "commands": [], "device": {}, "versions": {}, '
        '"rows": {"a": {}}}',
    ],
)
def test_a_record_of_another_version_is_refused_and_not_overwritten(
    counted: Counted, tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / "results" / name
    path.parent.mkdir()
    path.write_text(text)
    for resume in (False, True):
        with pytest.raises(UsageError) as refused:
            _run(counted, tmp_path, resume=resume)
        assert name in refused.value.where
    assert path.read_text() == text
    assert counted.measured == []


def test_a_record_is_not_gone_on_with_under_other_settings(counted: Counted, tmp_path: Path) -> None:
    _run(counted, tmp_path, limit_s=50.0)
    with pytest.raises(UsageError, match="other settings"):
        _run(counted, tmp_path, resume=True, settings=bench.Settings(seconds=3.0))


def test_a_row_that_does_not_exist_is_wrong_use(counted: Counted, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a, b, c"):
        _run(counted, tmp_path, only=["d"])


def test_an_unknown_table_names_the_nearest_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "ablation-serch"]) == 2
    assert "ablation-search" in capsys.readouterr().err
    assert cli.main(["bench", "zzzzzz"]) == 2
    assert "lists them" in capsys.readouterr().err


def test_without_a_name_all_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(TABLES)
    assert {"examples", "suite", "controls", "rate", "peers-kernel-tuner", "peers-pytorch", "peers-cublas-cub"} <= set(
        listed
    )
    assert {f"ablation-{name}" for name in ("search", "profile", "proposers", "proxies", "memory")} <= set(listed)


@pytest.mark.parametrize("only", ["--only a", "--only=a"])
def test_what_goes_on_after_the_rows_asked_for_is_the_rest(
    only: str, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It named the rows that were there, so going on changed nothing."""
    monkeypatch.setitem(TABLES, "counted", counted.table)
    words = ["bench", "counted", *only.split(), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["optiml", *words])
    assert cli.main(words) == 4
    assert f"continue with: optiml bench counted --out {tmp_path} --resume\n" in capsys.readouterr().err
    assert cli.main([*words, "--resume"]) == 4
    assert "counted: every row that was asked for is there\n" in capsys.readouterr().err
    counted.fails.add("a")
    assert cli.main(words) == 4
    assert f"continue with: optiml bench counted {only} --out {tmp_path} --resume\n" in capsys.readouterr().err


def _call(counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setitem(TABLES, "counted", counted.table)
    return cli.main(["bench", "counted", "--out", str(tmp_path), *more])


def test_a_call_that_began_no_row_names_no_record(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--limit 1s` printed the path of a file that did not exist."""
    counted.table = dataclasses.replace(counted.table, row_s=lambda settings, row: 100.0)
    for resume in ([], ["--resume"]):
        assert _call(counted, tmp_path, monkeypatch, "--limit", "1s", *resume) == 4
        assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    counted.table = dataclasses.replace(counted.table, row_s=lambda settings, row: 0.0)
    assert _call(counted, tmp_path, monkeypatch, "--only", "a") == 4
    assert capsys.readouterr().out == f"sum 1\n{tmp_path / 'counted.part.json'}\n"
    counted.table = dataclasses.replace(counted.table, row_s=lambda settings, row: 100.0)
    assert _call(counted, tmp_path, monkeypatch, "--limit", "1s") == 4  # anew: what stands there is not of this call
    assert capsys.readouterr().out == ""
    assert _call(counted, tmp_path, monkeypatch, "--limit", "1s", "--resume") == 4
    assert capsys.readouterr().out == f"sum 1\n{tmp_path / 'counted.part.json'}\n"


def test_a_folder_that_takes_no_records_is_said_before_a_row_is_measured(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row was measured, and then it was an internal error."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "TemporaryFile", _read_only)  # who runs this may be root, whom no mode holds up
    for out in (tmp_path, tmp_path / "new", Path("/proc/nowhere"), tmp_path / "file" / "below"):
        assert _call(counted, out, monkeypatch) in (1, 2)
        (said,) = capsys.readouterr().err.splitlines()
        assert str(out) in said
        assert "internal error" not in said
        assert "--out" in said
    assert counted.measured == []


def _read_only(dir: Path) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir / "tmp"))


def test_a_disk_that_fills_is_one_sentence_and_costs_the_row_alone(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(counted, tmp_path, monkeypatch, "--only", "a") == 4
    before = (tmp_path / "counted.part.json").read_bytes()

    def full(path: Path, *rest: Any, **more: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    capsys.readouterr()
    assert _call(counted, tmp_path, monkeypatch, "--resume") == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "counted.part.json").read_bytes() == before


class Moded(Counted):
    """The table of a machine: its rows are measured or predicted, and so is what is held for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.gpu = True
        monkeypatch.setattr("engine.run.device_choice.visible_gpu", lambda: (0, "sm_90") if self.gpu else None)
        monkeypatch.setattr("engine.run.device_choice._has_cupy", lambda: True)

    def measure(self, place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        predicted = settings.device == "cpu" or not self.gpu
        return {**super().measure(place, settings, row), "mode": "predicted" if predicted else "measured"}


@pytest.mark.parametrize("more", [[], ["--resume"], ["--only", "a"]], ids=["anew", "resumed", "some"])
@pytest.mark.parametrize("held", ["counted.json", "counted.part.json"])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_prediction_takes_the_place_of_no_measurement(
    held: str, device: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Without a GPU `--device auto`, the default, replaced the whole record of an H200 and ended with 0."""
    table = Moded(monkeypatch)
    table.fails = {"b"} if "part" in held else set()
    _call(table, tmp_path, monkeypatch, "--device", device if device == "auto" else "gpu")
    if "--resume" in more and "part" not in held:  # the table has a row more since
        table.table = dataclasses.replace(table.table, rows=lambda place, settings: ["a", "b", "c", "d"])
    before = (tmp_path / held).read_bytes()
    table.gpu, table.fails, table.measured = False, set(), []
    if device == "cpu":  # else these are other settings, which are refused before
        text = before.replace(b'"device": "gpu"', b'"device": "cpu"')
        (tmp_path / held).write_bytes(text)
        before = text
    capsys.readouterr()
    assert _call(table, tmp_path, monkeypatch, "--device", device, *more) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"optiml: {tmp_path / held}: holds what was measured")
    assert "--out" in said
    assert "--device gpu" in said
    assert table.measured == []
    assert [path.name for path in tmp_path.iterdir()] == [held]
    assert (tmp_path / held).read_bytes() == before


def test_the_rate_of_an_h200_is_not_replaced_by_one_that_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = (ROOT / "benchmarks" / "results" / "rate.json").read_bytes()
    (tmp_path / "rate.json").write_bytes(recorded)
    monkeypatch.setattr("engine.run.device_choice.visible_gpu", lambda: None)
    monkeypatch.setattr("benchmarks.rate.measured", lambda budget, device: pytest.fail("it was begun"))
    assert cli.main(["bench", "rate", "--seconds", "20", "--out", str(tmp_path)]) == 2
    assert "would only predict" in capsys.readouterr().err
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("rate.json", recorded)]


def test_a_record_of_measurements_with_nothing_left_to_do_is_shown_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Moded(monkeypatch)
    assert _call(table, tmp_path, monkeypatch) == 0
    table.gpu = False
    assert _call(table, tmp_path, monkeypatch, "--resume") == 0
    assert table.measured == ["a", "b", "c"]


def test_a_measurement_takes_the_place_of_a_prediction_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Moded(monkeypatch)
    table.gpu = False
    assert _call(table, tmp_path, monkeypatch, "--only", "a") == 4
    table.gpu = True
    assert _call(table, tmp_path, monkeypatch, "--resume") == 2  # half of each would be neither
    assert "--resume" in capsys.readouterr().err.splitlines()[-1]
    assert _call(table, tmp_path, monkeypatch) == 0
    record = json.loads((tmp_path / "counted.json").read_text())
    assert {row["mode"] for row in record["rows"].values()} == {"measured"}


def test_a_row_that_came_out_predicted_is_not_kept_among_measured_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU may stop to answer between two rows."""
    table = Moded(monkeypatch)

    def measure(place: bench.Place, settings: bench.Settings, row: str) -> bench.Row:
        table.gpu = row != "c"
        name = "a GPU" if table.gpu else "none"
        return {**Moded.measure(table, place, settings, row), "device": {"name": name}}

    table.table = dataclasses.replace(table.table, measure=measure)
    progress = _run(table, tmp_path)
    assert progress.failed == ("c",)
    assert "predicted" in progress.record["rows"]["c"]["error"]
    assert progress.record["device"] == {"name": "a GPU"}


@pytest.mark.parametrize("option", ["--limit=12", "--limit=soon", "--seconds=0", "--seeds=-1", "--candidates=0"])
def test_options_that_make_no_sense_are_wrong_use(option: str) -> None:
    assert cli.main(["bench", "suite", option]) == 2


def test_outside_a_checkout_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is not looked at: it may be the checkout of a stranger's pull request."""
    monkeypatch.setattr(command, "__file__", str(tmp_path / "site-packages" / "engine" / "commands" / "bench.py"))
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError, match="not a checkout"):
        command.run(argparse.Namespace(checkout=None, names=["suite"]))
    assert command.find_checkout(ROOT) == ROOT


def test_a_whole_record_under_the_name_of_a_part_gets_its_name(counted: Counted, tmp_path: Path) -> None:
    """A call that is killed after its last row leaves it so."""
    whole = _run(counted, tmp_path).path
    part = whole.rename(whole.with_name("counted.part.json"))
    assert _run(counted, tmp_path, resume=True).path == whole
    assert whole.is_file()
    assert not part.exists()
    assert counted.measured == ["a", "b", "c"]


def test_a_checkout_with_changes_is_not_measured(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of f59775c was measured on a tree that differed from the commit it names."""
    monkeypatch.setattr(bench, "commit", lambda: "f59775c" + bench.CHANGED)
    monkeypatch.setattr("engine.run.device_choice.usable_gpu", lambda device: object())
    with pytest.raises(UsageError, match="uncommitted changes"):
        _run(counted, tmp_path)
    assert not counted.measured
    monkeypatch.setattr("engine.run.device_choice.usable_gpu", lambda device: None)
    assert not _run(counted, tmp_path).missing  # predictions may be tried out on any tree


def test_make_measure_names_every_table_but_ablations_and_those_of_other_repositories() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = next(line for line in text.splitlines() if line.startswith("MEASURED := ")).split()[2:]
    assert named == [n for n, table in TABLES.items() if not n.startswith("ablation") and not table.checkouts]
