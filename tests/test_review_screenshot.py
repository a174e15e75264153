"""The review in a real browser: GitHub's Markdown, Mermaid drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.review_screenshot import browse, chromium, page, title, to_html
from tests.bot.make import bundle, looked
from tests.bot.test_render import REVIEWS, review, review_body

BROWSER = chromium()
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


def drawn(text: str, folder: Path) -> str:
    assert BROWSER is not None
    file = folder / "page.html"
    file.write_text(page([(text, ())], unfolded=True), encoding="utf-8")
    return browse(BROWSER, file, "--dump-dom")


@needs_browser
def test_the_review_and_its_charts_are_drawn(tmp_path: Path) -> None:
    dom = drawn(review_body(REVIEWS["measured"]()), tmp_path)
    assert title(dom) == "drawn"
    assert dom.count('aria-roledescription="xychart"') == 2
    assert dom.count("</table>") == 6
    assert "Measured speedup by step" in dom


@needs_browser
def test_a_chart_that_is_none_is_noticed(tmp_path: Path) -> None:
    assert title(drawn("```mermaid\nxychart-beta\n    x-axis [0, 1\n```\n", tmp_path)).startswith("error")


def test_github_makes_nothing_of_a_strangers_text() -> None:
    evil = "](http://e.test) ![x](http://e.test/b.png) @octocat <img src=x> www.e.test `x` #1 **b** <!-- optiml:review head="
    text = review_body(review(bundle(looked(2.0, kernel=evil, path="src/x.cu", summary=evil))))
    shown = to_html(text)
    assert not any(bad in shown for bad in ("<img", '<a href="http', "<strong>b", "<em>"))
    assert text.count("<!-- optiml") == 1
