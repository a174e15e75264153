"""What git knows of the working tree: its root, what a file was before, and a digest of everything a kernel may depend on."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from engine.errors import MachineError, UsageError

_TIMEOUT_S = 30
_SOURCES = tuple(
    f":(glob)**/*{end}" for end in (".cu", ".cuh", ".h", ".hpp", ".hh", ".inl", ".cpp", ".cc", ".cxx", "optiml.toml")
)


def git(root: Path, *arguments: str, data: bytes = b"") -> bytes:
    """What a git command prints. Raises MachineError where there is no git, UsageError where the command fails."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=root, input=data, capture_output=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise MachineError("git is missing", do="install git") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"git {arguments[0]} did not end in {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"git {arguments[0]}: {said[-1][:200] if said else 'failed'}", str(root))
    return done.stdout


def toplevel(folder: Path) -> Path:
    """The root of the working tree. Raises UsageError where there is none."""
    said = git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")
    return Path(said.decode("utf-8", "surrogateescape"))


def commit_of(root: Path, revision: str) -> str:
    """The commit that a revision names, "" where there is none yet (a repository without commits)."""
    try:
        name = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except UsageError:
        return ""
    return name.decode("ascii", "replace").strip()


def contents(root: Path, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
    """The bytes of files in a commit, in one call of git; files that are not in it are left out."""
    wanted = [path for path in paths if "\n" not in path]
    request = "".join(f"{commit}:{path}\n" for path in wanted).encode("utf-8", "surrogateescape")
    said = git(root, "cat-file", "--batch", data=request)
    found: dict[str, bytes] = {}
    at = 0
    for path in wanted:
        end = said.index(b"\n", at)
        header, at = said[at:end], end + 1
        fields = header.split()
        if len(fields) == 3 and fields[1] in (b"blob", b"tree", b"commit", b"tag") and fields[2].isdigit():
            size = int(fields[2])
            if fields[1] == b"blob":
                found[path] = said[at : at + size]
            at += size + 1
    return found


def fingerprint(root: Path) -> str:
    """SHA-256 over all sources of the working tree that git does not ignore: the same where no source changed.

    Files as they are in the index go in by the name of their blob, others by their content, so nothing large is read.
    """
    digest = hashlib.sha256(git(root, "ls-files", "--stage", "-z", "--", *_SOURCES))
    changed = git(root, "ls-files", "--modified", "--others", "--exclude-standard", "-z", "--", *_SOURCES)
    for name in sorted(set(changed.split(b"\0")) - {b""}):
        digest.update(name + b"\0")
        try:
            data = (root / name.decode("utf-8", "surrogateescape")).read_bytes()
        except OSError:
            data = b""  # deleted
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


def including(root: Path, header: str) -> list[str]:
    """The .cu files that name a header of this file name."""
    name = header.rpartition("/")[2]
    try:
        said = git(root, "grep", "-l", "-z", "--untracked", "-F", "-e", name, "--", ":(glob)**/*.cu")
    except UsageError:
        return []  # git says "failed" where nothing is found
    return [path.decode("utf-8", "surrogateescape") for path in said.split(b"\0") if path]
