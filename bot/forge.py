"""What the bot needs of the place that hosts the code, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from bot.diff import FileDiff
from bot.render import Comment

Reaction = Literal["eyes", "rocket", "confused"]
CheckStatus = Literal["in_progress", "completed"]


@dataclass(frozen=True)
class Pull:
    """A pull request as it is now."""

    number: int
    head: str
    base: str
    head_ref: str
    head_repository: str  # "owner/name", "" where the fork is gone
    open: bool
    node_id: str = ""


@dataclass(frozen=True)
class Note:
    """A comment, or a review. `state` is PENDING, COMMENTED … for a review."""

    id: int
    body: str
    author: str
    state: str = ""
    commit: str = ""
    node_id: str = ""


@dataclass(frozen=True)
class Check:
    """A check run. `key` is its external id; `annotations` counts those it has."""

    id: int
    key: str
    status: str
    annotations: int


@dataclass(frozen=True)
class CheckOutput:
    """What a check run shows. At most 50 annotations go with one request; the forge sends them in batches."""

    title: str
    summary: str
    annotations: Sequence[dict[str, Any]] = field(default_factory=tuple)


class Forge(Protocol):
    """One repository, under one account (`login`). Methods raise ForgeError: DeniedError, MissingError, RejectedError, …

    What creates something looks first whether an earlier try got through where the answer was lost.
    """

    @property
    def login(self) -> str: ...

    def pull(self, number: int) -> Pull: ...

    def files(self, number: int) -> tuple[FileDiff, ...]:
        """The pull request's diff as the forge shows it; files too large for it have no hunks."""
        ...

    def comments(self, number: int) -> tuple[Note, ...]: ...

    def add_comment(self, number: int, body: str) -> Note: ...

    def edit_comment(self, id: int, body: str) -> None: ...

    def delete_comment(self, id: int) -> None: ...

    def react(self, comment: int, content: Reaction) -> None:
        """React to a comment: eyes when its command is taken, rocket when it was carried out, confused when not."""
        ...

    def reviews(self, number: int) -> tuple[Note, ...]: ...

    def draft_review(self, number: int, head: str, body: str, comments: Sequence[Comment]) -> Note:
        """A review that only its author sees. There can be one for an author and pull request: RejectedError else."""
        ...

    def submit_review(self, number: int, id: int) -> None: ...

    def delete_review(self, number: int, id: int) -> None:
        """Delete a review that was not submitted."""
        ...

    def checks(self, head: str, name: str) -> tuple[Check, ...]: ...

    def write_check(
        self,
        name: str,
        head: str,
        key: str,
        status: CheckStatus,
        conclusion: str,
        output: CheckOutput,
        known: Check | None,
    ) -> None:
        """Create a check run, or bring the known one up to date."""
        ...

    def hide_outdated(self, pull: Pull, marker: str, keep: str) -> int:
        """Minimise own earlier reviews (bodies with `marker` but not `keep`), resolve their threads; how many."""
        ...
