"""Slash commands: what is one, and everything that looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.commands import All, Apply, Cancel, Check, Command, Explain, Help, Optimize, Pr, Status, parse
from engine.settings.suffixes import KERNELS


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("/optiml optimize", Optimize()),
        ("/optiml optimize src/a.cu", Optimize("src/a.cu")),
        ("/optiml optimize src/a.cu:ns::k", Optimize("src/a.cu", "ns::k")),
        ("/optiml optimize :k --budget 10m --arch sm_90a", Optimize("", "k", 600.0, "sm_90a")),
        ("/optiml optimize --budget=90 --proposers rules,llm", Optimize(budget_s=90.0, proposers=("rules", "llm"))),
        ("/optiml optimize --proposers rules,tuner", Optimize(proposers=("rules", "tuner"))),
        ("/optiml optimize --proposers tuner,rules,llm", Optimize(proposers=("tuner", "rules", "llm"))),
        ("/optiml tune", Optimize(proposers=("tuner",))),
        ("/optiml tune a.cu:k --budget 5m --arch sm_90", Optimize("a.cu", "k", 300.0, "sm_90", ("tuner",))),
        ("/optiml check \r\nmore", Check()),
        ("/optiml apply", Apply(1)),
        ("/optiml apply 3\nthanks", Apply(3)),
        ("/optiml apply all", Apply(None)),
        ("/optiml pr", Pr(1)),
        ("/optiml pr all", Pr(None)),
        ("/optiml explain", Explain(None)),
        ("/optiml explain 2", Explain(2)),
        ("/optiml status", Status()),
        ("/optiml\tcancel", Cancel()),
        ("/optiml all", All()),
        ("/optiml all --budget 2h --max-prs=3", All(7200.0, 3)),
        ("/optiml help", Help()),
        ("/optiml", Help()),
    ],
)
def test_commands(body: str, expected: Command) -> None:
    assert parse(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "", "hello", " /optiml optimize", "text\n/optiml optimize", "> /optiml optimize", "`/optiml optimize`", "/optimlx optimize",
        "/Optiml optimize", "∕optiml optimize", "/оptiml optimize", "/optiml\u00a0optimize", "\ufeff/optiml optimize", "\n/optiml optimize",
        "/optiml optimize " + "a" * 100_000, "/optiml optimize" + " " * 100_000, "/optiml optimize\n" + "x" * 100_000,
        "/optiml\x0boptimize", "/optiml\u2028optimize",
    ],
)  # fmt: skip
def test_what_is_no_command_does_nothing(body: str) -> None:
    assert parse(body) is None


@pytest.mark.parametrize(
    "words",
    [
        "optimize $(touch /tmp/x)", "optimize `id`", "optimize a.cu;id", "optimize a.cu|id", "optimize a.cu&", "optimize --arch sm_90;x",
        "optimize a.cu:k()", "optimize а.cu", "optimize a.cu\u202e", "optimize '' a.cu", "optimize \"a.cu\"", "optimize a.cu\\",
        "apply ١", "optimize\x00", "optimize ${{ secrets.X }}", "apply 1 # all", "аpply 1", "cancel\u00a0", "help!",
    ],
)  # fmt: skip
def test_what_no_command_holds_does_nothing(words: str) -> None:
    assert parse(f"/optiml {words}") is None


@pytest.mark.parametrize(
    "words",
    [
        "optimize ../a.cu", "optimize /etc/a.cu", "optimize a/../../b.cu", "optimize -x.cu", "optimize --device gpu", "optimize --budget",
        "optimize --budget 0", "optimize --budget 1e9", "optimize --budget 7h", "optimize --budget -5", "optimize --arch sm_9",
        "optimize --budget 1m --budget 2m", "optimize a.cu b.cu", "optimize --proposers shell", "optimize a.py", "apply 0", "apply 1 2",
        "tune --proposers tuner", "tune ../a.cu", "optimize --proposers ,", "apply x", "apply -1",
        "pr 0", "pr topic", "status now", "rm -rf /",
        "OPTIMIZE", "optimize .git/x.cu/../..",
    ],
)  # fmt: skip
def test_what_is_written_wrong_gets_the_help_and_is_not_repeated(words: str) -> None:
    command = parse(f"/optiml {words}")
    assert isinstance(command, Help)
    assert command.reason
    assert not any(word in command.reason for word in words.split()[1:] if len(word) > 4 and not word.startswith("--"))


@given(st.text(max_size=300))
def test_no_text_gives_more_than_words_of_the_list(text: str) -> None:
    command = parse(f"/optiml {text}")
    if isinstance(command, Optimize):
        assert command.path == "" or command.path.endswith(KERNELS)
        assert not set(command.path + command.kernel + command.arch) & set(" $`;|&\\'\"\n\r\0(){}*?!#~")
        assert ".." not in command.path.split("/")
