"""One pull request for each kernel of the default branch, on a real git repository behind a GitHub over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bot.apply import Said
from bot.bundle import Bundle, Looked
from bot.dry_run import DryCode
from bot.github_code import GitHubCode
from bot.http_client import Client
from bot.kernel_pulls import Campaign, open_for_each
from bot.review import Settings, make_review
from tests.bot.make import looked
from tests.bot.repo import Repo
from tests.bot.server.schema import validator
from tests.bot.server.server import BOT, Fault, Server
from tests.bot.test_answer import TEXT, changed, patch

HERE = "octocat/Hello-World"


@dataclass
class Scene:
    """A default branch with two files of kernels."""

    server: Server
    repo: Repo
    head: str
    kernels: tuple[Looked, ...]

    def code(self) -> GitHubCode:
        return GitHubCode(HERE, Client("token", api_url=self.server.url, sleep=lambda s: None, timeout_s=60))

    def search(self, *kernels: Looked, most: int = 5, **campaign: Any) -> Said:
        """What a search of `kernels` at the head of main comes to."""
        where = Campaign(HERE, "main", self.head, BOT, most)
        review = make_review(Bundle(self.head, self.head, kernels or self.kernels), (), Settings())
        return open_for_each(self.code(), replace(where, **campaign), review)

    def open(self) -> list[dict[str, Any]]:
        return [pull for pull in self.server.opened if pull["state"] == "open"]

    def push(self, files: dict[str, str | bytes]) -> None:
        self.repo.git("checkout", "-q", "main")
        self.head = self.repo.commit(files)

    def file(self, path: str, branch: str) -> str:
        return self.repo.git("show", f"refs/heads/{branch}:{path}") + "\n"


def found(kernel: str, line: int, ratio: float = 2.0, path: str = "src/a.cu", to: str = "fast") -> Looked:
    after = TEXT.replace(f"line {line};\n", f"{to} {line};\n")
    return looked(ratio, kernel=kernel, path=path, patch=patch(path, TEXT, after))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    validator()
    repo = Repo(tmp_path / "repo")
    head = repo.commit({"src/a.cu": TEXT, "src/b.cu": TEXT})
    with Server(head=head, base=head, files={}) as server:
        server.repositories = {HERE: repo.folder}
        yield Scene(server, repo, head, (found("one", 10, 3.0), found("two", 40), found("three", 5, 1.5, "src/b.cu")))
        assert server.violations == []


def test_each_kernel_gets_a_pull_request_against_the_default_branch(scene: Scene) -> None:
    said = scene.search(issue=9)
    assert said.done
    assert [pull["title"] for pull in scene.open()] == [
        "Speed up one: 3.00× faster (95 % interval 2.94 to 3.06)", "Speed up two: 2.00× faster (95 % interval 1.96 to 2.04)",
        "Speed up three: 1.50× faster (95 % interval 1.47 to 1.53)",
    ]  # fmt: skip
    for pull, path, line in zip(scene.open(), ("src/a.cu", "src/a.cu", "src/b.cu"), (10, 40, 5), strict=True):
        branch = pull["head"]["ref"]
        assert pull["base"]["ref"] == "main"
        assert branch.startswith("optiml/all/")
        assert scene.repo.git("rev-parse", f"{branch}^") == scene.head
        assert scene.file(path, branch) == changed(line)
        assert pull["body"].startswith("<!-- optiml:all kernel=")
        assert "requested in #9" in pull["body"]
        assert "12 candidates in" in pull["body"]  # the evidence
        assert f"opened {pull['html_url']}" in said.text


def test_a_second_search_opens_no_second_one(scene: Scene) -> None:
    assert scene.search().done
    writes = len(scene.server.received)
    said = scene.search()
    assert said.done
    assert said.text.count("already has this version") == 3
    assert len(scene.server.received) == writes
    # Also where the default branch went on meanwhile.
    scene.push({"README": "words\n"})
    assert scene.search().text.count("already has this version") == 3
    assert len(scene.server.opened) == 3


def test_a_better_version_replaces_the_commit_of_the_open_one(scene: Scene) -> None:
    scene.search(found("one", 10))
    (pull,) = scene.open()
    scene.push({"README": "words\n"})
    said = scene.search(found("one", 20, 4.0))
    assert scene.open() == [pull]
    assert f"updated {pull['html_url']}" in said.text
    assert pull["title"].startswith("Speed up one: 4.00×")
    assert scene.file("src/a.cu", pull["head"]["ref"]) == changed(20)
    assert scene.repo.git("rev-parse", f"{pull['head']['ref']}^") == scene.head
    assert "already has this version" in scene.search(found("one", 20, 4.0)).text


def test_commits_of_people_on_the_branch_are_never_lost(scene: Scene) -> None:
    scene.search(found("one", 10))
    (pull,) = scene.open()
    scene.repo.git("checkout", "-q", pull["head"]["ref"])
    tip = scene.repo.commit({"src/a.cu": "mine\n"})
    scene.repo.git("checkout", "-q", "main")
    assert "commits by others" in scene.search(found("one", 20)).text
    assert scene.repo.git("rev-parse", pull["head"]["ref"]) == tip
    assert len(scene.server.opened) == 1


def test_no_more_are_open_than_wanted_and_the_best_come_first(scene: Scene) -> None:
    said = scene.search(most=2)
    assert [pull["title"].split(":")[0] for pull in scene.open()] == ["Speed up one", "Speed up two"]
    assert "2 are open, and `max-prs` is 2" in said.text
    scene.open()[0].update(state="closed", merged_at="2026-01-01T00:00:00Z")
    scene.search(*scene.kernels[1:], most=2)
    assert [pull["title"].split(":")[0] for pull in scene.open()] == ["Speed up two", "Speed up three"]


def test_what_somebody_closed_is_not_offered_again_but_another_version_is(scene: Scene) -> None:
    scene.search(found("one", 10))
    scene.open()[0]["state"] = "closed"
    assert "with the same patch was closed" in scene.search(found("one", 10)).text
    assert scene.open() == []
    assert "opened" in scene.search(found("one", 20)).text
    assert len(scene.open()) == 1


def test_a_pull_request_of_somebody_else_with_the_marker_counts_for_nothing(scene: Scene) -> None:
    scene.search(found("one", 10))
    scene.server.opened[0]["user"]["login"] = "mallory"
    scene.server.opened[0]["state"] = "closed"
    scene.server.opened[0]["merged_at"] = "2026-01-01T00:00:00Z"
    assert "opened" in scene.search(found("one", 10)).text


def test_a_patch_that_does_not_fit_the_commit_is_left_out(scene: Scene) -> None:
    scene.push({"src/a.cu": TEXT.replace("line 10;", "other 10;")})
    said = scene.search()
    assert "left out: " in said.text
    assert len(scene.open()) == 2


def test_a_token_that_may_open_nothing_says_what_to_allow(scene: Scene) -> None:
    scene.server.faults = [Fault("POST", "/pulls$", "403", times=9)]
    said = scene.search()
    assert not said.done
    assert said.text.count("Allow GitHub Actions to create pull requests") == 3
    assert sum(path.endswith("/git/refs") for _, path, _ in scene.server.received) == 1  # no branch for those behind it
    scene.server.faults = []
    assert scene.search().done
    assert len(scene.open()) == 3


def test_a_dry_run_says_it_and_sends_nothing(scene: Scene) -> None:
    said: list[str] = []
    review = make_review(Bundle(scene.head, scene.head, scene.kernels), (), Settings())
    open_for_each(DryCode(scene.code(), said.append), Campaign(HERE, "main", scene.head, BOT, 5), review)
    assert sum(line.startswith("would open a pull request") for line in said) == 3
    assert scene.server.received == []
