"""Diffs as data, from git's own output."""

from __future__ import annotations

import pytest

from bot.diff import Change, read_diff, read_patch
from bot.errors import DiffError

PATCH = "@@ -2,5 +2,6 @@ void f()\n two\n-three\n+THREE\n+and a half\n four\n five\n six\n"


def test_hunks_name_their_lines_of_the_new_side() -> None:
    file = read_patch("a b.cu", PATCH)
    hunk = file.hunks[0]
    assert (file.path, hunk.start, hunk.end, hunk.added) == ("a b.cu", 2, 8, frozenset({3, 4}))
    assert hunk.changes == (Change(3, 4, ("THREE\n", "and a half\n")),)
    assert hunk.old_lines == ((2, "two\n"), (3, "three\n"), (4, "four\n"), (5, "five\n"), (6, "six\n"))
    assert [line for line, _ in hunk.new_lines] == [2, 3, 4, 5, 6, 7]
    assert file.hunk_of(2, 7) is hunk
    assert file.hunk_of(2, 8) is None
    assert file.hunk_of(1, 2) is None


def test_an_insertion_is_named_by_the_line_that_follows() -> None:
    (hunk,) = read_patch("a.cu", "@@ -3,0 +4,2 @@\n+x\n+y\n").hunks
    assert hunk.changes == (Change(4, 4, ("x\n", "y\n")),)
    assert (hunk.start, hunk.end) == (4, 6)
    (gone,) = read_patch("a.cu", "@@ -3,2 +2,0 @@\n-x\n-y\n").hunks
    assert gone.changes == (Change(3, 5, ()),)
    assert gone.start == gone.end == 3


def test_form_feeds_and_unicode_separators_end_no_line() -> None:
    (hunk,) = read_patch("a.cu", "@@ -1,2 +1,2 @@\n a\x0cb\n-c\u2028d\n+e\x85f\n").hunks
    assert hunk.old_lines == ((1, "a\x0cb\n"), (2, "c\u2028d\n"))
    assert hunk.changes == (Change(2, 3, ("e\x85f\n",)),)


def test_the_missing_line_feed_at_the_end_is_known() -> None:
    assert read_patch("a.cu", "@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n").no_newline
    assert not read_patch("a.cu", PATCH).no_newline


@pytest.mark.parametrize("text", ["@@ -1,5 +1,5 @@\n a\n", "@@ -1 +1 @@\n+a\n+b\n+c\n"])
def test_a_diff_that_lies_about_its_lengths_is_refused(text: str) -> None:
    with pytest.raises(DiffError):
        read_diff("--- a/x\n+++ b/x\n" + text)
