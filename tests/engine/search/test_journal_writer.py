import threading
from types import SimpleNamespace

import pytest

from engine.errors import MachineError
from engine.search.journal_writer import Scribe
from engine.search.participants import Observation


class Journal:
    """Keeps what is written, once it may; the disk is full at one row."""

    def __init__(self, full_at=None):
        self.rows, self.full_at, self.may, self.threads = [], full_at, threading.Event(), set()

    def book(self, entry):
        assert self.may.wait(10)
        self.threads.add(threading.current_thread())
        if entry == self.full_at:
            raise MachineError("the disk is full", "", "")
        self.rows.append(entry)

    def book_profile(self, candidate, *of):
        self.rows.append(("profile", candidate))


def booked(entry):
    return SimpleNamespace(entry=entry)


def test_nobody_waits_for_a_row_and_candidates_are_told_of_in_order_once_they_are_in_the_journal():
    journal = Journal()
    scribe = Scribe(journal)
    scribe.open()
    for entry in range(3):
        scribe.book(booked(entry))
    assert list(scribe.written()) == []
    assert not scribe.done
    journal.may.set()
    found = list(scribe.written(all=True))
    assert [candidate.entry for candidate, _ in found] == journal.rows == [0, 1, 2]
    assert all(0 < seconds < 10 for _, seconds in found)
    assert scribe.done
    assert list(scribe.written(all=True)) == []
    assert threading.current_thread() not in journal.threads
    scribe.close()


def test_closing_waits_until_all_is_written():
    journal = Journal()
    scribe = Scribe(journal)
    scribe.open()
    scribe.book(booked(0))
    scribe.book_profile(Observation(0, "cheap", (), None))
    threading.Timer(0.05, journal.may.set).start()
    scribe.close()
    assert journal.rows == [0, ("profile", 0)]
    scribe.book_profile(Observation(0, "full", (), None))  # what is counted after the search
    assert journal.rows[-1] == ("profile", 0)
    assert len(journal.rows) == 3


def test_after_a_row_that_could_not_be_written_none_is():
    """A journal with a gap is a damaged one, and the run could not go on."""
    journal = Journal(full_at=1)
    journal.may.set()
    scribe = Scribe(journal)
    scribe.open()
    for entry in range(4):
        scribe.book(booked(entry))
    told = []
    with pytest.raises(MachineError, match="full"):
        told.extend(candidate.entry for candidate, _ in scribe.written(all=True))
    with pytest.raises(MachineError, match="full"):
        scribe.close()
    with pytest.raises(MachineError, match="full"):
        scribe.book_profile(Observation(0, "full", (), None))
    assert journal.rows == [0]


def test_what_was_told_before_a_row_failed_is_in_the_journal():
    journal = Journal(full_at=1)
    journal.may.set()
    scribe = Scribe(journal)
    scribe.open()
    scribe.book(booked(0))
    scribe.book(booked(1))
    written = scribe.written(all=True)
    assert next(written)[0].entry == 0
    with pytest.raises(MachineError, match="full"):
        next(written)
    scribe.close()
    assert journal.rows == [0]
