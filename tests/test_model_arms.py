"""The cassette of answers by node: every answer is for a question and can be placed; arms are compared on the kernels they share."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from benchmarks import cassette, model_arms
from engine.llm.batch import BatchClient
from engine.llm.cassette import Replayer
from engine.llm.chat import ChatError, ChatRequest, Message


@pytest.mark.slow
def test_every_recorded_answer_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert cassette.main(["check"]) == 0
    assert " 0 cannot be read" in capsys.readouterr().out


def test_the_cassette_is_for_more_than_eight_kernels_and_says_who_wrote_it() -> None:
    paths = sorted(cassette.ANSWERS.glob(f"*/{cassette.CASSETTE}"))
    assert len(paths) >= 8
    for path in paths:
        assert cassette.file_of(path.parent.name).is_file()
        Replayer(path)  # reads every line
    assert "prompt" in cassette.provenance(cassette.ANSWERS)["how"]


def test_an_answer_is_packed_for_its_question_and_given_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, answers = tmp_path / "batch", tmp_path / "answers"
    request = ChatRequest(
        (Message("system", "You make kernels faster."), Message("user", "How?")), "propose/aaaa/0/0", about="original"
    )
    other = replace(request, label="propose/aaaa/1/0")
    client = BatchClient(batch, cassette.MODEL)
    for one in (request, other):
        with pytest.raises(ChatError):
            client.complete(one)
    assert cassette.main(["questions", str(batch)]) == 0
    asked = capsys.readouterr().out
    _, second = (line for line in asked.splitlines() if line.startswith("=== "))
    assert asked.count("You make kernels faster.") == 1  # what all are told is there once
    draft = tmp_path / "draft.txt"
    draft.write_text("=== optiml-0000\nIdea: nothing\n")
    pack = ["--answers", str(answers), "pack", "transpose", str(draft), "--batch", str(batch)]
    assert cassette.main(pack) == 2  # no such question
    draft.write_text(f"{second}\nIdea: Use blocks of one warp\nBlock: 32, 4\n")
    assert cassette.main(pack) == 0
    lines = cassette.recorded(answers / "transpose" / cassette.CASSETTE)
    assert list(lines) == [other.label]
    again = tmp_path / "again"
    cassette.write_batch(again, lines)
    client = BatchClient(again, cassette.MODEL)
    assert client.complete(other).text.startswith("Idea: Use blocks")
    with pytest.raises(ChatError, match="batch"):
        client.complete(request)
    assert Replayer(answers / "transpose" / cassette.CASSETTE).complete(other).text.startswith("Idea: Use blocks")


def test_answers_without_provenance_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="provenance"):
        cassette.provenance(tmp_path)
    (tmp_path / cassette.PROVENANCE).write_text(json.dumps({"author": "somebody", "date": ""}))
    with pytest.raises(SystemExit, match="date, how not stated"):
        cassette.provenance(tmp_path)


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

    def run(file, out, arguments):
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
    assert rows["topk/model"]["recorded"] == len(cassette.recorded(cassette.ANSWERS / "topk" / cassette.CASSETTE))
    assert asked[2][asked[2].index("--search") + 1] == "greedy"
    assert model_arms.main([file, "--record", str(record), "--seconds", "0"]) == model_arms.INCOMPLETE


def test_a_run_without_a_result_and_one_that_was_disturbed_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "optiml"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no GPU')\n")
    command.chmod(0o755)
    monkeypatch.setattr(model_arms, "optiml", lambda: str(command))
    found = model_arms.run(tmp_path / "k.cu", tmp_path / "out", [])
    assert (found["error"], found["exit_code"]) == ("no GPU", 1)
    refused = {"evaluation": {"outcome": "unstable", "failure": {"reason": "the GPU was in use"}}}
    assert model_arms.disturbed({"best": None, "refused": [refused]}) == "was disturbed: the GPU was in use"
    assert model_arms.disturbed({"best": None, "refused": []}) is None
