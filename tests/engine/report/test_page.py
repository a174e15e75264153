"""The page: what it says, that predicted and measured stay apart, and that no text of a stranger leaves its place."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.report_size import LIMIT_BYTES, recorded, synthesise
from engine.cli import main
from engine.model import Evaluation, Outcome
from engine.profile.line_weights import LineWeight
from engine.report import folder_pages
from engine.report.number_words import gain, speed, time_words, when
from engine.report.page import render
from engine.report.run_folder import read_run
from engine.report.safe_text import speedup_words
from tests.engine.report.make import hostile, predicted

_VOID = {"meta", "br", "img", "input", "link", "hr"}
# What the page is made of: an element or attribute beyond these is a stranger's, or a change that somebody must look at.
_TAGS = set(re.findall(r"\w+", """
    html head meta title style body a header p button nav ul li main section h1 h2 h3 h4 strong span dl div dt dd figure figcaption 
    table caption thead tbody tr th td details summary ol pre code b label input script svg g path defs use text tspan clippath rect circle
    polyline fieldset legend output
"""))  # fmt: skip
_LINKS = re.compile(r"#[\w-]+")


class Page(HTMLParser):
    """Elements and attributes of a page, its text outside style and script, and whether every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text, self._open = "", [""]
        self.feed(text)
        self.close()
        assert self._open == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] not in ("style", "script"):
            self.text += data


def harmless(text: str) -> Page:
    """The page holds nothing that runs, loads or hides but its own style and script."""
    found = Page(text)
    assert set(found.tags) <= _TAGS, set(found.tags) - _TAGS
    assert found.tags["script"] == found.tags["style"] == 1
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in (
            "src",
            "srcset",
            "srcdoc",
            "style",
            "action",
            "formaction",
            "data",
            "background",
            "poster",
            "ping",
        ), (tag, name)
        if name in ("href", "xlink:href"):
            assert _LINKS.fullmatch(value), value
        if name not in ("aria-label", "content"):
            assert "pwned" not in value, (tag, name)
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]", text
    )
    return found


def test_a_measured_run_says_everything(page: str) -> None:
    text = harmless(page).text
    for part in (
        "transpose_kernel is 3.45× faster (95 % interval 3.45 to 3.46), verified",
        "3.18× (95 %: 3.15 to 3.27)",  # a step with its interval
        "stores take 16.0 sectors per request where 4 would do",  # the diagnosis before
        "time 495 µs → 154 µs",  # a counter that moved
        "rows=8192,cols=8192", "505.2", "146.3", "3.45 to 3.46",  # times of a shape
        "racecheck", "the least speedup is 3.45×",  # guardrails
        "__launch_bounds__(256)",  # the best's source
        "did not end within its deadline of 10 s",  # why a candidate failed
        "optiml optimize examples/transpose.cu --budget 30s", "13.0.88", "NVIDIA H200", "2026-11-21",  # how to reproduce
        "device memory 4.22 TB/s (measured copy)",
    ):  # fmt: skip
        assert part in text, part
    assert "redicted" not in text


def test_five_plots_are_drawn(page: str) -> None:
    found = re.findall(r'<figure id="plot-(\w+)"><div[^>]*><svg', page)
    assert sorted(found) == ["roofline", "search", "shapes", "stages", "steps"]
    assert page.count("<polyline") > 20


def test_moments_and_gains_are_said_as_a_person_says_them() -> None:
    assert when("2026-11-21T10:01:19+00:00") == "2026-11-21 10:01 UTC"
    assert when("2026-11-21T01:01:19+02:00") == "2026-11-20 23:01 UTC"
    assert when("2026-11-21T10:01:19") == "2026-11-21 10:01"
    assert when("0001-01-01T00:00:00+23:00") == "0001-01-01T00:00:00+23:00"
    assert when("yesterday") == "yesterday"
    assert when(None) == ""
    assert gain(5.27) == "38.59×"
    assert gain(0) == "1.00×"
    assert gain(1e9) == "1e+09"
    assert gain(float("nan")) == "nan"
    assert gain("") == ""


def test_what_holds_at_every_step_is_said_once(measured: Path) -> None:
    """That nothing was counted stood below each step of a predicted run, and below the original."""
    run = read_run(measured)
    same = "no counters: times are predicted"
    steps = tuple(dataclasses.replace(step, diagnosis=(same, *step.diagnosis)) for step in run.result.trajectory)
    result = dataclasses.replace(run.result, diagnosis=(same, "32 blocks"), trajectory=steps)
    text = render(dataclasses.replace(run, result=result))
    assert text.count(same) == 1
    assert re.search(
        rf"<li>32 blocks</li></ul>\s*<h4>The same at every step</h4>\s*<ul class=\"plain\"><li>{same}", text
    )


def test_a_candidate_that_is_slower_does_not_look_accepted(page: str) -> None:
    assert '<span class="outcome ok"><span aria-hidden="true">✓</span> accepted</span>' in page
    assert '<span class="outcome "><span aria-hidden="true">▼</span> slower</span>' in page


def test_what_holds_before_and_after_a_step_is_said_once(page: str) -> None:
    first, second, *_ = re.findall(r"<h4>Before</h4>(.*?)<h4>Counters", page, re.S)
    kept = "0 % of the sectors asked of L1 are there, and warps wait for the others"
    assert "Before and after" not in first
    assert second.count(kept) == 1
    assert kept in second.partition("Before and after")[2]
    assert "59 %" in second.partition("<h4>After</h4>")[0]
    assert "62 %" in second.partition("<h4>After</h4>")[2]


def test_ids_are_unique_and_every_reference_leads_somewhere(page: str) -> None:
    ids = Counter(re.findall(r'\sid="([^"]+)"', page))
    assert max(ids.values()) == 1
    named = (
        re.findall(r'href="#([^"]+)"', page)
        + re.findall(r"url\(#([^)]+)\)", page)
        + re.findall(r'labelledby="([^"]+)"', page)
    )
    assert set(named) <= set(ids)


def test_the_policy_forbids_everything_but_its_own_style_and_script(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/=]{44}'; script-src 'sha256-[\w+/=]{44}'; base-uri 'none'; form-action 'none'",
        policy[1].replace("&#39;", "'"),
    )


def test_a_page_of_500_candidates_is_small(page: str) -> None:
    assert len(page.encode()) < LIMIT_BYTES
    assert len(re.findall(r"<li[ >]", page.split('id="tree-root"')[1].split("</section>")[0])) == 500


def test_a_predicted_run_says_so_at_every_speed(tmp_path: Path) -> None:
    synthesise(tmp_path, 60, result=predicted())
    page = render(read_run(tmp_path))
    text = harmless(page).text
    assert "Predicted, not measured." in text
    assert re.search(r'<span class="big">~3\.[45]×</span>', page)  # it had three digits
    assert "measured speedup" not in re.sub(r"not measured\)? speedup", "", text.lower())
    assert "95 % interval 3" not in text
    # Wherever the page itself writes a speedup, it has two digits and the word follows it.
    speeds = re.findall(r"~[\d.]+×(.{0,12})", text.split("From the original to the best")[1].split("Guardrails")[0])
    assert len(speeds) >= 3
    assert all("predicted" in after for after in speeds)
    tree = text.split("Search tree")[2]
    speeds = re.findall(r"~[\d.]+×(.{0,12})", tree.split("Results of each proposer's edits")[0])
    assert len(speeds) >= 20
    assert all("predicted" in after for after in speeds)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert [c for c in captions if "redicted" not in c] == [
        c for c in captions if c.startswith("Measured seconds by stage")
    ]


def test_no_text_of_a_stranger_leaves_its_place(tmp_path: Path) -> None:
    hostile(tmp_path)
    page = render(read_run(tmp_path))
    found = harmless(page)
    assert found.text.count("window.pwned=1") > 100  # it is all there, as text
    assert "⟨U+202E⟩" in found.text
    assert "⟨U+0000⟩" in found.text
    assert "{{ 7*7 }}" in found.text
    assert "49" not in found.text.split("Kernel spec")[0].split("How candidates ended")[0].split("transpose")[0]


def test_without_a_suggestion_and_without_counters(tmp_path: Path) -> None:
    result = dataclasses.replace(
        recorded(), best=None, trajectory=(), verdict="No improvement found.", signals={}, stages={}
    )
    synthesise(tmp_path, 30, result=result)
    text = harmless(render(read_run(tmp_path))).text
    assert "No improvement found." in text
    assert "No roofline: no limits are recorded for this device." in text
    assert "No suggestion, so none applies." in text
    assert "int row" in text or "kTile" in text  # the original's source is there


def test_the_original_alone_is_a_run_too(tmp_path: Path) -> None:
    bare = Evaluation(Outcome.SCREENED)
    result = dataclasses.replace(
        recorded(), best=None, trajectory=(), original=bare, provenance={"command": 5}, signals={"device": 3}
    )
    synthesise(tmp_path, 1, result=result)
    text = harmless(render(read_run(tmp_path))).text
    assert "There are no times." in text


def test_the_command_writes_the_page_and_says_where(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(measured), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]


def test_a_folder_or_a_device_is_no_place_for_the_page(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(measured), "--out", str(tmp_path)]) == 2
    assert "is a folder; give a file with --out" in capsys.readouterr().err
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["report", str(measured), "--out", str(pipe)]) == 2
    assert "is not a regular file; give a file with --out" in capsys.readouterr().err
    assert pipe.is_fifo()  # as root, the page took the place of /dev/null


def test_a_place_that_cannot_be_written_is_said(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder_pages, "run_page", lambda folder: "")
    (tmp_path / "file").write_text("")
    assert main(["report", str(measured), "--out", str(tmp_path / "file" / "page.html")]) == 1
    assert "the page cannot be written" in capsys.readouterr().err


def test_the_same_run_makes_the_same_page(measured: Path, page: str) -> None:
    assert render(read_run(measured)) == page


def test_speeds_and_times_in_words() -> None:
    assert speed(None) == "no speed"
    assert [time_words(us) for us in (0, 0.01234, 1.5, 146.336, 12345.6)] == [
        "0",
        "0.01234",
        "1.500",
        "146.3",
        "12,346",
    ]
    assert speedup_words(True) != speedup_words(False)


def test_a_run_of_many_thousands_stays_small(tmp_path: Path) -> None:
    synthesise(tmp_path, 1700)
    page = render(read_run(tmp_path))
    assert len(page.encode()) < LIMIT_BYTES
    assert re.search(r"200 candidates are omitted here, failed ones first", page)


def test_what_a_model_expected_is_held_against_what_was_counted(tmp_path: Path) -> None:
    edit = {
        "id": 6, "parent": 0, "idea": "stage a tile", "outcome": "accepted", "ratio": 3.18, "expects": "sectors per store down",
        "before": 16.0, "after": 4.0, "held": True,
    }  # fmt: skip
    model = {
        "requests": 2,
        "edits": [edit, {**edit, "id": 9, "ratio": None, "before": None, "after": None, "held": None}],
    }
    synthesise(tmp_path, 30, result=dataclasses.replace(recorded(), model=model))
    cells = re.sub(r"</t[dh]>", " | ", render(read_run(tmp_path)))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", cells))
    assert "6 | stage a tile | accepted | 3.18 | sectors per store down | 16 | 4 | yes |" in text
    assert "9 | stage a tile | accepted | | sectors per store down | | | not counted |" in text


def test_each_step_and_each_candidate_shows_what_it_changed(page: str) -> None:
    steps = page.split('id="trajectory"')[1].split("</section>")[0]
    assert steps.count("<h4>Change</h4>") == 2
    assert re.search(r'<span class="old">− .*</span>\n<span class="new">\+ .*// candidate 6\n\+ ', steps)
    tree = page.split('id="tree-root"')[1].split("</section>")[0]
    assert tree.count('<pre class="diff') == 499
    of_candidate = tree.split('<span class="id">499</span>')[1].split("</li>")[0]
    assert "// candidate 499\n+ " in of_candidate  # below its own line


def test_a_journal_without_texts_and_one_with_damaged_ones_has_its_page(measured: Path, tmp_path: Path) -> None:
    run = read_run(measured)
    bare = harmless(render(dataclasses.replace(run, original={}, packed={}))).text
    assert "The journal does not contain the text of this step." in bare
    damaged = {id: b"x" * 20 if id % 2 else packed for id, packed in run.packed.items()}
    text = harmless(render(dataclasses.replace(run, packed=damaged))).text
    assert text.count("The change of this candidate is not on this page") > 240


def test_lines_have_their_share_of_the_work_beside_them(measured: Path) -> None:
    run = read_run(measured)
    weights = (LineWeight(13, 0.4, 0.0), LineWeight(15, 0.1, 0.75), LineWeight(9_999_999, math.inf, math.nan))
    result = run.result
    last = dataclasses.replace(result.trajectory[-1], lines=weights)
    result = dataclasses.replace(result, lines=weights, trajectory=(*result.trajectory[:-1], last))
    text = render(dataclasses.replace(run, result=result))
    cell = (
        '<td class="ln h{}" title="{} % of warp instructions, {} % of sectors"><span class="share">{} %</span> {}</td>'
    )
    assert text.count(cell.format(5, "40.0", "0.0", 40, 13)) == 2
    assert text.count(cell.format(3, "10.0", "75.0", 10, 15)) == 2
    table = harmless(text).text.split("The most expensive lines")[1]
    assert "const int row" in table.split("Search tree")[0]
    # Without a GPU the sectors alone are known.
    alone = dataclasses.replace(result, lines=(LineWeight(15, None, 0.75),), trajectory=())
    text = render(dataclasses.replace(run, result=alone))
    assert '<td class="ln h5" title="75.0 % of sectors"><span class="share">75 %</span> 15</td>' in text
    assert "share of the sectors moved between L1 and L2" in text


def test_values_of_plots_are_there_to_be_hovered_over(page: str) -> None:
    titles = re.findall(r"<title>(.*?)</title>", page.split("<body>")[1])
    assert "step 1: 3.18× (3.15 to 3.27)" in titles
    assert (
        len([t for t in titles if re.fullmatch(r"candidate \d+: [\d.]+× \(.*\), (accepted|slower)", t)]) > 400
    )  # in two drawings
    assert any(re.fullmatch(r"rows=8192,cols=8192: 3\.45× \(.*\)", t) for t in titles)


def test_a_patch_that_the_page_cannot_show_as_it_is_has_no_copy_button(measured: Path) -> None:
    run = read_run(measured)
    assert 'data-copy="patch"' in render(run)
    for patch in (run.patch + "\u202e", run.patch + "x" * 200_000):
        text = render(dataclasses.replace(run, patch=patch))
        assert 'data-copy="patch"' not in text
        assert "Not to be copied from here" in text
