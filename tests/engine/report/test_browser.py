"""The page in a real browser: nothing is loaded, the tree unfolds, themes and keys work, it prints, and it opens at once."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.report_size import LIMIT_S, headless, opening_s, recorded, synthesise
from benchmarks.review_screenshot import chromium
from engine.profile.line_weights import LineWeight
from engine.report.folder_pages import comparison_page
from engine.report.page import render
from engine.report.run_folder import read_run
from tests.engine.report.make import hostile
from tests.npm import member

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
_LIGHT, _DARK = "rgb(255, 255, 255)", "rgb(18, 22, 27)"
_ROWS = "[...document.querySelectorAll('#tree-root li')].filter(e => e.checkVisibility()).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with headless(CHROMIUM) as browser:
        yield browser


@pytest.fixture(scope="module")
def file(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


class Tab:
    """A new tab on a file, with all that it asked for and complained of."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.goto(file.as_uri())

    def do(self, script: str) -> Any:
        return self.page.evaluate(script)

    @property
    def back(self) -> str:
        return str(self.do("getComputedStyle(document.documentElement).backgroundColor"))

    @property
    def focused(self) -> str:
        return str(self.do("document.activeElement.textContent.trim().split(/\\s+/)[0]"))


@pytest.fixture
def tab(browser: Browser, file: Path) -> Iterator[Tab]:
    tab = Tab(browser, file, color_scheme="light")
    yield tab
    assert tab.asked == [file.as_uri()]  # the page alone, whatever was clicked
    assert tab.said == []
    tab.context.close()


def test_the_tree_unfolds(tab: Tab) -> None:
    rows = tab.do(_ROWS)
    assert 3 <= rows < 500  # the way to the best is open
    tab.page.get_by_role("button", name="Unfold all").click()
    assert tab.do(_ROWS) == 500
    tab.page.get_by_role("button", name="Fold all", exact=True).click()
    assert tab.do(_ROWS) == 1
    tab.page.locator("#tree-root > li > details > summary").click()
    first = tab.do(_ROWS)
    assert 1 < first < rows
    tab.page.get_by_role("button", name="Path to the best only").click()
    assert tab.do(_ROWS) == rows
    tab.page.get_by_role("button", name="Unfold all").click()


def test_the_tree_is_filtered_by_proposer_and_outcome(tab: Tab) -> None:
    shown = tab.page.locator("#tree-shown")
    assert shown.inner_text() == "500 of 500 candidates fit the filters."
    tab.page.get_by_role("button", name="Unfold all").click()
    tab.page.get_by_role("button", name="Passed only").click()
    assert 100 < tab.do(_ROWS) < 400
    assert tab.page.locator("#tree-root li.failed:visible").count() == 0
    tab.page.get_by_role("button", name="All outcomes").click()
    assert tab.do(_ROWS) == 500
    tab.page.get_by_role("group", name="Proposer").get_by_label(re.compile("rules")).uncheck()
    tuned = tab.page.locator("#tree-root li:visible:not(.aside)").filter(has_text=re.compile("tuner"))
    assert 20 < tuned.count() < 150
    # What a wanted candidate was made from stays, as a place to hang from.
    aside = tab.page.locator("#tree-root li.aside:visible")
    assert aside.count() > 0
    assert aside.first.locator("li:not(.aside):visible").count() > 0
    outcomes = tab.page.get_by_role("group", name="Outcome")
    for box in outcomes.get_by_role("checkbox").all():
        box.uncheck()
    assert tab.do(_ROWS) == 1
    assert shown.inner_text() == "1 of 500 candidates fit the filters."


def test_a_candidate_opens_on_what_it_changed(tab: Tab) -> None:
    tab.page.get_by_role("button", name="Unfold all").click()
    assert tab.page.locator("#tree-root .diff:visible").count() == 0
    leaf = tab.page.locator("#tree-root li > details.edit:not(li li li li details)").first
    leaf.locator("summary").first.click()
    assert tab.page.locator("#tree-root .diff:visible").count() == 1
    assert tab.page.locator("#tree-root .diff:visible .new").first.inner_text().startswith("+ ")


def test_values_show_under_the_pointer(tab: Tab) -> None:
    tab.page.locator("#plot-steps .wide .mark.step").first.hover()
    value = tab.page.locator("#plot-steps .value")
    assert value.inner_text() == "step 1: 3.18× (3.15 to 3.27)"
    assert value.is_visible()


def test_command_and_patch_are_copied(browser: Browser, file: Path) -> None:
    tab = Tab(browser, file)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.page.get_by_role("button", name="Copy command").click()
    tab.page.get_by_role("button", name="Copied").wait_for()
    assert tab.do("navigator.clipboard.readText()").startswith("optiml optimize examples/transpose.cu")
    # A browser that keeps the clipboard from files: the text is selected.
    tab.do("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    tab.do("document.querySelector('[data-copy=patch]').closest('details').open = true")
    tab.page.get_by_role("button", name="Copy patch").click()
    assert "--- a/examples/transpose.cu" in tab.do("getSelection().toString()")
    assert tab.said == []
    tab.context.close()


def test_lines_have_a_heat_gutter_with_their_share(browser: Browser, tmp_path: Path) -> None:
    result = recorded()
    synthesise(
        tmp_path, 32, result=dataclasses.replace(result, lines=(LineWeight(13, 0.75, 0.02), LineWeight(15, 0.1, 0.9)))
    )
    file = tmp_path / "report.html"
    file.write_text(render(read_run(tmp_path)), encoding="utf-8")
    tab = Tab(browser, file)
    hot = tab.page.locator("table.heat td.h5").first
    assert "75" in hot.inner_text()
    assert "of warp instructions" in str(hot.get_attribute("title"))
    colours = [
        cell.evaluate("e => getComputedStyle(e).backgroundColor")
        for cell in (hot, tab.page.locator("table.heat td:is(.h1, .h2, .h3, .h4)").first)
    ]
    assert len({*colours, "rgba(0, 0, 0, 0)"}) == 3
    assert tab.said == []
    tab.context.close()


def test_two_runs_are_compared_on_one_page(browser: Browser, measured: Path, tmp_path: Path) -> None:
    synthesise(tmp_path, 20)
    file = tmp_path / "comparison.html"
    file.write_text(comparison_page(measured, tmp_path), encoding="utf-8")
    tab = Tab(browser, file)
    assert tab.page.get_by_role("heading", name="two runs").first.is_visible()
    for folder in (measured, tmp_path):
        assert tab.page.get_by_text(str(folder)).first.is_visible()
    assert (tab.asked, tab.said) == ([file.as_uri()], [])
    tab.context.close()


def test_the_theme_follows_the_system_until_it_is_switched(tab: Tab) -> None:
    assert tab.back == _LIGHT
    tab.page.emulate_media(color_scheme="dark")
    assert tab.back == _DARK
    button = tab.page.locator("#theme")
    assert button.inner_text() == "Light theme"
    line = "getComputedStyle(document.querySelector('#plot-steps svg text')).fill"
    dark = tab.do(line)
    button.click()
    assert tab.back == _LIGHT
    assert tab.do(line) != dark  # drawings too
    assert button.inner_text() == "Dark theme"
    tab.page.reload()
    assert tab.back == _LIGHT  # kept
    assert tab.asked.pop() == tab.asked[0]


def test_everything_is_reached_by_keys(tab: Tab) -> None:
    keys = tab.page.keyboard
    keys.press("Tab")
    assert tab.focused == "Skip"
    outline = tab.do(
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert outline == "solid3px"
    keys.press("Enter")
    assert tab.do("document.activeElement.id") == "main"
    summary = tab.page.locator("#tree-root summary").first
    summary.focus()
    assert tab.focused == "0"
    keys.press("ArrowLeft")
    assert tab.do(_ROWS) == 1
    keys.press("ArrowRight")
    assert tab.do(_ROWS) > 1
    keys.press("ArrowRight")
    first = tab.focused
    assert first != "0"
    keys.press("ArrowDown")
    assert tab.focused not in ("0", first)
    keys.press("ArrowUp")
    assert tab.focused == first
    keys.press("End")
    last = tab.focused
    keys.press("Home")
    assert tab.focused == "0" != last
    keys.press("Enter")
    assert tab.do(_ROWS) == 1
    keys.press("Tab")  # on to what comes after the tree
    assert tab.do("!document.activeElement.closest('#tree-root') && document.activeElement !== document.body")


def test_a_screen_reader_finds_its_way(tab: Tab) -> None:
    for role in ("banner", "navigation", "main"):
        assert tab.page.get_by_role(role).count() == 1, role  # type: ignore[arg-type]
    assert tab.page.get_by_role("heading", level=1).all_inner_texts() == ["transpose_kernel"]
    levels = tab.do("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert tab.page.get_by_role("img").count() == 5
    assert "3.45" in (tab.page.get_by_role("img").first.get_attribute("aria-label") or "")
    assert tab.do(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.querySelector('thead th[scope=col]'))"
    )
    assert tab.do(
        "[...document.querySelectorAll('table:not(.code) tbody tr')].every(r => r.querySelector('th[scope=row]'))"
    )
    parts = tab.do("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))")
    assert parts
    regions = tab.page.get_by_role("region")
    assert all(box.get_attribute("aria-label") or box.get_attribute("aria-labelledby") for box in regions.all())


def test_axe_finds_no_fault(browser: Browser, tmp_path: Path) -> None:
    """All of axe-core's rules; of the dark theme the contrast of text (WCAG 2.2, 1.4.3)."""
    axe = member("axe-core", "4.10.3", "axe.min.js").read_text()
    result, weights = recorded(), (LineWeight(13, 0.4, 0.0), LineWeight(14, 0.1, 0.2), LineWeight(15, 0.05, 0.75))
    synthesise(tmp_path, 32, result=dataclasses.replace(result, lines=weights))
    file = tmp_path / "report.html"
    file.write_text(render(read_run(tmp_path)), encoding="utf-8")
    tab = Tab(browser, file, color_scheme="light")
    tab.do("document.querySelectorAll('details').forEach(d => { d.open = true })")
    tab.do(axe)
    faults = ".then(r => [r.passes.length, r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200))])])"
    passed, found = tab.do(f"axe.run(){faults}")
    assert found == []
    assert passed > 20
    tab.page.emulate_media(color_scheme="dark")
    assert tab.do(f"axe.run({{runOnly: ['color-contrast']}}){faults}") == [1, []]
    tab.page.set_viewport_size({"width": 400, "height": 800})
    assert tab.do(f"axe.run(){faults}")[1] == []
    tab.context.close()
    file.write_text(comparison_page(tmp_path, tmp_path), encoding="utf-8")
    tab = Tab(browser, file, viewport={"width": 400, "height": 800})
    assert tab.do("document.documentElement.scrollWidth") <= 400
    tab.do(axe)
    assert tab.do(f"axe.run(){faults}")[1] == []
    assert tab.said == []
    tab.context.close()


def test_it_prints_on_white_without_buttons_and_unfolded(tab: Tab) -> None:
    tab.page.locator("#theme").click()
    assert tab.back == _DARK
    tab.page.emulate_media(media="print")
    assert tab.back == _LIGHT
    for part in ("nav", "#theme", "#tree-tools"):
        assert not tab.page.locator(part).is_visible(), part
    assert tab.page.locator("table").first.is_visible()
    tab.do(
        "window.seen = 0; addEventListener('beforeprint', () => { seen = document.querySelectorAll('[data-print][open]').length })"
    )
    closed = tab.do("document.querySelectorAll('details[data-print]:not([open])').length")
    assert closed > 0
    assert tab.page.pdf(format="A4").startswith(b"%PDF")
    assert tab.do("seen") == tab.do("document.querySelectorAll('[data-print]').length")
    assert tab.do("document.querySelectorAll('details[data-print]:not([open])').length") == closed


def test_a_narrow_window_needs_no_scrolling_sideways(browser: Browser, file: Path) -> None:
    tab = Tab(browser, file, viewport={"width": 360, "height": 700})
    assert tab.do("document.documentElement.scrollWidth") <= 360
    tab.context.close()


_LABELS = """[...document.querySelectorAll('figure svg')].filter(svg => svg.checkVisibility()).map(
    svg => [...svg.querySelectorAll('text')].map(text => {
        const {left, right, top, bottom} = text.getBoundingClientRect();
        return [text.textContent.trim(), left, right, top, bottom];
    })
)"""


def test_labels_of_plots_are_plain_and_apart(tab: Tab) -> None:
    """Ticks between the powers of ten were raw markup, one over the other."""
    found = tab.do(_LABELS)
    assert len(found) == 5
    _apart(found)


def _apart(found: list[Any]) -> None:
    for labels in found:
        assert len(labels) > 4
        assert not [text for text, *_ in labels if re.search(r"[$\\{}]", text)]
        for (a, *one), (b, *other) in itertools.combinations(labels, 2):
            across = min(one[1], other[1]) - max(one[0], other[0])
            down = min(one[3], other[3]) - max(one[2], other[2])
            assert across < 1 or down < 3, f"{a!r} stands on {b!r}"  # a line's box is taller than its letters


def test_a_telephone_breaks_no_word_and_shows_plots_in_a_size_to_be_read(browser: Browser, file: Path) -> None:
    """Numbers and headings of tables stood letter below letter, plots had letters of 5 pixels, code columns of 12 letters."""
    tab = Tab(browser, file, viewport={"width": 400, "height": 800})
    assert tab.do("document.documentElement.scrollWidth") <= 400
    narrow = tab.do(
        """[...document.querySelectorAll('table:not(.code) :is(th, td)')].filter(cell => {
            const range = document.createRange(); const line = parseFloat(getComputedStyle(cell).lineHeight);
            return cell.checkVisibility() && cell.textContent.trim() && !/\\s/.test(cell.textContent.trim())
                && (range.selectNodeContents(cell), range.getBoundingClientRect().height > 1.5 * line);
        }).map(cell => cell.textContent)"""
    )
    assert narrow == []
    found = tab.do(_LABELS)
    assert len(found) == 5
    _apart(found)
    assert all(left >= 0 and right <= 400 for labels in found for _, left, right, _, _ in labels)  # no plot scrolls
    assert min(bottom - top for labels in found for _, _, _, top, bottom in labels) > 9
    cells = "[...document.querySelectorAll('.code tr:not(.gap, .note) td:not(.ln)')].filter(c => c.checkVisibility())"
    assert tab.do(f"Math.min(...{cells}.map(c => c.clientWidth))") > 250
    shown = tab.do(f"{cells}.map(c => c.textContent)")
    assert sum("transpose_kernel(const float* in" in text for text in shown) == 2  # what was changed: before and after
    assert sum("out[col * rows + row]" in text for text in shown) == 1  # what was not: once
    tab.context.close()


def test_it_can_be_read_without_scripts(browser: Browser, file: Path) -> None:
    tab = Tab(browser, file, java_script_enabled=False)
    assert not tab.page.locator("#theme").is_visible()  # what would do nothing is not shown
    assert not tab.page.locator("#tree-tools").is_visible()
    before = tab.page.locator("#tree-root li:visible").count()
    tab.page.locator("#tree-root summary").first.click()
    assert tab.page.locator("#tree-root li:visible").count() < before
    tab.context.close()


def test_the_policy_holds_against_what_got_in_all_the_same(browser: Browser, file: Path) -> None:
    tab = Tab(browser, file)
    tab.do(
        """async () => {
            const add = (html) => { const d = document.createElement('div'); d.innerHTML = html; document.body.append(d); };
            add('<img src="http://127.0.0.1:9/a.png" onerror="window.pwned = 1">');
            add('<link rel=stylesheet href="http://127.0.0.1:9/a.css"><iframe src="http://127.0.0.1:9/"></iframe>');
            add('<p style="background: url(http://127.0.0.1:9/b.png)">x</p>');
            const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s);
            await fetch('http://127.0.0.1:9/').catch(() => 0);
        }"""
    )
    tab.page.wait_for_timeout(100)
    assert tab.do("window.pwned") is None
    refused = " ".join(tab.said)
    assert all(rule in refused for rule in ("script-src", "style-src", "default-src"))
    assert not [url for url in tab.asked if url.startswith("http") and not re.match(r"http://127\.0\.0\.1:9/", url)]
    assert "ERR_CONNECTION_REFUSED" not in refused  # stopped before it went out
    tab.context.close()


def test_a_hostile_run_does_nothing(browser: Browser, tmp_path: Path) -> None:
    hostile(tmp_path)
    file = tmp_path / "report.html"
    file.write_text(render(read_run(tmp_path)), encoding="utf-8")
    tab = Tab(browser, file)
    tab.page.get_by_role("button", name="Unfold all").click()
    tab.page.mouse.move(300, 300)
    assert tab.do("window.pwned") is None
    assert (
        tab.do(
            "document.scripts.length + document.images.length + document.querySelectorAll('iframe,object,link').length"
        )
        == 1
    )
    assert tab.do("document.querySelectorAll('main > section').length") == 10
    assert tab.asked == [file.as_uri()]
    assert tab.said == []
    tab.context.close()


def test_it_opens_at_once(browser: Browser, file: Path) -> None:
    assert opening_s(browser, file, 1)[0] < LIMIT_S
