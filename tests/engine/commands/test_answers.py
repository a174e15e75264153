"""What programs and shells get of the command line: JSON with a schema, completion scripts, and names for typing errors."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_size import synthesise
from engine.cli import main
from engine.commands import capture
from engine.commands.command_line import make_parser
from engine.llm.lesson_store import Lesson, Memory
from engine.model import Outcome
from engine.process.plain_output import adapt
from tests.engine.commands.test_init import CODE

ROOT = Path(__file__).resolve().parents[3]
TEXT_ALONE = {"nvcc", "completion", "mcp"}  # a compiler's output, a script, a protocol of its own


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    assert main([*map(str, arguments), "--format", "json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert f"`{found['schema']}`" in (ROOT / "docs" / "cli.md").read_text()
    return found


def test_every_verb_that_prints_has_json() -> None:
    parser = make_parser()
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    without = {
        verb for verb, sub in action.choices.items() if not any("json" in (a.choices or ()) for a in sub._actions)
    }
    assert without == TEXT_ALONE


def test_show_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthesise(tmp_path, 20)
    found = printed(capsys, "show", tmp_path)
    assert found["schema"] == "optiml.show/1"
    assert found["result"]["schema"] == "optiml.result/1"
    assert found["tree"] is None
    tree = printed(capsys, "show", tmp_path, "--tree")["tree"]
    assert [node["parent"] for node in tree if node["id"] == 0] == [None]
    assert len(tree) >= 20
    page = printed(capsys, "report", tmp_path)["page"]
    assert Path(page) == tmp_path / "report.html"
    assert Path(page).is_file()


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "memory.sqlite"
    memory = Memory(file)
    idea = "Load four at once"
    values: Any = {"outcome": Outcome.ACCEPTED, "ratio": 2.0}
    memory.add(Lesson(str(tmp_path), "sm_90", ("memory_bound",), {}, "rules", "vectorize", idea, **values))
    memory.close()
    found = printed(capsys, "memory", "list", "--memory-file", file)
    assert (found["count"], found["lessons"][0]["idea"]) == (1, idea)
    assert found["lessons"][0]["outcome"] == "accepted"
    assert printed(capsys, "memory", "export", tmp_path / "x.jsonl", "--memory-file", file)["count"] == 1
    assert printed(capsys, "memory", "forget", "--memory-file", file) == {
        "schema": "optiml.memory/1", "action": "forget", "count": 1,
    }  # fmt: skip


def test_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".git").mkdir()
    file = tmp_path / "k.cu"
    file.write_text(CODE)
    found = printed(capsys, "init", file, "--static")
    assert found["schema"] == "optiml.init/1"
    assert "// optiml: " in found["text"]
    assert (found["missing"], found["validated"], found["written"]) == ([], False, None)
    assert file.read_text() == CODE
    file.write_text(CODE.split("void run")[0].replace("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x % n"))
    found = printed(capsys, "init", file, "--static", code=1)
    assert found["missing"][0]["line"]
    assert "launch" in json.dumps(found["missing"])


def test_bench_lists_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    tables = {table["name"]: table["title"] for table in printed(capsys, "bench")["tables"]}
    assert tables["suite"]


def test_a_captured_program_prints_beside_the_object(capfd: pytest.CaptureFixture[str]) -> None:
    with capture._stdout_to_stderr():
        subprocess.run([sys.executable, "-c", "print('of the program')"], check=True)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "of the program\n")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["optimise"], "did you mean optimize?"),
        (["optimize", "a.cu", "--budgt", "3"], "did you mean --budget?"),
        (["optimize", "a.cu", "--devise=cpu"], "did you mean --device?"),
        (["optimize", "a.cu", "--device", "cpi"], "did you mean cpu?"),
        (["show", ".", "--formt", "json"], "did you mean --format?"),
    ],
)
def test_a_typing_error_is_told_what_was_meant(
    given: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(given)
    assert end.value.code == 2
    assert meant in capsys.readouterr().err


def test_what_is_like_nothing_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["xyzzy"], ["show", ".", "--"], ["show", ".", "--qqqqqq"]):
        with pytest.raises(SystemExit):
            main([*given, "--zzzzzz"])
    assert "did you mean" not in capsys.readouterr().err


COMPLETED = {  # what completes `optiml opti` and `optiml optimize --bud` in a shell that has read the script
    "bash": "source {script}; for line in 'optiml opti' 'optiml optimize --bud' 'optiml optimize a.cu --device c'; do "
    "COMP_WORDS=($line); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_optiml; echo ${{COMPREPLY[@]}}; done",
    "fish": "source {script}; complete -C 'optiml opti' | cut -f 1; complete -C 'optiml optimize --bud' | cut -f 1; "
    "complete -C 'optiml optimize a.cu --device c' | cut -f 1 | grep cpu",
    "zsh": 'autoload -Uz compinit; compinit -D; eval "$(<{script})"; echo ${{_comps[optiml]}}',
}


@pytest.mark.parametrize("shell", COMPLETED)
def test_shells_complete_by_the_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of zsh only that it knows the function for the command: to complete takes a terminal there."""
    assert main(["completion", shell]) == 0
    script = tmp_path / f"optiml.{shell}"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    quiet = {"bash": ["--norc"], "fish": ["--no-config"], "zsh": ["-f"]}[shell]
    command = COMPLETED[shell].format(script=script)
    done = subprocess.run([shell, *quiet, "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    expected = ["_shtab_optiml"] if shell == "zsh" else ["optimize", "--budget", "cpu"]
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.parametrize(
    ("encoding", "environment", "expected"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, "2.1× of 4 µs… <U+001B>"),
        ("ascii", {"LANG": "en_US.UTF-8"}, "2.1x of 4 us~ <U+001B>"),
        ("latin-1", {"LANG": "en_US.UTF-8"}, "2.1× of 4 µs~ <U+001B>"),
        ("utf-8", {"LANG": "C"}, "2.1x of 4 us~ <U+001B>"),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "2.1x of 4 us~ <U+001B>"),  # which Python sets itself
        ("utf-8", {"LC_ALL": "POSIX"}, "2.1x of 4 us~ <U+001B>"),
        ("utf-8", {"LANG": "C", "PYTHONIOENCODING": "utf-8"}, "2.1× of 4 µs… <U+001B>"),
        ("utf-8", {}, "2.1× of 4 µs… <U+001B>"),
    ],
)
def test_a_terminal_gets_what_it_can_show(
    encoding: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    adapt(stream)
    stream.write("2.1× of 4 µs… <U+001B>")
    assert stream.buffer.getvalue().decode(stream.encoding) == expected  # type: ignore[attr-defined]
    stream.write("中\ud800")
    adapt(None)


@pytest.mark.parametrize(
    "environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "TERM": "dumb"}]
)
def test_a_result_is_ascii_on_an_ascii_terminal(tmp_path: Path, environment: dict[str, str]) -> None:
    """It was a UnicodeEncodeError on `×`, after the search."""
    synthesise(tmp_path, 5)
    from tests.engine.report.test_terminal import on_a_terminal

    script = f"import sys; from engine.cli import main; sys.exit(main(['show', {str(tmp_path)!r}, '--tree']))"
    seen = on_a_terminal(script, environment)
    assert seen.isascii()
    assert "x faster" in " ".join(seen.split())
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in seen
