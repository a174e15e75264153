"""The pre-commit hook optiml-check: what a compiler and a short look say about the kernels that a commit changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hooks.common import base_commit, chosen, guarded, show

if TYPE_CHECKING:
    from engine.config import Config
    from hooks.finding import Finding


def main(arguments: Sequence[str] | None = None) -> int:
    """One line per finding, `file:line: kernel: text`. Exit codes: 0, 1 where a finding fails by the settings, 2 wrong use."""
    return guarded("optiml-check", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from engine.commands.options import Parser
    from engine.config import load_config
    from hooks.git import fingerprint, toplevel

    begin = time.monotonic()
    parser = Parser(
        prog="optiml-check", description="Compile the CUDA kernels that a commit changes and say what is seen."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="the .cu and .cuh files (pre-commit gives them)")
    parser.add_argument("--all", action="store_true", help="every kernel of the files, changed or not")
    parser.add_argument("--base", metavar="REV", help="what changed is told from this commit (default: HEAD)")
    given = parser.parse_args(arguments)

    root = toplevel(Path.cwd())
    config, _ = load_config(root)
    settings = config.check
    deadline = begin + settings.budget
    commit = "" if given.all else base_commit(root, given.base)
    paths = chosen(root, given.files, config)
    if not paths:
        if not given.files:
            print("note: no file was named, so none was looked at")
        return 0
    common = [fingerprint(root), commit, dataclasses.asdict(settings), config.targets]
    found, notes = _look(root, paths, common, config, commit, deadline)
    for finding in found:
        level = "error" if finding.kind in settings.fail else "warning"
        print(show(f"{finding.path}:{finding.line}: {finding.kernel}: {level}: {finding.text} [{finding.kind}]"))
    for note in notes:
        print(show(f"note: {note}"))
    return int(any(finding.kind in settings.fail for finding in found))


def _look(
    root: Path, paths: Sequence[str], common: object, config: Config, commit: str, deadline: float
) -> tuple[list[Finding], list[str]]:
    """Findings and notes of all files: kept ones where nothing changed since, else looked at now."""
    from engine.compile.cache import DiskCache
    from engine.folders import cache_folder

    cache = DiskCache(cache_folder() / "hooks")
    found: list[Finding] = []
    notes: list[str] = []
    keys = {path: _key(path, common) for path in paths}
    missing = []
    for path in paths:
        kept = cache.get(keys[path])
        if kept is None:
            missing.append(path)
            continue
        from hooks.finding import Finding

        found += [Finding(**each) for each in kept[0]["findings"]]
        notes += kept[0]["notes"]
    if missing:
        from hooks.examine import look

        reports = look(root, missing, config.check, config.targets, commit, deadline)
        for path, report in reports.items():
            found += report.findings
            notes += [note for note in report.notes if note not in notes]
            if report.complete:
                header = {"findings": [dataclasses.asdict(f) for f in report.findings], "notes": report.notes}
                cache.put(keys[path], header, b"")
    return found, notes


def _key(path: str, common: object) -> str:
    from importlib.metadata import version

    return hashlib.sha256(json.dumps(["check", 1, version("optiml"), path, common]).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
