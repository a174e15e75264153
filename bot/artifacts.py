"""What an earlier run of this commit suggested: found by the posted review, read from the artifact as hostile data."""

from __future__ import annotations

from dataclasses import dataclass

from bot.bundle import FILE, Looked, parse_bundle
from bot.clickable import Placed
from bot.errors import BundleError, RejectedError
from bot.forge import Code, Forge
from bot.marker import digest, read_run_line
from bot.publish import Target, own_reviews
from bot.review import Finding

ARTIFACT = "optiml-bundle"


class NothingStored(Exception):
    """There is nothing to go by; the text is a sentence of ours."""


@dataclass(frozen=True)
class Stored:
    """One suggestion as the review numbered it. Its patch is the one that stands in the review, by its digest."""

    number: int
    looked: Looked

    @property
    def finding(self) -> Finding:
        """What the review says of it, as a patch alone."""
        result = self.looked.result
        measurement = result.best.evaluation.measurement if result is not None and result.best is not None else None
        assert result is not None, "a bundle with a patch has a result"
        assert measurement is not None, "and its measurement"
        return Finding(self.number, self.looked, result, measurement, Placed(None))


def stored(forge: Forge, code: Code, target: Target, number: int) -> tuple[Stored, ...]:
    """Suggestion `number` of the review of this commit; 0: all of them. Raises NothingStored, ForgeError.

    The artifact may come from anybody who can run a workflow. So the bot's own review says which patches it showed, and
    nothing else is taken from the artifact.
    """
    marks = [
        mark for note in own_reviews(forge, target) if note.state != "PENDING"
        if (mark := read_run_line(note.body)) is not None and mark.head == target.head
    ]  # fmt: skip
    mark = next((mark for mark in reversed(marks) if any(mark.patches)), None)  # reviews come oldest first
    if mark is None:
        raise NothingStored("No review of this commit has a suggestion. `/optiml optimize` searches for one.")
    if number > len(mark.patches):
        count = len(mark.patches)
        raise NothingStored(f"The review of this commit has {count} suggestion{'s' if count > 1 else ''}.")
    try:
        data = code.artifact(mark.id, ARTIFACT, FILE)
        if data is None:
            raise NothingStored("The artifact of that run has expired. `/optiml optimize` makes a new one.")
        bundle = parse_bundle(data, head=target.head)
    except (BundleError, RejectedError):
        raise NothingStored("The artifact of that run is not a valid result, so it was not used.") from None
    by_digest = {digest(looked.patch): looked for looked in bundle.kernels if looked.patch}
    chosen = [(i, p) for i, p in enumerate(mark.patches, 1) if number in (0, i)]
    missing = [i for i, patch in chosen if patch not in by_digest]
    if missing and (number or len(missing) == len(chosen)):
        raise NothingStored(
            "The artifact of that run does not contain the patch that the review shows, so it was not used."
        )
    return tuple(Stored(i, by_digest[patch]) for i, patch in chosen if patch in by_digest)
