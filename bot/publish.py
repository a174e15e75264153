"""Posts a review: one for each head commit, one status comment, one check run; the same when it is run twice or by two."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bot.bundle import Bundle
from bot.errors import DeniedError, ForgeError, MissingError, RejectedError
from bot.escape import prose
from bot.forge import Check, CheckOutput, Forge, Note, Pull
from bot.marker import ANY_REVIEW, STATUS_MARKER, read_run_line, review_marker
from bot.render import (
    Comment,
    check_annotations,
    inline_comments,
    review_body,
    status_body,
    summary_body,
)
from bot.review import Review, Settings, make_review

CHECK = "OptiML"
_KEY = "optiml:1"
_PROBES = 12  # requests spent on finding the comments that GitHub does not take
_SUMMARY = 60_000  # characters of a check run's text

Ending = Literal["posted", "already posted", "nothing to report", "superseded", "failed", "cancelled"]


@dataclass(frozen=True)
class Target:
    """Where to post. All of it comes from the event, none from the bundle. `run_url` is the job's page, `run` its number.

    `comment` is the comment whose command asked for the review, 0: the event did. `searched`: the command was one that searches.

    `status` is the status comment, where the job that announced the run told its number; 0: it is looked for.
    """

    number: int
    head: str
    run_url: str = ""
    run: int = 0
    status: int = 0
    comment: int = 0
    searched: bool = True

    @property
    def marker(self) -> str:
        """What identifies this review among others of the same commit."""
        return review_marker(self.head, self.comment)


@dataclass(frozen=True)
class Published:
    """What was posted. `summary` is the job summary; `moved` counts suggestions that GitHub took no comment for."""

    ending: Ending
    review: Review | None
    summary: str
    inline: int = 0
    moved: int = 0


def start(forge: Forge, target: Target, settings: Settings, *, first: bool = False) -> tuple[int, int]:
    """Say that a run began, in the status comment. Raises ForgeError.

    Returns the number of the comment and of the run that it named before; 0 without one. `first`: nobody has commented on the pull
    request yet, so there is no comment to look for.
    """
    own = [] if first or not settings.status else own_status(forge, target.number)
    before = read_run_line(own[0].body) if own else None
    if own:
        target = replace(target, status=own[0].id)
    status = _status(forge, target, settings, "The run for this commit has started.", first=first)
    return status, before.id if before is not None else 0


def publish(bundle: Bundle, forge: Forge, target: Target, settings: Settings) -> Published:
    """Post what a bundle says. Raises ForgeError after leaving a failure status where it still can.

    A pull request that has a newer head meanwhile gets nothing: the run for that head speaks. A head that has its review
    gets no second one from the event, and one for each command that asks; a newer search's review outdates the older ones.
    """
    try:
        return _publish(bundle, forge, target, settings)
    except ForgeError as error:
        _failed(forge, target, settings, error)
        raise


def fail(forge: Forge, target: Target, settings: Settings, *, cancelled: bool = False, reason: str = "") -> Published:
    """Say that a run ended without a result. Raises ForgeError."""
    ending: Ending = "cancelled" if cancelled else "failed"
    sentence = "The run was cancelled." if cancelled else f"The run failed{': ' + reason if reason else '.'}"
    if forge.pull(target.number).head == target.head:
        _status(forge, target, settings, sentence)
    output = CheckOutput(ending.capitalize(), prose(sentence))
    _check(forge, target, settings, "cancelled" if cancelled else "neutral", output)
    return Published(ending, None, f"OptiML: {prose(sentence)}\n")


def let_pass(forge: Forge, target: Target, settings: Settings) -> None:
    """Report success for a commit of the merge queue. Raises ForgeError."""
    output = CheckOutput("Reviewed on the pull requests", "OptiML does not search again in the merge queue.")
    _check(forge, target, settings, "success", output)


def _publish(bundle: Bundle, forge: Forge, target: Target, settings: Settings) -> Published:
    pull = forge.pull(target.number)
    if pull.head != target.head or not pull.open:
        why = "has a newer commit" if pull.open else "is closed"
        output = CheckOutput("Superseded", f"The pull request {why}.")
        if not pull.open:  # no later run will speak
            _status(forge, target, settings, "Nothing was posted: the pull request is closed.")
        _check(forge, target, settings, "neutral", output)
        return Published("superseded", None, f"OptiML: the pull request {why}; nothing was posted.\n")
    review = make_review(bundle, forge.files(target.number), settings)
    ending: Ending = "nothing to report"
    placed: frozenset[int] = frozenset()
    wanted = inline_comments(review)
    if review.worth_posting and settings.review:
        ending, placed, before = _post(forge, target, review, wanted)
        # A comparison on request leaves the suggestions of a search as they are.
        keep = target.marker if target.searched else f"{ANY_REVIEW}{target.head}"
        if any(ANY_REVIEW in note.body and keep not in note.body for note in before):
            _hide(forge, pull, keep)
    moved = len(wanted) - len(placed) if settings.review else 0
    _status(forge, target, settings, review.headline, review, moved)
    summary = summary_body(review, placed)
    text = summary if len(summary) <= _SUMMARY else review_body(review, inline=placed)
    output = CheckOutput(review.headline, text, check_annotations(review))
    _check(forge, target, settings, review.conclusion, output)
    return Published(ending, review, summary, len(placed), moved)


def _post(
    forge: Forge, target: Target, review: Review, wanted: Sequence[Comment]
) -> tuple[Ending, frozenset[int], Sequence[Note]]:
    """Draft, look whether another run was first, submit; also the reviews that are there besides.

    A draft is a lock: GitHub allows one for an author. One that is in the way was left by a run that was ended, or is about to be
    submitted by another: either way it is submitted, where it is of this head, or goes.
    """
    draft, placed = _draft(forge, target, review, tuple(wanted))
    own = own_reviews(forge, target)
    everything = frozenset(c.number for c in wanted)
    if draft is None:
        return "already posted", everything, own
    others = [note for note in own if note.id != draft.id]
    if not _submitted(others, target):
        forge.submit_review(target.number, draft.id)
        return "posted", frozenset(c.number for c in placed), others
    forge.delete_review(target.number, draft.id)
    return "already posted", everything, others


def _draft(
    forge: Forge, target: Target, review: Review, wanted: tuple[Comment, ...]
) -> tuple[Note | None, tuple[Comment, ...]]:
    """The draft, with those comments that GitHub takes. None where another run is posting the same."""

    def attempt(comments: Sequence[Comment]) -> Note:
        body = review_body(review, inline={c.number for c in comments}, comment=target.comment)
        return forge.draft_review(target.number, target.head, body, comments)

    try:
        return attempt(wanted), wanted
    except RejectedError as error:
        if "pending review" in error.what.lower():
            return _beside(forge, target, lambda: attempt(wanted)), wanted
        if not wanted:
            raise
    # GitHub says that a line is wrong, but not which: halves that it takes are kept.
    good: list[Comment] = []
    waiting = [wanted] if len(wanted) == 1 else [wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :]]
    probes = 0
    if len(wanted) == 1:
        waiting = []
    while waiting and probes < _PROBES:
        part = waiting.pop(0)
        probes += 1
        try:
            note = attempt(part)
        except RejectedError:
            if len(part) > 1:
                waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
            continue
        forge.delete_review(target.number, note.id)
        good += part
    good.sort(key=lambda comment: comment.number)
    try:
        return attempt(good), tuple(good)
    except RejectedError:
        if not good:
            raise
        return attempt(()), ()


def _beside(forge: Forge, target: Target, again: Callable[[], Note]) -> Note | None:
    """What to do about the draft that is in the way: submit it where it is this head's, delete it where it is an older one's.

    None where this head has its review meanwhile. Raises RejectedError where the draft is a person's.
    """
    own = own_reviews(forge, target)
    if _submitted(own, target):
        return None
    drafts = [note for note in own if note.state == "PENDING"]
    for note in drafts:
        if target.marker in note.body:
            return note
        forge.delete_review(target.number, note.id)
    return again()


def own_reviews(forge: Forge, target: Target) -> list[Note]:
    """The bot's own reviews of a pull request, drafts too. Raises ForgeError."""
    return [n for n in forge.reviews(target.number) if n.author == forge.login and ANY_REVIEW in n.body]


def _submitted(notes: Sequence[Note], target: Target) -> bool:
    """Whether the review is there. An event's run also yields to one that a command asked for meanwhile."""
    marker = target.marker if target.comment else f"{ANY_REVIEW}{target.head}"
    return any(note.state != "PENDING" and marker in note.body for note in notes)


def _status(
    forge: Forge, target: Target, settings: Settings, sentence: str, review: Review | None = None, moved: int = 0, *,
    first: bool = False,
) -> int:  # fmt: skip
    if not settings.status:
        return 0
    body = status_body(sentence, target.head, url=target.run_url, run=target.run, review=review, moved=moved)
    if target.status:
        with contextlib.suppress(MissingError, DeniedError):  # somebody deleted it, or it is another account's
            forge.edit_comment(target.status, body)
            return target.status
    own = [] if first else own_status(forge, target.number)
    if own:
        if own[0].body.strip() != body.strip():
            forge.edit_comment(own[0].id, body)
        return own[0].id
    made = forge.add_comment(target.number, body)
    if first:
        return made.id
    # Two runs may both have found none: the older comment stays.
    oldest = min(own_status(forge, target.number), key=lambda note: note.id, default=made)
    if oldest.id != made.id:
        forge.delete_comment(made.id)
        forge.edit_comment(oldest.id, body)
    return oldest.id


def own_status(forge: Forge, number: int) -> list[Note]:
    """The bot's own status comments on a pull request, oldest first; usually one. Raises ForgeError."""
    found = [n for n in forge.comments(number) if n.author == forge.login and n.body.startswith(STATUS_MARKER)]
    return sorted(found, key=lambda note: note.id)


def own_check(forge: Forge, head: str) -> Check | None:
    """The bot's own check run of a commit. Raises ForgeError."""
    found = [check for check in forge.checks(head, CHECK) if check.key == _KEY]
    return min(found, key=lambda check: check.id, default=None)


def _check(forge: Forge, target: Target, settings: Settings, conclusion: str, output: CheckOutput) -> None:
    if settings.check:
        forge.write_check(CHECK, target.head, _KEY, "completed", conclusion, output, own_check(forge, target.head))


def _hide(forge: Forge, pull: Pull, keep: str) -> None:
    # Old reviews that stay open are untidy, and no reason to fail a review that is posted.
    with contextlib.suppress(ForgeError):
        forge.hide_outdated(pull, ANY_REVIEW, keep)


def _failed(forge: Forge, target: Target, settings: Settings, error: ForgeError) -> None:
    """Leave word of a failure, if GitHub takes that much."""
    sentence = f"The review was not posted: {error.what}"
    with contextlib.suppress(ForgeError):
        if _submitted(own_reviews(forge, target), target):
            sentence = f"The review was posted, but the run did not finish: {error.what}"
    with contextlib.suppress(ForgeError):
        if forge.pull(target.number).head != target.head:
            return
        _status(forge, target, settings, sentence)
    with contextlib.suppress(ForgeError):
        _check(forge, target, settings, "neutral", CheckOutput("Publishing failed", prose(sentence)))
