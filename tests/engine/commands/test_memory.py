import json
import subprocess
import sys

import pytest

from engine.cli import main
from engine.llm.lesson_store import Lesson, Memory
from engine.model import Outcome


@pytest.fixture
def repository(tmp_path, monkeypatch):
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    monkeypatch.chdir(root)
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path / "cache"))
    return root


def learn(path, repository, idea, **more):
    memory = Memory(path)
    values = {"outcome": Outcome.ACCEPTED, "ratio": 2.0, **more}
    memory.add(
        Lesson(str(repository), "sm_90", ("memory_bound",), {"loops": 1.0}, "rules", "vectorize", idea, **values)
    )
    memory.close()


def test_without_a_memory_it_says_how_to_get_one(repository, capsys):
    assert main(["memory", "list"]) == 2
    assert "--memory" in capsys.readouterr().err


def test_only_this_repositorys_lessons_are_listed_and_forgotten(repository, tmp_path, capsys):
    path = tmp_path / "cache" / "memory.sqlite"
    learn(path, repository, "Load four at once")
    learn(path, "/elsewhere", "Secret idea")
    learn(path, repository, "Unroll it", outcome=Outcome.WRONG_RESULT, ratio=None)
    assert main(["memory", "list"]) == 0
    out = capsys.readouterr().out
    assert "2 lessons" in out
    assert "Secret" not in out
    assert main(["memory", "list", "--all"]) == 0
    assert "3 lessons" in capsys.readouterr().out
    assert main(["memory", "forget"]) == 0
    assert "2 lessons forgotten" in capsys.readouterr().out
    memory = Memory(path)
    assert [lesson.idea for lesson in memory.lessons()] == ["Secret idea"]


def test_lessons_go_from_one_repository_to_another_only_by_hand(repository, tmp_path, capsys):
    path = tmp_path / "m.sqlite"
    learn(path, "/elsewhere", "Load four at once")
    there = ["--memory-file", str(path)]
    assert main(["memory", "export", "lessons.jsonl", "--all", *there]) == 0
    assert json.loads((repository / "lessons.jsonl").read_text())["idea"] == "Load four at once"
    assert main(["memory", "import", "lessons.jsonl", *there]) == 0
    memory = Memory(path)
    assert [lesson.idea for lesson in memory.lessons(str(repository))] == ["Load four at once"]
    assert len(list(memory.lessons("/elsewhere"))) == 1
    fresh = ["--memory-file", str(tmp_path / "new.sqlite")]
    assert main(["memory", "import", "lessons.jsonl", "--all", *fresh]) == 0
    assert [lesson.repository for lesson in Memory(tmp_path / "new.sqlite").lessons()] == ["/elsewhere"]


@pytest.mark.parametrize("given", [["export"], ["import"], ["list", "x"], ["forget", "x"], ["import", "missing.jsonl"]])
def test_wrong_use_is_said(repository, tmp_path, capsys, given):
    learn(tmp_path / "cache" / "memory.sqlite", repository, "x")
    assert main(["memory", *given]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("verb", [["optimize", "k.cu"], ["tune", "k.cu"], ["generate", "double x", "--device", "cpu"]])
@pytest.mark.parametrize("option", [["--memory-file", "m.sqlite"], ["--memory-across"]])
def test_a_memory_that_nobody_asked_for_is_not_passed_over(repository, capsys, verb, option):
    """The run went on without the lessons of the file that was named."""
    (repository / "k.cu").write_text("__global__ void k(float* x) { x[threadIdx.x] = 1; }\n")
    assert main([*verb, *option]) == 2
    assert capsys.readouterr().err == f"optiml: {option[0]}: has no effect without --memory; add --memory, or omit it\n"


def test_nothing_heavy_is_loaded_before_a_verb_runs():
    code = "import sys, engine.cli; print([n for n in ('numpy', 'rich', 'openai', 'sqlite3') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
