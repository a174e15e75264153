"""Commits suggestions to a pull request's head, on top of the commit that was looked at and of no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bot.artifacts import NothingStored, Stored, stored
from bot.diff import FileDiff
from bot.errors import DeniedError, MissingError, RejectedError
from bot.escape import Safe, code, prose
from bot.forge import Blob, Code, Commit, Forge, Pull
from bot.patched import NotApplied, belongs, files_of, patched
from bot.publish import Target
from bot.render import gain

_REGULAR = ("100644", "100755")


@dataclass(frozen=True)
class Person:
    """Who asked. `host` is where their hidden e-mail address is: users.noreply.github.com, or an Enterprise Server's."""

    login: str
    id: int
    host: str = "users.noreply.github.com"


@dataclass(frozen=True)
class Asked:
    """What a comment asks for: suggestion `number` (0: all), the comment's number, who wrote it."""

    number: int
    comment: int
    person: Person


@dataclass(frozen=True)
class Said:
    """What a command came to: `text` is Markdown of ours, `done` whether it was carried out."""

    text: str
    done: bool


def apply(forge: Forge, code_: Code, target: Target, repository: str, asked: Asked) -> Said:
    """Commit suggestion `asked.number` (0: all) to the head branch of a pull request of `repository`. Raises ForgeError.

    A fork's head gets a pull request instead, in the fork. Nothing is checked out or run: the patch is applied to the file's
    content at the pinned commit, and must fit it line by line. The second time for the same comment finds the first one's commit.
    """
    pull = forge.pull(target.number)
    if not pull.open:
        return Said("The pull request is closed.", False)
    mark = _mark(target.number, asked)
    if pull.head != target.head:
        tip = code_.commit(repository, pull.head)
        if mark in tip.message.splitlines() and tip.parents == (target.head,):
            return Said(f"Committed as {pull.head[:12]}.", True)
        return Said(
            "Nothing was committed: the head branch has a newer commit. Ask again when that commit has its review.",
            False,
        )
    try:
        chosen = stored(forge, code_, target, asked.number)
        head = code_.commit(repository, target.head)
        taken, files, refused = changed_files(code_, repository, head, chosen)
    except NothingStored as reason:
        return Said(str(reason), False)
    notes = "".join(f"\n- Suggestion {one.number} was left out: {prose(why)}." for one, why in refused)
    if not taken:
        return Said(f"Nothing was committed:{notes}", False)
    message = commit_message(taken, target.number, asked)
    own = pull.head_repository.casefold() == repository.casefold()
    if not pull.head_repository:
        return Said("Nothing was committed: the head repository no longer exists.", False)
    try:
        sha = code_.write_commit(pull.head_repository, head, files, message)
        if own:
            code_.advance(repository, pull.head_ref, sha)
            said = f"Committed as {sha[:12]}."
        else:
            said = _in_fork(code_, pull, sha, taken, message)
    except RejectedError:
        return Said("Nothing was committed: the branch has a newer commit, or its rules reject this one.", False)
    except (DeniedError, MissingError):
        return Said(denied(own, pull), False)
    several = (
        "\n\nEach was checked alone, not together; the next review checks them together." if len(taken) > 1 else ""
    )
    return Said(f"{said}\n{_list(taken)}{notes}{several}", True)


def changed_files(
    code_: Code, repository: str, head: Commit, chosen: Sequence[Stored]
) -> tuple[list[Stored], dict[str, Blob], list[tuple[Stored, str]]]:
    """Suggestions that pass the screen and fit together, the changed files, and those left out with the reason."""
    taken: list[Stored] = []
    refused: list[tuple[Stored, str]] = []
    before: dict[str, Blob | None] = {}
    diffs: dict[str, tuple[FileDiff, ...]] = {}
    files: dict[str, Blob] = {}
    for one in chosen:
        result = one.looked.result
        try:
            parts = files_of(
                one.looked.patch, result.best.files if result is not None and result.best is not None else ()
            )
            now: dict[str, Blob] = {}
            own = code_.blob(repository, head.tree, one.looked.changed.path)
            for part in parts:
                if part.path not in before:
                    before[part.path] = code_.blob(repository, head.tree, part.path)
                blob = before[part.path]
                if blob is None or blob.mode not in _REGULAR:
                    raise NotApplied("the patch changes a path that is not a regular file of that commit")
                changed = one.looked.changed
                if not belongs(part.path, blob.data, changed.path, changed.kernel, own.data if own else b""):
                    raise NotApplied("the patch changes a file that does not belong to the kernel's program")
                now[part.path] = Blob(blob.mode, patched(blob.data, (*diffs.get(part.path, ()), part)))
        except NotApplied as reason:
            refused.append((one, str(reason)))
            continue
        taken.append(one)
        files |= now
        for part in parts:
            diffs[part.path] = (*diffs.get(part.path, ()), part)
    return taken, files, refused


def _in_fork(code_: Code, pull: Pull, sha: str, taken: Sequence[Stored], message: str) -> str:
    """A branch and a pull request in the fork: a stranger's commit gets no branch in the repository itself."""
    branch = f"optiml/{pull.head[:12]}-{'-'.join(str(one.number) for one in taken)[:60]}"
    code_.make_branch(pull.head_repository, branch, sha)
    title = message.split("\n", 1)[0]
    url = code_.open_pull(pull.head_repository, branch, pull.head_ref, title, f"{_list(taken)}\n")
    return f"Opened {url} against the fork's branch."


def denied(own: bool, pull: Pull) -> str:
    """What to do where the token may not write; `own`: the head is in the repository itself."""
    if own:
        return "Nothing was committed: the token may not write here. Give the publish job `contents: write`."
    return (
        f"Nothing was committed: this token may not write to the fork {code(pull.head_repository)}. The author can take the patch from "
        "the review, or from `/optiml explain`."
    )


def _mark(pull: int, asked: Asked) -> str:
    return f"OptiML-Comment: {pull}/{asked.comment}"


def commit_message(taken: Sequence[Stored], pull: int, asked: Asked) -> str:
    """The message of a commit with these suggestions; it names the comment and who wrote it."""
    person = asked.person
    numbers = " and ".join(str(one.number) for one in taken)
    lines = [f"Apply OptiML's suggestion{'s' if len(taken) > 1 else ''} {numbers}"[:72], ""]
    for one in taken:
        lines += [f"- {plain(one.looked.changed.kernel)}: {_gain(one)}"]
    author = f"Co-authored-by: {person.login} <{person.id}+{person.login}@{person.host}>"
    return "\n".join([*lines, "", _mark(pull, asked), author]) + "\n"


def plain(text: str) -> str:
    """A kernel's name without what a line of a commit message could be mistaken for."""
    return "".join(c if c.isalnum() or c in "_:<>, " else "?" for c in text)[:100]


def _gain(one: Stored) -> str:
    result = one.looked.result
    measurement = result.best.evaluation.measurement if result is not None and result.best is not None else None
    return str(gain(measurement)) if measurement is not None else ""


def _list(taken: Sequence[Stored]) -> Safe:
    return Safe("\n".join(f"- Suggestion {t.number}: {code(t.looked.changed.kernel)}, {_gain(t)}" for t in taken))
