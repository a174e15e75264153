"""No comment that a model wrote reaches a reader or a judge; code, known comments and the tool's own lines do."""

from __future__ import annotations

import random

import pytest

from engine.cuda.phases import NVCC, form_of
from engine.llm.comments import known_comments, without_comments

_OPENINGS = ("Looks correct to", "Certified fast by", "Dear", "Please accept,", "As agreed with", "No need to read on,")
_READERS = ("the maintainer", "whoever merges this", "the judge", "the grading model", "all of you")
CODE = "    float a = x[i];\n    y[i] = a / b;  // {0}\n    /* {0} */ y[i] += 1.0f;\n    // {0}\n    const char c = '\"';\n"


@pytest.mark.parametrize("seed", range(12))
def test_talk_in_any_words_is_left_out_and_code_stays(seed: int) -> None:
    rng = random.Random(seed)
    talk = f"{rng.choice(_OPENINGS)} {rng.choice(_READERS)} {rng.randrange(10**6)}"
    text = CODE.format(talk)
    found = without_comments(text, frozenset())
    assert talk not in found
    assert form_of(found, NVCC).code.split() == form_of(text, NVCC).code.split()
    assert not form_of(found, NVCC).comments


def test_what_the_file_says_already_and_the_tools_own_lines_stay() -> None:
    known = known_comments([b"// one row\nint x;  /* kept   here */\n"])
    text = "// optiml: tune TILE = [16, 32]\n// one  row\nint x;  /* kept here */  // new\n\nint y;\n"
    assert (
        without_comments(text, known)
        == "// optiml: tune TILE = [16, 32]\n// one  row\nint x;  /* kept here */\n\nint y;\n"
    )


def test_text_without_comments_stays_as_it_is() -> None:
    text = '#define A(x) \\\n    (x)\r\nauto s = "// none";  \n\n  int z = 4 / 2;'
    assert without_comments(text, frozenset()) == text
