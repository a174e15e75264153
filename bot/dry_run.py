"""A Forge and a Code that read and do not write: they print what would be sent, all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bot.diff import FileDiff
from bot.forge import Blob, Check, CheckOutput, CheckStatus, Code, Commit, Forge, Note, Opened, Pull, Reaction, Run
from bot.render import Comment


class DryForge:
    """`forge` for reading; everything else goes to `say`, as text. Reading raises ForgeError."""

    def __init__(self, forge: Forge, say: Callable[[str], object] = print) -> None:
        self._forge, self._say = forge, say

    @property
    def login(self) -> str:
        return self._forge.login

    def pull(self, number: int) -> Pull:
        return self._forge.pull(number)

    def files(self, number: int) -> tuple[FileDiff, ...]:
        return self._forge.files(number)

    def comments(self, number: int) -> tuple[Note, ...]:
        return self._forge.comments(number)

    def add_comment(self, number: int, body: str) -> Note:
        self._say(f"would add a comment to pull request {number}:\n{body}")
        return Note(0, body, self.login)

    def edit_comment(self, id: int, body: str) -> None:
        self._say(f"would edit comment {id}:\n{body}")

    def delete_comment(self, id: int) -> None:
        self._say(f"would delete comment {id}")

    def react(self, comment: int, content: Reaction) -> None:
        self._say(f"would react to comment {comment} with {content}")

    def reviews(self, number: int) -> tuple[Note, ...]:
        return self._forge.reviews(number)

    def draft_review(self, number: int, head: str, body: str, comments: Sequence[Comment]) -> Note:
        self._say(f"would post a review of {head[:12]} to pull request {number}:\n{body}")
        for comment in comments:
            first = f"{comment.start}-" if comment.start is not None else ""
            self._say(f"with a comment at {comment.path}:{first}{comment.line}:\n{comment.body}")
        return Note(0, body, self.login, "PENDING", head)

    def submit_review(self, number: int, id: int) -> None:
        self._say(f"would submit that review of pull request {number}")

    def delete_review(self, number: int, id: int) -> None:
        self._say(f"would delete the draft {id}")

    def checks(self, head: str, name: str) -> tuple[Check, ...]:
        return self._forge.checks(head, name)

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
        end = f", {conclusion}" if status == "completed" else ""
        self._say(f"would write the check run '{name}' of {head[:12]}: {status}{end}: {output.title}\n{output.summary}")
        for note in output.annotations:
            where = f"{note['path']}:{note['start_line']}-{note['end_line']}"
            self._say(f"with an annotation at {where} ({note['annotation_level']}): {note['message']}")

    def hide_outdated(self, pull: Pull, marker: str, keep: str) -> int:
        self._say("would hide earlier reviews")
        return 0


class DryCode:
    """`code` for reading; everything else goes to `say`, as text. Reading raises ForgeError."""

    def __init__(self, code: Code, say: Callable[[str], object] = print) -> None:
        self._code, self._say = code, say

    def commit(self, repository: str, sha: str) -> Commit:
        return self._code.commit(repository, sha)

    def blob(self, repository: str, tree: str, path: str) -> Blob | None:
        return self._code.blob(repository, tree, path)

    def write_commit(self, repository: str, parent: Commit, files: Mapping[str, Blob], message: str) -> str:
        self._say(f"would write a commit on {parent.sha[:12]} in {repository}:\n{message}")
        for path, blob in files.items():
            self._say(
                f"with the file {path} ({blob.mode}, {len(blob.data)} bytes):\n{blob.data.decode('utf-8', 'replace')}"
            )
        return "0" * 40

    def advance(self, repository: str, branch: str, sha: str) -> None:
        self._say(f"would move the branch {branch} of {repository} to that commit")

    def make_branch(self, repository: str, branch: str, sha: str) -> None:
        self._say(f"would make the branch {branch} in {repository} at that commit")

    def tip(self, repository: str, branch: str) -> str | None:
        return self._code.tip(repository, branch)

    def pulls(self, repository: str, branch: str) -> tuple[Opened, ...]:
        return self._code.pulls(repository, branch)

    def replace_branch(self, repository: str, branch: str, sha: str) -> None:
        self._say(f"would have the branch {branch} of {repository} lead to that commit")

    def open_pulls(self, repository: str) -> tuple[Opened, ...]:
        return self._code.open_pulls(repository)

    def edit_pull(self, repository: str, number: int, title: str, body: str) -> None:
        self._say(f"would edit pull request {number} of {repository}: {title}\n{body}")

    def open_pull(self, repository: str, branch: str, base: str, title: str, body: str) -> str:
        self._say(f"would open a pull request in {repository} from {branch} into {base}: {title}\n{body}")
        return "(no address: nothing was sent)"

    def run(self, id: int) -> Run:
        return self._code.run(id)

    def runs(self, head: str) -> tuple[Run, ...]:
        return self._code.runs(head)

    def cancel(self, id: int) -> None:
        self._say(f"would cancel the run {id}")

    def artifact(self, run: int, name: str, file: str) -> bytes | None:
        return self._code.artifact(run, name, file)
