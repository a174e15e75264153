"""What the documentation's site has beside the pages of this folder: README, contributing and changelog; and links to the repository.

MkDocs calls the functions. A link that leads out of this folder becomes one to the repository's page; one to nothing is a warning, as of
MkDocs itself, and ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=[)\s])")
_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_WORKFLOW = "../../actions/workflows/"  # of a badge: GitHub's page of a workflow, from a page of the repository
_log = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie above this folder."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links that lead where the site has them, or to the repository."""
    above = {page: source for source, page in PAGES.items()}
    source = above.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = _FENCE.split(markdown)
    return "".join(
        part if at % 2 else _LINK.sub(lambda match: _target(match, source, page, config), part)
        for at, part in enumerate(parts)
    )


def _target(match: re.Match[str], source: str, page: Any, config: Any) -> str:
    target, anchor = match[1], match[2] or ""
    repository = config.repo_url.rstrip("/")
    if target.startswith(_WORKFLOW):
        return f"{repository}/actions/workflows/{target.removeprefix(_WORKFLOW)}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    there = ROOT / path
    if path.startswith("..") or not there.exists():
        _log.warning("%s: a link leads to '%s', which is not there", source, target)
    if path in PAGES:
        inside = PAGES[path]
    elif path.startswith("docs/") and there.is_file():
        inside = path.removeprefix("docs/")
    else:
        return f"{repository}/{'tree' if there.is_dir() else 'blob'}/main/{path}{anchor}"
    return posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".") + anchor
