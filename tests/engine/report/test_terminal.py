"""The terminal: a live best so far where somebody watches, silence elsewhere, no colours where none are wanted."""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.report_size import recorded
from engine.model import Outcome
from engine.process.interrupt import Interrupt
from engine.report.run_folder import StoredNode
from engine.report.terminal import (
    Live,
    answers_of,
    found_by,
    how_to_take,
    print_result,
    print_tree,
    progress_line,
    record_of,
)
from engine.search.progress import Budget, Progress
from tests.engine.report.make import predicted

_WATCHED = """
from engine.report.run_folder import StoredNode
from engine.report.terminal import Live
from engine.search.progress import Budget, Progress
import time
with Live(Budget(candidates=40)) as live:
    for i in range(1, 4):
        live.update(Progress(evaluated=i, verified=i, best_ratio=1.0 + i, best_summary='[red]Unroll[/red]' + chr(27) + '[2J'))
        live._bars.refresh()
        time.sleep(0.25)
"""
_PREDICTED = """
from engine.model import Outcome
from engine.process.interrupt import Interrupt
from engine.report.terminal import Live
from engine.search.progress import Budget, Progress
with Live(Budget(seconds=600.0)) as live:
    live.update(Progress(999, 998, 27.18, 'Unroll the loop', elapsed_s=1.0, outcomes={Outcome.SCREENED: 998}))
    live._bars.refresh()
"""
_BESIDE = """
from engine.report.terminal import Live
from engine.search.progress import Budget
import time
with Live(Budget(), beside=True, every_s=0.01) as live:
    live.phase('run 1 of 2: times')
    time.sleep(0.2)
"""

_UNWANTED = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONIOENCODING")


def watched(script: str = _WATCHED, **environment: str) -> str:
    """What a terminal gets to see, of 120 columns where `COLUMNS` is not given."""
    settings = {k: v for k, v in os.environ.items() if k not in _UNWANTED}
    settings |= {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
    return seen_of(script, settings, out=False)


def on_a_terminal(script: str, environment: dict[str, str]) -> str:
    """All that a terminal of 80 columns and 24 lines gets of a program, in this environment."""
    settings = {k: v for k, v in os.environ.items() if k not in _UNWANTED and not k.startswith(("LC_", "LANG"))}
    return seen_of(script, {"TERM": "xterm", **settings, "COLUMNS": "80", "LINES": "24", **environment}, out=True)


def seen_of(script: str, settings: dict[str, str], *, out: bool) -> str:
    """What a terminal gets on standard error, with `out` on standard output too."""
    master, slave = pty.openpty()
    stdout = slave if out else subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", script], stderr=slave, stdout=stdout, env=settings)
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 30)[0]:
        try:
            data = os.read(master, 4096)
        except OSError:
            break  # the other end is closed
        if not data:
            break
        seen += data
    os.close(master)
    assert process.wait(30) == 0
    return seen.decode()


def test_a_terminal_shows_the_best_so_far_as_it_grows() -> None:
    seen = watched()
    for figure in ("2.00", "3.00", "4.00"):
        assert f"best so far {figure}× ([red]Unroll[/red]⟨U+001B⟩[2J)" in seen
    assert "37 to go" in seen
    assert "\x1b[2J" not in seen.replace("⟨U+001B⟩[2J", "")
    assert re.search(r"\x1b\[[\d;]*3\dm|\x1b\[[\d;]*38;", seen)  # colours
    assert seen.rstrip().endswith("\x1b[2K")  # and leaves nothing behind


def test_no_color_is_respected() -> None:
    seen = watched(NO_COLOR="1")
    assert "best so far 4.00×" in seen
    assert not re.search(r"\x1b\[[\d;]*(?:3\d|38;[\d;]*|9\d)m", seen)


_SLOW = """
from engine.report.terminal import Live
from engine.search.progress import Budget, Progress
import time
with Live(Budget(seconds=100.0), "setting up and validating the spec") as live:
    live._begin -= 7
    live._bars.refresh()
    live.update(Progress(evaluated=9, unwritten=2, verified=3, elapsed_s=20.0))
    live._since -= 30
    live._bars.refresh()
    live.update(Progress(9, 3, 2.0, phase="confirming the best"))
    live._bars.refresh()
"""


def test_the_line_goes_on_while_nothing_is_reported() -> None:
    """It froze for half of a run, and showed nothing while a run was set up."""
    seen = watched(_SLOW)
    assert "setting up and validating the spec, 7 s" in seen
    assert "7 tried, 3 passed, 50 s left" in seen
    assert "9 tried, 3 passed, confirming the best, best so far 2.00×" in seen


def test_a_terminal_that_cannot_rewrite_a_line_gets_lines() -> None:
    assert "\x1b" not in watched(TERM="dumb")


def test_a_file_gets_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with Live(Budget(seconds=10.0), every_s=0.02) as live:
        live.update(Progress(evaluated=3))
        while "3 tried" not in (err := capfd.readouterr().err):
            time.sleep(0.01)
    assert set(err) & {"\x1b", "\r"} == set()
    capfd.readouterr()  # a line may be read before its end
    with Live(Budget(seconds=10.0), quiet=True, every_s=0.001):
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_what_a_run_has_to_say_stands_once_above_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(evaluated=3)
    with Live(Budget(seconds=10.0)) as live:
        progress.said.append("the instance k<half> \x1b[2J cannot be verified")
        live.update(progress)
        live.update(progress)
    assert capfd.readouterr().err.count("the instance k<half>") == 1
    with Live(Budget(seconds=10.0), quiet=True) as live:
        live.update(progress)
    assert capfd.readouterr().err == ""


def test_what_is_counted_has_its_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("engine.report.terminal.time", SimpleNamespace(monotonic=lambda: now))
    live = Live(Budget(), "setting up", quiet=True)
    live.phase("checking the first original")
    now += 4.0
    assert live.line() == "checking the first original, 4 s"
    live.count(0, 12, "cases")
    assert live.line() == "cases: 0 of 12"
    now += 2.0
    live.count(3, 12, "cases")
    assert live.line() == "cases: 3 of 12, about 18 s left"
    now += 5.0
    assert live.line() == "cases: 3 of 12, about 13 s left"
    live.phase("the next one")
    assert live.line() == "the next one, 0 s"


def test_beside_another_program_s_output_a_phase_is_a_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with Live(Budget(), "setting up", beside=True, every_s=0.02) as live:
        live.phase("run 1 of 2: times")
        while "run 1 of 2: times, 0 s" not in (err := capfd.readouterr().err):
            assert err in ("", "run 1 of 2: times\n") or err.startswith(("run 1", "setting up"))
            time.sleep(0.03)
    seen = watched(_BESIDE)
    assert "run 1 of 2: times" in seen
    assert "\x1b" not in seen
    assert seen.count("run 1 of 2") == 1  # the terminal is the program's


def test_nothing_is_said_of_a_run_of_seconds(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI systems set it: still a file
    with Live(Budget(seconds=10.0)) as live:
        live.update(Progress(evaluated=3))
    out, err = capfd.readouterr()
    assert out + err == ""


def test_the_line_says_what_is_predicted() -> None:
    progress = Progress(7, 3, 2.5, "Edit", elapsed_s=4.0)
    assert progress_line(progress, Budget(seconds=10.0)) == "7 tried, 3 passed, 6 s left, best so far 2.50× (Edit)"
    progress.outcomes[Outcome.SCREENED] = 3
    assert "best so far ~2.5× predicted" in progress_line(progress, Budget())


def test_no_more_passed_than_were_tried() -> None:
    """A run began with "1 tried, 2 passed"."""
    assert progress_line(Progress(evaluated=2, verified=2, unwritten=1), Budget()).startswith("1 tried, 1 passed, ")


def test_a_terminal_of_80_columns_shows_that_a_speed_is_predicted() -> None:
    """It was cut: `1 candidates tried, 1 passed, 2 to go, best so far 23.74× pr…`."""
    seen = watched(_PREDICTED, COLUMNS="80")
    assert "999 tried, 998 passed, 599 s left, best so far ~27× predicted" in seen


def test_text_of_a_stranger_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\u202e[bold]x[/bold]"
    result = recorded()
    assert result.best is not None
    steps = tuple(dataclasses.replace(s, summary=evil, diagnosis=(evil,), moved=(evil,)) for s in result.trajectory)
    print_result(
        dataclasses.replace(result, verdict=evil, notes=(evil,), diagnosis=(evil,), trajectory=steps), Path("out")
    )
    rest = (None, None, 0.0)
    print_tree([
        StoredNode(0, None, "", "", "", "", "", None, *rest), StoredNode(1, 0, "", "", evil, "race", evil, None, *rest),
        StoredNode(2, 0, "", "", "b", "screened", "", 2.0, *rest),
    ])  # fmt: skip
    out = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    assert "⟨U+001B⟩" in out
    assert "[bold]x[/bold]" in out
    assert "~2× predicted" in out


def test_what_holds_at_every_step_is_not_said_after_each(capsys: pytest.CaptureFixture[str]) -> None:
    result, same = recorded(), "no counters here"
    steps = tuple(dataclasses.replace(step, diagnosis=(same, f"own {step.id}")) for step in result.trajectory)
    print_result(dataclasses.replace(result, diagnosis=(same, "32 blocks"), trajectory=steps), Path("out"))
    out = capsys.readouterr().out
    assert out.count(same) == 1
    assert all(f"own {step.id}" in out for step in steps)


def test_what_became_of_a_models_answers_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """ "Nothing is left to try" hid six answers that could not be used."""
    model = {
        "requests": 9,
        "questions": 6,
        "proposals": 0,
        "known": 0,
        "faults": {"forbidden": 4, "not_found": 2},
        "reasons": {"forbidden": "a launch names 'k'", "not_found": "the search text is not in the source"},
        "edits": [],
    }
    print_result(dataclasses.replace(recorded(), model=model), Path("out"))
    out = " ".join(capsys.readouterr().out.split())
    assert "Model: 6 questions, 0 usable edits; not used: 4 forbidden (a launch names 'k'), 2 not found." in out
    tried = [{"outcome": "wrong_result"}, {"outcome": "slower"}, {"outcome": "slower"}]
    stopped = "nothing is left to try, and the model was stopped"
    result = dataclasses.replace(recorded(), model=model, stopped=stopped, notes=("the model was stopped", "no GPU"))
    print_result(result, Path("out"))
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("the model was stopped") == 1
    assert "Note: no GPU" in out
    waiting = {**model, "questions": 2, "faults": {"deferred": 2}}
    assert (
        answers_of(waiting) == "2 questions, 0 usable edits; 2 waiting for their answers"
    )  # they were called rejected
    model = {**model, "questions": 1, "proposals": 4, "known": 1, "faults": {}, "edits": tried}
    assert answers_of(model) == "1 question, 4 usable edits; not used: 1 duplicate; outcomes: 2 slower, 1 wrong result"


def test_a_predicted_result_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(
        dataclasses.replace(predicted(), proposers={n: {"gain": 1.0, "candidates": 2, "usd": 0} for n in "ab"}),
        Path("out"),
    )
    out = capsys.readouterr().out
    assert "Speeds are predicted for sm_90, not measured." in out
    assert "predicted speedup" in out
    assert "Predicted times" in out
    assert "Gain by proposer (predicted): a 2.00×" in out


def test_one_candidate_is_not_several() -> None:
    shares = {
        "rules": {"gain": 1.0, "also": 1.0, "candidates": 1, "usd": 0},
        "tuner": {"gain": 0.0, "candidates": 7, "usd": 0.5},
    }
    assert (
        found_by(shares)
        == "rules 2.00× in 1 candidate, 2.00× of it first tried by another proposer; tuner 1.00× in 7 candidates, 0.50 USD"
    )


def test_the_command_that_takes_a_patch_works_where_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder beside the kernel's `git apply` passed over the patch, with exit code 0."""
    root = tmp_path / "my library"
    (root / "other").mkdir(parents=True)
    (root / "a.cu").write_text("old\n")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    patch = root / ".optiml" / "best.patch"
    patch.parent.mkdir()
    patch.write_text("--- a/a.cu\n+++ b/a.cu\n@@ -1 +1 @@\n-old\n+new\n")
    for where in (root, root / "other", tmp_path):
        monkeypatch.chdir(where)
        command = how_to_take(patch, root).partition(": ")[2]
        subprocess.run(shlex.split(command), check=True)
        assert (root / "a.cu").read_text() == "new\n"
        (root / "a.cu").write_text("old\n")
    assert how_to_take(Path("best.patch"), None) == "Apply it at the root of the repository with: git apply best.patch"


_ENDS = """
from pathlib import Path
from benchmarks.report_size import recorded
from engine.report.terminal import print_result
print_result(recorded(), Path(".optiml/k"), Path.cwd())
"""


def test_a_window_of_24_lines_ends_with_the_verdict_and_the_patch() -> None:
    """It ended with conditions, notes and paths: the verdict stood above the table, out of sight."""
    lines = on_a_terminal(_ENDS, {"PYTHONPATH": os.getcwd()}).splitlines()[-24:]
    text = re.sub(r"\x1b\[[\d;]*m", "", " ".join(lines[-6:]))
    assert recorded().verdict in " ".join(text.split())
    assert lines[-1].startswith("Apply it with: git apply ")


def test_an_interrupt_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """In a line of 80 columns, and where no terminal is without waiting for the next line."""
    budget = Budget(seconds=600.0, interrupt=Interrupt())
    with Live(budget) as live:
        live.update(Progress(evaluated=3))
        budget.interrupt.asked = True
        while "interrupted, ending the search; Ctrl-C again stops immediately (3 tried)" not in (
            err := capfd.readouterr().err
        ):
            time.sleep(0.01)
    assert len(err.splitlines()) == 1
    assert len(progress_line(Progress(phase="confirming the best"), budget)) < 80


def test_a_judges_record_is_told() -> None:
    judge = {"scored": 9, "measured": 5, "rank_correlation": 0.4, "weight": 0.45, "error_doublings": 0.5, "off": False}
    assert (
        record_of(judge)
        == "5 of 9 scored edits measured, rank correlation 0.40, speedups off by 1.41× on average, weight 0.45"
    )
    assert ", bottleneck as expected in 2 of 3, " in record_of({**judge, "bounds": 3, "bounds_right": 2})
    assert record_of({**judge, "off": True, "predicted": 5}).startswith("5 of 9 scored edits predicted")
    assert record_of({**judge, "off": True}).endswith("disabled, as its scores did not predict the results")
    assert (
        record_of({"scored": 0, "measured": 0, "rank_correlation": None, "weight": 0.5})
        == "0 of 0 scored edits measured, weight 0.50"
    )
