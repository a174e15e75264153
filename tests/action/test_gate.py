"""The gate: which events start a run, for which commits, and who may ask."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from action.api import ApiError, Pull
from action.gate import decide
from action.request import Request, read_request
from engine.errors import UsageError
from engine.settings.config_text import ConfigError

BASE, HEAD, TIP = "a" * 40, "b" * 40, "c" * 40
PULL = Pull(7, BASE, HEAD, False, False, True, "2025-01-01T10:00:00Z", "o/r", "topic")


@dataclass
class Known:
    """A Reader over fixed answers; `asked` lists the commits whose files were read."""

    now: Pull = PULL
    roles: dict[str, str] = field(default_factory=lambda: {"ann": "write", "bob": "read"})
    files: dict[str, bytes] = field(default_factory=dict)
    paths: list[str] = field(default_factory=lambda: ["src/k.cu", "README.md"])
    asked: set[str] = field(default_factory=set)
    branch_moved: str = ""

    def moved_at(self, pull: Pull) -> str:
        return self.branch_moved or pull.pushed_at

    def pull(self, number: int) -> Pull:
        assert number == self.now.number
        return self.now

    def role(self, login: str) -> str:
        return self.roles.get(login, "none")

    def file(self, path: str, commit: str) -> bytes | None:
        self.asked.add(commit)
        return self.files.get(path)

    def changed(self, number: int) -> list[str]:
        return self.paths

    def compared(self, base: str, head: str) -> list[str]:
        return self.paths

    def default_branch(self) -> tuple[str, str]:
        return "trunk", TIP


def pull_event(action: str = "opened", **changes: Any) -> dict[str, Any]:
    head = {"sha": HEAD, "repo": {"full_name": "o/r", "pushed_at": "2025-01-01T10:00:00Z"}}
    pull = {
        "number": 7,
        "draft": False,
        "state": "open",
        "head": head,
        "base": {"sha": BASE, "repo": {"full_name": "o/r"}},
    }
    return {"action": action, "pull_request": pull | changes}


def comment_event(body: str, login: str = "ann", **changes: Any) -> dict[str, Any]:
    user = {"login": login, "id": 12, "type": "User"}
    comment = {"id": 5, "body": body, "created_at": "2025-01-01T12:00:00Z", "user": user}
    issue = {"number": 7, "pull_request": {"url": "https://example.org"}}
    return {"action": "created", "comment": comment | changes, "issue": issue}


def test_a_pull_request_is_pinned() -> None:
    known = Known()
    decision = decide("pull_request", pull_event(), known)
    assert decision.request == Request(7, BASE, HEAD, False)
    assert known.asked == {BASE}  # settings of the base, never of the head


@pytest.mark.parametrize("action", ["closed", "labeled", "edited", "assigned"])
def test_other_actions_start_nothing(action: str) -> None:
    assert decide("pull_request", pull_event(action), Known()).request is None


@pytest.mark.parametrize("changes", [{"draft": True}, {"state": "closed"}])
def test_drafts_and_closed_ones_start_nothing(changes: dict[str, Any]) -> None:
    assert decide("pull_request", pull_event(**changes), Known()).request is None


def test_a_fork_is_known_as_one() -> None:
    head = {"sha": HEAD, "repo": {"full_name": "stranger/r", "pushed_at": ""}}
    decision = decide("pull_request_target", pull_event(head=head), Known())
    assert decision.request
    assert decision.request.fork
    decision = decide("pull_request_target", pull_event(head={"sha": HEAD, "repo": None}), Known())
    assert decision.request
    assert decision.request.fork


@pytest.mark.parametrize(
    ("paths", "settings", "runs"),
    [
        (["README.md"], b"", False),
        (["src/k.cu"], b"", True),
        (["include/f.h"], b"", True),
        (["vendor/k.cu"], b"exclude: ['vendor/**']\n", False),
    ],
)
def test_only_cuda_starts_a_run(paths: list[str], settings: bytes, runs: bool) -> None:
    known = Known(paths=paths, files={".optiml.yml": settings})
    assert (decide("pull_request", pull_event(), known).request is not None) == runs


def test_wrong_settings_are_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'paths'"):
        decide("pull_request", pull_event(), Known(files={".optiml.yml": b"path: []\n"}))


ASKED = Request(7, BASE, HEAD, False, comment=5, by="ann", by_id=12)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "/optiml optimize src/k.cu:softmax --budget 10m --arch sm_80 --proposers rules,llm\nThanks!",
            replace(ASKED, path="src/k.cu", kernel="softmax", budget_s=600.0, arch="sm_80", proposers="rules,llm"),
        ),
        ("/optiml check", replace(ASKED, command="check")),
        ("/optiml apply", replace(ASKED, command="apply", number=1)),
        ("/optiml apply all", replace(ASKED, command="apply")),
        ("/optiml pr 2", replace(ASKED, command="pr", number=2)),
        ("/optiml explain 3", replace(ASKED, command="explain", number=3)),
        ("/optiml status", replace(ASKED, command="status")),
        ("/optiml cancel", replace(ASKED, command="cancel")),
        ("/optiml help", replace(ASKED, command="help")),
        ("/optiml dance", replace(ASKED, command="help", reason="unknown command")),
    ],
)
def test_a_command_is_carried_out(body: str, expected: Request) -> None:
    request = decide("issue_comment", comment_event(body), Known()).request
    assert request == expected
    assert read_request(request.to_json()) == request
    assert request.searches == (expected.command in ("optimize", "check"))


@pytest.mark.parametrize(
    ("body", "login", "changes"),
    [
        ("thanks /optiml optimize", "ann", {}),
        ("\n/optiml optimize", "ann", {}),
        ("/optiml optimize", "bob", {}),
        ("/optiml optimize", "stranger", {}),
        ("/optiml help", "stranger", {}),
        ("/optiml optimize", "ann", {"user": {"login": "ann", "id": 12, "type": "Bot"}}),
        ("/optiml optimize $(touch x)", "ann", {}),
        ("/optiml optimize `id`", "ann", {}),
        ("/оptiml optimize", "ann", {}),  # a Cyrillic letter
        ("/optiml optimize" + " x" * 50_000, "ann", {}),
    ],
)
def test_what_is_no_command_of_somebody_who_may_does_nothing(body: str, login: str, changes: dict[str, Any]) -> None:
    assert decide("issue_comment", comment_event(body, login, **changes), Known()).request is None


@pytest.mark.parametrize("made", ["2025-01-01T10:00:00Z", "2024-12-31T10:00:00Z", "yesterday"])
@pytest.mark.parametrize("command", ["optimize", "check", "apply 1", "pr 1"])
def test_a_push_with_or_after_the_comment_is_told_and_nothing_else_is_done(command: str, made: str) -> None:
    request = decide("issue_comment", comment_event(f"/optiml {command}", created_at=made), Known()).request
    assert request is not None
    assert not request.searches
    assert "newer commit than the comment" in request.reason
    assert decide("issue_comment", comment_event("/optiml status", created_at=made), Known()).request


def test_somebody_who_may_ask_is_told_why_there_is_nothing_to_do() -> None:
    for known, says in ((Known(paths=["README.md"]), "CUDA"), (Known(replace(PULL, open=False)), "closed")):
        request = decide("issue_comment", comment_event("/optiml check"), known).request
        assert request is not None
        assert not request.searches
        assert says in request.reason


def test_edited_comments_and_issues_do_nothing() -> None:
    event = comment_event("/optiml optimize")
    assert decide("issue_comment", event | {"action": "edited"}, Known()).request is None
    assert decide("issue_comment", event | {"issue": {"number": 7}}, Known()).request is None


def test_the_settings_say_who_may_ask() -> None:
    known = Known(files={".optiml.yml": b"permissions: {commands: read}\n"})
    assert decide("issue_comment", comment_event("/optiml optimize", "bob"), known).request
    known = Known(files={".optiml.yml": b"permissions: {commands: admin}\n"})
    assert decide("issue_comment", comment_event("/optiml optimize", "ann"), known).request is None


def test_the_settings_say_who_may_apply() -> None:
    for role, told in (("maintain", False), ("write", True)):
        known = Known(files={".optiml.yml": f"permissions: {{commands: read, apply: {role}}}\n".encode()})
        for command in ("apply", "pr"):
            assert (decide("issue_comment", comment_event(f"/optiml {command}"), known).request is not None) == told
        assert decide("issue_comment", comment_event("/optiml explain"), known).request


def test_a_run_by_hand() -> None:
    assert decide("workflow_dispatch", {"inputs": {"pull-number": "7"}}, Known()).request == Request(
        7, BASE, HEAD, False
    )
    for wrong in ("", "0", "7; id", "７", None):
        with pytest.raises(UsageError):
            decide("workflow_dispatch", {"inputs": {"pull-number": wrong}}, Known())


PUSH = {"ref": "refs/heads/main", "before": BASE, "after": HEAD, "repository": {"default_branch": "main"}}


def test_a_push_to_the_default_branch_is_measured() -> None:
    request = decide("push", PUSH, Known()).request
    assert request == Request(0, BASE, HEAD, False, command="baseline")
    assert read_request(request.to_json()) == request


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"ref": "refs/heads/topic"}, ["k.cu"]), ({"ref": "refs/tags/main"}, ["k.cu"]), ({"before": "0" * 40}, ["k.cu"]),
        ({"deleted": True}, ["k.cu"]), ({"repository": {}}, ["k.cu"]), ({}, ["README.md"]), ({"after": "x"}, ["k.cu"]),
    ],
)  # fmt: skip
def test_other_pushes_do_nothing(changes: dict[str, Any], paths: list[str]) -> None:
    assert decide("push", PUSH | changes, Known(paths=paths)).request is None


@pytest.mark.parametrize("event", ["workflow_run", ""])
def test_other_events_do_nothing(event: str) -> None:
    assert decide(event, {}, Known()).request is None


@pytest.mark.parametrize("pull", [None, {}, {"number": 7}, {"number": "x", "head": [], "base": 1}])
def test_a_strange_event_is_an_error(pull: Any) -> None:
    with pytest.raises(ApiError):
        decide("pull_request", {"action": "opened", "pull_request": pull}, Known())


# ---- what goes from job to job


def test_a_request_survives_the_way() -> None:
    request = Request(7, BASE, HEAD, True, "a.cu", "k", 60.0, "sm_90", "llm", 5, "check", 3, "ann", 12, "a reason")
    assert read_request(request.to_json()) == request
    assert "\n" not in request.to_json()


GOOD = json.loads(Request(7, BASE, HEAD, False).to_json())


@pytest.mark.parametrize(
    "data",
    [
        "", "[]", "{", "{}", "[" * 100_000, json.dumps(GOOD | {"more": 1}), json.dumps(GOOD | {"pull": 0}),
        json.dumps(GOOD | {"pull": True}), json.dumps(GOOD | {"pull": "7"}), json.dumps(GOOD | {"head": "main"}),
        json.dumps(GOOD | {"head": HEAD + "\n"}), json.dumps(GOOD | {"arch": "sm_90; id"}), json.dumps(GOOD | {"fork": 0}),
        json.dumps(GOOD | {"budget_s": 1e9}), json.dumps(GOOD | {"budget_s": float("nan")}), json.dumps(GOOD | {"path": "x" * 20_000}),
        json.dumps(GOOD | {"command": "push"}), json.dumps(GOOD | {"by": "a\nb"}), json.dumps(GOOD | {"number": -1}),
        json.dumps(GOOD | {"reason": "a\nb"}), json.dumps(GOOD | {"proposers": "shell"}), json.dumps(GOOD | {"proposers": "rules,"}),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(data: str) -> None:
    with pytest.raises(UsageError):
        read_request(data)


def test_the_fixture_is_right() -> None:
    assert read_request(json.dumps(GOOD)) == replace(Request(7, BASE, HEAD, False))


def test_a_push_to_another_branch_refuses_no_command() -> None:
    late = replace(PULL, pushed_at="2025-01-01T12:30:00Z")
    decision = decide(
        "issue_comment", comment_event("/optiml optimize"), Known(now=late, branch_moved="2025-01-01T10:00:00Z")
    )
    assert decision.request is not None
    assert decision.request.searches
    decision = decide(
        "issue_comment", comment_event("/optiml optimize"), Known(now=late, branch_moved="2025-01-01T12:15:00Z")
    )
    assert decision.request is not None
    assert "newer commit than the comment" in decision.request.reason


def test_a_merge_group_gets_a_check_and_no_search() -> None:
    group = {"head_sha": HEAD, "base_sha": BASE, "head_ref": "refs/heads/gh-readonly-queue/main/pr-7-x"}
    decision = decide("merge_group", {"action": "checks_requested", "merge_group": group}, Known())
    assert decision.request == Request(0, BASE, HEAD, False, command="queue")
    assert (decision.request.searches, decision.request.job) == (False, "review")
    assert read_request(decision.request.to_json()) == decision.request
    assert decide("merge_group", {"action": "destroyed", "merge_group": group}, Known()).request is None
    for wrong in ({}, group | {"head_sha": "main"}, group | {"base_sha": None}):
        with pytest.raises(ApiError):
            decide("merge_group", {"action": "checks_requested", "merge_group": wrong}, Known())
    with pytest.raises(UsageError):  # a search is of a pull request
        read_request(replace(decision.request, command="optimize").to_json())


# ---- every kernel of the default branch


def issue_event(body: str, login: str = "ann", **changes: Any) -> dict[str, Any]:
    event = comment_event(body, login, **changes)
    return event | {"issue": {"number": 3}}


def test_a_schedule_searches_every_kernel_of_the_default_branch() -> None:
    known = Known(files={".optiml.yml": b"all: {budget: 2h, max-prs: 2}\n"})
    request = decide("schedule", {"schedule": "17 3 * * 6"}, known).request
    assert request == Request(0, TIP, TIP, False, command="all", branch="trunk", budget_s=7200.0, most=2)
    assert known.asked == {TIP}
    assert request.searches
    assert request.job == "pulls"
    assert read_request(request.to_json()) == request


@pytest.mark.parametrize(
    ("given", "budget_s", "most"),
    [({"budget": "", "max-prs": ""}, 3600.0, 5), ({"budget": "90m", "max-prs": "9"}, 5400.0, 9)],
)
def test_so_does_a_dispatch_of_its_workflow(given: dict[str, str], budget_s: float, most: int) -> None:
    request = decide("workflow_dispatch", {"inputs": given}, Known()).request
    assert request is not None
    assert (request.command, request.budget_s, request.most, request.pull) == ("all", budget_s, most, 0)


@pytest.mark.parametrize("given", [{"max-prs": "0"}, {"max-prs": "x; y"}, {"max-prs": "", "budget": "never"}])
def test_a_dispatch_with_a_wrong_input_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        decide("workflow_dispatch", {"inputs": given}, Known())


def test_a_comment_of_an_issue_asks_for_it() -> None:
    request = decide("issue_comment", issue_event("/optiml all --max-prs 3"), Known()).request
    assert request is not None
    assert (request.command, request.pull, request.most, request.head) == ("all", 3, 3, TIP)
    assert (request.comment, request.by, request.by_id) == (5, "ann", 12)


def test_of_an_issue_s_comments_only_that_one_and_only_from_those_who_may() -> None:
    assert decide("issue_comment", issue_event("/optiml all", "bob"), Known()).request is None
    assert decide("issue_comment", issue_event("/optiml optimize"), Known()).request is None
    assert decide("issue_comment", issue_event("/optiml help"), Known()).request is None
    wrong = decide("issue_comment", issue_event("/optiml all now"), Known()).request
    assert wrong is not None
    assert (wrong.command, wrong.job, wrong.searches) == ("help", "answer", False)
    assert decide("issue_comment", issue_event("/optiml all now", "bob"), Known()).request is None


def test_in_a_pull_request_it_says_where_to_ask() -> None:
    request = decide("issue_comment", comment_event("/optiml all"), Known()).request
    assert request is not None
    assert not request.searches
    assert "use it in an issue" in request.reason
