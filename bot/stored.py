"""What an earlier run of this commit suggested: found by the posted review, read from the artifact as hostile data."""

from __future__ import annotations

from dataclasses import dataclass

from bot.bundle import FILE, Looked, parse_bundle
from bot.errors import BundleError, RejectedError
from bot.forge import Code, Forge
from bot.marker import digest, read_run_line
from bot.publish import Target, own_reviews

ARTIFACT = "optiml-bundle"


class NothingStored(Exception):
    """There is nothing to go by; the text is a sentence of ours."""


@dataclass(frozen=True)
class Stored:
    """One suggestion as the review numbered it. Its patch is the one that stands in the review, by its digest."""

    number: int
    looked: Looked


def stored(forge: Forge, code: Code, target: Target, number: int) -> tuple[Stored, ...]:
    """Suggestion `number` of the review of this commit; 0: all of them. Raises NothingStored, ForgeError.

    The artifact may come from anybody who can run a workflow. So the bot's own review says which patches it showed, and
    nothing else is taken from the artifact.
    """
    marks = [
        mark for note in own_reviews(forge, target) if note.state != "PENDING"
        if (mark := read_run_line(note.body)) is not None and mark.head == target.head
    ]  # fmt: skip
    if not marks or not any(marks[-1].patches):
        raise NothingStored("There is no review of this commit with a suggestion: ask for one with `/optiml optimize`.")
    mark = marks[-1]
    if number > len(mark.patches):
        count = len(mark.patches)
        raise NothingStored(f"The review of this commit has {count} suggestion{'s' if count > 1 else ''}.")
    try:
        data = code.artifact(mark.id, ARTIFACT, FILE)
        if data is None:
            raise NothingStored("The artifact of that run is gone: ask for a new one with `/optiml optimize`.")
        bundle = parse_bundle(data, head=target.head)
    except (BundleError, RejectedError):
        raise NothingStored("The artifact of that run is not what a run leaves: nothing of it is taken.") from None
    by_digest = {digest(looked.patch): looked for looked in bundle.kernels if looked.patch}
    chosen = [(i, p) for i, p in enumerate(mark.patches, 1) if number in (0, i)]
    missing = [i for i, patch in chosen if patch not in by_digest]
    if missing and (number or len(missing) == len(chosen)):
        raise NothingStored("The artifact of that run does not hold the patch that the review shows: nothing is taken.")
    return tuple(Stored(i, by_digest[patch]) for i, patch in chosen if patch in by_digest)
