"""The table of tasks of others for `optiml generate`: what its rows say, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import foreign_generate, pareval, torch_tasks
from benchmarks.bench import Place, Settings
from engine.errors import UsageError

PLACE = Path("nowhere")


def sample(correct: bool, tests: str | None, ending: str = "screened") -> dict[str, Any]:
    return {
        "sample": "memory",
        "correct": correct,
        "ending": ending,
        "reason": "",
        "tests": tests,
        "tests_said": "",
        "mode": "predicted",
    }


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], dict[str, Any]]:
    """Measures a row whose runs end as told: with samples, or an error."""
    monkeypatch.setattr(foreign_generate, "misplaced", lambda *given: "")

    def start(key: str, ends: Any) -> dict[str, Any]:
        def samples(*given: Any) -> list[dict[str, Any]]:
            if isinstance(ends, Exception):
                raise ends
            return [dict(each) for each in ends]

        monkeypatch.setattr(pareval, "samples", samples)
        monkeypatch.setattr(torch_tasks, "samples", samples)
        return foreign_generate.measure(Place(tmp_path, tmp_path, tmp_path, tmp_path), Settings(), key)

    return start


def test_rows_are_the_tasks_that_are_kept() -> None:
    rows = foreign_generate.table().rows(Place(PLACE, PLACE, PLACE), Settings())
    counts = {which: sum(row.startswith(which) for row in rows) for which in foreign_generate.SETS}
    assert counts == {"pareval": 12, "leetgpu": torch_tasks.COUNT, "kernelbench": torch_tasks.COUNT}


def test_a_row_without_its_checkout_says_which(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, tmp_path, tmp_path)
    with pytest.raises(UsageError, match="parallelcodefoundry__ParEval is not at 4c9877fc"):
        foreign_generate.measure(place, Settings(), "pareval/gemm")


def test_a_row_whose_questions_wait_says_where(measure: Any, tmp_path: Path) -> None:
    questions = tmp_path / "foreign-generate" / "questions" / "pareval"
    questions.mkdir(parents=True)
    for name in ("gemm__parallel", "gemv__parallel"):
        (questions / f"{name}.txt").write_text("old")
    with pytest.raises(UsageError, match="questions wait") as error:
        measure("pareval/gemm", [])
    assert error.value.where == str(questions)
    assert [path.name for path in questions.iterdir()] == ["gemv__parallel.txt"]


def test_what_has_no_sample_says_why(measure: Any) -> None:
    told = measure("leetgpu/60_top_p_sampling", AssertionError("it is not run"))
    assert not told["stated"]
    assert "random" in told["without"]
    told = measure("leetgpu/19_reverse_array", pareval.NoKernelError("no correct kernel can be the baseline"))
    assert (told["stated"], told["without"], told["samples"]) == (True, "no correct kernel can be the baseline", [])


def test_a_folder_is_the_task_of_its_name(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch_tasks, "task_name", lambda *given: asked.append(given))
    measure("kernelbench/level1_19_ReLU", [sample(True, None)])
    assert asked == [("kernelbench", "level1_19_ReLU")]
    monkeypatch.undo()
    assert torch_tasks.task_name("kernelbench", "level1_19_ReLU") == "level1/19_ReLU"
    assert torch_tasks.task_name("leetgpu", "60_top_p_sampling") == "60_top_p_sampling"


def test_pass_at_k_is_unbiased() -> None:
    assert foreign_generate.pass_at(5, 2, 1) == pytest.approx(0.4)
    assert foreign_generate.pass_at(5, 1, 5) == 1.0
    assert foreign_generate.pass_at(5, 0, 5) == 0.0
    assert foreign_generate.pass_at(5, 2, 2) == pytest.approx(1 - 3 / 10)


def test_what_gives_nothing_counts_as_failed_and_verdicts_are_compared() -> None:
    def row(*samples: dict[str, Any], without: str = "", stated: bool = True) -> dict[str, Any]:
        return {"error": None, "without": without, "stated": stated, "samples": list(samples)}

    rows = {
        "leetgpu/a": row(sample(True, "pass"), sample(True, "fail")),
        "leetgpu/b": row(sample(False, "pass", "race"), sample(False, "fail", "race")),
        "leetgpu/c": row(without="it draws lots", stated=False),
        "leetgpu/d": {"error": "questions wait"},
        "leetgpu/e": row(without="no baseline"),
        "kernelbench/f": row(sample(True, None)),
    }
    found = foreign_generate.summary(rows)
    assert set(found) == {"leetgpu", "kernelbench"}
    told = found["leetgpu"]
    assert (told["tasks"], told["results"], told["cannot_be_stated"], told["k"]) == (5, 4, 1, 2)
    assert told["pass_at_1"] == pytest.approx(1 / 8)
    assert told["pass_at_k"] == pytest.approx(1 / 4)
    assert (told["samples"], told["correct"], told["judged"]) == (4, 2, 4)
    assert (told["accepted_but_failed"], told["refused_but_passed"]) == (1, 1)
    assert told["endings"] == {"race": 2}
    assert (found["kernelbench"]["pass_at_1"], found["kernelbench"]["judged"]) == (1.0, 0)
    shown = foreign_generate.render({"rows": rows, "summary": found})
    assert "| leetgpu/c | – | it draws lots |" in shown
    assert "| leetgpu/d | – | questions wait |" in shown
    assert "memory: screened: (tests: fail)" in shown.replace(":  ", ": ")  # accepted, and yet
    assert "leetgpu: pass@1 0.12, pass@2 0.25 over 4 of 5 tasks" in shown
