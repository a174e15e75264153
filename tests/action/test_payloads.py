"""The gate on GitHub's own example payloads, patched where the examples lack what the bot is about, and valid by its schemas."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from action.api import Pull
from action.gate import decide
from tests.action.test_gate import Known
from tests.npm import package

VERSION = "7.6.1"
# Some examples are older than the schemas: what GitHub sends today besides.
SINCE: dict[str, Any] = {
    "active_lock_reason": None, "description": "", "is_template": False, "web_commit_signoff_required": False, "topics": [],
    "custom_properties": {}, "performed_via_github_app": None, "visibility": "public",
    "reactions": {"url": "https://api.github.com/x", "total_count": 0, "+1": 0, "-1": 0, "laugh": 0, "hooray": 0, "confused": 0,
                  "heart": 0, "rocket": 0, "eyes": 0},
}  # fmt: skip
HEAD, BASE = "b" * 40, "a" * 40


@lru_cache(maxsize=1)
def examples() -> dict[str, list[dict[str, Any]]]:
    folder = package("@octokit/webhooks-examples", VERSION)
    data = json.loads((folder / "api.github.com" / "index.json").read_bytes())
    return {entry["name"]: entry["examples"] for entry in data}


@lru_cache(maxsize=1)
def schemas() -> dict[str, Any]:
    folder: Path = package("@octokit/webhooks-schemas", VERSION)
    loaded: dict[str, Any] = json.loads((folder / "schema.json").read_bytes())
    return loaded


def valid(event: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload, held against GitHub's schema of that event."""
    action = payload.get("action")
    name = f"{event}${action}" if event in ("issue_comment", "pull_request") else f"{event}$event"
    definitions = schemas()["definitions"]
    validator = Draft7Validator({"definitions": definitions, "$ref": f"#/definitions/{name}"})
    for error in list(validator.iter_errors(payload)):
        if error.validator == "required":
            error.instance.update(
                {k: v for k, v in SINCE.items() if k in error.validator_value and k not in error.instance}
            )
    validator.validate(payload)
    return payload


def comments(body: str, *, on_pull: bool = True) -> list[dict[str, Any]]:
    """Every example of a new comment, with this text, on a pull request."""
    found = []
    for example in examples()["issue_comment"]:
        if example["action"] == "created":
            event = copy.deepcopy(example)
            event["comment"] |= {"body": body, "created_at": "2025-01-01T12:00:00Z"}
            event["comment"]["user"]["type"] = "User"
            event["issue"]["pull_request"] = dict.fromkeys(
                ("url", "html_url", "diff_url", "patch_url"), f"{event['issue']['url']}"
            )
            if not on_pull:
                del event["issue"]["pull_request"]
            found.append(valid("issue_comment", event))
    return found


def known(event: dict[str, Any]) -> Known:
    issue = event.get("issue") or event["pull_request"]
    login = (event.get("comment") or event["pull_request"])["user"]["login"]
    pull = Pull(issue["number"], BASE, HEAD, False, False, True, "2025-01-01T10:00:00Z")
    return Known(pull, {login: "write"})


@pytest.mark.parametrize("body", ["/optiml optimize", "/optiml apply all", "/optiml status\r\nplease"])
def test_commands_in_githubs_own_comments(body: str) -> None:
    events = comments(body)
    assert len(events) >= 4
    for event in events:
        request = decide("issue_comment", event, known(event)).request
        assert request is not None
        assert (request.pull, request.head, request.comment) == (event["issue"]["number"], HEAD, event["comment"]["id"])
        assert (request.by, request.by_id) == (event["comment"]["user"]["login"], event["comment"]["user"]["id"])


def test_comments_of_issues_and_other_actions_do_nothing() -> None:
    for event in comments("/optiml optimize", on_pull=False):
        assert decide("issue_comment", event, known(event)).request is None
    others = set()
    for example in examples()["issue_comment"]:
        others.add(example["action"])
        if example["action"] != "created":
            event = copy.deepcopy(example)
            event["comment"]["body"] = "/optiml optimize"
            assert decide("issue_comment", valid("issue_comment", event), known(event)).request is None
    assert others > {"created"}


def test_pull_requests_of_githubs_own() -> None:
    started = set()
    for example in examples()["pull_request"]:
        event = copy.deepcopy(example)
        event["pull_request"] |= {"draft": False} if example["action"] != "converted_to_draft" else {}
        decision = decide("pull_request", event, known(event))
        if decision.request is not None:
            started.add(example["action"])
            assert decision.request.head == event["pull_request"]["head"]["sha"]
            assert decision.request.base == event["pull_request"]["base"]["sha"]
            assert not decision.request.fork
    assert started == {"opened", "synchronize", "reopened", "ready_for_review"}


def test_pushes_of_githubs_own() -> None:
    started = 0
    for example in examples()["push"]:
        event = copy.deepcopy(example)
        assert decide("push", event, Known()).request is None or event["ref"].endswith(
            event["repository"]["default_branch"]
        )
        event |= {
            "ref": f"refs/heads/{event['repository']['default_branch']}",
            "before": BASE,
            "after": HEAD,
            "deleted": False,
        }
        request = decide("push", valid("push", event), Known()).request
        assert request is not None
        assert (request.base, request.head, request.command) == (BASE, HEAD, "baseline")
        started += 1
    assert started >= 5


def test_a_run_by_hand_of_githubs_own() -> None:
    assert examples()["workflow_dispatch"]
    for example in examples()["workflow_dispatch"]:
        event = copy.deepcopy(example)
        event["inputs"] = {"pull-number": "7"}
        request = decide("workflow_dispatch", valid("workflow_dispatch", event), Known()).request
        assert request is not None
        assert request.pull == 7


def test_the_schemas_can_fail() -> None:
    from jsonschema import ValidationError

    event = comments("/optiml optimize")[0]
    del event["comment"]["user"]
    with pytest.raises(ValidationError):
        valid("issue_comment", event)
