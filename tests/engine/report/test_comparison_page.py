"""The page of two runs beside each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.report_size import recorded, synthesise
from engine.cli import main
from engine.report.folder_pages import comparison_page
from engine.report.run_comparison import compare
from engine.report.run_folder import StoredRun, read_run
from engine.run.result import OptimizationResult
from tests.engine.report.make import hostile, predicted
from tests.engine.report.test_page import harmless


def run_of(result: OptimizationResult, text: bytes = b"original") -> StoredRun:
    return StoredRun(result, (), {}, (), "", {result.file: text})


def faster(by: float) -> OptimizationResult:
    """The recorded run, its best so many times as fast."""
    result = recorded()
    assert result.best is not None
    m = result.best.evaluation.measurement
    assert m is not None
    cases = tuple(dataclasses.replace(c, ratio=by * c.ratio, low=by * c.low, high=by * c.high) for c in m.cases)
    m = dataclasses.replace(m, ratio=by * m.ratio, low=by * m.low, high=by * m.high, cases=cases)
    evaluation = dataclasses.replace(result.best.evaluation, measurement=m)
    return dataclasses.replace(result, best=dataclasses.replace(result.best, evaluation=evaluation), seed=7)


def test_two_alike_runs_are_compared_by_their_intervals() -> None:
    same = compare(run_of(recorded()), run_of(recorded()))
    assert same.unlike == ()
    assert same.verdict == "The two runs found the same speedup within their 95 % intervals."
    assert not any(pair.differs for pair in same.facts)
    assert [shape.overlap for shape in same.shapes] == [True]
    other = compare(run_of(recorded()), run_of(faster(2.0)))
    assert other.verdict == "The second run's best is 2.00 times as fast as the other's."
    assert [round(shape.ratio or 0.0, 6) for shape in other.shapes] == [2.0]
    assert {pair.name for pair in other.facts if pair.differs} == {"Speedup", "Seed"}
    assert compare(run_of(faster(2.0)), run_of(recorded())).verdict.startswith("The first run's best is 2.00 times")


@pytest.mark.parametrize(
    ("change", "text", "why"),
    [
        ({"kernel": "other"}, b"original", "the runs search different kernels"),
        ({}, b"edited", "the original's source is not the same"),
        ({"signals": {"device": {"name": "NVIDIA A100"}}}, b"original", "NVIDIA H200 and NVIDIA A100"),
        ({"spec": {"time": [{"name": "small"}]}}, b"original", "the timing cases are not the same"),
    ],
)
def test_what_is_not_alike_gives_no_ratio(change: dict[str, object], text: bytes, why: str) -> None:
    found = compare(run_of(recorded()), run_of(dataclasses.replace(faster(2.0), **change), text))  # type: ignore[arg-type]
    assert why in " ".join(found.unlike)
    assert found.verdict == "The speedups of these runs cannot be compared."
    assert all(shape.ratio is None for shape in found.shapes)


def test_a_measured_and_a_predicted_run_never_meet_in_one_plot(tmp_path: Path) -> None:
    synthesise(tmp_path / "a", 30)
    synthesise(tmp_path / "b", 30, result=predicted())
    page = comparison_page(tmp_path / "a", tmp_path / "b")
    text = harmless(page).text
    assert "<figure" not in page
    assert "the first run is measured, the second is predicted" in text
    assert "not comparable" in text
    both = comparison_page(tmp_path / "b", tmp_path / "b")
    assert "Predicted, not measured." in harmless(both).text
    assert "The two runs predict the same speedup." in both


def test_steps_and_sources_stand_beside_each_other(tmp_path: Path) -> None:
    first = recorded()
    second = dataclasses.replace(
        first, trajectory=(dataclasses.replace(first.trajectory[0], summary="Another way"), *first.trajectory[1:])
    )
    before = b"__global__ void k() {\n}\n"
    synthesise(tmp_path / "a", 30, texts={first.file: (before, before.replace(b"{", b"{ one();"))})
    synthesise(tmp_path / "b", 30, result=second, texts={first.file: (before, before.replace(b"{", b"{ other();"))})
    runs = [read_run(tmp_path / name) for name in "ab"]
    steps = compare(*runs).steps
    assert [(step.a, step.b) for step in steps] == [(1, None), (2, 2), (None, 1)]
    page = comparison_page(tmp_path / "a", tmp_path / "b")
    text = harmless(page).text
    assert "not in A" in text
    assert "one();" in text
    assert "other();" in text
    assert page.count('role="img"') == 2  # one for wide windows, one for narrow ones


def test_without_a_suggestion_the_comparison_says_so(tmp_path: Path) -> None:
    nothing = dataclasses.replace(recorded(), best=None, trajectory=())
    synthesise(tmp_path / "a", 20, result=nothing)
    synthesise(tmp_path / "b", 20)
    assert "No suggestion in the first run." in comparison_page(tmp_path / "a", tmp_path / "b")
    text = harmless(comparison_page(tmp_path / "a", tmp_path / "a")).text
    assert "Neither run has a suggestion, so there are no steps." in text


def test_no_text_of_two_untrusted_runs_leaves_its_place(tmp_path: Path) -> None:
    hostile(tmp_path / "a")
    hostile(tmp_path / "b")
    assert harmless(comparison_page(tmp_path / "a", tmp_path / "b")).text.count("window.pwned=1") > 20


def test_the_command_compares(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthesise(tmp_path, 20)
    assert main(["report", str(measured), str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'comparison.html'}\n"
    text = harmless((tmp_path / "comparison.html").read_text(encoding="utf-8")).text
    assert "transpose_kernel: two runs" in text
    assert str(measured) in text
    (tmp_path / "comparison.html").unlink()
    assert main(["report", str(measured), str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))
