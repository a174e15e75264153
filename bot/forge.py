"""What the bot needs of the place that hosts the code, and no more: `Forge` for what is said, `Code` for what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    url: str = ""  # of its page


@dataclass(frozen=True)
class Check:
    """A check run. `key` is its external id; `annotations` counts those it has; `conclusion` is "" before its end."""

    id: int
    key: str
    status: str
    annotations: int
    conclusion: str = ""
    title: str = ""


@dataclass(frozen=True)
class CheckOutput:
    """What a check run shows. At most 50 annotations go with one request; the forge sends them in batches."""

    title: str
    summary: str
    annotations: Sequence[dict[str, Any]] = field(default_factory=tuple)


@dataclass(frozen=True)
class Commit:
    """A commit as git has it."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Blob:
    """A file of a commit: git's mode ("100644", "120000" for a link …) and its bytes, b"" for what is no regular file."""

    mode: str
    data: bytes


@dataclass(frozen=True)
class Opened:
    """A pull request that was opened from a branch."""

    url: str
    open: bool
    number: int = 0
    body: str = ""
    author: str = ""
    merged: bool = False


@dataclass(frozen=True)
class Run:
    """A run of a workflow. `path` is the workflow's file; `status` is "completed" at its end."""

    id: int
    path: str
    status: str


class Code(Protocol):
    """Commits, branches and runs. Methods raise ForgeError; `repository` is "owner/name"."""

    def commit(self, repository: str, sha: str) -> Commit: ...

    def blob(self, repository: str, tree: str, path: str) -> Blob | None:
        """A file of a tree; None where there is none."""
        ...

    def write_commit(self, repository: str, parent: Commit, files: Mapping[str, Blob], message: str) -> str:
        """A commit on top of `parent` with these files changed, on no branch yet; its SHA."""
        ...

    def advance(self, repository: str, branch: str, sha: str) -> None:
        """Move a branch on to a commit that has its tip as parent. Raises RejectedError where the branch moved meanwhile."""
        ...

    def make_branch(self, repository: str, branch: str, sha: str) -> None:
        """A new branch. Raises RejectedError where one of that name leads elsewhere."""
        ...

    def tip(self, repository: str, branch: str) -> str | None:
        """The commit of a branch; None where there is no such branch."""
        ...

    def pulls(self, repository: str, branch: str) -> tuple[Opened, ...]:
        """Pull requests of a repository from one of its own branches, open or not, newest first."""
        ...

    def replace_branch(self, repository: str, branch: str, sha: str) -> None:
        """Have a branch lead to a commit, whatever it led to."""
        ...

    def open_pulls(self, repository: str) -> tuple[Opened, ...]:
        """The open pull requests of a repository, the newest 1,000."""
        ...

    def edit_pull(self, repository: str, number: int, title: str, body: str) -> None:
        """Give a pull request another title and text."""
        ...

    def open_pull(self, repository: str, branch: str, base: str, title: str, body: str) -> str:
        """A pull request of a repository's branch into another of its branches; its address."""
        ...

    def run(self, id: int) -> Run: ...

    def runs(self, head: str) -> tuple[Run, ...]:
        """The newest runs of any workflow for a commit."""
        ...

    def cancel(self, id: int) -> None:
        """Ask for the end of a run. Raises RejectedError where it has ended."""
        ...

    def artifact(self, run: int, name: str, file: str) -> bytes | None:
        """One file of what a run left; None where there is no such artifact, or no longer. Raises RejectedError for its size."""
        ...


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
