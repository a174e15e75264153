"""optiml-quick: the search itself has its own tests; here it is real once, and else replaced at the engine's public function."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.llm.lesson_store import Memory
from engine.process.interrupt import NEVER, Interrupt
from engine.search.progress import Budget
from engine.settings.memory_settings import MemorySettings
from hooks import quick
from hooks.quick import Found, Suggestion
from tests.hooks.conftest import git
from tests.runtime import with_runtime

Edit = Callable[[str, str], None]
Output = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PATCH = b"""\
diff --git a/k.cu b/k.cu
--- a/k.cu
+++ b/k.cu
@@ -5,6 +5,6 @@
 // optiml: time = [{ n = 1048576 }]
 __global__ void scale(const float* x, float* y, int n) {
     int i = blockIdx.x * blockDim.x + threadIdx.x;
-    if (i < n) y[i] = 3.0f * x[i];
+    if (i < n) y[i] = 3.0f * __ldg(x + i);
 }
 
"""


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands for the search: finds PATCH in every file; the list says what was asked for."""
    asked: list[list[str]] = []

    def search(root: Path, paths: list[str], *_: Any) -> dict[str, Found]:
        asked.append(list(paths))
        return {path: Found([Suggestion("scale", 6, "scale: 2.00× predicted", PATCH)], ["a note"]) for path in paths}

    monkeypatch.setattr(quick, "search", search)
    return asked


def test_the_patch_is_printed_and_can_be_taken(
    repository: Path, edit: Edit, capsys: Output, searched: list[list[str]]
) -> None:
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert quick.main(["k.cu"]) == 0
    out = capsys.readouterr().out
    assert "k.cu:6: scale: scale: 2.00× predicted" in out
    assert "+    if (i < n) y[i] = 3.0f * __ldg(x + i);" in out
    assert "note: a note" in out
    command = re.search(r"Apply it with: git apply (\S+)", out)
    assert command
    git(repository, "apply", command[1])
    assert "__ldg" in (repository / "k.cu").read_text()
    assert git(repository, "status", "--short", "--untracked-files=all") == "MM k.cu\n"


def test_fix_applies_it_and_fails_so_that_it_is_looked_at(
    repository: Path, edit: Edit, capsys: Output, searched: list[list[str]]
) -> None:
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert quick.main(["--fix", "k.cu"]) == 1
    assert "__ldg" in (repository / "k.cu").read_text()
    assert "git add k.cu" in capsys.readouterr().out


def test_a_second_fix_searches_nothing(repository: Path, edit: Edit, capsys: Output, searched: list[list[str]]) -> None:
    """It spent 15 s on what the first one had written, and said that no candidate was tried."""
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert quick.main(["--fix", "k.cu"]) == 1
    capsys.readouterr()
    for stage in (False, True):  # staging a file changes none of it
        if stage:
            git(repository, "add", "k.cu")
        assert quick.main(["--fix", "k.cu"]) == 0
        out = capsys.readouterr().out
        assert "note: nothing changed since the last search, so its results are shown: k.cu\n" in out
        assert "note: k.cu: scale: applied by an earlier --fix: scale: 2.00× predicted\n" in out
    assert searched == [["k.cu"]]
    edit("__ldg(x + i)", "__ldg(x + i + 0)")
    quick.main(["--fix", "k.cu"])
    assert searched == [["k.cu"], ["k.cu"]]


def test_a_patch_that_no_longer_fits_is_not_applied(
    repository: Path, edit: Edit, capsys: Output, searched: list[list[str]]
) -> None:
    edit("2.0f * x[i]", "4.0f * x[i]")
    before = (repository / "k.cu").read_bytes()
    assert quick.main(["--fix", "k.cu"]) == 0
    assert (repository / "k.cu").read_bytes() == before
    assert "note: k.cu: scale: the patch was not applied" in capsys.readouterr().out


def test_the_same_text_is_searched_once(
    repository: Path, edit: Edit, capsys: Output, searched: list[list[str]]
) -> None:
    edit("2.0f * x[i]", "3.0f * x[i]")
    quick.main(["k.cu"])
    first = capsys.readouterr().out
    quick.main(["k.cu"])
    said = "note: nothing changed since the last search, so its results are shown: k.cu\n"
    assert capsys.readouterr().out == said + first
    assert searched == [["k.cu"]]
    quick.main(["--budget", "30s", "k.cu"])
    edit("3.0f * x[i]", "5.0f * x[i]")
    quick.main(["k.cu"])
    assert len(searched) == 3


def test_settings_can_make_a_finding_fail(repository: Path, searched: list[list[str]]) -> None:
    (repository / ".optiml.yml").write_text("quick: {fail: true}\n")
    assert quick.main(["k.cu"]) == 1


def test_lessons_are_asked_for_by_option_and_are_another_search(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[MemorySettings | None] = []

    def search(root: Path, paths: list[str], search: quick.Search) -> dict[str, Found]:
        asked.append(search.memory)
        return {path: Found() for path in paths}

    monkeypatch.setattr(quick, "search", search)
    edit("2.0f * x[i]", "3.0f * x[i]")
    file = repository.parent / "lessons.sqlite"
    for options in ([], ["--memory", "--memory-file", str(file)], ["--memory"], ["--memory"]):
        assert quick.main([*options, "k.cu"]) == 0
    usual = repository.parent / "cache" / "memory.sqlite"
    assert asked == [None, MemorySettings(file, str(repository)), MemorySettings(usual, str(repository))]


def test_a_budget_is_a_time(repository: Path, capsys: Output) -> None:
    assert quick.main(["--budget", "200", "k.cu"]) == 2
    assert "expected e.g. 20s" in capsys.readouterr().err


def test_unchanged_kernels_start_no_machine(repository: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    import engine.run.machine

    monkeypatch.setattr(engine.run.machine, "make_machine", None)
    assert quick.main(["k.cu"]) == 0
    assert capsys.readouterr().out == ""


def test_out_of_budget_passes_with_a_note(repository: Path, edit: Edit, capsys: Output) -> None:
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert quick.main(["--budget", "1s", "k.cu"]) == 0
    assert "note: k.cu: scale: not searched: out of budget" in capsys.readouterr().out
    kept = (
        list((repository.parent / "cache" / "hooks").rglob("*"))
        if (repository.parent / "cache" / "hooks").exists()
        else []
    )
    assert kept == []  # with more time there may be more to say


def test_a_search_that_does_not_end_is_stopped() -> None:
    begin = time.monotonic()
    with pytest.raises(quick._OutOfTime), quick._limit(0.2):
        time.sleep(60)
    assert time.monotonic() - begin < 30


def test_an_interrupt_from_the_keyboard_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), quick._limit(5):
        raise KeyboardInterrupt


def test_kernels_without_a_spec_are_named(repository: Path, edit: Edit, capsys: Output) -> None:
    edit("+= 1.0f", "+= 2.0f")
    assert quick.main(["k.cu"]) == 0
    assert "note: k.cu: no spec, so not searched: other; 'optiml init k.cu' drafts one" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_real_search_gives_a_patch_that_applies(
    repository: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many candidates and not so many seconds: what it finds does not depend on how fast the machine is."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")

    def few(seconds: float | None = None, candidates: int | None = None, interrupt: Interrupt = NEVER) -> Budget:
        return Budget(seconds, candidates or 12, interrupt=interrupt)

    monkeypatch.setattr("engine.search.progress.Budget", few)
    with_runtime(repository.parent / "cache")
    shutil.copy(EXAMPLES / "softmax.cu", repository / "softmax.cu")
    git(repository, "add", "softmax.cu")
    assert quick.main(["--budget", "150s", "--memory", "softmax.cu"]) == 0
    memory = Memory(repository.parent / "cache" / "memory.sqlite")
    assert len(list(memory.lessons(str(repository)))) > 3
    memory.close()
    out = capsys.readouterr().out
    assert "× predicted for sm_90, not measured; screened on the CPU, not verified" in out
    command = re.search(r"Apply it with: git apply (\S+)", out)
    assert command
    done = subprocess.run(["git", "apply", "--check", command[1]], cwd=repository, capture_output=True)
    assert done.returncode == 0, done.stderr
