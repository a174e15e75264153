"""The job with the write token: posts what a bundle says. It checks nothing out, and takes the bundle for a stranger's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from action.api import RestReader
from action.gate import settings_at
from bot.bundle import FILE, read_bundle
from bot.dry import DryForge
from bot.errors import BundleError, ForgeError
from bot.github import GitHub
from bot.publish import Published, Target, fail, start
from bot.publish import publish as post
from bot.review import Settings
from engine.config import Config
from engine.config_text import ConfigError

if TYPE_CHECKING:
    from action.context import Context
    from action.request import Request
    from bot.forge import Forge


def announce(context: Context, request: Request) -> str:
    """Say on the pull request that a run began; what hinders it in a sentence, "" where nothing did.

    The gate's token may be one that only reads: the run goes on all the same.
    """
    forge = _forge(context)
    try:
        start(forge, Target(request.pull, request.head, context.run_url))
        if request.comment:
            forge.react(request.comment, "eyes")
    except ForgeError as error:
        return f"the start was not announced: {error}"
    return ""


def publish(context: Context, request: Request) -> int:
    """Post the bundle, or that there is none. Exit codes: 0, 1 where the search gave nothing to post.

    With a dry run what would be sent is printed. Raises ForgeError (a failure status was left where GitHub took it), ApiError.
    """
    forge = _forge(context)
    target = Target(request.pull, request.head, context.run_url)
    published = _published(context, request, forge, target)
    failed = published.ending == "failed"
    if request.comment:
        with contextlib.suppress(ForgeError):  # the answer itself is posted
            forge.react(request.comment, "confused" if failed or published.ending == "cancelled" else "rocket")
    context.answer({"ending": published.ending})
    with contextlib.suppress(OSError):  # the review stands, whatever the runner's disk says
        context.summarise(published.summary)
    return int(failed)


def _published(context: Context, request: Request, forge: Forge, target: Target) -> Published:
    if context.result in ("cancelled", "skipped") and not (context.bundle / FILE).exists():
        return fail(forge, target, cancelled=True)
    try:
        reader = RestReader(context.api_url, context.repository, context.token)
        settings = review_settings(settings_at(reader, request.base), context.run_url)
        bundle = read_bundle(context.bundle, head=request.head)
    except (BundleError, ConfigError) as error:
        return fail(forge, target, reason=str(error))
    return post(bundle, forge, target, settings)


def review_settings(config: Config, artifact_url: str) -> Settings:
    """What the review follows, of the base's settings."""
    return Settings(
        least_speedup=config.thresholds.speedup,
        fail_on_regression=config.post.conclusion == "failure",
        post_predicted=config.post.predicted,
        most_inline=10 if config.post.suggestions else 0,
        artifact_url=artifact_url,
    )


def _forge(context: Context) -> Forge:
    forge = GitHub(context.repository, context.token, api_url=context.api_url, login=context.login)
    return DryForge(forge) if context.dry_run else forge
