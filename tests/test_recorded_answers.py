"""The comparison with recorded answers: packing, matching and figures, without running a search."""

import json
import math

import pytest

from benchmarks import recorded_answers as ra
from engine.llm.batch import custom_id


def question(label, about):
    return {"custom_id": custom_id(label, ra.MODEL), "label": label, "about": about}


ROOT_QUESTION = question("propose/aaaa/0/0", "original")


@pytest.fixture
def packed(tmp_path):
    batch = tmp_path / "batch"
    batch.mkdir()
    (batch / "index.jsonl").write_text(json.dumps(ROOT_QUESTION) + "\n")
    draft = tmp_path / "draft.txt"
    draft.write_text(f"=== {ROOT_QUESTION['custom_id']} the original\nIdea: go faster\n=== not a heading\n\n")
    given = [
        "--pack",
        str(draft),
        "--kernel",
        "k",
        "--round",
        "1",
        "--index",
        str(batch),
        "--answers",
        str(tmp_path / "set"),
    ]
    assert ra.main([*given[:-2], "--answers", str(tmp_path / "none")]) == 2  # `not` is no open question
    draft.write_text(draft.read_text().replace("=== not", " === not"))
    assert ra.main(given) == 0
    return tmp_path / "set"


def test_a_draft_becomes_lines_of_a_batchs_output(packed, tmp_path):
    (line,) = ra.recording(packed / "k", 3)
    assert (line["label"], line["about"], line["round"]) == ("propose/aaaa/0/0", "original", 1)
    ra.write_responses(tmp_path / "responses.jsonl", {line["custom_id"]: line})
    from engine.llm.batch import BatchClient
    from engine.llm.model import ChatRequest, Message

    client = BatchClient(tmp_path, ra.MODEL)
    answer = client.complete(ChatRequest((Message("user", "x"),), "propose/aaaa/0/0"))
    assert answer.text == "Idea: go faster\n === not a heading"


def test_an_answer_finds_a_question_that_has_another_name_by_what_it_is_about(packed):
    recorded = ra.recording(packed / "k", 1)
    assert ra.match(question("propose/bbbb/0/0", "original"), recorded) is recorded[0]
    assert ra.match(question("propose/bbbb/1/0", "original"), recorded) is None
    assert ra.match(question("propose/bbbb/0/0", "original > Unroll it"), recorded) is None
    assert ra.match(question("repair/bbbb/cccc/0", "original"), recorded) is None


def test_an_answer_that_nobody_asked_for_is_named(packed, tmp_path):
    recorded = ra.recording(packed / "k", 1)
    exchanges = tmp_path / "exchanges.jsonl"
    exchanges.write_text(json.dumps({"label": "propose/zzzz/0/0", "answer": {}}) + "\n")
    told = ra.verdicts(recorded, {}, exchanges)
    assert (told["given"], [lost["about"] for lost in told["not_asked_for"]]) == (0, ["original"])
    told = ra.verdicts(recorded, {recorded[0]["custom_id"]: custom_id("propose/zzzz/0/0", ra.MODEL)}, exchanges)
    assert (told["given"], told["not_asked_for"]) == (1, [])


def test_the_provenance_must_be_stated(packed):
    with pytest.raises(SystemExit, match="provenance"):
        ra.provenance(packed)
    (packed / "provenance.json").write_text(json.dumps({"author": "a", "date": "d"}))
    with pytest.raises(SystemExit, match="how"):
        ra.provenance(packed)
    (packed / "provenance.json").write_text(json.dumps({"author": "a", "date": "d", "how": "h"}))
    assert ra.provenance(packed)["author"] == "a"


def run(ratio, low, high):
    measurement = {"ratio": ratio, "low": low, "high": high}
    best = {"evaluation": {"measurement": measurement, "guardrails": [{"name": "g", "verdict": "passed"}]}}
    step = {"proposer": "llm", "summary": "s"}
    return {"result": {"best": best, "trajectory": [step], "counts": {"candidates": 80}}}


def test_the_gain_is_the_quotient_with_both_intervals():
    found = ra.gain(run(2.0, 1.9, 2.1), run(4.0, 3.9, 4.1))
    assert found["gain"] == pytest.approx(2.0)
    assert math.log(found["gain"] / found["low"]) == pytest.approx(math.hypot(math.log(4 / 3.9), math.log(2.1 / 2)))
    nothing = {"result": {"best": None, "trajectory": [], "counts": {"candidates": 80}}}
    assert ra.gain(nothing, run(3.0, 2.9, 3.1))["gain"] == pytest.approx(3.0)
    assert ra.gain(run(3.0, 2.9, 3.1), nothing)["gain"] == pytest.approx(1 / 3.0)
    assert found["steps"] == ["llm: s"]


def test_means_are_geometric_and_the_goal_is_held_against_them():
    several = ra.across_seeds([{"gain": 1.0, "low": 0.9, "high": 1.1}, {"gain": 4.0, "low": 3.6, "high": 4.4}])
    assert several["gain"] == pytest.approx(2.0)
    answers = {"given": 2, "not_asked_for": []}
    kernels = [{"gain": g, "runs": [{"answers": answers}]} for g in (1.0, 1.6)]
    told = ra.summary(kernels)
    assert told["geometric_mean"] == pytest.approx(1.6**0.5)
    assert told["reached"] is False
    assert ra.summary([kernels[1]])["reached"] is True
