"""A Forge that reads and does not write: it prints what would be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bot.diff import FileDiff
from bot.forge import Check, CheckOutput, CheckStatus, Forge, Note, Pull, Reaction
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

    def submit_review(self, number: int, id: int) -> None: ...

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
        self._say(
            f"would write the check run '{name}': {status}{end}, {len(output.annotations)} annotations: {output.title}"
        )

    def hide_outdated(self, pull: Pull, marker: str, keep: str) -> int:
        self._say("would hide earlier reviews")
        return 0
