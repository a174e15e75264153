"""Kernels of others with a model's recorded edits: which are drawn, what is asked, and what a record keeps."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import model_edits
from engine.process.sandbox import available

needs_sandbox = pytest.mark.skipif(not available()[0], reason="untrusted code runs in a sandbox only")

KERNEL = """// optiml: args.y = { role = "inout", size = "n", fill = "normal" }
// optiml: launch = { grid = "cdiv(n, 256)", block = "256" }
// optiml: check = [{ n = 1 }, { n = 1000 }]
// optiml: time = [{ n = 1048576 }]
__global__ void twice(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = y[i] / 0.5f;
}
"""


def edit(search: str, replace: str) -> dict[str, Any]:
    return {
        "idea": "Multiply in place of dividing", "counter": "", "direction": "down", "kernel": "", "launch": [],
        "edits": [{"file": "", "span": "", "search": search, "replace": replace}],
    }  # fmt: skip


ANSWER = json.dumps({"proposals": [edit("y[i] / 0.5f", "y[i] * 2.0f"), edit("y[i] / 0.5f", "y[i] * 2.5f")]})


def test_the_draw_takes_the_first_kernels_whose_draft_validates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "optiml"
    tool.write_text('#!/bin/sh\ncase "$*" in *good*) exit 0;; esac\necho "missing: a size" >&2\nexit 1\n')
    tool.chmod(0o755)
    monkeypatch.setattr(model_edits, "optiml", lambda: str(tool))
    inside = tmp_path / "checkout" / "cuda"
    inside.mkdir(parents=True)
    text = "".join(f"__global__ void {kind}{i}(int* p) {{}}\n" for i in range(6) for kind in ("good", "bad"))
    (inside / "k.cu").write_text(text)
    (inside / "k.txt").write_text(text)
    (tmp_path / "checkout" / "other.cu").write_text("__global__ void good9(int* p) {}\n")
    got = list(model_edits.drawn(tmp_path / "checkout", "cuda", 4, 0))
    assert len({kernel for _, kernel in got}) == 4
    assert all(file == "cuda/k.cu" and kernel.startswith("good") and kernel != "good9" for file, kernel in got)
    assert got == list(model_edits.drawn(tmp_path / "checkout", "cuda", 4, 0))
    assert got != list(model_edits.drawn(tmp_path / "checkout", "cuda", 4, 1))
    assert "bad" in capsys.readouterr().err


def asked(batch: Path, *questions: tuple[str, str]) -> None:
    for number, (label, about) in enumerate(questions):
        name = f"optiml-{number}"
        body = {"messages": [{"role": "user", "content": label}]}
        with (batch / "requests.jsonl").open("a") as requests, (batch / "index.jsonl").open("a") as index:
            requests.write(json.dumps({"custom_id": name, "body": body}) + "\n")
            index.write(json.dumps({"custom_id": name, "label": label, "about": about}) + "\n")


def test_the_first_question_about_the_original_is_asked_and_the_others_are_refused(tmp_path: Path) -> None:
    batch, questions, answers = (tmp_path / name for name in ("batch", "questions", "answers"))
    for folder in (batch, questions, answers):
        folder.mkdir()
    options = Namespace(questions=questions, answers=answers)
    asked(batch, ("propose/a/0/0", "original"), ("propose/a/1/0", "original"), ("propose/b/0/0", "candidate 3"))
    assert not model_edits.answer(batch, "twice", options)
    assert (questions / "twice__original.txt").read_text() == "[user]\npropose/a/0/0\n"
    (answers / "twice__original.txt").write_text("an answer\n")
    assert model_edits.answer(batch, "twice", options)
    assert not list(questions.iterdir())
    assert not model_edits.open_questions(batch)
    lines = [json.loads(line) for line in (batch / "responses.jsonl").read_text().splitlines()]
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert said == ["an answer\n", None, None]


@pytest.mark.slow
@needs_sandbox
def test_a_kernel_waits_for_its_answer_and_each_edit_has_an_ending(tmp_path: Path) -> None:
    checkout, questions, answers = (tmp_path / name for name in ("checkout", "questions", "answers"))
    for folder in (checkout, answers):
        folder.mkdir()
    (checkout / "k.cu").write_text(KERNEL)
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    command = [
        "run", "k.cu:twice", "--checkout", str(checkout), "--questions", str(questions), "--answers", str(answers),
        "--work", str(tmp_path / "work"), "--record", str(tmp_path / "record.json"), "--budget", "20s",
    ]  # fmt: skip
    assert model_edits.main(command) == 4
    (question,) = questions.iterdir()
    assert "Make `twice` of `k.cu` faster" in question.read_text()
    (answers / question.name).write_text(ANSWER)
    assert model_edits.main(command) == 0
    record = json.loads((tmp_path / "record.json").read_text())
    outcomes = [edit["outcome"] for edit in record["runs"][0]["result"]["edits"]]
    assert len(outcomes) == 2
    assert "wrong_result" in outcomes
    assert record["summary"]["kernels"] == 1
    assert record["summary"]["endings"]["wrong_result"] == 1
    assert str(tmp_path) not in json.dumps(record["runs"])


def test_a_kernel_is_passed_over_for_what_is_missing_and_not_for_an_assumption() -> None:
    said = "sizes are derived from the source\nmissing: the size of 'x'\nmissing: the launch\nassumed: template arguments <256>\n"
    assert model_edits.reason_of(said) == "missing: the size of 'x'"
    assert model_edits.reason_of("optiml: has no kernel 'k'\n") == "optiml: has no kernel 'k'"
    assert model_edits.reason_of("") == "no draft"
