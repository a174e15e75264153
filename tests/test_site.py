"""The documentation as a site: it builds with every link checked, and the pictures of the README are of runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import report_screenshot
from benchmarks.report_size import synthesise
from benchmarks.review_screenshot import chromium
from benchmarks.terminal_recording import recording

ROOT = Path(__file__).resolve().parent.parent


def _build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(out),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    out = tmp_path_factory.mktemp("site")
    done = _build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_on_the_site_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")]
    for page in ("index.html", "contributing/index.html", "changelog/index.html", *(f"{p}/index.html" for p in pages)):
        text = (site / page).read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?(https?:[^\"\s>]+)", text)
        loaded += re.findall(r"<link\b[^>]*rel=\"?stylesheet\"?[^>]*href=\"?(https?:[^\"\s>]+)", text)
        assert [url for url in loaded if "/actions/workflows/" not in url] == [], page  # the badges alone


def test_links_out_of_the_folder_lead_to_the_repository(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="cli/"' in home
    assert 'href="contributing/"' in home
    assert re.search(r'href="https://github\.com/\w+/optiml/blob/main/examples/softmax\.cu"', home)
    guide = (site / "guides" / "first-run" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'href="https://github\.com/\w+/optiml/[^"]*examples/softmax\.cu"', guide)


def test_a_link_to_nothing_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "examples").mkdir()
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# Page\n\n[fine](examples)\n")
    (docs / "site_pages.py").write_text((ROOT / "docs" / "site_pages.py").read_text())
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        "site_name: x\nrepo_url: https://github.com/OWNER/optiml\nhooks: [docs/site_pages.py]\nexclude_docs: site_pages.py\n"
        "validation: { links: { anchors: warn } }\n"
    )
    assert _build(config, tmp_path / "site").returncode == 0
    links = ("other.md", "../examples/none.cu", "../CHANGELOG.md#none")
    (docs / "page.md").write_text("# Page\n\n" + " ".join(f"[link]({link})" for link in links))
    done = _build(config, tmp_path / "site")
    assert done.returncode == 1
    assert [link for link in links if link.removeprefix("../").lower() not in done.stderr.lower()] == []


def test_the_recording_shows_what_a_run_prints(tmp_path: Path) -> None:
    synthesise(tmp_path, 30)
    text = recording(tmp_path, ".optiml/run")
    svg = ET.fromstring(text)
    said = "".join(svg.itertext()).replace("\xa0", " ")
    assert "$ optiml optimize examples/transpose.cu" in said
    assert "transpose_kernel is 3.45× faster" in said
    assert "git apply .optiml/run/best.patch" in said
    assert str(tmp_path) not in said
    assert "@font-face" not in text
    assert "url(http" not in text


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium")
def test_the_picture_of_the_readme_is_made_of_a_run(tmp_path: Path) -> None:
    synthesise(tmp_path / "run", 30)
    assert report_screenshot.main([str(tmp_path / "run"), "--out", str(tmp_path)]) == 0
    made = {path.name for path in tmp_path.glob("*.png")}
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"docs/images/(report-\w+\.png)", readme))
    assert named
    assert named <= made
    assert "docs/images/optimize.svg" in readme
    ET.parse(ROOT / "docs" / "images" / "optimize.svg")
