"""One pull request for each kernel of the default branch that could be faster: opened, brought up to date, never two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bot.apply import Said, changed_files
from bot.artifacts import Stored
from bot.errors import DeniedError, MissingError
from bot.escape import Safe, code, prose
from bot.forge import Blob, Code, Commit, Opened
from bot.marker import (
    ANY_LASTING,
    lasting_branch,
    lasting_key,
    lasting_marker,
    lasting_trailer,
)
from bot.render import pull_body
from bot.review import Finding, Review
from bot.stacked import pull_title

_LISTED = 100
_NOT_ALLOWED = (
    "this token may not open pull requests. Allow GitHub Actions to create pull requests in the repository's settings, and give the "
    "job `contents: write` and `pull-requests: write`"
)


@dataclass(frozen=True)
class Campaign:
    """Where pull requests go: into `branch` of `repository`, on top of the commit that was searched. At most `most` are open at once.

    `login` is the account that opens them, `issue` the number of the issue that asked, 0: none did.
    """

    repository: str
    branch: str
    head: str
    login: str
    most: int
    issue: int = 0


def open_for_each(code_: Code, campaign: Campaign, review: Review) -> Said:
    """Open or bring up to date the pull request of each finding, the best first; what became of each. Raises ForgeError.

    A kernel whose pull request is open gets no second one. One that somebody closed is not offered again with the same patch, and a
    branch with commits of other people is left as it is.
    """
    if not review.findings:
        return Said(_said(review, ()), True)
    own = [
        p
        for p in code_.open_pulls(campaign.repository)
        if p.author == campaign.login and p.body.startswith(ANY_LASTING)
    ]
    pulls = _Pulls(code_, campaign, code_.commit(campaign.repository, campaign.head), own)
    lines = [pulls.line(finding) for finding in review.findings]
    return Said(_said(review, lines), not pulls.denied)


class _Pulls:
    """The pull requests of one run."""

    def __init__(self, code_: Code, campaign: Campaign, head: Commit, own: Sequence[Opened]) -> None:
        self._code, self._campaign, self._head, self._own = code_, campaign, head, own
        self._open = len(own)
        self.denied = False

    def line(self, finding: Finding) -> Safe:
        """What became of one finding, as a line of a list."""
        changed = finding.looked.changed
        try:
            said = "not opened: " + _NOT_ALLOWED if self.denied else self._carried_out(finding)
        except (DeniedError, MissingError):
            self.denied = True
            said = "not opened: " + _NOT_ALLOWED
        return Safe(f"- {code(changed.kernel)} in {code(changed.path)}: {said}.")

    def _carried_out(self, finding: Finding) -> str:
        looked, where = finding.looked, self._campaign.repository
        path, kernel = looked.changed.path, looked.changed.kernel
        marker = lasting_marker(path, kernel, looked.patch)
        open_ = next((p for p in self._own if p.body.startswith(lasting_key(path, kernel))), None)
        if open_ is not None and open_.body.startswith(marker):
            return f"{open_.url} already has this version"
        one = Stored(finding.number, looked)
        taken, files, refused = changed_files(self._code, where, self._head, (one,))
        if not taken:
            return f"left out: {prose(refused[0][1])}"
        branch = lasting_branch(path, kernel)
        if open_ is None:
            closed = next(iter(self._code.pulls(where, branch)), None)
            if closed is not None and not closed.merged and closed.body.startswith(marker):
                return f"not opened: {closed.url} with the same patch was closed"
            if self._open >= self._campaign.most:
                return f"not opened: {self._open} are open, and `max-prs` is {self._campaign.most}"
        if not self._on_branch(branch, files, one):
            return f"not changed: the branch {code(branch)} has commits by others"
        body = pull_body(finding, marker, self._origin())
        if open_ is not None:
            self._code.edit_pull(where, open_.number, pull_title(one), body)
            return f"updated {open_.url}"
        url = self._code.open_pull(where, branch, self._campaign.branch, pull_title(one), body)
        self._open += 1
        return f"opened {url}"

    def _on_branch(self, branch: str, files: dict[str, Blob], one: Stored) -> bool:
        """Whether the branch holds these files on top of the searched commit: not where it leads to a commit of somebody else."""
        where, changed = self._campaign.repository, one.looked.changed
        trailer = lasting_trailer(changed.path, changed.kernel)
        tip = self._code.tip(where, branch)
        if tip is not None and trailer not in self._code.commit(where, tip).message.splitlines():
            return False
        message = f"{pull_title(one)}\n\n{trailer}\n"
        sha = self._code.write_commit(where, self._head, files, message)
        if tip is None:
            self._code.make_branch(where, branch, sha)
        else:
            self._code.replace_branch(where, branch, sha)
        return True

    def _origin(self) -> str:
        asked = f", as requested in #{self._campaign.issue}" if self._campaign.issue else ""
        return (
            f"A search of every kernel found this version on top of {self._campaign.head[:12]}{asked}: one commit, which changes only the "
            "kernel's own files. A later search that finds a faster version replaces the commit, unless somebody else has added one. "
            "Close this pull request to refuse it: the same patch is not offered again."
        )


def _said(review: Review, lines: Sequence[Safe]) -> str:
    rest = [f"No faster version found for {len(review.unimproved)}."] if review.unimproved and lines else []
    listed = [
        f"- {code(s.kernel) if s.kernel else 'the file'} in {code(s.path)}: {prose(s.reason)}"
        for s in review.not_looked
    ]
    if len(listed) > _LISTED:
        listed = [*listed[:_LISTED], f"- and {len(listed) - _LISTED} more"]
    fold = f"<details><summary>Not searched ({len(review.not_looked)})</summary>\n\n{{}}\n\n</details>"
    parts = [str(prose(review.headline)), "\n".join(lines), *rest, fold.format("\n".join(listed)) if listed else ""]
    return "\n\n".join(part for part in parts if part)
