"""A patch applied by content: what git's tools make of it, and nothing where it does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.clickable import place
from bot.diff import FileDiff
from bot.patched import NotApplied, belongs, files_of, patched
from engine.cuda.patch import make_patch
from engine.model import Program

PATH = "src/a.cu"
LINES = st.lists(
    st.sampled_from(["a", "b", "", "  c;", "d\r", "\\ no", "-x", "+y", "@@ -1 +1 @@"]),
    max_size=12,
)


def make(old: str, new: str, path: str = PATH) -> str:
    return make_patch(Program({path: old.encode()}, path), Program({path: new.encode()}, path)).decode()


@given(LINES, LINES)
@settings(max_examples=200, deadline=None)
def test_what_a_patch_was_made_for_becomes_what_it_says(before: list[str], after: list[str]) -> None:
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    if old == new or not old or not new:
        return  # no patch, or a file that comes or goes
    assert patched(old.encode(), files_of(make(old, new), (PATH,))) == new.encode()


@given(LINES, LINES, LINES)
@settings(max_examples=100, deadline=None)
def test_on_another_text_it_changes_nothing_or_what_it_says(
    before: list[str], after: list[str], there: list[str]
) -> None:
    old, new, other = ("".join(f"{line}\n" for line in lines) for lines in (before, after, there))
    if old == new or not old or not new:
        return
    diff = files_of(make(old, new), (PATH,))
    try:
        found = patched(other.encode(), diff)
    except NotApplied:
        return
    # It fits only where all its lines are there: outside of its hunks the text is the other's own.
    touched = {number for file in diff for hunk in file.hunks for number, _ in hunk.old_lines}
    lines = other.split("\n")
    assert all(lines[number - 1] == old.split("\n")[number - 1] for number in touched)
    assert len(found.decode().split("\n")) - len(lines) == len(new.split("\n")) - len(old.split("\n"))


TEXT = "".join(f"line {i}\n" for i in range(20))


@pytest.mark.parametrize(
    ("data", "patch"),
    [
        (TEXT.encode()[:-1], make(TEXT, TEXT.replace("line 19\n", "x\n"))),  # the last line has no line feed there
        (b"\xff" + TEXT.encode(), make(TEXT, TEXT.replace("line 3\n", "x\n"))),
        (b"", make(TEXT, TEXT.replace("line 3\n", "x\n"))),
        (TEXT.replace("line 5", "other").encode(), make(TEXT, TEXT.replace("line 3\n", "x\n"))),  # its context
        (("new\n" + TEXT).encode(), make(TEXT, TEXT.replace("line 3\n", "x\n"))),  # it moved
    ],
)
def test_a_text_that_differs_is_left_alone(data: bytes, patch: str) -> None:
    with pytest.raises(NotApplied):
        patched(data, files_of(patch, (PATH,)))


def test_two_that_touch_are_not_taken_together_and_two_apart_are() -> None:
    def diff(old: str, new: str) -> tuple[FileDiff, ...]:
        return files_of(make(TEXT, TEXT.replace(old, new)), (PATH,))

    apart = patched(TEXT.encode(), (*diff("line 3\n", "x\n"), *diff("line 15\n", "y\nz\n")))
    assert apart.decode() == TEXT.replace("line 3\n", "x\n").replace("line 15\n", "y\nz\n")
    for other in (diff("line 3\n", "y\n"), diff("line 3\n", "")):
        with pytest.raises(NotApplied, match="overlaps"):
            patched(TEXT.encode(), (*diff("line 3\n", "x\n"), *other))
    with pytest.raises(NotApplied, match="overlaps"):
        patched(TEXT.encode(), (*diff("line 3\n", "line 3\na\n"), *diff("line 3\n", "line 3\nb\n")))


@pytest.mark.parametrize("char", ["\u202e", "\u200b", "\x0c", "\u2028", "\r", "\x00", "\ufeff"])
def test_hidden_characters_are_neither_committed_nor_offered(char: str) -> None:
    new = TEXT.replace("line 3\n", f"line{char} 3\n")
    with pytest.raises(NotApplied, match=r"invisible|cannot be read"):
        files_of(make(TEXT, new), (PATH,))
    assert place(make(TEXT, new), ()).suggestion is None


def test_a_spec_is_never_committed() -> None:
    with pytest.raises(NotApplied, match="not sources"):
        files_of(make(TEXT, TEXT.replace("line 3\n", "x\n"), "src/optiml.toml"), ("src/optiml.toml",))


def test_lines_with_carriage_returns_may_change() -> None:
    old = TEXT.replace("\n", "\r\n")
    new = old.replace("line 3\r\n", "x\r\n")
    assert patched(old.encode(), files_of(make(old, new), (PATH,))) == new.encode()


@pytest.mark.parametrize(
    ("path", "data", "kernel", "own", "found"),
    [
        ("a.cu", b"", "k", b"", True),
        ("inc/h.cuh", b"", "k", b'#include "inc/h.cuh"\n', True),
        ("main.cu", b"ns::k<<<1, 2>>>(x);", "ns::k<float>", b"", True),
        ("main.cu", b"k2<<<1, 2>>>(x);", "k", b"", False),
        ("tests/build.c", b"int main() {}", "k", b'#include "h.cuh"\n', False),
    ],
)
def test_files_without_a_part_in_the_kernel_s_program_are_known(
    path: str, data: bytes, kernel: str, own: bytes, found: bool
) -> None:
    assert belongs(path, data, "a.cu", kernel, own) is found
