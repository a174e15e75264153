"""The queue of a campaign: order, budgets, what a kill leaves, and the one patch; searches are scripted."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.campaign import campaign, kernel_search
from engine.campaign.campaign import CampaignEnd, CampaignRequest, InThisProcess, run_campaign
from engine.campaign.combined_patch import combine
from engine.campaign.kernel_search import KernelEnd, KernelTask
from engine.campaign.queue import open_queue
from engine.campaign.survey import Survey, SurveyedKernel
from engine.cuda.patch import make_patch
from engine.errors import MachineError, RefusedError, UsageError
from engine.model import Program
from engine.run.going_on import Settled
from tests.bot.make import result

TEXT = "".join(f"line {n}\n" for n in range(40))


def kernel(name: str, headroom: float | None, share: float | None = None, state: Any = "drafted") -> SurveyedKernel:
    return SurveyedKernel("k.cu", name, 1, state, share, headroom)


def survey(*kernels: SurveyedKernel) -> Survey:
    return Survey(kernels, any(k.share is not None for k in kernels), True, "sm_90")


class Script:
    """Stands in for the search: what comes of each kernel, and which were asked for with which budget."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.asked: list[tuple[str, float]] = []
        self.clock = 0.0
        self.errors: dict[str, BaseException] = {}
        self.patched: dict[str, int] = {}
        self._root = root
        (root / "k.cu").write_text(TEXT)
        ready = SimpleNamespace(spec=SimpleNamespace(kernel="?"), spec_path=None)
        monkeypatch.setattr(kernel_search.SpecMaker, "ready", lambda maker, file, name: ready)
        monkeypatch.setattr(kernel_search, "settle", lambda options, out, machine, **named: Settled(options))
        monkeypatch.setattr(kernel_search, "optimize", self._optimize)
        monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: self.clock))

    def _optimize(self, options: Any, machine: object, on_progress: object) -> tuple[Any, Path]:
        self.asked.append((options.kernel, round(options.budget.seconds)))
        failing = options.kernel in self.errors
        self.clock += options.budget.seconds / (2 if failing else 1)
        if failing:
            raise self.errors.pop(options.kernel)
        line = self.patched.get(options.kernel)
        folder = self._root / "runs" / options.kernel
        folder.mkdir(parents=True, exist_ok=True)
        best = None
        if line is not None:
            after = TEXT.replace(f"line {line}\n", f"line {line} of {options.kernel}\n")
            patch = make_patch(Program({"k.cu": TEXT.encode()}, "k.cu"), Program({"k.cu": after.encode()}, "k.cu"))
            (folder / "best.patch").write_bytes(patch)
            best = SimpleNamespace(evaluation=SimpleNamespace(measurement=SimpleNamespace(ratio=2.0)))
        (folder / "result.json").write_text(json.dumps({"best": {"files": ["k.cu"]}}))
        return SimpleNamespace(best=best, verdict="said", stopped="", counts={"candidates": 1}), folder


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch, tmp_path)


def run(root: Path, found: Survey | None, budget_s: float = 600) -> CampaignEnd:
    executor = InThisProcess(root, SimpleNamespace(box=None))  # type: ignore[arg-type]
    return run_campaign(CampaignRequest(root, budget_s), executor, found)


def test_the_budget_follows_the_rank_and_what_promises_little_is_skipped(script: Script, tmp_path: Path) -> None:
    end = run(tmp_path, survey(kernel("a", 10.0, 0.6), kernel("b", 2.0, 0.36), kernel("c", 1.1, 0.04)))
    assert script.asked == [("a", 450), ("b", 150)]
    assert [k.state for k in end.kernels] == ["done", "done", "skipped"]
    assert "would save 0.4%" in end.kernels[2].said
    assert end.patch is None


def test_without_a_recording_headroom_decides(script: Script, tmp_path: Path) -> None:
    run(tmp_path, survey(kernel("a", 4.0), kernel("b", None), kernel("c", 1.05), kernel("d", 9.0, state="open")))
    assert [name for name, _ in script.asked] == ["a", "b"]


def test_a_kernel_that_is_refused_does_not_stop_the_others(script: Script, tmp_path: Path) -> None:
    script.errors["a"] = RefusedError("proves nothing", "k.cu")
    end = run(tmp_path, survey(kernel("a", 4.0), kernel("b", 4.0)))
    assert [(k.state, k.said) for k in end.kernels] == [("failed", "k.cu: proves nothing"), ("done", "said")]


def test_an_interrupted_campaign_goes_on_where_it_was(script: Script, tmp_path: Path) -> None:
    script.errors["b"] = KeyboardInterrupt()
    script.patched["a"] = 3
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, survey(kernel("a", 4.0), kernel("b", 4.0), kernel("c", 4.0)))
    end = run(tmp_path, None)
    assert [name for name, _ in script.asked] == ["a", "b", "b", "c"]
    assert script.clock == pytest.approx(600)  # the turn that was interrupted counts with the time it took
    assert [k.state for k in end.kernels] == ["done", "done", "done"]
    assert end.patch is not None
    assert "line 3 of a" in end.patch.read_text()


def test_a_machine_that_fails_ends_it_and_loses_nothing(script: Script, tmp_path: Path) -> None:
    script.errors["b"] = MachineError("the GPU fell off the bus")
    with pytest.raises(MachineError):
        run(tmp_path, survey(kernel("a", 4.0), kernel("b", 4.0)))
    assert [k.state for k in run(tmp_path, None).kernels] == ["done", "done"]


def test_there_must_be_a_campaign_to_resume_and_one_works_on_it_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "q" / "queue.sqlite"
    with pytest.raises(UsageError, match="no campaign to resume"), open_queue(path, None, 1.0):
        pass
    with open_queue(path, [kernel("a", 2.0)], 1.0), pytest.raises(MachineError, match="another campaign"):
        open_queue(path, None, 1.0).__enter__()
    with open_queue(path, [kernel("b", 2.0)], 1.0) as queue:
        assert [k.kernel for k in queue.all()] == ["b"]
    assert len(list(path.parent.glob("queue-*.sqlite"))) == 1  # the earlier one is kept
    path.write_text("no database, but long enough to be taken for one" * 100)
    with pytest.raises(MachineError, match="damaged"), open_queue(path, None, 1.0):
        pass


def test_one_patch_leaves_out_and_names_what_no_longer_applies(script: Script, tmp_path: Path) -> None:
    script.patched |= {"a": 3, "b": 30, "c": 3}
    end = run(tmp_path, survey(kernel("a", 4.0), kernel("b", 4.0), kernel("c", 4.0)))
    assert end.patch is not None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "apply", str(end.patch)], cwd=tmp_path, check=True)
    text = (tmp_path / "k.cu").read_text()
    assert "line 3 of a" in text
    assert "line 30 of b" in text
    assert len(end.notes) == 1
    assert "the patch of c does not apply" in end.notes[0]


def test_nothing_outside_of_the_repository_is_combined(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret\n")
    patch = tmp_path / "p.patch"
    patch.write_text("--- a/../secret\n+++ b/../secret\n@@ -1 +1 @@\n-secret\n+gone\n")
    data, notes = combine(root, [("k", patch, ["../secret"])])
    assert (data, len(notes)) == (b"", 1)
    assert (tmp_path / "secret").read_text() == "secret\n"


def test_the_same_campaign_again_is_answered_by_the_results_that_are_there(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel was searched again, with its part of the budget on top."""
    asked = []
    answers = False

    def settle(options: Any, out: Path, machine: object, **named: Any) -> Settled:
        asked.append(named["asked"].seconds)
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(json.dumps(dataclasses.asdict(result(2.0))))
        return Settled(options, answered=answers)

    monkeypatch.setattr(kernel_search, "settle", settle)
    found = survey(kernel("a", 4.0), kernel("b", 2.0))
    run(tmp_path, found)
    answers = True
    end = run(tmp_path, found)
    assert [name for name, _ in script.asked] == ["a", "b"]
    assert asked == [600.0] * 4  # the whole budget: a kernel's part differs from call to call
    assert [k.speedup for k in end.kernels] == [2.0, 2.0]
    assert all(k.said.endswith("Nothing changed since that search.") for k in end.kernels)


def test_kernels_of_one_name_in_files_of_one_name_have_folders_of_their_own(script: Script, tmp_path: Path) -> None:
    """The second one's search set the first one's results aside, and the combined patch took the second's for both."""
    tasks: list[KernelTask] = []

    class Noting:
        slots = 1

        def begin(self, task: KernelTask) -> None:
            tasks.append(task)

        def ended(self) -> list[tuple[int, KernelEnd]]:
            return [(tasks[-1].rank, KernelEnd("done", "said"))]

    files = ("a/k.cu", "a/b/k.cu", "k.cu", "a/j.cu")
    found = survey(*(dataclasses.replace(kernel("scale", 4.0), file=file) for file in files))
    run_campaign(CampaignRequest(tmp_path, 600.0), Noting(), found)
    folders = {task.file: task.folder(tmp_path, "scale").name for task in tasks}
    assert folders == {
        "a/k.cu": "a+k-scale",
        "a/b/k.cu": "a+b+k-scale",
        "k.cu": "k-scale",
        "a/j.cu": "j-scale",
    }
