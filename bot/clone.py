"""Reads commits of a clone through git: trees, blobs and diffs. Nothing is checked out, nothing of the clone is run."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bot.errors import GitError

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TIMEOUT_S = 60.0
_MAX_OUTPUT = 64 << 20
# What a repository's own configuration or attributes could have git run is off.
_SAFE = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat", "-c", "core.quotePath=true",
    "-c", "protocol.allow=never", "-c", "core.attributesFile=/dev/null",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One entry of a tree or one changed file: git's modes and blobs, "" where there is no such side."""

    status: str  # A, M, D, R, T, or "" in a tree
    old_path: str
    path: str
    old_mode: str
    mode: str
    old_blob: str
    blob: str

    @property
    def submodule(self) -> bool:
        return "160000" in (self.old_mode, self.mode)

    @property
    def link(self) -> bool:
        return self.mode == "120000"


class Repository:
    """A clone at `folder`, read by commit. Methods raise GitError; paths are relative to the repository's root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs: dict[str, bytes] = {}
        self._trees: dict[str, dict[str, tuple[str, str]]] = {}

    def merge_base(self, base: str, head: str) -> str:
        """Where the head branched off; `base` itself where the clone is too shallow to tell."""
        found = self._git("merge-base", _sha(base), _sha(head), check=False).decode("ascii", "replace").split()
        return found[0] if found else base

    def changed(self, base: str, head: str) -> tuple[Entry, ...]:
        """What differs between two commits, renames found by likeness."""
        raw = self._git("diff-tree", "-r", "-z", "-M", "-l2000", "--no-commit-id", "--full-index", "--raw",
                        "--ignore-submodules=none", _sha(base), _sha(head))  # fmt: skip
        fields = raw.decode("utf-8", "surrogateescape").split("\0")
        found: list[Entry] = []
        at = 0
        while at + 1 < len(fields) and fields[at].startswith(":"):
            old_mode, mode, old_blob, blob, status = fields[at][1:].split(" ")
            two = status[0] in "RC"
            old_path, path = fields[at + 1], fields[at + 2] if two else fields[at + 1]
            found.append(Entry(status[0], old_path, path, old_mode, mode, old_blob, blob))
            at += 3 if two else 2
        return tuple(found)

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        """All files of a commit: path -> (mode, blob)."""
        if commit not in self._trees:
            raw = self._git("ls-tree", "-r", "-z", "--full-tree", _sha(commit)).decode("utf-8", "surrogateescape")
            files: dict[str, tuple[str, str]] = {}
            for line in raw.split("\0"):
                head, tab, path = line.partition("\t")
                if tab:
                    mode, _, blob = head.split(" ")
                    files[path] = (mode, blob)
            self._trees[commit] = files
        return self._trees[commit]

    def read(self, commit: str, path: str, *, limit: int = 2 << 20) -> bytes | None:
        """A regular file's bytes at a commit; None where there is none, for links, submodules and over `limit` bytes."""
        mode, blob = self.tree(commit).get(path, ("", ""))
        if not mode.startswith("100"):
            return None
        if blob not in self._blobs:
            size = int(self._git("cat-file", "-s", blob) or b"0")
            if size > limit:
                return None
            self._blobs[blob] = self._git("cat-file", "blob", blob)
        return self._blobs[blob]

    def preload(self, commit: str, paths: list[str], *, limit: int = 2 << 20) -> None:
        """Read many files by one git process; `read` then finds them."""
        tree = self.tree(commit)
        wanted = [tree[path][1] for path in paths if path in tree and tree[path][0].startswith("100")]
        wanted = [blob for blob in dict.fromkeys(wanted) if blob not in self._blobs]
        if not wanted:
            return
        sizes = self._git("cat-file", "--batch-check", input="\n".join(wanted).encode() + b"\n").split(b"\n")
        small: list[str] = []
        total = 0
        for line in sizes:
            name, _, rest = line.decode("ascii", "replace").partition(" ")
            kind, _, size = rest.partition(" ")
            if kind == "blob" and int(size) <= limit and total + int(size) < _MAX_OUTPUT:
                total += int(size)
                small.append(name)
        data = self._git("cat-file", "--batch", input="\n".join(small).encode() + b"\n") if small else b""
        at = 0
        while at < len(data):
            end = data.index(b"\n", at)
            name, _, length = data[at:end].decode("ascii").split(" ")
            self._blobs[name] = data[end + 1 : end + 1 + int(length)]
            at = end + 2 + int(length)

    def grep(self, commit: str, word: str, suffixes: tuple[str, ...]) -> list[str]:
        """Files of a commit, by suffix, that hold `word` literally."""
        patterns = [f":(glob)**/*{suffix}" for suffix in suffixes]
        raw = self._git("grep", "-l", "-z", "-F", "--full-name", "--no-recurse-submodules", "--no-textconv", "-a",
                        "-e", word, _sha(commit), "--", *patterns, check=False)  # fmt: skip
        prefix = f"{commit}:"
        return sorted(name.removeprefix(prefix) for name in raw.decode("utf-8", "surrogateescape").split("\0") if name)

    def _git(self, *arguments: str, input: bytes | None = None, check: bool = True) -> bytes:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_ATTR_NOSYSTEM": "1",
            # A checkout of another user's is usual on CI; only its objects are read.
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }  # fmt: skip
        try:
            done = subprocess.run(
                ["git", "--no-pager", *_SAFE, "-C", str(self._folder), *arguments],
                input=input, capture_output=True, timeout=_TIMEOUT_S, env=environment, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise GitError("git is not installed", do="install git") from None
        except subprocess.TimeoutExpired:
            raise GitError(f"git {arguments[0]} took over {_TIMEOUT_S:.0f} s", str(self._folder)) from None
        if check and done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise GitError(
                f"git {arguments[0]} failed: {said[0][:300]}",
                str(self._folder),
                "fetch the commit with its history",
            )
        if len(done.stdout) > _MAX_OUTPUT:
            raise GitError(f"git {arguments[0]} printed more than {_MAX_OUTPUT} bytes", str(self._folder))
        return done.stdout


def _sha(commit: str) -> str:
    if not _SHA.fullmatch(commit):
        raise GitError("is not a full commit SHA", commit[:80], "give 40 (or 64) lower-case hexadecimal digits")
    return commit
