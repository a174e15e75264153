"""Opt-in: a run with a real model behind a real server, named by OPTIML_TEST_MODEL_URL (see docs/llm.md)."""

import json
import os

import pytest

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from benchmarks import model_server

URL = os.environ.get("OPTIML_TEST_MODEL_URL", "")


@pytest.mark.model
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not URL, reason="OPTIML_TEST_MODEL_URL names no server")
def test_whatever_a_real_model_says_nothing_is_lost_and_nothing_is_claimed(tmp_path):
    record = tmp_path / "record.json"
    given = ["--record", str(record), "--out", str(tmp_path / "out"), "--budget", "5m", "--answer-tokens", "200"]
    assert model_server.main(given) == 0
    told = json.loads(record.read_text())
    assert all(told["checks"].values())
    assert told["result"]["model"]["requests"] >= 1


def result(**more):
    spent = {"prompt_tokens": 1, "completion_tokens": 1}
    model = {"requests": 1, "proposals": 1, "faults": {}, "edits": [{"outcome": "wrong_result"}], "spent": spent}
    return {"model": model, "best": None, "verdict": "No improvement found for k.", "counts": {"candidates": 1}, **more}


def test_the_checks_of_such_a_run_can_fail():
    exchanges = [{"label": "propose/a/0/0"}, {"edit": {"outcome": "wrong_result"}}]
    assert all(model_server.checks({"result": result(), "exchanges": exchanges}).values())
    lost = model_server.checks({"result": result(), "exchanges": exchanges[1:]})
    assert not lost["every question is kept with its ending"]
    unbooked = model_server.checks({"result": result(counts={"candidates": 0}), "exchanges": exchanges})
    assert not unbooked["every edit is in the journal with its outcome"]
    claimed = model_server.checks({"result": result(verdict="k is 2.00× faster"), "exchanges": exchanges})
    assert not claimed["without a confirmed edit no improvement is claimed"]
    assert model_server.checks({"result": None, "exchanges": []}) == {"the run ended with a result": False}
