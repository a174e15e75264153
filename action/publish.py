"""The job with the write token: posts what a bundle says. It checks nothing out, and takes the bundle for a stranger's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from action.api import RestReader
from action.gate import settings_at
from bot.bundle import FILE, read_bundle
from bot.errors import BundleError, ForgeError
from bot.github import GitHub
from bot.publish import Published, Target, fail, start
from bot.publish import publish as post
from bot.render import review_body
from bot.review import Settings, make_review
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
    try:
        start(_forge(context), Target(request.pull, request.head, context.run_url))
    except ForgeError as error:
        return f"the start was not announced: {error}"
    return ""


def publish(context: Context, request: Request) -> int:
    """Post the bundle, or that there is none. Exit codes: 0, 1 where the search gave nothing to post.

    Raises ForgeError (a failure status was left where GitHub took it), ApiError.
    """
    forge = _forge(context)
    target = Target(request.pull, request.head, context.run_url)
    if context.result in ("cancelled", "skipped") and not (context.bundle / FILE).exists():
        return _ended(context, forge, target, cancelled=True)
    try:
        reader = RestReader(context.api_url, context.repository, context.token)
        settings = review_settings(settings_at(reader, request.base), context.run_url)
        bundle = read_bundle(context.bundle, head=request.head)
    except (BundleError, ConfigError) as error:
        return _ended(context, forge, target, reason=str(error))
    if context.dry_run:
        review = make_review(bundle, forge.files(request.pull), settings)
        print(review_body(review))
        context.answer({"ending": "dry run"})
        return 0
    published = post(bundle, forge, target, settings)
    _answer(context, published)
    return 0


def review_settings(config: Config, artifact_url: str) -> Settings:
    """What the review follows, of the base's settings."""
    return Settings(
        least_speedup=config.thresholds.speedup,
        fail_on_regression=config.post.conclusion == "failure",
        post_predicted=config.post.predicted,
        most_inline=10 if config.post.suggestions else 0,
        artifact_url=artifact_url,
    )


def _ended(context: Context, forge: Forge, target: Target, *, cancelled: bool = False, reason: str = "") -> int:
    if context.dry_run:
        print("would post: " + ("cancelled" if cancelled else f"failed: {reason}"))
        return 0 if cancelled else 1
    _answer(context, fail(forge, target, cancelled=cancelled, reason=reason))
    return 0 if cancelled else 1


def _answer(context: Context, published: Published) -> None:
    context.answer({"ending": published.ending})
    with contextlib.suppress(OSError):  # the review stands, whatever the runner's disk says
        context.summarise(published.summary)


def _forge(context: Context) -> Forge:
    return GitHub(context.repository, context.token, api_url=context.api_url, login=context.login)
