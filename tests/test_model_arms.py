"""The cassette of answers by node: every answer is for a question and can be placed; arms are compared on the kernels they share."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from benchmarks import cassette, model_arms
from engine.llm.cassette import Replayer


@pytest.mark.slow
def test_every_recorded_answer_holds_an_edit_that_can_be_placed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cassette.main(["check"]) == 0
    assert "0 without an edit" in capsys.readouterr().out


def test_the_cassette_has_eighty_answers_for_more_than_eight_kernels() -> None:
    paths = sorted(cassette.ANSWERS.glob(f"*/{cassette.CASSETTE}"))
    texts = [line["answer"]["text"] for path in paths for line in cassette.recorded(path).values()]
    assert len(paths) >= 8
    assert len(set(texts)) >= 80
    for path in paths:
        assert cassette.file_of(path.parent.name).is_file()
        Replayer(path)  # reads every line


def test_an_answer_is_packed_for_its_question_and_leads_to_further_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, answers = cassette.file_of("transpose"), ["--answers", str(tmp_path)]
    cassette.main([*answers, "questions", str(file), "--rounds", "2"])
    asked = capsys.readouterr().out
    first, second = (line for line in asked.splitlines() if line.startswith("=== "))
    assert first.split("/")[1] == second.split("/")[1]
    assert asked.count("## Source") == 1  # what both are told stands once
    draft = tmp_path / "draft.md"
    draft.write_text(f"{first}\nIdea: Use blocks of one warp\nBlock: 32, 4\nGrid: (cols + 31) / 32, (rows + 3) / 4\n")
    assert cassette.main([*answers, "pack", str(draft)]) == 0
    assert cassette.main([*answers, "check"]) == 0
    capsys.readouterr()
    cassette.main([*answers, "questions", str(file), "--below"])
    below = [line for line in capsys.readouterr().out.splitlines() if line.startswith("=== ")]
    assert len(below) == 1  # the answered one is open no more
    assert below[0].split("/")[1] != first.split("/")[1]
    draft.write_text("=== transpose propose/0000/0/0\nIdea: nothing\n")
    assert cassette.main([*answers, "pack", str(draft)]) == 2


def test_arms_are_compared_on_the_kernels_that_both_have() -> None:
    def row(ratio: float) -> dict[str, object]:
        return {"error": None, "ratio": ratio, "mode": "predicted"}

    rows = {"a/rules": row(2.0), "a/model": row(3.0), "b/rules": row(1.0), "b/model": row(6.0), "c/model": row(99.0),
            "d/rules": row(1.0), "d/model": {"error": "no"}}  # fmt: skip
    found = model_arms.summary(rows, ["rules", "model"])
    assert found["arms"]["model"]["kernels"] == 2
    assert found["arms"]["model"]["over_first"] == pytest.approx(3.0)
    assert found["arms"]["model"]["low"] == pytest.approx(1.5)
    assert found["arms"]["model"]["high"] == pytest.approx(6.0)
    assert found["arms"]["rules"]["over_first"] == 1.0
    text = model_arms.table(rows, ["rules", "model"])
    assert "| a | ~2.00 | ~3.00 |" in text
    assert "| d | ~1.00 | failed |" in text


def test_a_row_is_a_run_with_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(file, out, arguments, environment):
        asked.append(arguments)
        measurement = {"ratio": 2.0, "low": 1.9, "high": 2.1, "predicted": False}
        result = {
            "best": {"evaluation": {"measurement": measurement}}, "mode": "measured", "counts": {}, "elapsed_s": 1.0, "stopped": "",
            "trajectory": [{"proposer": "llm", "summary": "Tile it"}], "proposers": {},
            "model": {"questions": 1, "proposals": 1, "known": 0, "faults": {}},
        }  # fmt: skip
        return {"error": None, "exit_code": 0, "wall_s": 1.0, "result": result}

    monkeypatch.setattr(model_arms, "run", run)
    record = tmp_path / "r.json"
    file = str(cassette.file_of("topk"))
    assert model_arms.main([file, "--candidates", "5", "--record", str(record), "--out", str(tmp_path)]) == 0
    rows = json.loads(record.read_text())["rows"]
    assert set(rows) == {"topk/rules", "topk/model"}
    assert math.isclose(rows["topk/model"]["ratio"], 2.0)
    assert [("--llm" in arguments) for arguments in asked] == [False, True]
    more = [
        file,
        "--candidates",
        "5",
        "--record",
        str(record),
        "--out",
        str(tmp_path),
        "--resume",
        "--arms",
        "rules,model-greedy",
    ]
    assert model_arms.main(more) == 0
    assert len(asked) == 3  # what was there was not run again
    assert model_arms.main([file, "--record", str(record), "--seconds", "0"]) == model_arms.INCOMPLETE
