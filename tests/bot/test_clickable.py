"""Suggestions: committing one gives what the patch gives, byte for byte, or none is offered."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from bot.clickable import Placed, Suggestion, place, separate
from bot.diff import FileDiff, read_diff
from engine.cuda.patch import make_patch
from engine.model import Program


def diff(old: str, new: str, path: str = "a.cu") -> str:
    return make_patch(Program({path: old.encode()}, path), Program({path: new.encode()}, path)).decode()


def files(old: str, new: str, path: str = "a.cu") -> tuple[FileDiff, ...]:
    return read_diff(diff(old, new, path))


def commit(head: str, suggestion: Suggestion) -> str:
    """What GitHub does with a suggestion."""
    lines = head.split("\n")
    return "\n".join([*lines[: suggestion.start - 1], *suggestion.text.split("\n")[:-1], *lines[suggestion.line :]])


LINES = [f"line {i}" for i in range(1, 41)]


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def edited(seed: int, source: list[str], low: int, high: int) -> list[str]:
    draw = random.Random(seed)
    lines = list(source)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(low, min(high, len(lines)))
        kind = draw.choice("ird")
        if kind == "i":
            lines[at:at] = [f"new {draw.random()}" for _ in range(draw.randint(1, 3))]
        elif kind == "r":
            lines[at : at + 2] = [f"changed {draw.random()}"]
        else:
            del lines[at : at + draw.randint(1, 2)]
    return lines


def test_a_committed_suggestion_equals_the_patch(tmp_path: Path) -> None:
    offered = 0
    for seed in range(400):
        head = edited(seed, LINES, 10, 24)
        best = edited(seed + 10_000, head, 8, 26)
        patch = diff(text(head), text(best))
        if not patch:
            continue
        placed = place(patch, files(text(LINES), text(head)))
        if placed.suggestion is None:
            assert placed.reason
            continue
        offered += 1
        hunk = files(text(LINES), text(head))[0].hunk_of(placed.suggestion.start, placed.suggestion.line)
        assert hunk is not None, seed
        assert commit(text(head), placed.suggestion) == text(best), seed
    assert offered > 100
    work = tmp_path / "a.cu"
    work.write_text(text(head))
    (tmp_path / "p").write_text(patch)
    subprocess.run(["git", "apply", "p"], cwd=tmp_path, check=True)
    assert work.read_text() == text(best)


def test_a_set_that_reaches_out_of_the_hunk_is_not_split() -> None:
    head = [*LINES]
    head[9] = "changed by the pull request"
    best = [*head]
    best[9], best[35] = "faster", "its other half"
    placed = place(diff(text(head), text(best)), files(text(LINES), text(head)))
    assert placed.suggestion is None
    assert "one hunk" in placed.reason


@pytest.mark.parametrize(
    ("old", "head", "best", "why"),
    [
        ("a\nb\n", "a\nB\n", "a\nB\u202e\n", "direction"),
        ("a\nb\n", "a\nB\n", "a\nB\u200b\n", "direction"),
        ("a\r\nb\r\n", "a\r\nB\r\n", "a\r\nC\r\n", "carriage"),
        ("a\nb", "a\nB", "a\nC", "line feed"),
    ],
)
def test_what_a_suggestion_cannot_carry_is_offered_as_a_patch(old: str, head: str, best: str, why: str) -> None:
    placed = place(diff(head, best), files(old, head))
    assert placed.suggestion is None
    assert why in placed.reason


def test_a_patch_of_another_file_or_version_is_no_suggestion() -> None:
    theirs = files("a\nb\nc\n", "a\nB\nc\n")
    assert place(diff("a\nB\nc\n", "a\nC\nc\n", "other.cu"), theirs).suggestion is None
    assert "another version" in place(diff("a\nX\nc\n", "a\nC\nc\n"), theirs).reason
    assert place("garbage", theirs).suggestion is None
    both = diff("a\nB\nc\n", "a\nC\nc\n") + diff("x\n", "y\n", "b.cu")
    assert "together" in place(both, theirs).reason


def test_of_two_suggestions_for_the_same_lines_the_first_is_kept() -> None:
    one, two, three = (Placed(Suggestion("a.cu", a, b, "x\n")) for a, b in ((3, 9), (9, 12), (10, 12)))
    kept = separate([one, two, three])
    assert [p.suggestion is not None for p in kept] == [True, False, True]
