"""Reading an output folder: what is missing or of another version is said in one sentence."""

from __future__ import annotations

import base64
import json
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_size import recorded, synthesise
from engine.cli import main
from engine.errors import UsageError
from engine.process.decode import NotThis, decode
from engine.report import run_folder as read
from engine.report.run_folder import read_run, unpack
from engine.run.result import OptimizationResult


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    target = tmp_path / "a folder?#with %odd name"
    shutil.copytree(measured, target)
    return target


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "result.json"
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def sql(folder: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    db = sqlite3.connect(folder / "journal.sqlite")
    with db:
        for statement in statements:
            db.execute(statement, values)
    db.close()


def test_a_run_comes_back(folder: Path) -> None:
    run = read_run(folder)
    assert len(run.nodes) == 500
    assert run.nodes[0].parent is None
    assert [s.path for s in run.sources] == ["examples/transpose.cu"]
    assert b"__launch_bounds__(256)" in (run.sources[0].after or b"")
    assert run.patch.startswith("diff --git")
    assert set(run.counted) == {0, *(s.id for s in run.result.trajectory)}
    assert run.counted[0].time_us == pytest.approx(recorded().original.measurement.cases[0].candidate_us)  # type: ignore[union-attr]


def test_reading_leaves_nothing_behind(folder: Path) -> None:
    before = sorted(p.name for p in folder.iterdir())
    read_run(folder)
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_run_that_still_writes_is_read_as_far_as_it_is(folder: Path) -> None:
    db = sqlite3.connect(folder / "journal.sqlite")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("DELETE FROM candidates WHERE id > 400")
    db.commit()
    assert len(read_run(folder).nodes) == 401
    db.close()


def test_fields_of_a_later_version_of_the_same_schema_are_passed_over(folder: Path) -> None:
    change(folder, lambda d: (d.update(new=1), d["original"].update(new={}), d["trajectory"][0].update(new=[])))
    assert read_run(folder).result.kernel == "transpose_kernel"


def test_a_speed_that_is_no_number_is_not_known(folder: Path) -> None:
    sql(folder, "UPDATE candidates SET ratio = 9e999 WHERE id = 7")
    assert read_run(folder).nodes[7].ratio is None


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: (f / "result.json").unlink(), "resume it: the same command with --resume"),
        (lambda f: [(f / name).unlink() for name in ("result.json", "journal.sqlite")], "no result"),
        (lambda f: (f / "result.json").write_text("{"), "is not valid JSON"),
        (lambda f: (f / "result.json").write_text("[" * 100_000), "is not valid JSON"),
        (lambda f: (f / "result.json").write_text("[]"), "has the schema 'None'"),
        (lambda f: change(f, lambda d: d.update(schema="optiml.result/2")), "has the schema 'optiml.result/2', not 'optiml.result/1'"),
        (lambda f: change(f, lambda d: d.pop("kernel")), "has no field 'kernel'"),
        (lambda f: change(f, lambda d: d.update(elapsed_s="long")), "elapsed_s is not of type float"),
        (lambda f: change(f, lambda d: d["original"].update(outcome="fine")), "is 'fine', not a valid Outcome"),
        (lambda f: (f / "journal.sqlite").unlink(), "no journal next to the result"),
        (lambda f: (f / "journal.sqlite").write_bytes(b"x" * 4096), "is not a journal of this version (file is not a database); name"),
        (lambda f: sql(f, "DELETE FROM candidates"), "it has no candidates"),
        (lambda f: sql(f, "ALTER TABLE candidates DROP COLUMN reason"), "is not a journal of this version (no such column"),
        (lambda f: sql(f, "UPDATE meta SET value = '!' WHERE key = 'files'"), "is not a journal of this version"),
        (lambda f: sql(f, "UPDATE profiles SET counters = '[{\"a\": 1}]'"), "is not a journal of this version"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_sentence(
    folder: Path, spoil: Callable[[Path], Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder)
    assert main(["report", str(folder)]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
    assert not (folder / "report.html").exists()


def test_a_journal_that_never_ends_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_SECONDS", 0.1)
    texts = ", ".join(f"'' AS {name}" for name in ("proposer", "rule", "summary", "outcome", "reason"))
    numbers = ", ".join(f"1.0 AS {name}" for name in ("ratio", "low", "high", "elapsed_s"))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    view = f"CREATE VIEW candidates AS {endless} SELECT i AS id, NULL AS parent, {texts}, {numbers} FROM n"
    sql(folder, "DROP TABLE candidates", view)
    with pytest.raises(UsageError, match="takes over"):
        read_run(folder)


def test_files_that_grow_without_end_are_refused() -> None:
    with pytest.raises(NotThis, match="over 16 MiB"):
        unpack(zlib.compress(b"0" * (17 << 20)))


def test_a_journal_without_the_originals_text_has_the_patch_alone(folder: Path) -> None:
    sql(folder, "DELETE FROM meta WHERE key = 'files'")
    run = read_run(folder)
    assert run.sources == ()
    assert run.patch


def test_without_a_suggestion_the_original_is_shown(folder: Path) -> None:
    change(folder, lambda d: d.update(best=None, trajectory=[]))
    run = read_run(folder)
    assert [(s.path, s.after) for s in run.sources] == [("examples/transpose.cu", None)]
    assert run.patch == ""


def test_the_name_of_the_patch_is_not_taken_from_the_result(folder: Path) -> None:
    (folder / "secret").write_text("secret")
    change(folder, lambda d: d["best"].update(patch="secret"))
    assert "secret" not in read_run(folder).patch
    (folder / "best.patch").unlink()
    (folder / "best.patch").symlink_to(folder / "secret")
    assert read_run(folder).patch == ""


def test_any_field_of_any_type_is_read_or_refused(tmp_path: Path) -> None:
    synthesise(tmp_path, 30)
    text = (tmp_path / "result.json").read_text()
    chance = random.Random(5)
    refused = 0
    for _ in range(150):
        data = json.loads(text)
        spot: Any = data
        while True:
            key = chance.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
            if isinstance(spot[key], dict | list) and spot[key] and chance.random() < 0.8:
                spot = spot[key]
                continue
            spot[key] = chance.choice([None, 0, -1, 1e308, 10**30, "", "x", True, [], {}, [[]], {"a": 1}])
            break
        (tmp_path / "result.json").write_text(json.dumps(data))
        try:
            read_run(tmp_path)
        except UsageError:
            refused += 1
    assert 20 < refused < 140


def test_decoding_holds_every_field_to_its_type() -> None:
    data = json.loads(recorded().to_json())
    assert decode(OptimizationResult, data) == recorded()
    data["best"]["evaluation"]["measurement"]["cases"][0]["ratio"] = float("inf")
    with pytest.raises(NotThis, match=r"cases\[0\]\.ratio"):
        decode(OptimizationResult, data)


def test_packed_files_come_back() -> None:
    packed = zlib.compress(json.dumps({"a.cu": base64.b64encode(b"\xff\0").decode()}).encode())
    assert unpack(packed) == {"a.cu": b"\xff\0"}
