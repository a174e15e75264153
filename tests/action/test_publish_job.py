"""The last job: from the bundle to the pull request, against a GitHub over real HTTP."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from action.main import main
from action.publish_job import announce
from action.request import Request
from action.runner import read_context
from bot.bundle import Bundle, read_reason, write_bundle, write_reason
from bot.marker import STATUS_MARKER
from bot.review import Settings
from engine.cuda.patch import make_patch
from engine.model import Program
from engine.settings.config import Config, parse_config
from engine.settings.config_text import ConfigError
from tests.bot.make import BASE, HEAD, bundle, looked
from tests.bot.repo import Repo
from tests.bot.server.schema import description
from tests.bot.server.server import Server

REQUEST = Request(7, BASE, HEAD, False)


@pytest.fixture
def server() -> Iterator[Server]:
    description()
    with Server(head=HEAD, base=BASE, files={}) as running:
        yield running


@pytest.fixture
def environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values = {
        "OPTIML_MODE": "publish", "OPTIML_TOKEN": "token", "GITHUB_REPOSITORY": "octocat/Hello-World", "GITHUB_API_URL": server.url,
        "GITHUB_WORKSPACE": str(tmp_path / "work"), "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_RUN_ID": "12", "OPTIML_REQUEST": REQUEST.to_json(), "OPTIML_RESULT": "success",
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


def status(server: Server) -> str:
    (comment,) = [c for c in server.comments.values() if c["body"].startswith(STATUS_MARKER)]
    return str(comment["body"])


def ending(tmp_path: Path) -> str:
    return (tmp_path / "output").read_text().splitlines()[1]


def test_a_search_of_all_becomes_pull_requests_and_one_answer(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repo(tmp_path / "repo")
    text = "".join(f"line {i};\n" for i in range(1, 30))
    head = repo.commit({"src/a.cu": text})
    server.repositories = {"octocat/Hello-World": repo.folder}
    after = text.replace("line 7;", "fast 7;")
    patch = make_patch(
        Program({"src/a.cu": text.encode()}, "src/a.cu"), Program({"src/a.cu": after.encode()}, "src/a.cu")
    )
    write_bundle(
        Bundle(head, head, (looked(2.0, patch=patch.decode()), looked(None, kernel="other"))),
        tmp_path / "optiml-bundle",
    )
    asked = Request(7, head, head, False, command="all", branch="main", most=5, comment=900, by="ann", by_id=12)
    request, hindered = announce(read_context(environment), asked, Config())
    assert (hindered, server.comments) == ("", {})  # a reaction, and no status comment in an issue
    monkeypatch.setenv("OPTIML_REQUEST", request.to_json())
    for _ in range(2):  # the job is run again
        assert main([]) == 0
        (pull,) = server.opened
        (answer,) = server.comments.values()
        assert f"opened {pull['html_url']}" in answer["body"]
    assert (900, server.author, "rocket") in server.reactions
    # The schedule's: nobody asked, so nothing is answered.
    monkeypatch.setenv("OPTIML_REQUEST", replace(request, comment=0, pull=0).to_json())
    assert main([]) == 0
    assert len(server.comments) == 1
    assert f"{pull['html_url']} already has this version" in (tmp_path / "summary").read_text()


def test_a_search_of_all_that_failed_says_why(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reason("the repository has more than 20000 source files", tmp_path / "optiml-bundle")
    asked = Request(
        7, HEAD, HEAD, False, command="all", branch="main", most=5, comment=900, by="ann", by_id=12, settings=""
    )
    monkeypatch.setenv("OPTIML_REQUEST", replace(asked, settings=json.dumps(asdict(Settings()))).to_json())
    assert main([]) == 1
    (answer,) = server.comments.values()
    assert "more than 20000 source files" in answer["body"]


def test_the_bundle_becomes_one_review(server: Server, environment: dict[str, str], tmp_path: Path) -> None:
    assert announce(read_context(environment), REQUEST, Config())[1] == ""
    assert "has started" in status(server)
    write_bundle(bundle(looked(2.0)), tmp_path / "optiml-bundle")
    assert main([]) == 0
    assert ending(tmp_path) == "posted"
    assert len(server.submitted()) == 1
    assert "1 kernel could be faster" in status(server)
    assert "scale" in (tmp_path / "summary").read_text()
    (tmp_path / "output").unlink()
    assert main([]) == 0  # the job is run again
    assert ending(tmp_path) == "already posted"
    assert len(server.submitted()) == 1


@pytest.mark.parametrize(
    ("content", "result", "code", "ends"),
    [
        (None, "failure", 1, "failed"),
        (None, "cancelled", 0, "cancelled"),
        ("{}", "success", 1, "failed"),
        ("not json", "success", 1, "failed"),
        ("other head", "success", 1, "failed"),
    ],
)
def test_without_a_bundle_of_this_commit_there_is_one_clear_status(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    content: str | None, result: str, code: int, ends: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("OPTIML_RESULT", result)
    folder = tmp_path / "optiml-bundle"
    if content == "other head":
        write_bundle(bundle(looked(2.0), head="c" * 40), folder)
    elif content is not None:
        folder.mkdir()
        (folder / "bundle.json").write_text(content)
    assert main([]) == code
    assert ending(tmp_path) == ends
    assert server.submitted() == []
    assert "cancelled" in status(server) if ends == "cancelled" else "The run failed" in status(server)
    assert str(tmp_path) not in html.unescape(status(server)).replace(
        "\u200b", ""
    )  # the runner's folders are nobody's business


def test_a_run_that_ended_by_itself_says_why(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that searches leaves its reason; what stands in it is a stranger's and is shown as words."""
    repo = Repo(tmp_path / "work")
    head = repo.commit({".optiml.yml": "budgt: {}\n", "k.cu": "\n"})
    monkeypatch.setenv("OPTIML_MODE", "optimize")
    monkeypatch.setenv("OPTIML_REQUEST", Request(7, head, head, False).to_json())
    assert main([]) == 2
    assert read_reason(tmp_path / "optiml-bundle").startswith(".optiml.yml:1: unknown key 'budgt'")
    monkeypatch.setenv("OPTIML_MODE", "publish")
    server.head = head
    request = Request(7, BASE, head, False, settings=json.dumps(asdict(Settings())))
    monkeypatch.setenv("OPTIML_REQUEST", request.to_json())
    monkeypatch.setenv("OPTIML_RESULT", "failure")
    assert main([]) == 1
    assert "unknown key 'budgt'; did you mean 'budget'?" in html.unescape(status(server)).replace("\u200b", "")
    write_reason("![x](http://e.test/b.png) @octocat <img src=x>" + "y" * 5000, tmp_path / "optiml-bundle")
    assert main([]) == 1
    assert not any(bad in status(server) for bad in ("![", "](http:", "<img", "@octocat", "y" * 2000))


def test_a_token_that_only_reads_does_not_stop_the_gate(server: Server, environment: dict[str, str]) -> None:
    server.read_only = True
    assert "not announced" in announce(read_context(environment), REQUEST, Config())[1]


def test_a_dry_run_of_gate_and_publish_prints_everything_and_sends_nothing(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked = replace(REQUEST, comment=5, by="ann", by_id=12)
    monkeypatch.setenv("OPTIML_REQUEST", asked.to_json())
    context = replace(read_context(), dry_run=True)
    assert announce(context, asked, Config())[1] == ""
    said = capsys.readouterr().out
    for part in (
        "would add a comment to pull request 7",
        "has started",
        "with eyes",
    ):
        assert part in said, part
    write_bundle(bundle(looked(2.0)), tmp_path / "optiml-bundle")
    assert main(["--dry-run"]) == 0
    said = capsys.readouterr().out
    for part in (
        "would post a review",
        "1 kernel could be faster",
        "completed, neutral",
        "with an annotation at src/a.cu:4-4",
        "with rocket",
    ):
        assert part in said, part
    assert {verb for verb, _ in server.requests} == {"GET"}


def test_the_request_decides_and_not_the_bundle(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that names another pull request's commit, or brings fields of its own, is not followed."""
    write_bundle(bundle(looked(2.0)), tmp_path / "optiml-bundle")
    path = tmp_path / "optiml-bundle" / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"number": 8}))
    assert main([]) == 1
    assert server.submitted() == []


@pytest.mark.parametrize("voice", ["review", "status", "check", "summary"])
def test_a_voice_that_the_settings_turn_off_is_silent(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voice: str
) -> None:
    import action.publish_job as job

    config = parse_config(f"post: {{{voice}: false}}\n".encode(), ".optiml.yml")
    assert config is not None
    monkeypatch.setattr(job, "settings_at", lambda *_: config)
    announce(read_context(environment), REQUEST, config)
    write_bundle(bundle(looked(2.0)), tmp_path / "optiml-bundle")
    assert main([]) == 0
    spoke = {
        "review": bool(server.reviews), "status": bool(server.comments), "check": bool(server.checks),
        "summary": (tmp_path / "summary").exists(),
    }  # fmt: skip
    assert spoke == {name: name != voice for name in spoke}


def test_a_command_is_answered_with_reactions(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(REQUEST, comment=5, by="ann", by_id=12, command="status")
    assert announce(read_context(environment), asked, Config())[1] == ""
    assert (server.comments, server.checks) == ({}, {})
    monkeypatch.setenv("OPTIML_REQUEST", asked.to_json())
    monkeypatch.setenv("OPTIML_RESULT", "skipped")
    assert main([]) == 0
    assert ending(tmp_path) == "answered"
    assert {content for _, _, content in server.reactions} == {"eyes", "rocket"}
    (answer,) = server.comments.values()
    assert "No run for" in answer["body"]
    monkeypatch.setenv("OPTIML_REQUEST", replace(asked, command="apply", comment=6).to_json())
    assert main([]) == 0
    assert (6, server.author, "confused") in server.reactions
    assert len(server.comments) == 2


def gate_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, event: dict[str, object]) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event))
    for key, value in (("OPTIML_MODE", "gate"), ("GITHUB_EVENT_NAME", name), ("GITHUB_EVENT_PATH", str(path))):
        monkeypatch.setenv(key, value)


def failing_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(*_: object) -> object:
        raise ConfigError("unknown key 'budgt'", ".optiml.yml:1", "did you mean 'budget'?")

    monkeypatch.setattr("action.gate.decide", decide)


def test_a_gate_that_fails_says_why_on_the_pull_request(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = {"full_name": "octocat/Hello-World"}
    pull = {"number": 7, "head": {"sha": HEAD, "repo": repo}, "base": {"sha": BASE, "repo": repo}}
    gate_event(monkeypatch, tmp_path, "pull_request", {"action": "opened", "pull_request": pull})
    failing_gate(monkeypatch)
    assert main([]) == 2
    assert "budgt" in status(server)


@pytest.mark.parametrize(("association", "answers"), [("MEMBER", 1), ("NONE", 0)])
def test_a_gate_that_fails_answers_a_member_s_command(
    server: Server,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    association: str,
    answers: int,
) -> None:
    comment = {
        "id": 5,
        "body": "/optiml optimize",
        "author_association": association,
        "user": {"login": "ann", "id": 3},
    }
    gate_event(
        monkeypatch, tmp_path, "issue_comment", {"action": "created", "comment": comment, "issue": {"number": 7}}
    )
    failing_gate(monkeypatch)
    assert main([]) == 2
    assert main([]) == 2  # the job is run again
    assert sum("budgt" in c["body"] for c in server.comments.values()) == answers


def test_a_gate_that_fails_for_a_dispatched_run_says_why_too(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_event(monkeypatch, tmp_path, "workflow_dispatch", {"inputs": {"pull-number": "7"}})
    failing_gate(monkeypatch)
    assert main([]) == 2
    assert "budgt" in status(server)


def test_an_unexpected_failure_of_the_gate_is_said_without_its_words(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(*_: object) -> object:
        raise RuntimeError("secret")

    gate_event(monkeypatch, tmp_path, "workflow_dispatch", {"inputs": {"pull-number": "7"}})
    monkeypatch.setattr("action.gate.decide", decide)
    assert main([]) == 3
    assert "internal error" in status(server)
    assert "secret" not in status(server)


@pytest.mark.parametrize("check", [True, False])
def test_a_merge_group_gets_its_check_and_nothing_else(
    server: Server, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    config = parse_config(f"post: {{check: {str(check).lower()}}}\n".encode(), ".optiml.yml")
    assert config is not None
    asked, hindered = announce(read_context(environment), Request(0, BASE, HEAD, False, command="queue"), config)
    assert hindered == ""
    assert server.requests == []
    monkeypatch.setenv("OPTIML_REQUEST", asked.to_json())
    monkeypatch.setenv("OPTIML_RESULT", "skipped")
    assert main([]) == 0
    assert main([]) == 0  # the job run again changes nothing
    assert ending(tmp_path) == "passed"
    assert [(c["head_sha"], c["conclusion"]) for c in server.checks.values()] == [(HEAD, "success")] * check
    assert (server.comments, server.reviews, server.reactions) == ({}, {}, set())
