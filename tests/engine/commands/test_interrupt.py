"""Ctrl-C: a verb names only what it has, and what is left of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli import main

pytest.importorskip("openai")


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_generating_names_no_option_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that --resume goes on, which `generate` does not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("engine.generate.run.generate", interrupted)
    arguments = ["generate", "the sum of two vectors", "--device", "cpu", "--work", "work"]
    assert main(arguments) == 130
    assert capsys.readouterr().err == "optiml: interrupted; nothing was written\n"
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "exchanges.jsonl").write_text("{}\n")
    assert main(arguments) == 130
    assert capsys.readouterr().err == (
        "optiml: interrupted; no kernel was written; the answers so far can be used again: "
        "--llm replay:work/exchanges.jsonl\n"
    )


def test_other_verbs_say_what_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.cu").write_text("")
    monkeypatch.setattr("engine.tune.tune", interrupted)
    monkeypatch.setattr("engine.selftest.run.run_cases", interrupted)
    for arguments, said in (
        (
            ["tune", str(tmp_path / "a.cu"), "--device", "cpu"],
            "; what was evaluated is in the journal, --resume goes on with it",
        ),
        (["selftest", "--device", "cpu"], ""),
    ):
        assert main(arguments) == 130
        assert capsys.readouterr().err == f"optiml: interrupted{said}\n"
