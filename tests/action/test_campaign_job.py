"""The search of every kernel of the default branch, up to the bundle; searches are scripted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from action import campaign_job, kept_reviews
from action.campaign_job import run_all
from action.kept_reviews import ANSWERED
from action.request import Request
from action.search_job import JobInputs
from bot.bundle import Bundle, read_bundle
from engine.campaign import kernel_search
from engine.campaign.survey import Survey, SurveyedKernel
from engine.errors import RefusedError
from engine.run.going_on import Settled
from tests.bot.make import result
from tests.bot.repo import Repo

KERNEL = "__global__ void {name}(const float* x, float* y) {{ y[threadIdx.x] = x[threadIdx.x] * {value}f; }}\n"
NAMES = ("slow", "fine", "bad", "odd")


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were searched; settings are those that the search sees."""
    found: list[str] = []

    def search(options: Any, machine: object, on_progress: object) -> tuple[Any, Path]:
        found.append(options.kernel)
        if options.kernel == "bad":
            raise RefusedError("proves nothing", f"{options.path}")
        folder = tmp_path / "runs" / options.kernel
        folder.mkdir(parents=True, exist_ok=True)
        ended = result(2.0 if options.kernel == "slow" else None, kernel=options.kernel, file=f"{options.kernel}.cu")
        (folder / "result.json").write_text(json.dumps(dataclasses.asdict(ended)))
        (folder / "best.patch").write_text(f"--- a/{options.kernel}.cu\n")
        return ended, folder

    def survey(surveyor: Any, limit_s: float) -> Survey:
        kernels = [SurveyedKernel(f"{n}.cu", n, 1, "declared", None, 9.0 - i) for i, n in enumerate(NAMES[:3])]
        return Survey(
            (*kernels, SurveyedKernel("odd.cu", "odd", 1, "open", missing="needs a size")), False, True, "sm_90"
        )

    monkeypatch.setattr(kept_reviews, "folder", lambda: tmp_path / "reviews")
    monkeypatch.setattr(campaign_job.Surveyor, "survey", survey)
    machine = SimpleNamespace(box=None, arch="sm_90", name="cpu", mode="predicted", close=lambda: None)
    monkeypatch.setattr(campaign_job, "machine_for", lambda device, arch: machine)
    ready = SimpleNamespace(spec=SimpleNamespace(kernel="?"), spec_path=None)
    monkeypatch.setattr(kernel_search.SpecMaker, "ready", lambda maker, file, name: ready)
    monkeypatch.setattr(kernel_search, "settle", lambda options, out, machine, **named: Settled(options))
    monkeypatch.setattr(kernel_search, "optimize", search)
    return found


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit({f"{name}.cu": KERNEL.format(name=name, value=2) for name in NAMES})
    return made


def search(repo: Repo, tmp_path: Path, name: str = "out") -> Bundle:
    head = repo.git("rev-parse", "HEAD")
    request = Request(0, head, head, False, command="all", branch="main", budget_s=600.0, most=5)
    run_all(request, repo.folder, (tmp_path / name, tmp_path / "earlier"), JobInputs("cpu"), lambda text: None)
    return read_bundle(tmp_path / name, head=head)


def test_every_kernel_is_in_the_bundle_with_its_result_or_the_reason(
    repo: Repo, tmp_path: Path, searched: list[str]
) -> None:
    bundle = search(repo, tmp_path)
    assert searched == ["slow", "fine", "bad"]
    assert bundle.complete
    slow, fine, bad = bundle.kernels
    assert slow.result is not None
    assert (slow.patch, slow.result.kernel) == ("--- a/slow.cu\n", "slow")
    assert (fine.patch, fine.error) == ("", "")
    assert bad.error.endswith("proves nothing")
    assert str(tmp_path) not in bad.error
    assert [(s.kernel, s.reason) for s in bundle.skipped] == [("odd", "needs a size")]


@pytest.mark.parametrize("kept_by", ["runner", "bundle"])
def test_a_second_search_searches_what_changed(
    repo: Repo, tmp_path: Path, searched: list[str], monkeypatch: pytest.MonkeyPatch, kept_by: str
) -> None:
    search(repo, tmp_path)
    searched.clear()
    if kept_by == "bundle":  # a fresh runner, with the earlier bundle alone
        monkeypatch.setattr(kept_reviews, "folder", lambda: tmp_path / "empty")
    else:
        (tmp_path / "earlier" / "bundle.json").unlink()
    repo.commit({"fine.cu": KERNEL.format(name="fine", value=3)})
    bundle = search(repo, tmp_path, "second")
    assert searched == ["fine", "bad"]  # what failed is tried again
    (slow,) = [looked for looked in bundle.kernels if looked.changed.kernel == "slow"]
    assert slow.patch == "--- a/slow.cu\n"
    assert slow.result is not None
    assert slow.result.notes[-1] == ANSWERED


def test_a_search_that_is_killed_leaves_what_it_had(
    repo: Repo, tmp_path: Path, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernel_search.optimize

    def dying(options: Any, *rest: Any) -> Any:
        if options.kernel == "fine":
            raise SystemExit
        return real(options, *rest)

    monkeypatch.setattr(kernel_search, "optimize", dying)
    with pytest.raises(SystemExit):
        search(repo, tmp_path)
    bundle = read_bundle(tmp_path / "out", head=repo.git("rev-parse", "HEAD"))
    assert [looked.changed.kernel for looked in bundle.kernels] == ["slow"]
    assert not bundle.complete
