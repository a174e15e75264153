"""Journals that were cut off, scribbled over or lost rows: what is taken over is what was booked, or the run ends with a way out."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from engine.errors import MachineError, OptimlError, UsageError
from engine.model import Evaluation, Program
from engine.run.optimization import optimize
from engine.search.journal import Journal
from engine.search.reward import Proxies
from tests.support.shards import first_few

from .kills import child, rows
from .scripted import ScriptedEvaluator, kernel, options, scripted

ROOT = Path(__file__).parents[2]
ORIGINAL = Program({"k.cu": b"text"}, "k.cu")


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's folder."""
    folder = tmp_path_factory.mktemp("booked")
    with scripted(ScriptedEvaluator()) as machine:
        optimize(options(kernel(folder), folder / "out"), machine)
    return folder


def _resumed(folder: Path, *, resume: bool = True) -> dict[int, tuple[object, ...]]:
    """The rows that a resumed run starts from. Raises what the run raises."""
    with scripted(ScriptedEvaluator()) as machine:
        optimize(options(folder / "k.cu", folder / "out", resume=resume, candidates=1), machine)
    return rows(folder / "out")


def _copy(booked: Path, to: Path) -> Path:
    shutil.copytree(booked, to)
    return to


def _evaluations(found: dict[int, tuple[object, ...]]) -> dict[int, object]:
    return {id: (row[1], row[6], row[9], row[14], row[15]) for id, row in found.items()}  # parent, digest, outcome, all


@pytest.mark.parametrize("seed", first_few(range(12), 4))
def test_a_truncated_journal_gives_what_was_booked_or_a_clean_end(booked: Path, tmp_path: Path, seed: int) -> None:
    folder = _copy(booked, tmp_path / "run")
    path = folder / "out" / "journal.sqlite"
    data = path.read_bytes()
    path.write_bytes(data[: random.Random(seed).randrange(len(data))])
    _check(folder, booked)


@pytest.mark.parametrize("seed", first_few(range(24), 6))
def test_a_corrupt_journal_gives_what_was_booked_or_a_clean_end(booked: Path, tmp_path: Path, seed: int) -> None:
    folder = _copy(booked, tmp_path / "run")
    path = folder / "out" / "journal.sqlite"
    data, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(1 + seed % 4):
        start = chance.randrange(len(data))
        for at in range(start, min(len(data), start + chance.choice((1, 16, 4096)))):
            data[at] = chance.randrange(256)
    path.write_bytes(data)
    _check(folder, booked)


def _check(folder: Path, booked: Path) -> None:
    known = _evaluations(rows(booked / "out"))
    refused: OptimlError | None = None
    try:
        found = _evaluations(_resumed(folder))
    except OptimlError as error:
        refused = error
    if refused is not None:
        assert isinstance(refused, MachineError | UsageError)
        assert refused.do
    else:
        assert found.items() <= known.items() or len(found) == 2  # nothing was left of it: started from nothing
    # Whatever lies there, a run that does not ask for it starts anew.
    assert len(_resumed(folder, resume=False)) == 2


@pytest.mark.parametrize("seed", first_few(range(6), 2))
def test_a_corrupt_log_of_a_killed_run_gives_what_was_booked_or_a_clean_end(tmp_path: Path, seed: int) -> None:
    """What SQLite had not yet moved from its write-ahead log into the file."""
    path, chance = kernel(tmp_path), random.Random(seed)
    assert child(path, tmp_path / "out", False, kill_at=chance.randint(10, 80))[0] == -9
    log = tmp_path / "out" / "journal.sqlite-wal"
    assert log.stat().st_size > 30_000
    intact = _copy(tmp_path, tmp_path.with_name(f"{tmp_path.name}-intact"))
    data = bytearray(log.read_bytes())
    start = chance.randrange(len(data))
    data[start : start + 64] = chance.randbytes(len(data[start : start + 64]))
    log.write_bytes(data if seed % 2 else data[:start])
    _check(tmp_path, intact)


def test_a_lost_row_is_noticed(booked: Path, tmp_path: Path) -> None:
    for id in (0, 1, 40):
        folder = _copy(booked, tmp_path / f"run{id}")
        with closing(sqlite3.connect(folder / "out" / "journal.sqlite")) as db:
            db.execute("DELETE FROM candidates WHERE id = ?", (id,))
            db.commit()
        with pytest.raises(MachineError, match="damaged") as caught:
            _resumed(folder)
        assert "start" in caught.value.do


def test_a_run_killed_before_it_booked_anything_can_be_resumed(tmp_path: Path) -> None:
    path = kernel(tmp_path)
    (tmp_path / "out").mkdir()
    with closing(sqlite3.connect(tmp_path / "out" / "journal.sqlite")) as db:
        db.execute("PRAGMA journal_mode = WAL")
    with scripted(ScriptedEvaluator()) as machine:
        result, _ = optimize(options(path, tmp_path / "out", resume=True), machine)
    assert result.stopped == "nothing is left to try"


def test_counters_that_were_scribbled_over_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, ORIGINAL, {}, resume=False)
    journal.book(_entry(0))
    journal.book_profile(0, "cheap", [{"dram__bytes.sum": (1e9, "byte")}], Proxies(1e9, 1e6))
    journal.close()
    for altered, left in (("", {0: Proxies(1e9, 1e6)}), ("9", {})):
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE profiles SET proxies = replace(proxies, '000.0', '00' || ? || '.0')", (altered or "0",))
            db.commit()
        journal = Journal(path, ORIGINAL, {}, resume=True)
        assert journal.proxies() == left
        journal.close()


def _entry(id: int) -> object:
    from engine.model import Outcome
    from engine.search.journal import Entry

    return Entry(id, None, "", "", {}, "the original", ORIGINAL.digest, (), Evaluation(Outcome.ACCEPTED), {}, 0.0)


def test_two_runs_at_once_leave_the_journal_to_the_first(tmp_path: Path) -> None:
    path = kernel(tmp_path)
    script = (
        "import sys; from pathlib import Path; from tests.faults.kills import run\n"
        "told = lambda count: count >= 5 and (print(count, flush=True), sys.stdin.readline())\n"
        f"run(Path({str(path)!r}), Path({str(tmp_path / 'out')!r}), False, told)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        first.stdout.readline()  # it has booked some, and waits
        for resume in (False, True):
            with scripted(ScriptedEvaluator()) as machine, pytest.raises(MachineError, match="another run") as caught:
                optimize(options(path, tmp_path / "out", resume=resume), machine)
            assert "--out" in caught.value.do
        first.stdin.write("go on\n")
        first.stdin.close()
        first.stdout.read()
    assert first.returncode == 0
    assert len(rows(tmp_path / "out")) == 89


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10_000))
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + (-1) ** next(jumps) * 86_400)
    with scripted(ScriptedEvaluator()) as machine:
        result, out = optimize(options(kernel(tmp_path), tmp_path / "out"), machine)
        assert 0 <= result.elapsed_s < 30
        assert result.stopped == "nothing is left to try"
        again, _ = optimize(options(tmp_path / "k.cu", out, resume=True), machine)
    assert again.counts == result.counts
    assert 0 <= again.elapsed_s < 60
