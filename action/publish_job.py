"""The job with the write token: posts what a bundle says. It checks nothing out, and takes the bundle for a stranger's."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from action.api import ApiError, RestReader, pull_of
from action.gate import settings_at
from action.matrix import share_of
from bot.answer import answer, answer_once
from bot.apply import Person, Said
from bot.artifacts import ARTIFACT
from bot.bundle import FILE, Bundle, read_bundle, read_reason, write_bundle
from bot.commands import Apply, Cancel, Command, Explain, Help, Pr, Status, parse
from bot.dry_run import DryCode, DryForge
from bot.errors import BundleError, ForgeError
from bot.escape import prose, without_folders
from bot.github import GitHub
from bot.github_code import GitHubCode
from bot.http_client import Client
from bot.kernel_pulls import Campaign, open_for_each
from bot.merge import Part, merge
from bot.publish import Published, Target, fail, let_pass, start
from bot.publish import publish as post
from bot.review import Settings, make_review
from bot.untrusted import decode, load_json
from engine.errors import OptimlError
from engine.settings.config import Config
from engine.settings.config_text import ConfigError

if TYPE_CHECKING:
    from action.request import Request
    from action.runner import Context
    from bot.forge import Code, Forge


# Whose comments GitHub itself calls those of people who belong to the repository.
MEMBERS = ("OWNER", "MEMBER", "COLLABORATOR")


def announce(context: Context, request: Request, config: Config) -> tuple[Request, str]:
    """Say on the pull request that a run began. The request with what publish need not ask again, and what hindered it.

    The gate's token may be one that only reads: the run goes on all the same.
    """
    if request.command == "baseline":
        return request, ""
    settings = review_settings(config, context)
    request = replace(request, settings=json.dumps(asdict(settings), sort_keys=True))
    forge, _ = _sides(context)
    pull = context.event.get("pull_request")
    first = context.event.get("action") == "opened" and isinstance(pull, dict) and pull.get("comments") == 0
    try:
        if request.searches and request.command != "all":
            status, earlier = start(forge, _target(context, request), settings, first=first)
            request = replace(request, status=status, earlier=earlier)
        if request.comment:
            forge.react(request.comment, "eyes")
    except ForgeError as error:
        return request, f"the start was not announced: {error}"
    return request, ""


def report_failure(context: Context, error: OptimlError) -> None:
    """Say on the pull request why the gate failed: below the comment that gave a command, else in the status comment.

    Only people who belong to the repository get an answer to a comment: anybody can write one.
    """
    forge, code = _sides(context)
    reason = f"The run did not start: {error}"
    # An event that is not understood may be why the gate failed.
    with contextlib.suppress(ForgeError, ApiError, AttributeError, KeyError, TypeError, ValueError):
        if context.event_name == "issue_comment":
            comment, issue = context.event.get("comment") or {}, context.event.get("issue") or {}
            if comment.get("author_association") in MEMBERS and parse(str(comment.get("body") or "")) is not None:
                number, nobody = int(comment["id"]), Person("", 0)
                forge.react(number, "confused")
                answer(
                    forge, code, Target(int(issue["number"]), ""), context.repository, Help(), number, nobody, reason
                )
        elif context.event_name.startswith("pull_request"):
            pull = pull_of(context.event.get("pull_request"))
            fail(forge, Target(pull.number, pull.head, context.run_url, context.run), Settings(), reason=str(error))
        elif context.event_name == "workflow_dispatch":
            given = str((context.event.get("inputs") or {}).get("pull-number", ""))
            if given.isdecimal():
                head = forge.pull(int(given)).head
                fail(forge, Target(int(given), head, context.run_url, context.run), Settings(), reason=str(error))


def publish(context: Context, request: Request) -> int:
    """Post the bundle, or that there is none; or carry out a command. Exit codes: 0, 1 where the search gave nothing to post.

    With a dry run what would be sent is printed. Raises ForgeError (a failure status was left where GitHub took it), ApiError.
    """
    forge, code = _sides(context)
    target = _target(context, request)
    if request.command == "all" and not request.reason:
        return _open_pulls(context, request, forge, code)
    if request.command == "queue":
        let_pass(forge, target, _settings(context, request))
        context.answer({"ending": "passed"})
        return 0
    return (
        _review(context, request, forge, target) if request.searches else _answer(context, request, forge, code, target)
    )


def _review(context: Context, request: Request, forge: Forge, target: Target) -> int:
    published, settings = _published(context, request, forge, target)
    failed = published.ending == "failed"
    _react(forge, request, not failed and published.ending != "cancelled")
    context.answer({"ending": published.ending})
    if settings.summary:
        with contextlib.suppress(OSError):  # the review stands, whatever the runner's disk says
            context.summarise(published.summary)
    return int(failed)


def _answer(context: Context, request: Request, forge: Forge, code: Code, target: Target) -> int:
    refusal = "" if request.command == "help" else request.reason
    person = Person(request.by, request.by_id, context.mail_host)
    done = False
    try:
        said = answer(forge, code, target, context.repository, _command(request), request.comment, person, refusal)
        done = said.done
    finally:
        _react(forge, request, done)
    context.answer({"ending": "answered"})
    return 0


def _open_pulls(context: Context, request: Request, forge: Forge, code: Code) -> int:
    """A pull request for each kernel that could be faster; what became of them goes below the comment, and into the summary."""
    settings = _settings(context, request)

    def work() -> Said:
        if context.result == "cancelled" and not (context.bundle / FILE).exists():
            return Said("The run was cancelled.", False)
        try:
            bundle = read_bundle(context.bundle, head=request.head)
        except BundleError as error:
            reason = read_reason(context.bundle) or without_folders(str(error))
            return Said(f"The run failed: {prose(reason)}", False)
        campaign = Campaign(context.repository, request.branch, request.head, forge.login, request.most, request.pull)
        return open_for_each(code, campaign, make_review(bundle, (), settings))

    done = False
    try:
        said = answer_once(forge, _target(context, request), request.comment, work) if request.comment else work()
        done = said.done
    finally:
        _react(forge, request, done)
    context.answer({"ending": "answered"})
    if settings.summary:
        with contextlib.suppress(OSError):
            context.summarise(said.text)
    return int(not done)


def _react(forge: Forge, request: Request, good: bool) -> None:
    if request.comment:
        with contextlib.suppress(ForgeError):  # the answer itself is posted
            forge.react(request.comment, "rocket" if good else "confused")


def _published(context: Context, request: Request, forge: Forge, target: Target) -> tuple[Published, Settings]:
    settings = review_settings(Config(), context)
    folders = [context.bundle / f"{ARTIFACT}-{part}" for part in request.parts.split(",") if part] or [context.bundle]
    if context.result in ("cancelled", "skipped") and not any((folder / FILE).exists() for folder in folders):
        return fail(forge, target, settings, cancelled=True), settings
    try:
        settings = _settings(context, request)
        if request.parts:
            # The artifact of this run from now on, which later commands read.
            write_bundle(_merged(context, request), context.bundle)
        bundle = read_bundle(context.bundle, head=request.head)
    except (BundleError, ConfigError) as error:
        # A run that ended by itself knows better why there is nothing to read.
        reason = read_reason(context.bundle) or without_folders(str(error))
        return fail(forge, target, settings, reason=reason), settings
    return post(bundle, forge, target, settings), settings


def _merged(context: Context, request: Request) -> Bundle:
    """The bundle of all jobs that shared the search. Raises BundleError."""
    parts = []
    for name in request.parts.split(","):
        folder, device = context.bundle / f"{ARTIFACT}-{name}", share_of(name, request).device
        try:
            parts.append(Part(name, device, read_bundle(folder, head=request.head)))
        except BundleError as error:
            parts.append(Part(name, device, None, read_reason(folder) or without_folders(error.what)))
    return merge(parts)


def _settings(context: Context, request: Request) -> Settings:
    if not request.settings:
        reader = RestReader(context.api_url, context.repository, context.token)
        return review_settings(settings_at(reader, request.base), context)
    return decode(Settings, load_json(request.settings.encode()), "request.settings")


def review_settings(config: Config, context: Context) -> Settings:
    """What the review follows, of the base's settings."""
    return Settings(
        least_speedup=config.thresholds.speedup,
        regression=config.thresholds.regression,
        fail_on_regression=config.post.conclusion == "failure",
        post_predicted=config.post.predicted,
        most_inline=10 if config.post.suggestions else 0,
        artifact_url=context.run_url,
        run=context.run,
        review=config.post.review,
        status=config.post.status,
        check=config.post.check,
        summary=config.post.summary,
    )


def _target(context: Context, request: Request) -> Target:
    searched = request.command != "check"
    return Target(request.pull, request.head, context.run_url, context.run, request.status, request.comment, searched)


def _command(request: Request) -> Command:
    kinds: dict[str, Command] = {
        "apply": Apply(request.number or None), "pr": Pr(request.number or None),
        "explain": Explain(request.number or None), "status": Status(), "cancel": Cancel(),
    }  # fmt: skip
    return kinds.get(request.command) or Help(request.reason)


def _sides(context: Context) -> tuple[Forge, Code]:
    client = Client(context.token, api_url=context.api_url)
    forge, code = GitHub(context.repository, client, login=context.login), GitHubCode(context.repository, client)
    return (DryForge(forge), DryCode(code)) if context.dry_run else (forge, code)
