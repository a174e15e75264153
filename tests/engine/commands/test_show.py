"""`optiml show` on folders that a person has or was sent: of a search, a tuning run, a generation."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks.report_size import recorded, synthesise
from engine.cli import main
from engine.generate.generation_result import GenerationResult, StrategyResult
from engine.generate.generation_result import write as write_generation
from engine.model import Refusal
from engine.report.generation_report import print_generation
from engine.tune.evaluated_point import Mark
from engine.tune.space import Excluded
from engine.tune.tuning_result import General, ShapeBest, SpaceInfo, TemplateInfo, TuneResult, write

EVIL = "\x1b]0;owned\x07\u202e[bold]x[/bold]"


def tuned() -> TuneResult:
    run = recorded()
    assert run.best is not None
    values = {"BLOCK": 256, "ITEMS": 4}
    return TuneResult(
        file="examples/saxpy.cu", kernel="saxpy", mode="measured", verdict="saxpy with BLOCK = 256, ITEMS = 4 is 1.50× faster",
        template=TemplateInfo("constants", "Tune BLOCK, ITEMS", {"BLOCK": (128, 256), "ITEMS": (1, 2, 4)}, (), None, (values,)),
        space=SpaceInfo(6, 5, (Excluded("BLOCK * ITEMS <= 1024", 1),), {"registers * threads <= 65536": 1}), strategy="exhaustive",
        strategy_reason="5 points are few", best=General(4, values, run.best.evaluation, "best.patch", ("examples/saxpy.cu",)),
        shapes=(
            ShapeBest("n=1024", {"n": 1024}, 1.0, {"BLOCK": 128, "ITEMS": 1}, 3.25, 1.25, 1.24, 1.26, 1.08),
            ShapeBest("n=65536", {"n": 65536}, 2.0, values, 17.5, 1.5, 1.45, 1.55, 1.0),
        ),
        dispatch=None, refused=(Refusal(3, EVIL, run.best.evaluation),), original=run.original,
        counts={"configurations": 5, "evaluations": 4, "verified": 4, "accepted": 3, "slower": 1, "compile_error": 1},
        rates={"configurations_per_s": 12.5, "evaluations_per_s": 10.0, "searched_s": 0.4, "setup_s": 1.0},
        trace=tuple(Mark(n, n, 0.1 * n, 1.5, 17.5) for n in range(12_000)), budget={"seconds": 60.0, "candidates": None}, seed=0,
        stopped="all points are tried", elapsed_s=2.0, stages={"verify": 0.2}, signals={}, spec={}, notes=(EVIL,),
    )  # fmt: skip


def generated() -> GenerationResult:
    strategies = (
        StrategyResult("parallel", "Parallel", "accepted", "", EVIL, "plan", 2, 1, True, "best", 2.0, 1.9, 2.1, {"n=8": 4.5}),
        StrategyResult("memory", "Memory", "wrong_result", EVIL, "idea", "plan", 4, 2, False),
    )  # fmt: skip
    return GenerationResult(
        sentence="the sum of each column", verdict="column_sum_kernel matches the reference: 2.00×", kernel="column_sum_kernel",
        mode="measured", device={}, written="column_sum.cu", reference={}, task={}, strategies=strategies, yardstick="memory",
        best="parallel", ratio=2.0, optimized=None, checks={"each": 3, "written": 3},
        model={"requests": 6, "spent": {"usd": 0.25, "prompt_tokens": 100, "completion_tokens": 20}, "model": "m"}, elapsed_s=9.0,
        notes=(EVIL,),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)  # a stranger's text does not steer the terminal
    return out


def test_a_tuning_run_is_printed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was refused as a result of another schema."""
    write(tuned(), tmp_path, {"best.patch": b"x"})
    out = shown(capsys, str(tmp_path))
    for text in (
        "saxpy with BLOCK = 256, ITEMS = 4 is 1.50× faster", "6 combinations, 5 feasible", "Strategy: exhaustive (5 points are few)",
        "'BLOCK * ITEMS <= 1024' excludes 1",
        "'registers * threads <= 65536' excludes 1 more, found by compiling it",
        "5 configurations: 3 accepted, 1 compile error, 1 slower", "The best for each shape",
        "⟨U+001B⟩", "[bold]x[/bold]", f"git apply {tmp_path / 'best.patch'}",
    ):  # fmt: skip
        assert text in out
    assert re.search(r"n=1024 +│ BLOCK = 128, ITEMS = 1 +│ +3\.2 │ +1\.25 \(1\.24 to 1\.26\) │ +1\.08 ", out)
    assert re.search(r"n=65536 +│ BLOCK = 256, ITEMS = 4 +│ +17\.5 │ +1\.50 \(1\.45 to 1\.55\) │ +the same ", out)


def test_a_generation_is_printed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generation(generated(), tmp_path)
    out = shown(capsys, str(tmp_path))
    for text in (
        "matches the reference: 2.00×",
        "correct, the fastest (1 repaired)",
        "wrong result: ⟨U+001B⟩",
        "0.25 USD",
        "4.5 µs",
    ):
        assert text in out


def test_the_origin_of_what_a_search_found_is_not_called_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    """A strategy of 1.91x stood as the best beside one of 2.05x: the search had gone further from it."""
    print_generation(dataclasses.replace(generated(), optimized={"verdict": "2.12×"}), Path("out"))
    out = capsys.readouterr().out
    assert "correct, basis of the result (1 repaired)" in out
    assert "the best" not in out


def test_the_tree_is_bounded_and_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthesise(tmp_path, 30, edit=EVIL)
    out = shown(capsys, str(tmp_path), "--tree")
    assert "├── 1 ⟨U+001B⟩" in out


def test_a_page_of_a_generation_is_one_of_its_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generation(generated(), tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert f"name the folder of its search: {tmp_path / 'optimize'}" in capsys.readouterr().err


def test_what_cannot_be_shown_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(dataclasses.replace(tuned(), schema="optiml.tune/9"), tmp_path, {})
    cases = [
        (str(tmp_path), "has the schema 'optiml.tune/9', not 'optiml.result/1' or 'optiml.tune/1'"),
        (str(tmp_path / "none"), "no such folder"),
    ]
    for folder, says in cases:
        assert main(["show", folder]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    data = json.loads(tuned().to_json()) | {"shapes": [{"case": 3}]}
    (tmp_path / "result.json").write_text(json.dumps(data))
    assert main(["show", str(tmp_path)]) == 2
    assert "is not a result of this version (the result.shapes[0].case is not of type str)" in capsys.readouterr().err
    write(tuned(), tmp_path, {})
    assert main(["show", str(tmp_path), "--tree"]) == 2
    assert "no journal next to the result" in capsys.readouterr().err
