"""What git knows of the working tree: its root, what a file was before, and a digest of everything a kernel may depend on."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.errors import MachineError, UsageError
from engine.settings.suffixes import KERNELS, SOURCES, may_define

_TIMEOUT_S = 30
_CUDA = tuple(f":(glob)**/*{end}" for end in KERNELS)
_SOURCES = tuple(f":(glob)**/*{end}" for end in (*SOURCES, "optiml.toml"))


def git(root: Path, *arguments: str, data: bytes = b"") -> bytes:
    """What a git command prints. Raises MachineError where there is no git, UsageError where the command fails."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=root, input=data, capture_output=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise MachineError("git is not installed", do="install git") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"git {arguments[0]} did not end in {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"git {arguments[0]}: {said[-1][:200] if said else 'failed'}", str(root))
    return done.stdout


def toplevel(folder: Path) -> Path:
    """The root of the working tree. Raises UsageError where there is none."""
    try:
        said = git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")
    except UsageError as error:
        if "not a git repository" not in error.what:
            raise
        do = "run this in the repository of the files, or create one with 'git init'"
        raise UsageError("is not in a git repository", str(folder), do) from None
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
    """SHA-256 over all sources of the working tree that git does not ignore: the same where no source changed, staged or not.

    Files as they are in the index go in by the name of their blob, and others by the name that theirs would have, so nothing large
    is read.
    """
    blobs: dict[bytes, bytes] = {}
    for entry in git(root, "ls-files", "--stage", "-z", "--", *_SOURCES).split(b"\0"):
        fields, tab, name = entry.partition(b"\t")
        if tab:
            blobs[name] = fields.split()[1]
    changed = git(root, "ls-files", "--modified", "--others", "--exclude-standard", "-z", "--", *_SOURCES)
    for name in set(changed.split(b"\0")) - {b""}:
        try:
            data = (root / name.decode("utf-8", "surrogateescape")).read_bytes()
        except OSError:
            blobs.pop(name, None)  # deleted
            continue
        hashed = (
            hashlib.sha256 if len(blobs.get(name, b"")) == 64 else hashlib.sha1
        )  # as git's objects of this repository
        blobs[name] = hashed(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest().encode()
    return hashlib.sha256(b"".join(b"%s\0%s\0" % pair for pair in sorted(blobs.items()))).hexdigest()


def changed(root: Path, commit: str) -> list[str]:
    """The CUDA files and headers that differ from a commit, and those that git does not know yet."""
    said = git(
        root, "diff", "--name-only", "--no-renames", "--no-relative", "--diff-filter=d", "-z", commit, "--", *_CUDA
    )
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CUDA)
    return _paths(said + new)


def sources(root: Path) -> list[str]:
    """The files of the working tree that may define a kernel, but for those that git ignores."""
    found = _paths(git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *_CUDA))
    return [path for path in found if (root / path).is_file() and may_define(path, (root / path).read_bytes())]


def including(root: Path, headers: Sequence[str]) -> list[str]:
    """The .cu files that name one of these headers by its file name."""
    names = sorted({header.rpartition("/")[2] for header in headers} - {""})
    if not names:
        return []
    wanted = [word for name in names for word in ("-e", name)]
    try:
        said = git(root, "grep", "-l", "-z", "--untracked", "-F", *wanted, "--", ":(glob)**/*.cu")
    except UsageError:
        return []  # git says "failed" where nothing is found
    return _paths(said)


def _paths(said: bytes) -> list[str]:
    return [path.decode("utf-8", "surrogateescape") for path in said.split(b"\0") if path]
