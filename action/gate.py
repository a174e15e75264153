"""The gate: decides whether there is something to do and pins what. It checks nothing out and runs nothing of a stranger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from action.api import ROLES, ApiError, Pull, Reader, pull_of
from action.request import Request
from bot.commands import All, Apply, Check, Command, Explain, Help, Optimize, Pr, parse
from engine.errors import UsageError
from engine.settings.config import NAMES, Config, parse_config
from engine.settings.suffixes import HEADERS

_ACTIONS = ("opened", "synchronize", "reopened", "ready_for_review")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Decision:
    """`request` is None where nothing is to be done; `reason` says why, or what is done. `config` is the base's."""

    reason: str
    request: Request | None = None
    config: Config = field(default_factory=Config)


def decide(event_name: str, event: Mapping[str, Any], reader: Reader) -> Decision:
    """What to do about an event. Raises ApiError, ConfigError (the base's settings are wrong), UsageError."""
    if event_name in ("pull_request", "pull_request_target"):
        if event.get("action") not in _ACTIONS:
            return Decision(f"nothing to do when a pull request is {str(event.get('action'))[:40]}")
        pull = pull_of(event.get("pull_request"))
        return Decision("this is a draft") if pull.draft else _on(pull, reader)
    if event_name == "workflow_dispatch":
        given = event.get("inputs")
        given = given if isinstance(given, dict) else {}
        if "max-prs" in given:
            line = " ".join(f"--{name} {given[name]}" for name in ("budget", "max-prs") if given.get(name))
            return _every(reader, parse(f"/optiml all {line}"))
        number = str(given.get("pull-number", ""))
        if not re.fullmatch(r"[1-9]\d{0,8}", number, re.ASCII):
            raise UsageError("is not the number of a pull request", "workflow input 'pull-number'")
        return _on(reader.pull(int(number)), reader)
    if event_name == "schedule":
        return _every(reader, All())
    if event_name == "issue_comment":
        return _comment(event, reader)
    if event_name == "push":
        return _push(event, reader)
    if event_name == "merge_group":
        return _queue(event, reader)
    return Decision(f"nothing to do for the event {event_name[:40]}")


def settings_at(reader: Reader, commit: str) -> Config:
    """The settings of a commit, read through the API: the base's count, never the pull request's. Raises ConfigError."""
    for name in NAMES:
        # The first that has settings: that only one of the two may is said by the job that has both at hand.
        data = reader.file(name, commit)
        config = parse_config(data, name) if data is not None else None
        if config is not None:
            return config
    return Config()


def _on(pull: Pull, reader: Reader, settings: Config | None = None, **asked: Any) -> Decision:
    if not pull.open:
        return Decision("the pull request is closed")
    config = settings or settings_at(reader, pull.base)
    changed = reader.changed(pull.number)
    if not _relevant(changed, config) and not asked.get("path"):
        return Decision(f"none of the {len(changed)} changed files is a CUDA file")
    request = Request(pull.number, pull.base, pull.head, pull.fork, **asked)
    return Decision(f"pull request {pull.number} at {pull.head[:12]}", request, config)


def _relevant(changed: list[str], config: Config) -> bool:
    # Headers and build files can change a kernel too; which do is found out where the code is.
    return any(config.wants(p) or p.endswith((*HEADERS, "optiml.toml")) for p in changed)


def _push(event: Mapping[str, Any], reader: Reader) -> Decision:
    """What the default branch holds now is measured, for pull requests to be held against."""
    repository = event.get("repository")
    branch = repository.get("default_branch") if isinstance(repository, dict) else None
    if not branch or event.get("ref") != f"refs/heads/{branch}":
        return Decision("not a push to the default branch")
    before, after = str(event.get("before", "")), str(event.get("after", ""))
    if event.get("deleted") or not _SHA.fullmatch(before) or not _SHA.fullmatch(after) or not before.strip("0"):
        return Decision("the push has no previous commit")
    config = settings_at(reader, after)
    changed = reader.compared(before, after)
    if not _relevant(changed, config):
        return Decision(f"none of the {len(changed)} changed files is a CUDA file")
    return Decision(f"{branch} at {after[:12]}", Request(0, before, after, False, command="baseline"), config)


def _queue(event: Mapping[str, Any], reader: Reader) -> Decision:
    """A merge group waits for the checks that its pull requests had: it gets one, and no search of its own."""
    group = event.get("merge_group")
    if event.get("action") != "checks_requested" or not isinstance(group, dict):
        return Decision(f"nothing to do when a merge group is {str(event.get('action'))[:40]}")
    base, head = str(group.get("base_sha", "")), str(group.get("head_sha", ""))
    if not _SHA.fullmatch(base) or not _SHA.fullmatch(head):
        raise ApiError("GitHub's description of the merge group cannot be parsed", "merge_group")
    request = Request(0, base, head, False, command="queue")
    return Decision(f"merge group at {head[:12]}", request, settings_at(reader, base))


def _every(reader: Reader, command: Command | None, issue: int = 0, **asked: Any) -> Decision:
    """A search of every kernel of the default branch, of the commit that it has now. Raises UsageError."""
    if not isinstance(command, All):
        reason = command.reason if isinstance(command, Help) else ""
        raise UsageError(reason or "the budget is invalid", "workflow inputs 'budget' and 'max-prs'", "e.g. 2h and 5")
    branch, head = reader.default_branch()
    config = settings_at(reader, head)
    budget_s, most = command.budget_s or config.all.budget, command.max_prs or config.all.max_prs
    asked |= {"command": "all", "branch": branch, "budget_s": budget_s, "most": most}
    return Decision(f"every kernel of {branch} at {head[:12]}", Request(issue, head, head, False, **asked), config)


def _comment(event: Mapping[str, Any], reader: Reader) -> Decision:
    comment, issue = event.get("comment"), event.get("issue")
    if not isinstance(comment, dict) or not isinstance(issue, dict) or not isinstance(comment.get("user"), dict):
        raise ApiError("GitHub's description of the comment cannot be parsed", "issue_comment")
    if event.get("action") != "created":
        return Decision("no new comment")
    if comment["user"].get("type") == "Bot":
        return Decision("comments by bots are ignored")
    command = parse(str(comment.get("body") or ""))
    if command is None:
        return Decision("the comment is not a command")
    number, by, by_id = comment.get("id"), str(comment["user"].get("login", "")), comment["user"].get("id")
    if not isinstance(number, int) or not isinstance(by_id, int):
        raise ApiError("GitHub's description of the comment cannot be parsed", "issue_comment")
    if "pull_request" not in issue:
        return _of_issue(int(issue["number"]), command, reader, comment=number, by=by, by_id=by_id)
    pull = reader.pull(int(issue["number"]))
    config = settings_at(reader, pull.base)
    needed = config.permissions.apply if isinstance(command, Apply | Pr) else config.permissions.commands
    if not _has_role(reader, by, needed):
        return Decision(f"the command needs the role '{needed}'")
    asked: dict[str, Any] = {"comment": number, "by": by, "by_id": by_id, "command": type(command).__name__.lower()}
    if isinstance(command, Apply | Pr | Explain):
        asked["number"] = command.number or 0
    if isinstance(command, Help):
        asked["reason"] = command.reason
    if isinstance(command, Optimize):
        asked |= {"path": command.path, "kernel": command.kernel, "arch": command.arch}
        asked |= {"budget_s": command.budget_s or 0.0, "proposers": ",".join(command.proposers)}
    # The comment names no commit. What was pushed after it is not what its author looked at.
    made = str(comment.get("created_at", ""))
    if isinstance(command, Optimize | Check | Apply | Pr) and _moved(pull, made, reader):
        return _refused(
            pull,
            config,
            "The head branch may have a newer commit than the comment. Review it, then repeat the command.",
            asked,
        )
    if isinstance(command, All):
        return _refused(pull, config, "This command searches the default branch: use it in an issue.", asked)
    if isinstance(command, Optimize | Check):
        decision = _on(pull, reader, config, **asked)
        return decision if decision.request else _refused(pull, config, decision.reason, asked)
    request = Request(pull.number, pull.base, pull.head, pull.fork, **asked)
    return Decision(f"{request.command} for pull request {pull.number} at {pull.head[:12]}", request, config)


def _of_issue(issue: int, command: Command, reader: Reader, **asked: Any) -> Decision:
    """A comment of an issue: the search of every kernel, for those who may have suggestions committed."""
    wrong = command.reason if isinstance(command, Help) else ""
    if not isinstance(command, All) and not wrong:
        return Decision("not a command for an issue")
    decision = _every(reader, All() if wrong else command, issue, **asked)
    needed = decision.config.permissions.apply
    if not _has_role(reader, str(asked["by"]), needed):
        return Decision(f"the command needs the role '{needed}'")
    if wrong and decision.request is not None:
        return replace(decision, reason=wrong, request=replace(decision.request, command="help", reason=wrong))
    return decision


def _has_role(reader: Reader, login: str, needed: str) -> bool:
    role = reader.role(login)
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def _moved(pull: Pull, made: str, reader: Reader) -> bool:
    """Whether the head may have changed after the comment of the time `made`. Pushes to other branches do not count."""

    def after(pushed: str) -> bool:
        return not _TIME.fullmatch(made) or not _TIME.fullmatch(pushed) or pushed >= made

    return after(pull.pushed_at) and after(reader.moved_at(pull))


def _refused(pull: Pull, config: Config, reason: str, asked: dict[str, Any]) -> Decision:
    """Somebody who may ask is told why nothing is done."""
    return Decision(reason, Request(pull.number, pull.base, pull.head, pull.fork, **asked, reason=reason), config)
