"""Carries out the commands that search nothing, and posts one answer for each comment that asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from bot.apply import Asked, Person, Said, apply
from bot.artifacts import NothingStored, stored
from bot.clickable import place
from bot.commands import HELP, Apply, Cancel, Command, Explain, Help, Pr, Status
from bot.errors import ForgeError, MissingError, RejectedError
from bot.escape import Safe, prose
from bot.forge import Code, Forge, Note
from bot.marker import answer_marker, read_run_line
from bot.publish import Target, own_check, own_status
from bot.render import answer_body, explanation
from bot.stacked import open_pulls


def answer(
    forge: Forge, code: Code, target: Target, repository: str, command: Command, comment: int, person: Person,
    refusal: str = "",
) -> Said:  # fmt: skip
    """Do what comment number `comment` asks for and say so below it, once. Raises ForgeError after saying that it failed.

    `refusal` is a sentence of ours why nothing is done. A job that is run again finds its answer and does nothing.
    """

    def work() -> Said:
        if refusal:
            return Said(str(prose(refusal)), False)
        return _carried_out(forge, code, target, repository, command, comment, person)

    return answer_once(forge, target, comment, work)


def answer_once(forge: Forge, target: Target, comment: int, work: Callable[[], Said]) -> Said:
    """Do something and say below comment number `comment` what came of it, once. Raises ForgeError after saying that it failed."""
    before = _own_answer(forge, target, comment)
    if before is not None:
        return Said(before.body, True)
    try:
        said = work()
    except ForgeError as error:
        with contextlib.suppress(ForgeError):
            _post(forge, target, comment, Said(f"The command failed: {prose(error.what)}", False))
        raise
    if said.text:
        _post(forge, target, comment, said)
    return said


def _carried_out(
    forge: Forge, code: Code, target: Target, repository: str, command: Command, comment: int, person: Person
) -> Said:
    match command:
        case Apply():
            return apply(forge, code, target, repository, Asked(command.number or 0, comment, person))
        case Pr():
            return open_pulls(forge, code, target, repository, Asked(command.number or 0, comment, person))
        case Explain():
            return _explain(forge, code, target, command.number or 0)
        case Status():
            return _status(forge, target)
        case Cancel():
            return _cancel(forge, code, target)
        case Help():
            why = command.reason[:1].upper() + command.reason[1:]
            return Said(f"{prose(why)}.\n\n{HELP}" if why else HELP, not why)
        case _:
            raise AssertionError(command)  # these are searched for, not answered


def _explain(forge: Forge, code: Code, target: Target, number: int) -> Said:
    try:
        chosen = stored(forge, code, target, number)
    except NothingStored as reason:
        return Said(str(reason), False)
    files = forge.files(target.number)
    findings = [replace(one.finding, placed=place(one.looked.patch, files)) for one in chosen]
    return Said(explanation(findings), True)


def _status(forge: Forge, target: Target) -> Said:
    own = own_status(forge, target.number)
    mark = read_run_line(own[0].body) if own else None
    check = own_check(forge, target.head)
    if check is not None:
        how = f"ended ({prose(check.conclusion)})" if check.status == "completed" else "is running"
        said = f"The run for {target.head[:12]} {how}: {prose(check.title)}"
    elif mark is not None and mark.head == target.head:
        said = f"The run for {target.head[:12]} has started."
    else:
        said = f"No run for {target.head[:12]} yet."
    if own and own[0].url:
        said += f" See the [status comment]({Safe(own[0].url)})."
    return Said(said, True)


def _cancel(forge: Forge, code: Code, target: Target) -> Said:
    nothing = Said("No run is active for this pull request.", False)
    if not target.run:
        return nothing
    # A number in a comment is not enough: only a run of this same workflow is ended.
    path = code.run(target.run).path
    ended = False
    for id in _running(forge, code, target):
        try:
            theirs = code.run(id)
            if theirs.status != "completed" and theirs.path == path:
                code.cancel(id)
                ended = True
        except (MissingError, RejectedError):
            continue  # it is gone, or has ended in between
    return Said("", True) if ended else nothing  # the run that ends says so in the status comment


def _running(forge: Forge, code: Code, target: Target) -> list[int]:
    """Runs that may be at work on this pull request: the one that the status names, and those that its commit started."""
    marks = [read_run_line(note.body) for note in own_status(forge, target.number)]
    named = [mark.id for mark in marks if mark is not None]
    started = [run.id for run in code.runs(target.head) if run.status != "completed"]
    return [id for id in dict.fromkeys([*named, *started]) if id != target.run]


def _own_answer(forge: Forge, target: Target, comment: int) -> Note | None:
    mark = answer_marker(comment)
    own = [n for n in forge.comments(target.number) if n.author == forge.login and n.body.startswith(mark)]
    return min(own, key=lambda note: note.id, default=None)


def _post(forge: Forge, target: Target, comment: int, said: Said) -> None:
    made = forge.add_comment(target.number, answer_body(comment, said.text))
    # The same job twice at once: the older answer stays.
    first = _own_answer(forge, target, comment)
    if first is not None and first.id < made.id:
        forge.delete_comment(made.id)
