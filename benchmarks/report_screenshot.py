"""Pictures of the report of a run: its beginning in the light theme, roofline, source and tree in the dark one.

    python benchmarks/report_screenshot.py DIR --out docs/images

Writes report-light.png and report-dark.png. Needs Chromium, and the extras `report` and `dev`. Exit code 2 without Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report_size import headless  # noqa: E402 - the path above makes it importable as a script
from benchmarks.review_screenshot import chromium  # noqa: E402
from engine.report.page import render  # noqa: E402
from engine.report.run_folder import read_run  # noqa: E402

_WIDTH, _HEIGHT = 1100, 1500


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Pictures of a run's report.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="DIR")
    options = parser.parse_args(given)
    browser = chromium()
    if browser is None:
        print("Chromium is not installed", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, headless(browser) as started:
        page = Path(scratch) / "report.html"
        page.write_text(render(read_run(options.folder)), encoding="utf-8")
        for theme, start in (("light", "header"), ("dark", "section[aria-labelledby=roofline]")):
            tab = started.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=theme)
            tab.goto(page.as_uri())
            top = tab.locator(start).bounding_box()
            assert top is not None
            target = options.out / f"report-{theme}.png"
            tab.screenshot(
                path=target, full_page=True, clip={"x": 0, "y": top["y"], "width": _WIDTH, "height": _HEIGHT}
            )
            print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
