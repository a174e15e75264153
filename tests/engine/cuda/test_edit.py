from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.edit import apply, edit_program
from engine.cuda.kernel import Edit, Span
from engine.errors import SourceError
from engine.model import Program


def test_newlines_become_the_files_own():
    assert apply(b"a\r\nb\r\n", [Edit(Span(0, 1), "x\ny")]) == b"x\r\ny\r\nb\r\n"
    assert apply(b"a\nb\n", [Edit(Span(0, 1), "x\ny")]) == b"x\ny\nb\n"


@given(st.binary(max_size=60), st.data())
def test_nothing_but_the_spans_changes(data, draw):
    points = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    spans = [Span(a, b) for a, b in zip(points[::2], points[1::2], strict=False)]
    edits = [Edit(span, "<>") for span in spans]
    if any(a.end > b.start for a, b in pairwise(spans)):
        return
    result = apply(data, edits)
    kept = b"".join(
        data[a:b] for a, b in zip([0, *[s.end for s in spans]], [*[s.start for s in spans], len(data)], strict=True)
    )
    assert len(result) == len(kept) + 2 * len(spans)


@pytest.mark.parametrize("spans", [[Span(0, 3), Span(2, 4)], [Span(5, 99)], [Span(3, 2)]])
def test_overlaps_and_ends_beyond_the_file_are_refused(spans):
    with pytest.raises(SourceError):
        apply(b"abcdef", [Edit(span, "") for span in spans])


def test_no_edit_beside_what_is_not_understood():
    data = b"__global__ void k(float* x) { extern __shared__ __align__(16) float s[]; x[0] = 1; }\nint a;\n"
    program = Program({"k.cu": data}, "k.cu")
    from engine.cuda.parse import parse

    error = parse(data, "k.cu").errors[0]
    with pytest.raises(SourceError, match="cannot be parsed"):
        edit_program(program, {"k.cu": [Edit(Span(error.start, error.start), "y")]})
    at = data.index(b"int a")
    assert edit_program(program, {"k.cu": [Edit(Span(at, at + 3), "long")]}).data.endswith(b"long a;\n")
    with pytest.raises(SourceError, match="not part of the program"):
        edit_program(program, {"other.cu": []})
