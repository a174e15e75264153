"""The Code of GitHub: git objects, branches, and the runs of workflows with what they left."""

from __future__ import annotations

import base64
import binascii
import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from bot.errors import MissingError, RejectedError
from bot.forge import Blob, Commit, Opened, Run
from bot.http_client import Client, understood

_MAX_BLOB = 4 << 20
_PULL_PAGES = 10
_MAX_ARTIFACT = 256 << 20
_MAX_FILE = 32 << 20  # of one file in an artifact


class GitHubCode:
    """Commits of any repository that the token may write to; runs and artifacts of `repository`. Methods raise ForgeError."""

    def __init__(self, repository: str, client: Client) -> None:
        self._client = client
        self._root = f"/repos/{repository}"

    def commit(self, repository: str, sha: str) -> Commit:
        return _commit(self._client.get(f"/repos/{repository}/git/commits/{sha}"))

    def blob(self, repository: str, tree: str, path: str) -> Blob | None:
        # Folder by folder: a whole tree at once may be cut, and is larger than what is needed.
        *folders, name = path.split("/")
        for folder in folders:
            entry = self._entry(repository, tree, folder)
            if entry is None or entry[0] != "040000":
                return None
            tree = entry[1]
        entry = self._entry(repository, tree, name)
        if entry is None or not entry[0].startswith("100"):
            return Blob(entry[0], b"") if entry else None
        return Blob(entry[0], _content(self._client.get(f"/repos/{repository}/git/blobs/{entry[1]}")))

    def _entry(self, repository: str, tree: str, name: str) -> tuple[str, str] | None:
        return _entries(self._client.get(f"/repos/{repository}/git/trees/{tree}")).get(name)

    def write_commit(self, repository: str, parent: Commit, files: Mapping[str, Blob], message: str) -> str:
        # Objects have their content's name: what an earlier try left is the same object, and nobody sees it.
        root = f"/repos/{repository}/git"
        entries = []
        for path, blob in sorted(files.items()):
            data = {"content": base64.b64encode(blob.data).decode("ascii"), "encoding": "base64"}
            made = self._client.retried(lambda data=data: _sha(self._client.send("POST", f"{root}/blobs", data)))  # type: ignore[misc]
            entries.append({"path": path, "mode": blob.mode, "type": "blob", "sha": made})
        tree = {"base_tree": parent.tree, "tree": entries}
        made = self._client.retried(lambda: _sha(self._client.send("POST", f"{root}/trees", tree)))
        commit = {"message": message, "tree": made, "parents": [parent.sha]}
        return self._client.retried(lambda: _sha(self._client.send("POST", f"{root}/commits", commit)))

    def advance(self, repository: str, branch: str, sha: str) -> None:
        root, name = f"/repos/{repository}/git", quote(f"heads/{branch}")

        def landed() -> str | None:
            there = _ref(self._client.get(f"{root}/ref/{name}"))
            return sha if there == sha else None

        # Without force GitHub moves a branch only onwards: a commit that came in between is never lost.
        data = {"sha": sha, "force": False}
        self._client.create(lambda: _ref(self._client.send("PATCH", f"{root}/refs/{name}", data)), landed)

    def make_branch(self, repository: str, branch: str, sha: str) -> None:
        root = f"/repos/{repository}/git"

        def landed() -> str | None:
            return sha if self.tip(repository, branch) == sha else None

        data = {"ref": f"refs/heads/{branch}", "sha": sha}
        try:
            self._client.create(lambda: _ref(self._client.send("POST", f"{root}/refs", data)), landed)
        except RejectedError:
            if landed() is None:
                raise

    def tip(self, repository: str, branch: str) -> str | None:
        try:
            return _ref(self._client.get(f"/repos/{repository}/git/ref/{quote(f'heads/{branch}')}"))
        except MissingError:
            return None

    def pulls(self, repository: str, branch: str) -> tuple[Opened, ...]:
        owner = repository.partition("/")[0]
        query = urlencode({"head": f"{owner}:{branch}", "state": "all"})
        path = f"/repos/{repository}/pulls?{query}"
        return _opened(self._client.retried(lambda: self._client.send("GET", path, None, list)))

    def replace_branch(self, repository: str, branch: str, sha: str) -> None:
        path = f"/repos/{repository}/git/refs/{quote(f'heads/{branch}')}"
        self._client.retried(lambda: _ref(self._client.send("PATCH", path, {"sha": sha, "force": True})))

    def open_pulls(self, repository: str) -> tuple[Opened, ...]:
        found: list[Opened] = []
        for page in range(1, _PULL_PAGES + 1):
            path = f"/repos/{repository}/pulls?{urlencode({'state': 'open', 'per_page': 100, 'page': page})}"
            part = _opened(self._client.retried(lambda path=path: self._client.send("GET", path, None, list)))  # type: ignore[misc]
            found += part
            if len(part) < 100:
                break
        return tuple(found)

    def edit_pull(self, repository: str, number: int, title: str, body: str) -> None:
        data = {"title": title, "body": body}
        self._client.retried(lambda: self._client.send("PATCH", f"/repos/{repository}/pulls/{number}", data))

    def open_pull(self, repository: str, branch: str, base: str, title: str, body: str) -> str:
        owner = repository.partition("/")[0]
        query = urlencode({"head": f"{owner}:{branch}", "base": base, "state": "open"})

        def landed() -> str | None:
            found = self._client.retried(
                lambda: self._client.send("GET", f"/repos/{repository}/pulls?{query}", None, list)
            )
            return _address(found[0]) if found else None

        data = {"title": title, "body": body, "head": branch, "base": base}
        try:
            return self._client.create(
                lambda: _address(self._client.send("POST", f"/repos/{repository}/pulls", data)), landed
            )
        except RejectedError:
            there = landed()
            if there is None:
                raise
            return there

    def run(self, id: int) -> Run:
        return _run(self._client.get(f"{self._root}/actions/runs/{id}"))

    def runs(self, head: str) -> tuple[Run, ...]:
        query = urlencode({"head_sha": head, "per_page": 100})
        return _runs(self._client.get(f"{self._root}/actions/runs?{query}"))

    def cancel(self, id: int) -> None:
        self._client.retried(lambda: self._client.send("POST", f"{self._root}/actions/runs/{id}/cancel", None))

    def artifact(self, run: int, name: str, file: str) -> bytes | None:
        query = urlencode({"name": name, "per_page": 100})
        try:
            found = self._client.get(f"{self._root}/actions/runs/{run}/artifacts?{query}")
        except MissingError:
            return None
        id = _newest(found)
        if id is None:
            return None
        try:
            data = self._client.download(f"{self._root}/actions/artifacts/{id}/zip", _MAX_ARTIFACT)
        except (MissingError, RejectedError) as error:
            if error.status in (404, 410):  # gone in between
                return None
            raise
        return _unpacked(data, file)


def _unpacked(data: bytes, name: str) -> bytes:
    """One file of a zip archive of a stranger. Nothing is written to the disk. Raises RejectedError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.getinfo(name).file_size > _MAX_FILE:
                raise RejectedError(f"exceeds {_MAX_FILE} bytes", name)
            with archive.open(name) as file:
                # What the archive says of sizes is its maker's word.
                found = file.read(_MAX_FILE + 1)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise RejectedError(f"the artifact cannot be unpacked ({type(error).__name__})", name) from None
    if len(found) > _MAX_FILE:
        raise RejectedError(f"exceeds {_MAX_FILE} bytes", name)
    return found


@understood
def _commit(data: Any) -> Commit:
    parents = tuple(str(parent["sha"]) for parent in data["parents"])
    return Commit(str(data["sha"]), str(data["tree"]["sha"]), parents, str(data["message"]))


@understood
def _entries(data: Any) -> dict[str, tuple[str, str]]:
    return {str(entry["path"]): (str(entry["mode"]), str(entry["sha"])) for entry in data["tree"]}


@understood
def _content(data: Any) -> bytes:
    if data["encoding"] != "base64" or int(data["size"]) > _MAX_BLOB:
        raise RejectedError(f"a file exceeds {_MAX_BLOB} bytes")
    try:
        return base64.b64decode(data["content"])
    except binascii.Error:
        raise ValueError from None


@understood
def _sha(data: Any) -> str:
    return str(data["sha"])


@understood
def _ref(data: Any) -> str:
    return str(data["object"]["sha"])


@understood
def _opened(data: Any) -> tuple[Opened, ...]:
    return tuple(
        Opened(
            str(item["html_url"]), item["state"] == "open", int(item["number"]), str(item["body"] or ""),
            str((item["user"] or {}).get("login", "")), item.get("merged_at") is not None,
        )
        for item in data
    )  # fmt: skip


@understood
def _address(data: Any) -> str:
    return str(data["html_url"])


@understood
def _run(data: Any) -> Run:
    return Run(int(data["id"]), str(data["path"]), str(data["status"]))


@understood
def _runs(data: Any) -> tuple[Run, ...]:
    return tuple(_run(item) for item in data["workflow_runs"])


@understood
def _newest(data: Any) -> int | None:
    ids = [int(item["id"]) for item in data["artifacts"] if not item["expired"]]
    return max(ids, default=None)
