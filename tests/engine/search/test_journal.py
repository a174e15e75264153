"""Properties of the journal: whatever is booked comes back as it was, in order, after any number of new starts."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import MachineError, UsageError
from engine.model import (
    CaseTiming,
    Evaluation,
    Failure,
    Guardrail,
    LaunchConfig,
    Measurement,
    Outcome,
    Program,
    Resources,
)
from engine.search.journal import Entry, Journal

ORIGINAL = Program({"k.cu": b"text"}, "k.cu")

texts = st.text(max_size=40)  # half characters too, as a worker's message may have them
whole = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
numbers = st.floats(allow_nan=False)
small = st.integers(-(2**31), 2**31)
counts = st.integers(0, 2**40)
triples = st.tuples(counts, counts, counts)
timings = st.builds(CaseTiming, texts, numbers, numbers, numbers, numbers, numbers, numbers, counts)
measurements = st.builds(
    Measurement, st.lists(timings, max_size=2).map(tuple), numbers, numbers, numbers, st.booleans(), st.booleans(),
    st.lists(texts, max_size=2).map(tuple),
)  # fmt: skip
failures = st.builds(
    Failure, texts, texts, texts, st.none() | small, st.none() | numbers, st.none() | numbers, st.none() | numbers,
    st.none() | numbers, st.none() | small,
)  # fmt: skip
evaluations = st.builds(
    Evaluation, st.sampled_from(Outcome), st.none() | measurements, st.none() | failures,
    st.lists(st.builds(Resources, small, small, small, small, small, small), max_size=2).map(tuple), whole,
    st.dictionaries(texts, numbers, max_size=2), st.lists(texts, max_size=2).map(tuple),
    st.lists(st.builds(Guardrail, texts, texts, texts), max_size=2).map(tuple),
)  # fmt: skip
launches = st.lists(st.lists(st.builds(LaunchConfig, triples, triples, counts), max_size=2).map(tuple), max_size=2).map(
    tuple
)
entries = st.builds(
    Entry, st.just(0), st.none() | counts, whole, whole, st.dictionaries(texts, small | texts, max_size=2), whole, whole,
    launches, evaluations, st.dictionaries(texts, st.binary(max_size=60), max_size=2),
    st.floats(0, 1e9), numbers | st.just(1), st.none() | numbers,
)  # fmt: skip


def numbered(found: list[Entry]) -> list[Entry]:
    return [replace(entry, id=number) for number, entry in enumerate(found)]


@settings(max_examples=25, deadline=None)
@given(st.lists(entries, max_size=4).map(numbered), st.integers(0, 4))
def test_what_is_booked_comes_back(booked: list[Entry], at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = Journal(path, ORIGINAL, {"kernel": "k"}, resume=False)
        for number, entry in enumerate(booked):
            if number == at:
                journal.close()
                journal = Journal(path, ORIGINAL, {"kernel": "k"}, resume=True)
            journal.book(entry)
        assert list(journal.entries()) == booked
        journal.close()
        journal = Journal(path, ORIGINAL, {"kernel": "k"}, resume=True)
        assert list(journal.entries()) == booked
        journal.close()


def test_a_message_with_half_a_character_is_booked(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", ORIGINAL, {}, resume=False)
    evaluation = Evaluation(Outcome.COMPILE_ERROR, failure=Failure("unknown \ud83d"))
    journal.book(Entry(0, None, "llm", "edit", {}, "summary \udca7", "", (), evaluation, {}, 0.0))
    (entry,) = journal.entries()
    assert entry.evaluation == evaluation
    assert entry.summary == "summary ?"
    journal.close()


def test_a_row_of_another_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, ORIGINAL, {}, resume=False)
    gone = Evaluation(cast(Outcome, SimpleNamespace(value="gone")))
    journal.book(Entry(0, None, "", "", {}, "", "", (), gone, {}, 0.0))
    with pytest.raises(MachineError, match="another version") as caught:
        list(journal.entries())
    assert "without --resume" in caught.value.do
    journal.close()


def test_a_journal_of_another_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path, ORIGINAL, {}, resume=False).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
        db.execute("ALTER TABLE candidates DROP COLUMN prior")
        db.commit()
    with pytest.raises(UsageError, match="another version of OptiML") as caught:
        Journal(path, ORIGINAL, {}, resume=True)
    assert "without --resume" in caught.value.do
    Journal(path, ORIGINAL, {}, resume=False).close()


def test_a_run_that_booked_nothing_or_was_refused_leaves_the_earlier_journal(tmp_path: Path) -> None:
    """It was gone as soon as the new one was opened."""
    path = tmp_path / "journal.sqlite"
    entry = Entry(0, None, "", "", {}, "first", "", (), Evaluation(Outcome.ACCEPTED), {}, 0.0)
    journal = Journal(path, ORIGINAL, {}, resume=False)
    journal.book(entry)
    journal.close()
    before = path.read_bytes()
    Journal(path, ORIGINAL, {"kernel": "other"}, resume=False).close()
    assert path.read_bytes() == before
    journal = Journal(path, ORIGINAL, {"kernel": "other"}, resume=False)
    journal.book(replace(entry, summary="second"))
    journal.withdraw()
    journal.close()
    assert path.read_bytes() == before
    journal = Journal(path, ORIGINAL, {}, resume=True)
    journal.withdraw()  # of a run that goes on, nothing is forgotten
    assert [e.summary for e in journal.entries()] == ["first"]
    journal.close()
    journal = Journal(path, ORIGINAL, {"kernel": "other"}, resume=False)
    journal.book(replace(entry, summary="third"))
    journal.close()
    journal = Journal(path, ORIGINAL, {"kernel": "other"}, resume=True)
    assert [e.summary for e in journal.entries()] == ["third"]
    journal.close()
    assert {p.name for p in tmp_path.iterdir()} == {"journal.sqlite", "journal.lock"}


def test_a_run_that_was_refused_leaves_no_journal_where_there_was_none(tmp_path: Path) -> None:
    """An empty one stayed, of which the report said that its run was killed."""
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, ORIGINAL, {}, resume=False)
    journal.book(Entry(0, None, "", "", {}, "", "", (), Evaluation(Outcome.ACCEPTED), {}, 0.0))
    with pytest.raises(MachineError, match="another run is active"):
        Journal(path, ORIGINAL, {}, resume=False)
    journal.withdraw()
    journal.close()
    assert list(tmp_path.iterdir()) == []
