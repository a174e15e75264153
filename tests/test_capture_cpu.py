"""The harness for other people's programs, with the command replaced by one whose answers are known."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import capture_cpu, capture_draw
from benchmarks.capture_cpu import Listed, Row, examine, listed, main, summary
from engine.capture.manifest import (
    VERSION,
    Manifest,
    RecordedArgument,
    RecordedKernel,
    RecordedLaunch,
    recording_folder,
    save_manifest,
)

SOURCE = '#include "more.cuh"\n__global__ void a(float* x) { x[0] = 1; }\n'
MORE = "__global__ void b(float* x) { x[0] = 1; }\n__global__ void idle() {}\n"
GOOD = {"text": "// optiml: time = [{}]  # recorded: the shapes", "missing": [], "refused": ""}


def _git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *own, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkouts" / "a__b"
    (folder / "p").mkdir(parents=True)
    (folder / "p" / "p.cu").write_text(SOURCE)
    (folder / "p" / "more.cuh").write_text(MORE)
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "one")
    return folder


def _program(checkout: Path, runs: Sequence[str] = ("1",)) -> Listed:
    commit = _git(checkout, "rev-parse", "HEAD").strip()
    return Listed("a/b", commit, "p", "p", ("p",), ("p.cu",), ("-O3",), tuple(runs), 5)


class _Command:
    """Stands in for the commands: what each run launches and how it ends, and what `init` says of a kernel."""

    def __init__(
        self, runs: dict[str, tuple[int | None, list[str]]], drafts: dict[str, dict[str, object]], builds: int = 0
    ) -> None:
        self.runs, self.drafts, self.builds = runs, drafts, builds
        self.seen: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
        self.seen.append(list(arguments))
        out, code = "", 0
        if arguments[0] == "nvcc":
            code = self.builds
        elif arguments[0] == "capture":
            ended, names = self.runs[arguments[-1]]
            code = 0 if ended == 0 else 1
            if not names:
                return subprocess.CompletedProcess([], 1, "", "optiml: /x/y/p: ended and launched no kernel\n")
            save_manifest(_folder(folder.parent), Manifest(VERSION, (), ended, 1.0, tuple(map(_kernel, names)), ()))
            out = "Result = FAIL, an error\n"
        else:
            out = json.dumps(GOOD | self.drafts.get(arguments[3], {}))
        said = "optiml nvcc: /x/p.cu: the header 'cudnn.h' was not found\n" if self.builds else ""
        return subprocess.CompletedProcess([], code, out, said)


def _folder(root: Path) -> Path:
    recording_folder(root).mkdir(parents=True, exist_ok=True)
    return recording_folder(root)


def _kernel(name: str) -> RecordedKernel:
    launch = RecordedLaunch("", (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, "", 1, 1.0, (RecordedArgument(0, "", ()),))
    file = "p/p.cu" if name == "a" else "p/more.cuh"
    return RecordedKernel(name, name, file, 1, name, "", "", 1.0, 1, 1.0, 0, (), (launch,))


def _examined(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: _Command, runs: Sequence[str] = ("1",)
) -> Row:
    monkeypatch.setattr(capture_cpu, "_optiml", command)
    (tmp_path / "work").mkdir()
    return examine(_program(checkout, runs), checkout, tmp_path / "work")


def test_every_launched_kernel_needs_a_valid_spec(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _Command({"1": (0, ["a"]), "2": (None, ["a", "b"])}, {})
    row = _examined(checkout, tmp_path, monkeypatch, command, ("1", "2"))
    assert (row.state, row.ends, row.specs) == ("complete", [0, "limit"], {"p/p.cu:a": "", "p/more.cuh:b": ""})
    assert row.not_launched == ["idle"]
    assert sum(words[0] == "init" for words in command.seen) == 2  # a valid spec is not made again


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ({"missing": [{"what": "the size of 'x'", "line": ""}]}, "the size of 'x'"),
        ({"refused": "races"}, "races"),
        ({"text": "// optiml: time = [{}]"}, "the spec is not from the recording"),
    ],
)
def test_a_refused_spec_is_named(
    draft: dict[str, object], said: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _examined(checkout, tmp_path, monkeypatch, _Command({"1": (0, ["a", "b"])}, {"b": draft}))
    assert (row.state, row.specs["p/more.cuh:b"], row.specs["p/p.cu:a"]) == ("lacks specs", said, "")
    assert row.reason == f"p/more.cuh:b: {said}"


def test_a_program_that_fails_is_not_complete(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = _examined(checkout, tmp_path, monkeypatch, _Command({"1": (1, ["a"])}, {}))
    assert (row.state, row.reason) == ("a run fails", "'p 1' ends with exit code 1: Result = FAIL, an error")


def test_what_launches_nothing_or_does_not_build(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _examined(checkout, tmp_path, monkeypatch, _Command({"1": (0, [])}, {}))
    assert (row.state, row.reason) == ("launches nothing", "optiml: p: ended and launched no kernel")
    (tmp_path / "work").rename(tmp_path / "earlier")
    row = _examined(checkout, tmp_path, monkeypatch, _Command({}, {}, builds=1))
    assert row.state == "does not build"
    assert row.reason == "optiml nvcc: p.cu: the header 'cudnn.h' was not found"  # no folder of one machine


def test_a_command_of_the_program_builds_and_runs_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _Command({"run": (0, ["a"])}, {})
    monkeypatch.setattr(capture_cpu, "_optiml", command)
    (tmp_path / "work").mkdir()
    program = dataclasses.replace(_program(checkout, [""]), sources=(), command="make run")
    row = examine(program, checkout, tmp_path / "work")
    assert (row.state, row.specs) == ("complete", {"p/p.cu:a": ""})
    assert [words[0] for words in command.seen] == ["capture", "init"]
    assert command.seen[0][-3:] == ["--", "make", "run"]


def test_programs_are_drawn_by_a_seed_with_the_folders_that_they_name(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / "src" / f"{name}-cuda").mkdir(parents=True)
        (tmp_path / "src" / f"{name}-cuda" / "Makefile").write_text(
            "main: main.cu ../shared/x.h ../gone/y.h ../../z.h\n"
        )
    (tmp_path / "src" / "shared").mkdir()
    _git(tmp_path, "init", "-q", ".")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")

    def draw(seed: int, count: int, *but: Path) -> list[Listed]:
        found = tmp_path / f"{seed}.toml"
        words = ["--repository", "o/n", "--folders", "src/*-cuda", "--command", "make run", "--seed", str(seed)]
        assert (
            capture_draw.main(
                [str(tmp_path), *words, "--count", str(count), "--but", *map(str, but), "--write", str(found)]
            )
            == 0
        )
        return listed(found)

    first = draw(1, 3)
    assert first == draw(1, 3)
    assert {p.command for p in first} == {"make run"}
    assert all(p.folders == (p.folder, "src/shared") for p in first)
    rest = draw(2, 9, tmp_path / "1.toml")
    assert sorted(p.name for p in [*first, *rest]) == [f"{name}-cuda" for name in "abcdef"]


def test_a_record_keeps_the_rows_that_are_not_measured_again(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = _git(checkout, "rev-parse", "HEAD").strip()
    rows = "".join(f'{{ name = "{n}", folder = "p", sources = ["p.cu"] }},' for n in ("one", "two"))
    text = f'[[repository]]\nname = "a/b"\ncommit = "{commit}"\noptions = []\nprograms = [{rows}]\n'
    (tmp_path / "list.toml").write_text(text)
    record = tmp_path / "record.json"
    options = ["--checkouts", str(checkout.parent), "--list", str(tmp_path / "list.toml"), "--record", str(record)]
    monkeypatch.setattr(capture_cpu, "_optiml", _Command({"./p": (0, ["a"])}, {}))
    assert main(options) == 0
    monkeypatch.setattr(capture_cpu, "_optiml", _Command({}, {}, builds=1))
    assert main([*options, "--only", "two"]) == 0
    found = json.loads(record.read_text())
    assert [(r["name"], r["state"]) for r in found["rows"]] == [("one", "complete"), ("two", "does not build")]
    assert found["summary"] == summary(found["rows"])
    assert (found["summary"]["programs"], found["summary"]["complete"], found["summary"]["build"]) == (2, 1, 1)
    (checkout / "p" / "p.cu").write_text("int x;\n")
    with pytest.raises(SystemExit):
        main(options)


def test_the_list_names_each_program_once() -> None:
    names = [p.name for p in listed()]
    assert len(names) == len(set(names)) >= 30
    assert all(len(p.commit) == 40 and p.sources and p.runs for p in listed())
