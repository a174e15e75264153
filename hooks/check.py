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

from hooks.common import base_commit, chosen, guarded, named, not_analysed, nothing_named, scope, show

if TYPE_CHECKING:
    from engine.settings.config import Config
    from hooks.finding import Finding


def main(arguments: Sequence[str] | None = None) -> int:
    """One line per finding, `file:line: kernel: text`. Exit codes: 0, 1 where a finding fails by the settings, 2 wrong use."""
    return guarded("optiml-check", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from engine.commands.options import Parser
    from engine.errors import MachineError
    from engine.settings.config import load_config
    from hooks.formats import FORMATS, rendered
    from hooks.worktree import fingerprint, toplevel

    begin = time.monotonic()
    parser = Parser(
        prog="optiml-check", description="Compile the CUDA kernels that a commit changes and report findings."
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="CUDA files and headers (default: those that differ from HEAD)"
    )
    parser.add_argument("--all", action="store_true", help="all kernels of the files (default: of the repository)")
    parser.add_argument("--base", metavar="REV", help="commit to compare with (default: HEAD)")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how findings are written (default: text)")
    given = parser.parse_args(arguments)

    root = toplevel(Path.cwd())
    config, _ = load_config(root)
    settings = config.check
    commit = "" if given.all else base_commit(root, given.base)
    if not given.base:
        commit = scope(root, given.files, commit)
    paths = chosen(root, named(root, given.files, commit), config)
    found: list[Finding] = []
    notes: list[str] = []
    if paths:
        # The budget is for what a commit waits for. Where every kernel is wanted, each file has as much.
        deadline = begin + settings.budget * (1 if commit else len(paths))
        common = [fingerprint(root), commit, dataclasses.asdict(settings), config.targets]
        try:
            found, notes = _look(root, paths, common, config, commit, deadline)
        except MachineError as error:
            notes = [not_analysed(error)]
    elif not given.files:
        notes = [nothing_named(commit)]
    print(rendered(given.format, found, notes, settings.fail), end="")
    if given.format == "gitlab":
        for note in notes:
            print(show(f"note: {note}"), file=sys.stderr)
    return int(any(finding.kind in settings.fail for finding in found))


def _look(
    root: Path, paths: Sequence[str], common: object, config: Config, commit: str, deadline: float
) -> tuple[list[Finding], list[str]]:
    """Findings and notes of all files: kept ones where nothing changed since, else looked at now."""
    from engine.compile.cache import DiskCache
    from engine.cuda.compile_command import compile_command
    from engine.settings.folders import cache_folder

    cache = DiskCache(cache_folder() / "hooks")
    found: list[Finding] = []
    notes: list[str] = []
    keys = {path: _key(path, [common, dataclasses.astuple(compile_command(root, path))]) for path in paths}
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
        from hooks.compilers import Compilers

        with Compilers(config.targets) as compilers:
            if any(b"__global__" in (root / path).read_bytes() for path in missing):
                compilers.start()
            from hooks.examine import look

            reports = look(root, missing, config.check, compilers, commit, deadline)
        for path, report in reports.items():
            found += report.findings
            notes += [note for note in report.notes if note not in notes]
            if report.complete:
                header = {"findings": [dataclasses.asdict(f) for f in report.findings], "notes": report.notes}
                cache.put(keys[path], header, b"")
    return found, notes


def _key(path: str, common: object) -> str:
    from importlib.metadata import version

    return hashlib.sha256(json.dumps(["check", 2, version("optiml-cuda"), path, common]).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
