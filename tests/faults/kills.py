"""Kills a run at random moments and resumes it, many times: prints one line of JSON for each trial.

    python -m tests.faults.kills FOLDER KILLS SEED

One process that forks, so that a trial costs a tenth of a second and not the start of an interpreter. The children go
through `engine.run.optimization.optimize`. A trial is killed up to three times and then brought to its end; trials go on until so
many kills have hit a run that was alive.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from engine.errors import OptimlError
from engine.run.optimization import optimize
from engine.search.progress import Progress
from tests.faults.scripted import ScriptedEvaluator, kernel, options, scripted

ROOT = Path(__file__).parents[2]
_PAUSE_S = 0.001  # of one evaluation, so that a kill can fall into it


def run(path: Path, out: Path, resume: bool, told: Callable[[int], None]) -> int:
    """One run; calls `told` with the number of candidates that are booked."""

    def on_progress(progress: Progress) -> None:
        told(progress.recorded)

    # Building whole files takes longer than such a search: most kills would fall into that.
    with (
        scripted(ScriptedEvaluator(_PAUSE_S)) as machine,
        mock.patch("engine.run.whole_check.find_nvcc", return_value=None),
    ):
        try:
            optimize(options(path, out, resume=resume), machine, on_progress)
        except OptimlError as error:
            (out / "error").write_text(str(error))
            return error.exit_code
    return 0


def child(
    path: Path, out: Path, resume: bool, kill_after_s: float | None = None, *, kill_at: int | None = None
) -> tuple[int, int]:
    """A run in a process of its own: its status (-9 where it was killed) and the last number it told.

    It is killed after so many seconds, or once it has told this number or a higher one, at which it waits.
    """
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99

        def told(count: int) -> None:
            os.write(sink, b"%d\n" % count)
            if kill_at is not None and count >= kill_at:
                time.sleep(600)

        try:
            os.close(source)
            code = run(path, out, resume, told)
        finally:
            os._exit(code)
    os.close(sink)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    numbers: list[int] = []
    with os.fdopen(source, "rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break  # killed while it told it
            numbers.append(int(line))
            if kill_at is not None and numbers[-1] >= kill_at:
                os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), numbers[-1] if numbers else 0


def rows(out: Path) -> dict[int, tuple[Any, ...]]:
    """What the journal holds, by id."""
    path = out / "journal.sqlite"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as db:
        try:
            return {row[0]: row for row in db.execute("SELECT * FROM candidates ORDER BY id")}
        except sqlite3.OperationalError:
            return {}  # killed before the tables were there


def essence(out: Path) -> dict[str, Any]:
    """A result without what is a matter of order and time: numbers of candidates, seconds, dates.

    A kill loses the candidates in flight, so those after it are tried in another order: how often one of them was the best so far
    follows that order. What the bests brought together does not, but for the last bit of a sum.
    """
    result = json.loads((out / "result.json").read_text())
    for key in ("elapsed_s", "stages", "provenance"):
        result.pop(key)
    result["original"].pop("stage_s")
    result["best"].pop("id")
    for share in result["proposers"].values():
        share.pop("best")
        share["gain"] = round(share["gain"], 9)
    for step in result["trajectory"]:
        step.pop("id")
    return {**result, "patch": (out / "best.patch").read_text()}


def trial(path: Path, out: Path, wanted: dict[str, Any], lasts_s: float, chance: random.Random) -> dict[str, Any]:
    """One run that is killed, resumed, perhaps killed again, and brought to its end."""
    kills: list[int] = []
    lost = changed = 0
    before: dict[int, tuple[Any, ...]] = {}
    status = -9
    for _ in range(chance.randint(1, 3)):
        resume = (out / "journal.sqlite").exists()
        status, told = child(path, out, resume, chance.uniform(0, lasts_s))
        after = rows(out)
        lost += len(before.keys() - after.keys()) + (
            max(0, told + 1 - len(after)) if told else 0
        )  # the original is not told of
        changed += sum(after[id] != row for id, row in before.items() if id in after)
        before = after
        if status != -9:
            break
        kills.append(len(after))
    if status == -9:
        status, _ = child(path, out, (out / "journal.sqlite").exists(), None)
    after = rows(out)
    lost += len(before.keys() - after.keys())
    changed += sum(after[id] != row for id, row in before.items() if id in after)
    texts = [(row[1], row[3], row[4], row[6]) for row in after.values()]  # parent, rule, parameters, digest
    return {
        "status": status,
        "booked_when_killed": kills,
        "booked": len(after),
        "lost": lost,
        "changed": changed,
        "twice": len(texts) - len(set(texts)),
        "same_result": status == 0 and essence(out) == wanted,
        "error": (out / "error").read_text() if (out / "error").exists() else "",
    }


def main() -> int:
    folder, wanted_kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    path = kernel(folder)
    took: list[float] = []
    for number in range(3):
        begin = time.monotonic()
        child(path, folder / f"whole{number}", False, None)
        took.append(time.monotonic() - begin)
    wanted = essence(folder / "whole0")
    chance = random.Random(seed)
    killed = number = 0
    while killed < wanted_kills:
        found = trial(path, folder / f"trial{number}", wanted, min(took), chance)
        killed, number = killed + len(found["booked_when_killed"]), number + 1
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
