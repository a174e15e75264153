"""One patch of several: each is applied in order of rank, and one that no longer applies is left out and named."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from engine.cuda.load import read_below
from engine.cuda.patch import make_patch
from engine.errors import SourceError
from engine.model import Program
from engine.settings.scratch import scratch_folder

_TIMEOUT_S = 30


def combine(root: Path, patches: Sequence[tuple[str, Path, Sequence[str]]]) -> tuple[bytes, tuple[str, ...]]:
    """The patch of all, and sentences on those left out. Each has a name, its file, and the paths that it changes."""
    git = shutil.which("git")
    if git is None:
        return b"", ("git is not installed, so the patches were not combined: each is in its kernel's folder",)
    before: dict[str, bytes] = {}
    left_out: list[str] = []
    with scratch_folder() as scratch:
        for name, patch, paths in patches:
            try:
                for path in paths:
                    data = read_below(root, path)
                    if data is not None and path not in before:
                        before[path] = data
                        (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                        (scratch / path).write_bytes(data)
                applied = subprocess.run(
                    [git, "-c", "core.fsmonitor=false", "apply", "--whitespace=nowarn", str(patch.resolve())],
                    cwd=scratch, capture_output=True, timeout=_TIMEOUT_S, check=False,
                    env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(scratch.parent), "LC_ALL": "C"},
                ).returncode  # fmt: skip
            except (OSError, SourceError, subprocess.TimeoutExpired):
                applied = 1
            if applied:
                left_out.append(f"the patch of {name} does not apply together with the others: it is in {patch}")
        after = {path: (scratch / path).read_bytes() for path in before}
    first = next(iter(before), "")
    return make_patch(Program(before, first), Program(after, first)), tuple(left_out)
