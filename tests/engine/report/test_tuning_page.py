"""The page of a tuning run: what it says, that predicted is said at every figure, and that no text leaves its place."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine.cli import main
from engine.model import Failure, Guardrail, Measurement, Outcome, Refusal
from engine.process.decode import decode
from engine.report.page import render_tuning
from engine.report.tuning import print_tuning
from engine.tune.tuning_result import Branch, Constants, Dispatch, Range, TuneResult, write
from tests.engine.commands.test_show import tuned
from tests.engine.report.make import evil
from tests.engine.report.test_page import harmless


def dispatched(run: TuneResult) -> TuneResult:
    assert run.best is not None
    low, high = (shape.values for shape in run.shapes)
    branches = (Branch((Range("n", 1024, 8192),), low, ("n=1024",)), Branch((), high, ("n=65536",)))
    verdicts = (Guardrail("end-to-end command", "failed", "ends with exit code 1"),)
    dispatch = Dispatch(
        "n",
        branches,
        1.42,
        1.4,
        1.44,
        "",
        (),
        (run.best.evaluation,) * 2,
        verdicts,
        "end-to-end command: ends with exit code 1",
    )
    return dataclasses.replace(run, dispatch=dispatch)


@pytest.fixture(scope="module")
def run() -> TuneResult:
    return dispatched(tuned())


def test_a_tuning_run_has_its_page(run: TuneResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There was none."""
    patch = (
        dataclasses.replace(run.best, patch="../../etc/passwd") if run.best else None
    )  # a result may come from a stranger
    write(dataclasses.replace(run, best=patch), tmp_path, {"best.patch": b"--- a/saxpy.cu\n", "dispatch.patch": b""})
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    text = harmless((tmp_path / "report.html").read_text(encoding="utf-8")).text
    for part in (
        "saxpy with BLOCK = 256, ITEMS = 4 is 1.50× faster", "compared with the original first at 1 points", "128, 256",  # configuration
        "BLOCK = 128, ITEMS = 1", "3.250", "1.24 to 1.26", "1.08×", "the same",  # the best for each shape
        "n from 1024, below 8192", "all others", "1.42× (95 %: 1.40 to 1.44)", "Not suggested: end-to-end command: ends with exit code 1.",
        "racecheck", "the least speedup is", "BLOCK * ITEMS <= 1024", "compiled code", "5 points are few",
        "3 accepted", "configurations per s", "12.5", "verify", "--- a/saxpy.cu",
    ):  # fmt: skip
        assert part in text, part
    assert "redicted" not in text
    assert "passwd" not in text


def test_named_constants_are_told(run: TuneResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert "To tune again" not in harmless(render_tuning(run, {})).text
    constants = Constants(
        {"bm": "GEMM_BM", "<b>": "GEMM_BN"}, ("bk",), ({"GEMM_BM": 64}, {"GEMM_BM": 32}), "constants.patch"
    )
    named = dataclasses.replace(run, constants=constants)
    text = harmless(render_tuning(named, {})).text
    assert (
        "To tune again: constants.patch contains bm as GEMM_BM, <b> as GEMM_BN; bk as in the best. It is the rule's"
        in text
    )
    assert "machine code at 2 points" in text
    print_tuning(named, Path("out"))
    said = " ".join(capsys.readouterr().out.split())
    assert "To tune again: constants.patch contains bm as GEMM_BM, <b> as GEMM_BN." in said
    assert "Patch: out/constants.patch" in said


def test_dispatch_code_alone_has_its_guardrails(run: TuneResult, capsys: pytest.CaptureFixture[str]) -> None:
    """The page said that there was no suggestion to hold to them, and the terminal nothing."""
    alone = dataclasses.replace(run, best=None)
    text = harmless(render_tuning(alone, {})).text
    assert "There is no suggestion" not in text
    print_tuning(alone, Path("out"))
    shown = " ".join(capsys.readouterr().out.split())
    for branch in ("n from 1024, below 8192", "all others"):
        assert f"Those that the dispatch code's branch {branch} had to pass" in text
        assert f", of the branch {branch}" in shown
    assert run.best is not None
    for guardrail in run.best.evaluation.guardrails:
        assert text.count(guardrail.name) == shown.count(guardrail.name) == 2


def test_what_stopped_a_suggestion_is_said_once(run: TuneResult) -> None:
    """The guardrail's sentence stood there twice, as the reason and as the guardrail."""
    assert run.best is not None
    failed = Guardrail("end-to-end command", "failed", "ends with exit code 3")
    reason = Failure(f"{failed.name}: {failed.detail}")
    stopped = dataclasses.replace(run.best.evaluation, outcome=Outcome.GUARDRAIL, failure=reason, guardrails=(failed,))
    refused = (Refusal(4, "BLOCK = 256, ITEMS = 4", stopped),)
    text = harmless(render_tuning(dataclasses.replace(run, best=None, refused=refused), {})).text
    assert text.count("ends with exit code 3") == 1
    other = dataclasses.replace(stopped, failure=Failure("slower on fresh inputs"))
    refused = (Refusal(4, "BLOCK = 256, ITEMS = 4", other),)
    text = harmless(render_tuning(dataclasses.replace(run, best=None, refused=refused), {})).text
    assert "slower on fresh inputs; end-to-end command: ends with exit code 3" in text


def test_three_plots_are_drawn(run: TuneResult) -> None:
    page = render_tuning(run, {})
    assert [name for name in ("search", "shapes", "stages") if f'<figure id="plot-{name}">' in page] == [
        "search",
        "shapes",
        "stages",
    ]
    assert len(page) < 300_000  # 12,000 evaluations


def test_predicted_is_said_at_every_figure(run: TuneResult) -> None:
    assert run.best is not None
    measured = run.best.evaluation
    assert measured.measurement is not None
    guessed = dataclasses.replace(measured, measurement=Measurement((), 1.5, 1.5, 1.5, predicted=True))
    best = dataclasses.replace(run.best, evaluation=guessed)
    assert run.dispatch is not None
    dispatch = dataclasses.replace(run.dispatch, evaluations=(guessed, guessed))
    text = harmless(
        render_tuning(dataclasses.replace(run, mode="predicted", best=best, dispatch=dispatch, refused=()), {})
    ).text
    assert "Predicted, not measured." in text
    assert "~1.2× predicted" in text
    assert "~1.5× predicted" in text
    assert "~1.4× predicted" in text
    assert "95 %" not in text


def test_no_text_of_a_stranger_leaves_its_place(run: TuneResult) -> None:
    told = decode(TuneResult, evil(json.loads(run.to_json())), most=1_000_000)
    found = harmless(render_tuning(told, {"best.patch": evil("patch")}))
    assert found.text.count("window.pwned") > 20


def test_a_run_without_anything_found_has_its_page(run: TuneResult) -> None:
    empty = dataclasses.replace(run, best=None, shapes=(), dispatch=None, trace=(), stages={}, refused=())
    text = harmless(render_tuning(empty, {})).text
    for part in ("No configuration is suggested", "There is no table", "None was asked for", "There is no suggestion"):
        assert part in text
