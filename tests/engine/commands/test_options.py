"""Options that several verbs share: what they make of what was given, and what they refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("openai")

from engine.cli import main
from engine.commands.llm_settings import llm_settings
from engine.commands.options import add_llm
from engine.errors import UsageError
from engine.llm.budget import Limit, Price


def settings(*given: str) -> object:
    parser = argparse.ArgumentParser()
    add_llm(parser, concurrency=3, plan="")
    return llm_settings(parser.parse_args(given))


def test_every_option_reaches_the_settings() -> None:
    found = settings(
        "--llm", "batch:questions", "--llm-model", "m", "--llm-plan-model", "p", "--llm-budget", "2.00usd", "--llm-price", "1/4",
        "--llm-answer-tokens", "700", "--llm-timeout", "9.5", "--llm-free-form", "--llm-log", "answers",
    )  # fmt: skip
    expected = {
        "model": "m", "plan_model": "p", "judge_model": "", "limit": Limit(usd=2.0), "price": Price(1.0, 4.0),
        "concurrency": 3, "timeout_s": 9.5, "answer_tokens": 700, "schema": False, "batch": Path("questions"), "prompts": False,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "given",
    [
        ("--llm-timeout", "0"), ("--llm-timeout", "nan"), ("--llm-timeout", "86400"), ("--llm-answer-tokens", "0"),
        ("--llm-concurrency", "0"), ("--llm-concurrency", "65"), ("--llm", "batch:"), ("--llm", "server"),
        ("--llm-budget", "2"), ("--llm-price", "1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        settings(*given)


SOFTMAX = Path(__file__).resolve().parents[3] / "examples" / "softmax.cu"


def test_a_model_that_nobody_asks_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """`optimize --llm batch:DIR` without `--proposers llm` ran as if nothing had been said."""
    for option, value in (("--llm", "batch:questions"), ("--llm-budget", "2.00usd"), ("--llm-judge", "same")):
        assert main(["optimize", str(SOFTMAX), option, value, "--proposers", "rules,tuner"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"optiml: {option} has no effect")
        assert said.endswith("add --proposers rules,tuner,llm\n")
