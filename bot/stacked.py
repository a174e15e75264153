"""Opens pull requests with suggestions against a pull request's head branch: one for a kernel and head, never two."""

from __future__ import annotations

from bot.apply import Asked, Said, changed_files, commit_message, denied, plain
from bot.artifacts import NothingStored, Stored, stored
from bot.errors import DeniedError, MissingError, RejectedError
from bot.escape import code, prose
from bot.forge import Blob, Code, Commit, Forge, Pull
from bot.marker import branch_of, pull_marker
from bot.publish import Target
from bot.render import gain, pull_body


def open_pulls(forge: Forge, code_: Code, target: Target, repository: str, asked: Asked) -> Said:
    """Open a pull request for suggestion `asked.number` (0: one for each) against the head branch. Raises ForgeError.

    What is committed is screened as `apply` screens it, on top of the commit that the review is of. A second command for the
    same kernel and head answers with the first one's pull request.
    """
    pull = forge.pull(target.number)
    if not pull.open:
        return Said("The pull request is closed.", False)
    if pull.head != target.head:
        return Said(
            "Nothing was opened: the head branch has a newer commit. Ask again when that commit has its review.", False
        )
    if not pull.head_repository:
        return Said("Nothing was opened: the head repository no longer exists.", False)
    try:
        chosen = stored(forge, code_, target, asked.number)
    except NothingStored as reason:
        return Said(str(reason), False)
    head = code_.commit(repository, target.head)
    stack = _Stack(code_, pull, head, repository, asked)
    try:
        answers = [stack.answer(one) for one in chosen]
    except (DeniedError, MissingError):
        return Said(denied(pull.head_repository.casefold() == repository.casefold(), pull), False)
    return Said("\n".join(f"- {one.text}" for one in answers), all(one.done for one in answers))


class _Stack:
    """The pull requests of one command."""

    def __init__(self, code_: Code, pull: Pull, head: Commit, repository: str, asked: Asked) -> None:
        self._code, self._pull, self._head, self._repository, self._asked = code_, pull, head, repository, asked

    def answer(self, one: Stored) -> Said:
        """One suggestion's pull request, made or found. Raises ForgeError."""
        looked, name = one.looked.changed, f"Suggestion {one.number}"
        branch = branch_of(looked.path, looked.kernel, self._pull.head)
        for there in self._code.pulls(self._pull.head_repository, branch):
            return Said(
                f"{name}: {there.url} is {'open already' if there.open else 'closed; reopen it to use it'}.", there.open
            )
        taken, files, refused = changed_files(self._code, self._repository, self._head, (one,))
        if not taken:
            return Said(f"{name} was left out: {prose(refused[0][1])}.", False)
        if not self._branch(branch, files, one):
            return Said(
                f"{name} was left out: the branch {code(branch)} exists with other content; delete it first.", False
            )
        number = self._pull.number
        other = self._pull.head_repository.casefold() != self._repository.casefold()
        body = pull_body(
            one.finding, pull_marker(looked.path, looked.kernel, self._pull.head),
            f"Applies a suggestion of the OptiML review of {self._repository if other else ''}#{number} to its head branch: one commit, "
            "which changes only the kernel's own files.",
        )  # fmt: skip
        try:
            url = self._code.open_pull(self._pull.head_repository, branch, self._pull.head_ref, pull_title(one), body)
        except DeniedError:
            return Said(
                f"{name} is on the branch {code(branch)}, but this token may not open a pull request. Allow GitHub Actions to create "
                "pull requests in the repository's settings and repeat the command, or open it from the branch.", False,
            )  # fmt: skip
        return Said(f"{name}: opened {url} against {code(self._pull.head_ref)}.", True)

    def _branch(self, branch: str, files: dict[str, Blob], one: Stored) -> bool:
        """Whether the branch holds these files on top of the head and nothing else: made now, or by a job that ended early."""
        where = self._pull.head_repository
        message = commit_message((one,), self._pull.number, self._asked)
        sha = self._code.write_commit(where, self._head, files, message)
        try:
            self._code.make_branch(where, branch, sha)
        except RejectedError:
            tip = self._code.tip(where, branch)
            there = self._code.commit(where, tip) if tip else None
            return (
                there is not None
                and there.parents == (self._head.sha,)
                and there.tree == self._code.commit(where, sha).tree
            )
        return True


def pull_title(one: Stored) -> str:
    """The title of a suggestion's pull request."""
    return f"Speed up {plain(one.looked.changed.kernel)}: {gain(one.finding.measurement)}"[:200]
