"""Shows a recorded review as a browser does: GitHub-flavoured Markdown to HTML, Mermaid drawn, a picture of the page.

    python benchmarks/review_screenshot.py --record benchmarks/results/github_end_to_end.json --out docs/review.png

Takes the reviews of both pull requests from the record of `benchmarks/github_end_to_end.py`. Needs Chromium, npm (for Mermaid and
GitHub's style sheet) and the development extra (for GitHub's own fork of cmark). Exit code 0, 1 when a diagram cannot be drawn.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.npm import member  # noqa: E402 - the path above makes it importable as a script

MERMAID, STYLE = ("mermaid", "11.6.0"), ("github-markdown-css", "5.9.0")
_PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>{style}
body {{ margin: 24px; background: white; }} .markdown-body {{ max-width: 860px; margin: auto; }}
.box {{ border: 1px solid #d0d7de; border-radius: 6px; padding: 16px; margin-bottom: 24px; }}
.suggestion {{ border: 1px solid #d0d7de; border-radius: 6px; padding: 8px 16px; margin: 8px 32px; }}</style></head>
<body><article class="markdown-body">{body}</article><script src="{mermaid}"></script><script>
mermaid.initialize({{ startOnLoad: false }});
mermaid.run({{ querySelector: ".mermaid" }})
  .then(() => {{
    document.body.dataset.height = document.documentElement.scrollHeight + 24;
    document.title = "drawn";
  }}, (e) => {{ document.title = "error: " + (e.message || e.str || e); }});
</script></body></html>"""
_DIAGRAM = re.compile(r'<pre lang="mermaid"><code>(.*?)</code></pre>', re.S)


def to_html(markdown: str) -> str:
    """Markdown as GitHub shows it: its fork of cmark with its extensions; raw HTML is filtered by a tag list, as there."""
    import cmarkgfm

    options = cmarkgfm.Options.CMARK_OPT_UNSAFE | cmarkgfm.Options.CMARK_OPT_GITHUB_PRE_LANG
    text = cmarkgfm.github_flavored_markdown_to_html(markdown, options)
    return _DIAGRAM.sub(r'<pre class="mermaid">\1</pre>', text)


def page(reviews: Sequence[tuple[str, Sequence[str]]], *, unfolded: bool = False) -> str:
    """A page with reviews, each with its comments beside the code; `unfolded` opens all folds but those of patches."""
    parts = []
    for body, comments in reviews:
        inner = "".join(f'<div class="suggestion">{to_html(comment)}</div>' for comment in comments)
        parts.append(f'<div class="box">{to_html(body)}{inner}</div>')
    text = "\n".join(parts)
    if unfolded:
        text = re.sub(r"<details>(?=<summary>(?!Patch))", "<details open>", text)
    style = member(*STYLE, "github-markdown-light.css").read_text()
    mermaid = member(*MERMAID, "dist/mermaid.min.js").as_uri()
    return _PAGE.format(style=style, body=text, mermaid=html.escape(mermaid))


def chromium() -> str | None:
    """The browser, where there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(browser: str, file: Path, *options: str) -> str:
    """What headless Chromium makes of a page. The page is ours, and root cannot have Chromium's sandbox."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--virtual-time-budget=20000", "--disable-background-networking", "--no-first-run", *options, file.as_uri(),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def title(dom: str) -> str:
    """What the page says of its diagrams: "drawn", or an error."""
    found = re.search(r"<title>(.*?)</title>", dom, re.S)
    return found[1] if found else "no answer"


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="A picture of recorded reviews.")
    parser.add_argument("--record", type=Path, default=ROOT / "benchmarks" / "results" / "github_end_to_end.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "review.png")
    options = parser.parse_args(given)
    browser = chromium()
    if browser is None:
        print("Chromium is not installed", file=sys.stderr)
        return 2
    record = json.loads(options.record.read_text())
    reviews = [(r["body"], r["suggestions"]) for side in ("slower", "faster") for r in record[side]["reviews"]]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "page.html"
        file.write_text(page(reviews, unfolded=True), encoding="utf-8")
        dom = browse(browser, file, "--dump-dom", "--window-size=940,1200")
        if title(dom) != "drawn":
            print(f"the page could not be drawn: {title(dom)}", file=sys.stderr)
            return 1
        height = re.search(r'data-height="(\d+)"', dom)
        browse(
            browser, file, f"--screenshot={options.out.resolve()}", f"--window-size=940,{height[1] if height else 2600}"
        )
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
