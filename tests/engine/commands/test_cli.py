"""The command line as a newcomer meets it: help of every verb, and wrong use as one sentence."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

from engine import cli
from engine.cli import main
from engine.commands.command_line import make_parser
from hooks import check, quick


def verbs() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser()
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options() -> Iterator[tuple[str, argparse.Action]]:
    for verb, parser in verbs().items():
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                yield verb, action


def test_every_verb_says_what_it_does() -> None:
    for verb, parser in verbs().items():
        assert importlib.util.find_spec(f"engine.commands.{verb}"), verb
        assert str(parser.description).endswith("."), verb


def test_every_option_with_a_default_states_it() -> None:
    """As 'default' in its help; a flag that is off, a list that is empty and a path that is not there state themselves."""
    for verb, action in options():
        assert action.help, (verb, action.dest)
        if action.option_strings and action.default not in (None, False, [], ""):
            assert "default" in action.help, f"{verb} {action.option_strings[0]}: {action.help}"
        said = re.search(r"\(default: ([\w-]+)\)", action.help)
        if said and isinstance(action.default, int | str) and action.default and not isinstance(action.default, bool):
            assert said[1] == str(action.default), f"{verb} {action.option_strings[0]}: {action.help}"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["frobnicate"], "optiml: COMMAND: invalid choice: 'frobnicate'"),
        (["optimize"], "optiml: the following arguments are required: FILE[:KERNEL]; 'optiml optimize --help'"),
        (["optimize", "a.cu", "--device", "tpu"], "optiml: --device: invalid choice: 'tpu'"),
        (["optimize", "a.cu", "--sed", "x"], "'optiml optimize --help' lists"),
        (["optimize", "a.cu", "--frobnicate"], "unrecognized arguments: --frobnicate; 'optiml optimize --help'"),
        (["memory", "import"], "optiml: memory import: needs a file; give a JSON-lines file"),
        (["selftest", "nosuch"], "unknown case 'nosuch'; omit"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_sentence(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a page of usage with the sentence below it."""
    try:
        code = main(given)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("hook", [check, quick])
def test_wrong_use_of_a_hook_is_one_sentence(hook: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        hook.main(["--frobnicate"])
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert "unrecognized arguments: --frobnicate" in err


def test_a_reader_that_goes_away_is_no_refusal(tmp_path: Path) -> None:
    """`optiml show DIR --tree | head` ended with 1, the code of what is refused: rich ends a program so."""
    code = (
        "import sys; from engine import cli, commands; import engine.commands.show as show\n"
        "from engine.report.console import Console\n"
        "def run(arguments):\n    console = Console()\n    for _ in range(100000): console.print('x')\n    return 0\n"
        "show.run = run; sys.exit(cli.main(['show', '.']))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, cwd=Path(cli.__file__).parents[1]
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


PRINTS = {  # a verb's ways of printing
    "print": "print('x' * 9)",
    "write": "import sys; sys.stdout.write('x' * 9)",
    "rich": "from engine.report.console import Console; Console().print('x' * 9)",
}


def ended(prints: str, stdout: int | None, *given: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a command that prints so, or of the given one, with this standard output (None: closed)."""
    code = (
        "import sys, types; from engine import cli\n"
        f"def run(arguments):\n    {prints}\n    return 0\n"
        # In the place of the module, which takes 0.3 s to import.
        "sys.modules['engine.commands.show'] = types.SimpleNamespace(run=run)\n"
        f"sys.exit(cli.main({list(given or ('show', '.'))!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=Path(cli.__file__).parents[1],
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment}, preexec_fn=None if stdout is not None else _close_stdout,
    )  # fmt: skip
    return done.returncode, done.stderr


def _close_stdout() -> None:
    os.close(1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("given", [*PRINTS, "--help", "--version", "show --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_on_a_full_disk_is_one_sentence(given: str, unbuffered: str) -> None:
    """It was an internal error, a traceback, nothing at all, or the interpreter's own words at its end, by who had printed."""
    words = () if given in PRINTS else tuple(given.split())
    with Path("/dev/full").open("w") as full:
        code, said = ended(PRINTS.get(given, ""), full.fileno(), *words, PYTHONUNBUFFERED=unbuffered)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("optiml: standard output cannot be written: No space left on device; ")


@pytest.mark.parametrize("given", [*PRINTS, "--help", "--version"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_or_was_never_there_is_no_failure(given: str, unbuffered: str) -> None:
    words = () if given in PRINTS else tuple(given.split())
    read, write = os.pipe()
    os.close(read)
    assert ended(PRINTS.get(given, ""), write, *words, PYTHONUNBUFFERED=unbuffered) == (0, "")
    os.close(write)
    assert ended(PRINTS.get(given, ""), None, *words, PYTHONUNBUFFERED=unbuffered) == (0, "")


@pytest.mark.parametrize("given", ["--help", "show --help"])
def test_help_for_a_closed_pipe_ends_quietly_on_an_older_python(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """argparse of Python 3.11.2 raises what a write raises: `optiml --help | true` printed a traceback."""

    def print_message(parser: argparse.ArgumentParser, message: str, file: TextIO | None = None) -> None:
        (file or sys.stderr).write(message)

    monkeypatch.setattr(argparse.ArgumentParser, "_print_message", print_message)
    read, write = os.pipe()
    os.close(read)
    with open(os.dup(write), "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(given.split()) == 0
    os.close(write)


def test_a_pipe_that_broke_inside_is_not_the_readers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever pipe broke, the command ended with 0 and said nothing."""

    def run(arguments: argparse.Namespace) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("engine.commands.show.run", run)
    assert main(["show", "."]) == 3
    assert "internal error: BrokenPipeError" in capsys.readouterr().err
