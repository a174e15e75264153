"""Ctrl-C: the first ends the search and keeps the best of it, the second ends at once; no process is left."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.process.interrupt import Interrupt
from tests.engine.commands.test_optimize import ROW_SUM
from tests.engine.generate.scripts import RECORDED, recorded
from tests.engine.llm.conftest import serve  # noqa: F401 - a fixture
from tests.processes import alive, below
from tests.runtime import with_runtime

pytestmark = pytest.mark.slow

pytest.importorskip("openai")
TUNED = "// optiml: tune BLOCK = 32, 64, 96, 128, 192, 256, 384, 512\n#define BLOCK 256\n" + ROW_SUM.replace(
    "(rows + 255) / 256, 256", "(rows + BLOCK - 1) / BLOCK, BLOCK"
)
compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "work"
    base.mkdir()
    (base / "row_sum.cu").write_text(TUNED)
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    return base


def rows(folder: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM candidates").fetchone()[0])
    return 0


class Command:
    """A command with a process group of its own, as a terminal's foreground has one."""

    def __init__(self, words: list[str], cwd: Path, **environment: str) -> None:
        self._err = (cwd / "stderr.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", *words], cwd=cwd, env={**os.environ, **environment},
            stdout=subprocess.PIPE, stderr=self._err, text=True, start_new_session=True,
        )  # fmt: skip
        self._children: list[int] = []

    @property
    def err(self) -> str:
        return Path(self._err.name).read_text()

    def until(self, there: Callable[[], bool]) -> None:
        while not there():
            assert self.process.poll() is None, self.err
            time.sleep(0.02)

    def interrupt(self) -> None:
        """As the terminal does for Ctrl-C: to the whole group."""
        self._children = below(self.process.pid)
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[str, str]:
        """What it printed, once it and all that it started are gone."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 130, self.err
        assert not [pid for pid in self._children if alive(pid)]
        return out, self.err


def go_on(err: str) -> list[str]:
    (said,) = re.findall(r"^optiml: interrupted; continue with: optiml (.*)$", err, re.M)
    return shlex.split(said)


@compiled
def test_the_first_ends_a_search_with_its_best_and_the_second_at_once(root: Path, cache: Path) -> None:
    words = ["optimize", "row_sum.cu", "--budget", "400", "--device", "cpu"]
    out = root / ".optiml" / "row_sum-row_sum"
    command = Command(words, root, OPTIML_CACHE=str(cache))
    command.until(lambda: rows(out) >= 3)
    command.interrupt()
    printed, err = command.end()
    result = json.loads((out / "result.json").read_text())
    assert result["stopped"] == "it was interrupted"
    assert result["best"] is not None
    assert "git apply" in printed.splitlines()[-1]
    subprocess.run(["git", "apply", "--check", str(out / "best.patch")], cwd=root, check=True)
    assert go_on(err) == words

    before = rows(out)
    command = Command(go_on(err), root, OPTIML_CACHE=str(cache))
    command.until(lambda: rows(out) > before + 1)
    command.interrupt()
    command.until(lambda: "interrupted, " in command.err)
    begin = time.monotonic()
    command.interrupt()
    _, err = command.end()
    assert "it had not finished, and has the rest of its budget" in err
    assert time.monotonic() - begin < 30
    assert rows(out) > before
    assert (out / "best.patch").is_file()  # the suggestion that was there stays
    assert go_on(err) == words


@compiled
def test_a_tuning_run_confirms_its_best(root: Path, cache: Path) -> None:
    words = ["tune", "row_sum.cu", "--budget", "300s", "--device", "cpu", "--format", "json"]
    out = root / ".optiml" / "row_sum-row_sum-tune"
    command = Command(words, root, OPTIML_CACHE=str(cache))
    command.until(lambda: rows(out) >= 3)
    command.interrupt()
    printed, err = command.end()
    result = json.loads(printed)
    assert result["stopped"] == "it was interrupted"
    assert result["counts"]["configurations"] >= 2
    assert go_on(err) == words


@compiled
def test_a_campaign_writes_the_patch_of_what_it_found(root: Path, cache: Path) -> None:
    words = ["all", "--budget", "30m", "--device", "cpu"]
    out = root / ".optiml" / "row_sum-row_sum"
    command = Command(words, root, OPTIML_CACHE=str(cache))
    command.until(lambda: rows(out) >= 3)
    command.interrupt()
    printed, err = command.end()
    assert (root / ".optiml" / "all" / "all.patch").is_file()
    assert "git apply" in printed.splitlines()[-1]
    assert go_on(err) == [*words, "--resume"]


@compiled
def test_a_generation_writes_its_best_kernel(serve: Any, root: Path, cache: Path) -> None:  # noqa: F811
    server = serve(recorded("column_sum"))
    task = RECORDED / "column_sum"
    words = ["generate", (task / "sentence.txt").read_text(), "--reference", f"{task / 'ref.py'}:column_sum"]
    words += ["--strategies", "memory", "--device", "cpu", "--work", "work", "--budget", "300s"]
    command = Command(words, root, OPTIML_CACHE=str(cache), OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")
    command.until(lambda: rows(root / "work" / "optimize") >= 2)
    command.interrupt()
    printed, err = command.end()
    assert "matches the reference" in " ".join(printed.split())
    verb, kernel = go_on(err)
    assert "column_sum" in Path(kernel).read_text()
    assert printed.splitlines()[-1] == f"Continue with: optiml {verb} {kernel}"


def test_only_the_first_waits_and_only_where_somebody_is_patient() -> None:
    interrupt = Interrupt()
    with interrupt.patient():
        interrupt.hear()
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            interrupt.hear()
    with pytest.raises(KeyboardInterrupt):
        Interrupt().hear()


def test_python_has_its_handler_back() -> None:
    with Interrupt().heard() as interrupt:
        assert signal.getsignal(signal.SIGINT) == interrupt.hear
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_generating_names_the_command_that_uses_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that --resume goes on, which `generate` does not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("engine.commands.generate.generate", interrupted)
    arguments = ["generate", "the sum of two vectors", "--device", "cpu", "--work", "work"]
    assert main(arguments) == 130
    assert capsys.readouterr().err == "optiml: interrupted; nothing was written\n"
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "exchanges.jsonl").write_text("{}\n")
    assert main(arguments) == 130
    assert capsys.readouterr().err == (
        "optiml: interrupted; no kernel was written; to reuse the answers so far, run: optiml generate "
        "'the sum of two vectors' --device cpu --work work --llm replay:work/exchanges.jsonl\n"
    )


def test_other_verbs_say_what_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.cu"
    file.write_text(TUNED)
    monkeypatch.setattr("engine.commands.tune.tune", interrupted)
    monkeypatch.setattr("engine.commands.selftest.run_cases", interrupted)
    for arguments, said in (
        (["tune", str(file), "--device", "cpu"], f"; continue with: optiml tune {file} --device cpu"),
        (["selftest", "--device", "cpu"], ""),
    ):
        assert main(arguments) == 130
        assert capsys.readouterr().err == f"optiml: interrupted{said}\n"
