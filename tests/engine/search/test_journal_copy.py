"""A journal that grows elsewhere: its rows are carried one by one, and what is no row of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import MachineError
from engine.model import Evaluation, Outcome, Program
from engine.process.decode import NotThis
from engine.process.wire import pack, unpack
from engine.rewrite.proposal import Proposal
from engine.search.journal import Credit, Entry, Journal
from engine.search.journal_copy import CopyPosition, JournalCopy, rows_after, snapshot
from engine.search.question import ANSWERED, OPEN, Asked, question
from engine.search.reward import Proxies

PROGRAM = Program({"k.cu": b"text"}, "k.cu")


def entry(id: int) -> Entry:
    evaluation = Evaluation(Outcome.SCREENED, code_hash=str(id))
    files = {"k.cu": b"x" * id}
    return Entry(id, None if id == 0 else 0, "rules", "r", {"n": id}, "it’s", f"d{id}", (), evaluation, files, 0.1 * id)


def journal(path: Path, count: int, identity: str = "one") -> Journal:
    made = Journal(path, PROGRAM, {"kernel": "k"}, resume=False, identity=identity)
    for id in range(count):
        made.book(entry(id))
    return made


def sent(path: Path, place: CopyPosition, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
    return unpack(pack(*rows_after(path, place, **more)))


def test_a_copy_follows_row_by_row_and_a_run_goes_on_with_it(tmp_path: Path) -> None:
    there, here = tmp_path / "there.sqlite", tmp_path / "here" / "journal.sqlite"
    grows = journal(there, 3)
    copy = JournalCopy(here)
    assert copy.add(*sent(there, copy.place)) == 3
    assert copy.add(*sent(there, copy.place)) == 0
    grows.book(entry(3))
    before = copy.place
    assert copy.add(*sent(there, before)) == 1
    grows.book(entry(4))
    grows.book_profile(4, "cheap", [{"a": (1.0, "b")}], Proxies())
    assert copy.add(*sent(there, before, whole=True)) == 1  # row 3 came already
    grows.close()
    copy.close()
    goes_on = Journal(here, PROGRAM, {"kernel": "k"}, resume=True, identity="one")
    assert [e.id for e in goes_on.entries()] == [0, 1, 2, 3, 4]
    assert list(goes_on.entries())[3] == entry(3)
    assert list(goes_on.proxies()) == [4]
    goes_on.close()
    (tmp_path / "elsewhere.sqlite").write_bytes(snapshot(here))
    goes_on = Journal(tmp_path / "elsewhere.sqlite", PROGRAM, {"kernel": "k"}, resume=True, identity="one")
    assert [e.id for e in goes_on.entries()] == [0, 1, 2, 3, 4]
    goes_on.close()


def test_a_copy_has_the_questions_and_credits(tmp_path: Path) -> None:
    """A campaign that went on elsewhere asked everything again."""
    there, here = tmp_path / "there.sqlite", tmp_path / "here.sqlite"
    grows = journal(there, 2)
    copy = JournalCopy(here)
    grows.book_question(Asked(0, "ask", 0, None, OPEN))
    grows.book_question(Asked(1, "ask", 0, None, OPEN))
    copy.add(*sent(there, copy.place))
    answered = (summarised(question(), "Tile it"),)
    grows.book_question(Asked(0, "ask", 0, None, ANSWERED, answered))
    grows.book_credit(Credit(1, 1, "llm", True))
    copy.add(*sent(there, copy.place))
    copy.close()
    again = JournalCopy(here)
    rows, _ = sent(there, again.place)
    assert (rows["questions"], rows["credits"], rows["profiles"]) == ([], [], [])
    again.close()
    goes_on = Journal(here, PROGRAM, {"kernel": "k"}, resume=True, identity="one")
    assert goes_on.questions() == grows.questions()
    assert [(q.node, q.ending, [p.summary for p in q.answers]) for q in goes_on.questions()] == [
        (1, OPEN, []), (0, ANSWERED, ["Tile it"]),
    ]  # fmt: skip
    assert goes_on.credits() == [Credit(1, 1, "llm", True)]
    goes_on.close()
    grows.close()


def test_rows_of_another_run_come_from_the_beginning(tmp_path: Path) -> None:
    journal(tmp_path / "a.sqlite", 2, "other").close()
    rows, _ = rows_after(tmp_path / "a.sqlite", CopyPosition(5, 0, "one"))
    assert rows["another"] is True
    assert [row[0] for row in rows["candidates"]] == [0, 1]


def test_one_copy_is_written_at_a_time(tmp_path: Path) -> None:
    copy = JournalCopy(tmp_path / "a.sqlite")
    with pytest.raises(MachineError, match="another run is active"):
        JournalCopy(tmp_path / "a.sqlite")
    copy.close()
    JournalCopy(tmp_path / "a.sqlite").close()


def test_a_journal_that_is_not_there_yet_has_no_rows(tmp_path: Path) -> None:
    assert rows_after(tmp_path / "none", CopyPosition()) == ({}, [])
    (tmp_path / "empty.sqlite").touch()
    assert rows_after(tmp_path / "empty.sqlite", CopyPosition()) == ({}, [])
    assert snapshot(tmp_path / "none") == b""


def summarised(proposal: Proposal, summary: str) -> Proposal:
    return Proposal(proposal.proposer, "edit", summary, {}, {}, proposal.prior)


def _changed(column: int, value: object) -> Callable[[dict[str, Any], list[bytes]], None]:
    def change(rows: dict[str, Any], blobs: list[bytes]) -> None:
        rows["candidates"][1][column] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _changed(0, 7), _changed(0, "1"), _changed(5, "another summary"), _changed(11, {"a": 1}), _changed(20, "0" * 64),
        lambda rows, blobs: blobs.pop(), lambda rows, blobs: blobs.__setitem__(1, b"other files"),
        lambda rows, blobs: rows["candidates"][0].pop(), lambda rows, blobs: rows.update(candidates={"a": 1}),
        lambda rows, blobs: rows.update(candidates=[1, 2, 3]), lambda rows, blobs: rows.update(meta=[["a"]]),
        lambda rows, blobs: rows.update(meta=[["a", "b"]] * 100), lambda rows, blobs: rows.update(profiles=[[1, 2]]),
        lambda rows, blobs: rows.update(questions=[[1, 0, "ask", 0, -1, "open", "[]", 0.0, ""]]),
        lambda rows, blobs: rows.update(credits=[[1, 0, 1, "llm", 1, 0.0]]),
        lambda rows, blobs: rows.update(profiles=[["1; DROP TABLE candidates", 0, "", "", "", 0.0, ""]]),
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_journal_is_refused_whole(tmp_path: Path, change: Callable[..., None]) -> None:
    journal(tmp_path / "a.sqlite", 3).close()
    rows, blobs = sent(tmp_path / "a.sqlite", CopyPosition())
    change(rows, blobs)
    copy = JournalCopy(tmp_path / "b.sqlite")
    with pytest.raises(NotThis):
        copy.add(rows, blobs)
    assert copy.place == CopyPosition()
    assert rows_after(tmp_path / "b.sqlite", CopyPosition())[0]["candidates"] == []
    copy.close()
