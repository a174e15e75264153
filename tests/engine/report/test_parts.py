"""The parts of the page that need no page: text, side by side, tree, roofline, drawings."""

from __future__ import annotations

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.report_size import recorded, synthesise
from engine.report.branches import _DEEPEST, _MOST, branches
from engine.report.chart import Axis, Chart, _box, _overlap, axis, places
from engine.report.page import _environment
from engine.report.roofline import Roofline, roofline
from engine.report.run_folder import Counted, SourceText, StoredNode, StoredRun, read_run
from engine.report.safe_text import clean, short, upper_first
from engine.report.sources import listings
from tests.engine.report.make import predicted


def node(id: int, parent: int | None, outcome: str = "accepted", ratio: float | None = 1.5) -> StoredNode:
    return StoredNode(id, parent, "rules", "unroll", "edit", outcome, "", ratio, ratio, ratio, float(id))


def run_of(nodes: list[StoredNode] | None = None, sources: tuple[SourceText, ...] = (), **changes: object) -> StoredRun:
    result = dataclasses.replace(recorded(), **changes)  # type: ignore[arg-type]
    return StoredRun(result, tuple(nodes or [node(0, None)]), {}, sources, "")


def test_what_is_not_seen_is_written_out() -> None:
    assert clean("a\x1b[31m\u202eb\r\n\tc\ufeff\ud800") == "a⟨U+001B⟩[31m⟨U+202E⟩b⟨U+000D⟩\n\tc⟨U+FEFF⟩⟨U+D800⟩"
    assert clean("é 漢 🙂 µ ×") == "é 漢 🙂 µ ×"
    assert short("abcdef", 4) == "abc…"
    assert upper_first("bytes asked of L2") == "Bytes asked of L2"


def source(before: str, after: str | None) -> tuple[SourceText, ...]:
    return (SourceText(recorded().file, before.encode(), None if after is None else after.encode()),)


def test_sides_stand_beside_each_other_with_their_own_numbers() -> None:
    (listing,) = listings(run_of(sources=source("a\nb\nc\n", "a\nB\nnew\nc\n"), diagnosis=(), trajectory=()))
    assert [(r.kind, r.left, r.before, r.right, r.after) for r in listing.rows] == [
        ("same", 1, "a", 1, "a"), ("changed", 2, "b", 2, "B"), ("changed", None, None, 3, "new"), ("same", 3, "c", 4, "c"),
    ]  # fmt: skip


def test_a_continued_line_is_not_torn() -> None:
    (listing,) = listings(run_of(sources=source("#define A(x)      \\\n    f(x)\t \t\\\r\n  b = '\\   ';\n", None)))
    assert [r.before for r in listing.rows] == ["#define A(x) \\", "    f(x) \\", "  b = '\\   ';"]


def test_labels_of_points_that_are_close_stand_apart() -> None:
    """`1` and `3 (best)` of a softmax read `13 (best)`."""
    chart = Chart("said", Axis("x", 0.003, 0.6, True), Axis("y", 10, 1200, True), 420.0)
    before = len(chart.labels)
    close = [
        (0.118, 542.2, "1"),
        (0.0875, 580.7, "2"),
        (0.179, 632.4, "3 (best)"),
        (0.13, 560.0, "4"),
        (0.011, 20.0, "original"),
    ]
    chart.name_points(close)
    labels = chart.labels[before:]
    assert [label.text for label in labels] == [text for *_, text in close]
    boxes = [_box(label) for label in labels]
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if _overlap(a, b)]


@pytest.mark.parametrize(
    ("axis_", "texts"),
    [
        (Axis("", 0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (Axis("", 0.97, 1.52), ["1", "1.2", "1.4"]),
        (Axis("", 0.9, 47.0, True), ["1", "2", "5", "10", "20"]),
        (Axis("", 1e-3, 1e3, True), ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
        (Axis("", 1.0, 1.0 + 1e-9), None),
    ],
)
def test_ticks_are_round_and_few(axis_: Axis, texts: list[str] | None) -> None:
    found = axis_.ticks()
    assert texts is None or [text for _, text in found] == texts
    assert len(found) <= 12
    assert all(-1e-3 <= axis_.part(value) <= 1 + 1e-3 for value, _ in found)


def test_stairs_hold_each_value_until_the_next() -> None:
    chart = Chart("said", Axis("", 0.0, 10.0), Axis("", 0.0, 4.0))
    chart.line([(0, 1), (5, 3), (10, 3)], "best", stairs=True)
    heights = [point.split(",")[1] for point in chart.strokes[-1].points.split()]
    assert len(set(heights)) == 2
    assert heights == sorted(heights, key=float, reverse=True)


def test_a_diagnosis_stands_at_its_line_and_keeps_it_in_sight() -> None:
    lines = "".join(f"line {i}\n" for i in range(1, 201))
    said = (
        "uncoalesced access: 32 sectors per request (ideal: 4), line 150",
        "compute-bound; line 90 executes 60 % of the instructions",
    )
    last = dataclasses.replace(recorded().trajectory[-1], diagnosis=("line 3 asks for 16 sectors",))
    run = run_of(sources=source(lines, lines.replace("line 5\n", "new\n")), diagnosis=said, trajectory=(last,))
    (listing,) = listings(run)
    assert {r.left: r.notes for r in listing.rows if r.notes} == {
        3: ("the best: line 3 asks for 16 sectors",), 90: (f"the original: {said[1]}",), 150: (f"the original: {said[0]}",),
    }  # fmt: skip
    shown = sum(1 for r in listing.rows if r.kind != "gap")
    assert shown + sum(r.gap for r in listing.rows) == 200
    assert shown < 100


def test_a_file_without_its_suggestion_is_shown_whole() -> None:
    (listing,) = listings(run_of(sources=source("a\nb", None), diagnosis=("line 2 is slow",), best=None, trajectory=()))
    assert listing.sides == 1
    assert [(r.left, r.before, r.notes) for r in listing.rows] == [
        (1, "a", ()),
        (2, "b", ("the original: line 2 is slow",)),
    ]


def test_files_that_differ_wholly_and_endlessly_are_cut() -> None:
    a, b = "".join(f"a{i}\n" for i in range(20_000)), "".join(f"b{i}\n" for i in range(20_000))
    (listing,) = listings(run_of(sources=source(a, b + "x" * 100_000)))
    assert listing.cut
    assert max(len(r.after or "") for r in listing.rows) <= 1000


def test_bytes_that_are_no_text_and_line_ends_of_windows() -> None:
    run = run_of(
        sources=(SourceText(recorded().file, b"\xef\xbb\xbfa\r\n\xff\r\n", b"a\r\n\xff!\r\n"),),
        diagnosis=(),
        trajectory=(),
    )
    (listing,) = listings(run)
    assert [(r.kind, r.before, r.after) for r in listing.rows] == [("same", "a", "a"), ("changed", "\ufffd", "\ufffd!")]


def written(run: StoredRun) -> list[tuple[int, int]]:
    """(id, depth) as a page nests them, from what opens and what closes alone."""
    found, depth = [], 0
    for branch in branches(run)[0]:
        found.append((branch.node.id, depth))
        depth += branch.opens
        depth -= branch.closes
    assert depth == 0
    return found


def test_the_tree_opens_and_closes_as_it_hangs_together() -> None:
    nodes = [node(0, None), node(1, 0), node(2, 0, "race", None), node(3, 1), node(4, 3), node(5, 1), node(6, 0)]
    run = run_of(nodes, best=dataclasses.replace(recorded().best, id=4))  # type: ignore[type-var]
    assert written(run) == [(0, 0), (1, 1), (3, 2), (4, 3), (5, 2), (2, 1), (6, 1)]
    chosen = {b.node.id: (b.chosen, b.best, b.below) for b in branches(run)[0]}
    assert chosen[0] == (True, False, 6)
    assert chosen[1] == (True, False, 3)
    assert chosen[4] == (True, True, 0)
    assert chosen[5] == (False, False, 0)


def test_a_parent_that_cannot_be_is_none() -> None:
    run = run_of([node(0, None), node(1, 2), node(2, 1), node(3, 3), node(4, 99), node(5, None)], best=None)
    assert written(run) == [(0, 0), (1, 1), (2, 2), (3, 1), (4, 1), (5, 1)]
    assert [b.node.id for b in branches(run)[0] if b.misplaced] == [1, 3, 4, 5]


def test_a_long_chain_stays_shallow() -> None:
    found = written(run_of([node(0, None), *(node(i, i - 1) for i in range(1, 1000))], best=None))
    assert len(found) == 1000
    assert max(depth for _, depth in found) == _DEEPEST


def test_of_too_many_the_best_stay_with_what_they_were_made_from() -> None:
    nodes = [node(0, None)]
    for i in range(1, _MOST * 3):
        nodes.append(node(i, (i - 1) // 3, *(("race", None) if i % 2 else ("accepted", i / 1000))))
    last = len(nodes) - 1
    last -= last % 2
    run = run_of(nodes, best=dataclasses.replace(recorded().best, id=last))  # type: ignore[type-var]
    found, left_out = branches(run)
    ids = {b.node.id for b in found}
    assert left_out == len(nodes) - len(found)
    assert _MOST <= len(found) <= _MOST + 10
    assert last in ids
    assert all(n.parent in ids for n in nodes if n.id in ids and n.id)
    written(run)


def test_the_roofline_of_a_measured_run(measured: Path) -> None:
    roof = roofline(read_run(measured))
    assert isinstance(roof, Roofline)
    assert roof.bytes_per_s == pytest.approx(4.222e12, rel=1e-3)
    assert roof.issue_per_s == pytest.approx(132 * 4 * 1.98e9)
    first = roof.points[0]
    assert [p.kind for p in roof.points] == ["original", "step", "best"]
    assert first.intensity == pytest.approx(4.1e7 / 5.4e8)
    assert first.per_s == pytest.approx(4.1e7 / 511.648e-6, rel=1e-4)
    assert first.share == pytest.approx(first.per_s / (first.intensity * roof.bytes_per_s))
    assert roof.points[-1].share > 0.8
    assert "predicted" not in (roof.x_words + roof.y_words)


@pytest.mark.parametrize("counted", [(1e-200, 1e200, 1.0), (1e200, 1e-200, 1.0), (1.0, 1.0, 1e-300), (1e9, 1e8, 1e300)])
def test_counts_that_no_device_gives_are_no_points(counted: tuple[float, float, float]) -> None:
    run = dataclasses.replace(run_of(), counted={0: Counted(*counted)})
    assert isinstance(roofline(run), str)


def test_the_roofline_of_a_predicted_run_is_another_one(tmp_path: Path) -> None:
    spec = {
        "file": "k.cu", "steps": [{"kernel": "k", "template_args": "", "arguments": ["x"]}],
        "arguments": [{"name": "x", "type": "float", "role": "inout", "size": "rows*cols"}],
        "check": [{"name": "c", "sizes": {"rows": 1, "cols": 1}}],
        "time": [{"name": "small", "sizes": {"rows": 1, "cols": 1}}, {"name": "rows=8192,cols=8192", "sizes": {"rows": 8, "cols": 8}}],
    }  # fmt: skip
    result = dataclasses.replace(predicted(), spec=spec)
    run = StoredRun(result, (node(0, None),), {0: Counted(1e9, 1e8, None)}, (), "")
    roof = roofline(run)
    assert isinstance(roof, Roofline)
    (point,) = roof.points
    assert point.per_s == pytest.approx(1e8 / (result.original.measurement.cases[0].candidate_us * 1e-6))  # type: ignore[union-attr]
    assert "L2 10.5 TB/s" in roof.memory_roof
    assert all(words.lower().startswith("predicted") for words in (roof.x_words, roof.y_words, roof.caption))
    assert isinstance(roofline(dataclasses.replace(run, result=dataclasses.replace(result, spec={}))), str)


def test_a_drawing_takes_its_colours_from_the_page_and_escapes_its_text() -> None:
    hard = "a$x^2$<script>\\frac\n&"
    chart = Chart('said "<b>"', places([hard, "b"]), axis("y", [0.0, 1.0]))
    chart.point(0, 1.0, "best", hollow=True)
    svg = str(_environment().from_string("{{ chart | drawing }}").render(chart=chart))
    assert "style=" not in svg
    assert "<script>" not in svg
    assert "a$x^2$&lt;script&gt;" in svg
    assert 'aria-label="said &#34;&lt;b&gt;&#34;"' in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    ET.fromstring(svg)


def test_a_synthesised_run_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        synthesise(tmp_path / name, 40)
    assert read_run(tmp_path / "a").nodes == read_run(tmp_path / "b").nodes
