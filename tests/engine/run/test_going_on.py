"""A second tuning run in a folder: answered by the first, going on with it, or beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cuda.load import load_program
from engine.errors import UsageError
from engine.model import Evaluation, Outcome
from engine.run.earlier_run import identity_of, put_back
from engine.run.going_on import settle, settle_tuning
from engine.run.optimization import Options
from engine.search.journal import Entry, Journal
from engine.search.progress import Budget
from engine.spec.find import find_spec
from engine.tune.tune_options import TuneOptions
from tests.engine.commands.test_interrupt import TUNED

MACHINE: Any = SimpleNamespace(arch="sm_90", mode="predicted", name="sm_90")


def leave(
    file: Path, out: Path, request: str, *, ended: bool, seconds: float | None = None, elapsed_s: float = 0.0
) -> None:
    """A journal as a run of 100 points (or so many seconds) leaves it, with the original in it."""
    spec, _ = find_spec(file.parent, file, None)
    program = load_program(file, kernels=[spec.kernel])
    identity = identity_of(program, spec, 0, MACHINE.arch, MACHINE.mode)
    journal = Journal(out / "journal.sqlite", program, {}, resume=False, identity=identity)
    evaluation = Evaluation(Outcome.SCREENED)
    journal.book(Entry(0, None, "", "", {}, "the original", program.digest, (), evaluation, {}, elapsed_s))
    journal.mark_request(request, seconds, 100 if seconds is None else None, ended=ended)
    journal.close()


def test_a_tuning_run_is_never_discarded(tmp_path: Path) -> None:
    """A second one took the place of the first: its journal, its result and its patch."""
    (tmp_path / ".git").mkdir()
    file, out = tmp_path / "k.cu", tmp_path / "out"
    file.write_text(TUNED)
    asked = TuneOptions(path=file, budget=Budget(candidates=100), out=out)
    first, said, answered = settle_tuning(asked, out, MACHINE)
    assert (said, answered, first.resume) == ("", False, False)

    leave(file, out, first.request, ended=False)
    options, said, answered = settle_tuning(asked, out, MACHINE)
    assert (answered, options.resume, options.budget.candidates) == (False, True, 100)
    assert "continues the earlier run" in said

    leave(file, out, first.request, ended=True)
    assert settle_tuning(asked, out, MACHINE)[2] is False  # its result is missing
    (out / "result.json").write_text(json.dumps({"schema": "optiml.tune/1", "best": {}}))
    assert settle_tuning(asked, out, MACHINE)[2] is False  # and here its patch
    (out / "best.patch").write_text("")
    options, said, answered = settle_tuning(asked, out, MACHINE)
    assert answered
    assert "nothing changed since the run" in said

    for other in (replace(asked, where=("BLOCK > 64",)), replace(asked, seed=7), replace(asked, budget=Budget(60.0))):
        options, said, answered = settle_tuning(other, out, MACHINE)
        assert (answered, options.resume) == (False, False)
        kept = Path(said.removeprefix("the earlier run is kept in ").partition(":")[0])
        assert (kept / "best.patch").is_file()
        kept.rename(out)


def test_a_turn_that_goes_on_has_no_more_than_what_is_left_of_its_time(tmp_path: Path) -> None:
    """A kernel whose worker was lost searched for the rest of its budget, however late it was."""
    (tmp_path / ".git").mkdir()
    file, out = tmp_path / "k.cu", tmp_path / "out"
    file.write_text(TUNED)
    spec = find_spec(tmp_path, file, None)
    whole = Options(file, None, Budget(600.0), out=out, spec=spec)
    first = settle(whole, out, MACHINE).options
    leave(file, out, first.request, ended=False, seconds=600.0, elapsed_s=100.0)
    late = replace(whole, budget=Budget(30.0))
    settled = settle(late, out, MACHINE, asked=Budget(600.0)).options
    assert (settled.resume, settled.budget.seconds) == (True, 130.0)
    assert settle(whole, out, MACHINE).options.budget.seconds == 600.0


def test_a_request_that_is_refused_leaves_the_earlier_run_in_its_place(tmp_path: Path) -> None:
    """`tune --rule nope` moved it away, so that the same request as before ran again."""
    (tmp_path / ".git").mkdir()
    file, out = tmp_path / "k.cu", tmp_path / "out"
    file.write_text(TUNED)
    asked = TuneOptions(path=file, budget=Budget(candidates=100), out=out)
    first, _, _ = settle_tuning(asked, out, MACHINE)
    leave(file, out, first.request, ended=False)
    other, _, _ = settle_tuning(replace(asked, rule="nope"), out, MACHINE)
    assert not out.exists()
    with pytest.raises(UsageError), put_back(out, other.kept):
        raise UsageError("unknown rule 'nope'")
    assert settle_tuning(asked, out, MACHINE)[0].resume
