"""Jobs that share a search: which there are, which kernels each takes, and the one review of all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from action import search_job
from action.main import main
from action.matrix import Share, matrix, search_jobs, share_of
from action.request import Request, read_request
from action.runner import read_context
from bot.bundle import Bundle, read_bundle, write_bundle, write_reason
from bot.errors import BundleError
from bot.merge import Part, merge
from engine.errors import UsageError
from tests.action.test_publish_job import environment, server, status
from tests.action.test_search_job import clone, commit, kept
from tests.bot.make import BASE, HEAD, bundle, looked
from tests.bot.server.server import Server
from tests.hooks.conftest import KERNEL

__all__ = ["clone", "environment", "kept", "server"]  # fixtures

REQUEST = Request(7, BASE, HEAD, False)
TWO = '{"h200": ["set-h200"], "l4": ["self-hosted", "l4"]}'


def test_one_runner_is_one_job_without_a_name() -> None:
    for runners in ('["ubuntu-24.04"]', '{"": ["ubuntu-24.04"]}', '{"h200": ["ubuntu-24.04"]}'):
        jobs = search_jobs(REQUEST, runners, "1")
        assert json.loads(matrix(jobs)) == [{"part": "", "device": "", "runner": ["ubuntu-24.04"]}]
    assert share_of("", REQUEST) == Share()


def test_each_kind_of_device_has_every_kernel_once() -> None:
    jobs = search_jobs(REQUEST, TWO, "2")
    assert [(job.part, job.device, job.runner[-1]) for job in jobs] == [
        ("h200-1of2", "h200", "set-h200"), ("h200-2of2", "h200", "set-h200"), ("l4-1of2", "l4", "l4"), ("l4-2of2", "l4", "l4"),
    ]  # fmt: skip
    request = replace(REQUEST, parts=",".join(job.part for job in jobs))
    assert read_request(request.to_json()) == request
    assert [share_of(job.part, request) for job in jobs] == [
        Share("h200", 1, 2), Share("h200", 2, 2), Share("l4", 1, 2), Share("l4", 2, 2),
    ]  # fmt: skip
    assert [job.part for job in search_jobs(REQUEST, '["x"]', "3")] == ["1of3", "2of3", "3of3"]


@pytest.mark.parametrize(
    "request_", [replace(REQUEST, path="a.cu", kernel="scale"), replace(REQUEST, pull=0, command="baseline")]
)
def test_one_kernel_and_what_keeps_a_baseline_are_not_shared(request_: Request) -> None:
    assert [job.part for job in search_jobs(request_, TWO, "4")] == ["h200", "l4"]


@pytest.mark.parametrize(
    ("runners", "jobs"),
    [("{", "1"), ("{}", "1"), ('"x"', "1"), ('{"A": ["x"]}', "1"), ('{"a": "x"}', "1"), ('{"1of2": ["x"]}', "1"), ("[1]", "1"),
     ('["x"]', "0"), ('["x"]', "-1"), ('["x"]', "many"), (TWO, "99"), ('{"a,b": ["x"]}', "1")],
)  # fmt: skip
def test_inputs_that_make_no_jobs_are_refused(runners: str, jobs: str) -> None:
    with pytest.raises(UsageError):
        search_jobs(REQUEST, runners, jobs)


@pytest.mark.parametrize("part", ["l4", "h200-3of2", "../h200-1of2", ""])
def test_a_job_that_the_request_does_not_have_is_refused(part: str) -> None:
    with pytest.raises(UsageError, match="not a job of this request"):
        share_of(part, replace(REQUEST, parts="h200-1of2,h200-2of2"))


@pytest.mark.parametrize("parts", ["a,", "A", "a b", ",a", "a,,b", "a" * 60])
def test_names_of_jobs_come_from_the_gate_alone(parts: str) -> None:
    with pytest.raises(UsageError):
        read_request(replace(REQUEST, parts=parts).to_json())


def test_the_gate_gives_a_matrix(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"action": "opened", "pull_request": {
        "number": 7, "state": "open", "head": {"sha": HEAD, "repo": {"full_name": "octocat/Hello-World", "pushed_at": ""}},
        "base": {"sha": BASE, "repo": {"full_name": "octocat/Hello-World", "pushed_at": ""}}}}  # fmt: skip
    (tmp_path / "event.json").write_text(json.dumps(event))
    server.files = {"src/a.cu": "@@ -1 +1 @@\n-a\n+b\n"}
    for name, value in {
        "OPTIML_MODE": "gate", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "OPTIML_RUNNERS": TWO, "OPTIML_JOBS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    lines = (tmp_path / "output").read_text().splitlines()
    outputs = {line.partition("<<")[0]: lines[at + 1] for at, line in enumerate(lines) if "<<end-" in line}
    assert [entry["part"] for entry in json.loads(outputs["matrix"])] == ["h200", "l4"]
    assert outputs["parts"] == read_request(outputs["request"]).parts == "h200,l4"


def test_jobs_take_all_kernels_and_none_twice(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        search_job.Looker, "prepared", lambda self, changed, draft: looked(kernel=changed.kernel, path=changed.path)
    )
    for n in range(5):
        (clone / f"k{n}.cu").write_text(KERNEL)
    base = commit(clone, "base")
    for n in range(5):
        (clone / f"k{n}.cu").write_text(KERNEL.replace("2.0f", f"{n}.5f"))
    head = commit(clone, "head")
    seen = []
    for number in (1, 2):
        inputs = search_job.JobInputs("cpu", mine=Share("", number, 2))
        found = search_job.run(Request(7, base, head, False), clone, tmp_path / str(number), inputs, lambda text: None)
        seen.append({each.changed.path for each in found.kernels})
    assert sorted(map(len, seen)) == [2, 3]
    assert set.union(*seen) == {f"k{n}.cu" for n in range(5)}


def merged(*found: Bundle | None, devices: tuple[str, ...] = ("h200", "l4")) -> Bundle:
    return merge([Part(device, device, each) for device, each in zip(devices, found, strict=True)])


def test_a_kernel_of_several_devices_is_one_suggestion_with_what_the_others_found() -> None:
    one, two = looked(2.0, patch="a", against=1.0), looked(3.0, patch="b", against=0.5)
    (found,) = merged(bundle(one), bundle(two)).kernels
    assert (found.result, found.patch) == (one.result, "a")
    assert found.comparison == two.comparison  # it got slower on one of them
    assert [(e.device, e.measurement.ratio if e.measurement else 0, e.same) for e in found.elsewhere] == [
        ("l4", 3.0, False)
    ]
    (found,) = merged(bundle(looked(None)), bundle(two)).kernels
    assert (found.result, found.elsewhere[0].measurement) == (two.result, None)
    (found,) = merged(bundle(one), bundle(looked(1.5, patch="a"))).kernels
    assert found.elsewhere[0].same


def test_a_job_without_a_bundle_is_named_and_all_of_them_are_an_error() -> None:
    found = merged(bundle(looked(2.0)), None)
    assert not found.complete
    assert [(skip.path, skip.reason) for skip in found.skipped] == [("search job l4", "it left no result")]
    with pytest.raises(BundleError):
        merged(None, None)
    with pytest.raises(BundleError, match="different commits"):
        merged(bundle(looked(2.0)), replace(bundle(looked(2.0)), base="c" * 40))


def test_the_bundles_of_all_jobs_become_one_review(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIML_REQUEST", replace(REQUEST, parts="h200-1of2,h200-2of2,l4-1of2,l4-2of2").to_json())
    monkeypatch.setenv("OPTIML_RESULT", "failure")
    folder = read_context().bundle
    write_bundle(bundle(looked(2.0, patch="a")), folder / "optiml-bundle-h200-1of2")
    write_bundle(bundle(looked(2.5, kernel="dot", path="src/b.cu")), folder / "optiml-bundle-h200-2of2")
    write_bundle(bundle(looked(1.5, patch="b")), folder / "optiml-bundle-l4-1of2")
    write_reason("no GPU answers", folder / "optiml-bundle-l4-2of2")
    assert main([]) == 0
    assert len(server.submitted()) == 1
    assert "2 kernels could be faster" in status(server)
    (review,) = server.submitted()
    text = json.dumps(review)
    assert "another patch, 1.50" in text
    assert "no GPU answers" in text
    # What later commands read of this run.
    assert len(read_bundle(folder, head=HEAD).kernels) == 2


def test_without_any_bundle_the_first_reason_is_said(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIML_REQUEST", replace(REQUEST, parts="1of2,2of2").to_json())
    monkeypatch.setenv("OPTIML_RESULT", "failure")
    write_reason("no GPU answers", read_context().bundle / "optiml-bundle-2of2")
    assert main([]) == 1
    assert "no GPU answers" in status(server) or "cannot be read" in status(server)
    assert not server.submitted()


def test_a_cancelled_run_says_so(server: Server, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIML_REQUEST", replace(REQUEST, parts="1of2,2of2").to_json())
    monkeypatch.setenv("OPTIML_RESULT", "cancelled")
    assert main([]) == 0
    assert "cancelled" in status(server)
