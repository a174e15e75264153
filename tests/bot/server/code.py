"""The server's git side, over real repositories on disk: objects, branches, files; and the runs of workflows with what they left."""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.bot.server.schema import example

_R = "/repos/{owner}/{repo}"


class Problem(Exception):
    """An answer that is an error: status, message, headers."""

    def __init__(self, status: int, message: str, errors: list[Any] | None = None, **headers: str) -> None:
        self.status, self.headers = status, {k.replace("_", "-"): v for k, v in headers.items()}
        self.data: dict[str, Any] = {
            "message": message,
            "documentation_url": "https://docs.github.com/rest",
            "status": str(status),
        }
        if errors is not None:
            self.data["errors"] = errors


class CodeSide:
    """What `Server` answers from git. `repositories` maps "owner/name" to a folder; all of them share their objects, as forks do."""

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.closed: set[str] = set()  # repositories that the token may not write to
        self.runs: dict[int, dict[str, Any]] = {}  # id -> path, status
        self.artifacts: dict[int, tuple[int, str, bytes, bool]] = {}  # id -> run, name, zip, expired
        self.opened: list[dict[str, Any]] = []  # pull requests made through the API
        self.roles: dict[str, str] = {}
        self.author = "github-actions[bot]"

    def _git(self, names: dict[str, str], *arguments: str, input: bytes = b"", index: str = "") -> str:
        folder = self.repositories.get(f"{names['owner']}/{names['repo']}")
        if folder is None:
            raise Problem(404, "Not Found")
        environment = {
            "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "bot",
            "GIT_AUTHOR_EMAIL": "bot@example.com", "GIT_COMMITTER_NAME": "bot", "GIT_COMMITTER_EMAIL": "bot@example.com",
            **({"GIT_INDEX_FILE": index} if index else {}),
        }  # fmt: skip
        done = subprocess.run(["git", *arguments], cwd=folder, env=environment, input=input, capture_output=True)
        if done.returncode != 0:
            raise Problem(422 if "-ref" in arguments[0] or "merge-base" in arguments[0] else 404, "Not Found")
        return done.stdout.decode("utf-8", "replace").rstrip("\n")

    def _may_write(self, names: dict[str, str]) -> None:
        if f"{names['owner']}/{names['repo']}" in self.closed:
            raise Problem(403, "Resource not accessible by integration")

    def _get_commit(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, self._shown_commit(names, names["commit_sha"])

    def _shown_commit(self, names: dict[str, str], sha: str) -> dict[str, Any]:
        data = example(f"{_R}/git/commits/{{commit_sha}}", "get", "200")
        tree, _, parents = self._git(names, "log", "-1", "--format=%T %P", sha).partition(" ")
        message = self._git(names, "log", "-1", "--format=%B", sha)
        data |= {"sha": sha, "message": message, "tree": {"sha": tree, "url": "https://github.test/t"}}
        data["parents"] = [
            {"sha": p, "url": "https://github.test/p", "html_url": "https://github.test/p"} for p in parents.split()
        ]
        return data

    def _add_commit(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        parents = [word for parent in body["parents"] for word in ("-p", parent)]
        sha = self._git(names, "commit-tree", body["tree"], *parents, input=body["message"].encode())
        return 201, self._shown_commit(names, sha)

    def _get_tree(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, self._shown_tree(names, names["tree_sha"])

    def _shown_tree(self, names: dict[str, str], sha: str) -> dict[str, Any]:
        entries = []
        for line in self._git(names, "ls-tree", sha).splitlines():
            head, _, path = line.partition("\t")
            mode, kind, blob = head.split(" ")
            entries.append(
                {"path": path, "mode": mode, "type": kind, "sha": blob, "size": 1, "url": "https://github.test/b"}
            )
        return {"sha": sha, "url": "https://github.test/t", "tree": entries, "truncated": False}

    def _add_tree(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        with tempfile.TemporaryDirectory() as scratch:
            index = f"{scratch}/index"
            self._git(names, "read-tree", body["base_tree"], index=index)
            for entry in body["tree"]:
                info = f"{entry['mode']},{entry['sha']},{entry['path']}"
                self._git(names, "update-index", "--add", "--cacheinfo", info, index=index)
            return 201, self._shown_tree(names, self._git(names, "write-tree", index=index))

    def _get_blob(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        folder = self.repositories[f"{names['owner']}/{names['repo']}"]
        done = subprocess.run(["git", "cat-file", "blob", names["file_sha"]], cwd=folder, capture_output=True)
        if done.returncode != 0:
            raise Problem(404, "Not Found")
        text = base64.encodebytes(done.stdout).decode()
        data = {"content": text, "encoding": "base64", "url": "https://github.test/b", "node_id": "B_1"}
        return 200, data | {"sha": names["file_sha"], "size": len(done.stdout)}

    def _add_blob(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        data = base64.b64decode(body["content"])
        sha = self._git(names, "hash-object", "-w", "--stdin", input=data)
        return 201, {"url": "https://github.test/b", "sha": sha}

    def _shown_ref(self, names: dict[str, str], ref: str) -> dict[str, Any]:
        try:
            sha = self._git(names, "rev-parse", "--verify", "-q", f"refs/{ref}")
        except Problem:
            raise Problem(404, "Not Found") from None
        there = {"type": "commit", "sha": sha, "url": "https://github.test/c"}
        return {"ref": f"refs/{ref}", "node_id": "R_1", "url": "https://github.test/r", "object": there}

    def _get_ref(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, self._shown_ref(names, names["ref"])

    def _add_ref(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        ref = body["ref"].removeprefix("refs/")
        try:
            self._shown_ref(names, ref)
        except Problem:
            self._git(names, "update-ref", f"refs/{ref}", body["sha"])
            return 201, self._shown_ref(names, ref)
        raise Problem(422, "Reference already exists")

    def _edit_ref(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        tip = self._shown_ref(names, names["ref"])["object"]["sha"]
        try:
            if not body["force"]:
                self._git(names, "merge-base", "--is-ancestor", tip, body["sha"])
        except Problem:
            raise Problem(422, "Update is not a fast forward") from None
        self._git(names, "update-ref", f"refs/{names['ref']}", body["sha"])
        return 200, self._shown_ref(names, names["ref"])

    def _list_pulls(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        where, head = f"{names['owner']}/{names['repo']}", query.get("head", "").partition(":")[2]
        found = [
            pull for pull in reversed(self.opened)
            if pull["_where"] == where and head in ("", pull["head"]["ref"])
            and query.get("base", pull["base"]["ref"]) == pull["base"]["ref"] and query["state"] in ("all", pull["state"])
        ]  # fmt: skip
        size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
        return 200, [_shown_pull(pull) for pull in found[size * (page - 1) : size * page]]

    def _edit_pull(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        for pull in self.opened:
            if str(pull["number"]) == names["pull_number"]:
                pull |= body
                return 200, _shown_pull(pull)
        raise Problem(404, "Not Found")

    def _repository(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, example(_R, "get", "200") | {"default_branch": "main"}

    def _add_pull(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._may_write(names)
        self._shown_ref(names, f"heads/{body['head']}")
        data = example(f"{_R}/pulls", "post", "201")
        data["head"]["ref"], data["base"]["ref"] = body["head"], body["base"]
        if any(p["_where"] == f"{names['owner']}/{names['repo']}" and p["head"]["ref"] == body["head"] and p["state"] == "open"
               for p in self.opened):  # fmt: skip
            raise Problem(422, "Validation Failed", [{"message": f"A pull request already exists for {body['head']}."}])
        data |= {
            "state": "open",
            "title": body["title"],
            "body": body["body"],
            "number": len(self.opened) + 101,
            "merged_at": None,
            "user": {**data.get("user", {}), "login": self.author},
            "requested_teams": [],
            "_where": f"{names['owner']}/{names['repo']}",
        }
        data["html_url"] = f"https://github.test/{names['owner']}/{names['repo']}/pull/{len(self.opened) + 1}"
        self.opened.append(data)
        return 201, _shown_pull(data)

    def _get_run(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        run = self.runs.get(int(names["run_id"]))
        if run is None:
            raise Problem(404, "Not Found")
        data = example(f"{_R}/actions/runs/{{run_id}}", "get", "200")
        return 200, data | {"id": int(names["run_id"]), "path": run["path"], "status": run["status"]}

    def _list_runs(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        shape = example(f"{_R}/actions/runs/{{run_id}}", "get", "200")
        found = [
            {**shape, "id": id, "path": run["path"], "status": run["status"]}
            for id, run in self.runs.items() if run.get("head") == query["head_sha"]
        ]  # fmt: skip
        return 200, {"total_count": len(found), "workflow_runs": found}

    def _cancel_run(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        run = self.runs.get(int(names["run_id"]))
        if run is None:
            raise Problem(404, "Not Found")
        if run["status"] == "completed":
            raise Problem(409, "Cannot cancel a workflow run that is completed.")
        run["status"] = "completed"
        run["cancelled"] = True
        return 202, {}

    def _list_artifacts(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        shape = example(f"{_R}/actions/runs/{{run_id}}/artifacts", "get", "200")["artifacts"][0]
        found = [
            {**shape, "id": id, "name": name, "size_in_bytes": len(data), "expired": expired}
            for id, (run, name, data, expired) in self.artifacts.items()
            if run == int(names["run_id"]) and name == query.get("name", name)
        ]
        return 200, {"total_count": len(found), "artifacts": found}

    def _download(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        if int(names["artifact_id"]) not in self.artifacts:
            raise Problem(410, "Gone")
        raise Problem(302, "", Location=f"/store/{names['artifact_id']}")

    def _contents(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        data = self._git(names, "show", f"{query['ref']}:{names['path']}").encode() + b"\n"
        shape = example(f"{_R}/contents/{{path}}", "get", "200")
        shape = shape if isinstance(shape, dict) else {}
        content = {
            "type": "file",
            "encoding": "base64",
            "content": base64.encodebytes(data).decode(),
            "size": len(data),
        }
        return 200, shape | content | {"name": Path(names["path"]).name, "path": names["path"]}

    def _compare(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        shape = example(f"{_R}/compare/{{basehead}}", "get", "200")
        first, _, last = names["basehead"].partition("...")
        paths = self._git(names, "diff", "--name-only", first, last).splitlines()
        return 200, shape | {"files": [{**shape["files"][0], "filename": path} for path in paths]}

    def _permission(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        role = self.roles.get(names["username"], "read")
        data = example(f"{_R}/collaborators/{{username}}/permission", "get", "200")
        data["user"] = {**data.get("user", {}), "role_name": role}
        return 200, data | {"permission": role, "role_name": role}


def _shown_pull(pull: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pull.items() if key != "_where"}


CALLS: dict[tuple[str, str], Any] = {
    ("GET", _R): CodeSide._repository,
    ("PATCH", f"{_R}/pulls/{{pull_number}}"): CodeSide._edit_pull,
    ("GET", f"{_R}/git/commits/{{commit_sha}}"): CodeSide._get_commit,
    ("POST", f"{_R}/git/commits"): CodeSide._add_commit,
    ("GET", f"{_R}/git/trees/{{tree_sha}}"): CodeSide._get_tree,
    ("POST", f"{_R}/git/trees"): CodeSide._add_tree,
    ("GET", f"{_R}/git/blobs/{{file_sha}}"): CodeSide._get_blob,
    ("POST", f"{_R}/git/blobs"): CodeSide._add_blob,
    ("GET", f"{_R}/git/ref/{{ref}}"): CodeSide._get_ref,
    ("POST", f"{_R}/git/refs"): CodeSide._add_ref,
    ("PATCH", f"{_R}/git/refs/{{ref}}"): CodeSide._edit_ref,
    ("GET", f"{_R}/pulls"): CodeSide._list_pulls,
    ("POST", f"{_R}/pulls"): CodeSide._add_pull,
    ("GET", f"{_R}/actions/runs/{{run_id}}"): CodeSide._get_run,
    ("GET", f"{_R}/actions/runs"): CodeSide._list_runs,
    ("POST", f"{_R}/actions/runs/{{run_id}}/cancel"): CodeSide._cancel_run,
    ("GET", f"{_R}/actions/runs/{{run_id}}/artifacts"): CodeSide._list_artifacts,
    ("GET", f"{_R}/actions/artifacts/{{artifact_id}}/zip"): CodeSide._download,
    ("GET", f"{_R}/contents/{{path}}"): CodeSide._contents,
    ("GET", f"{_R}/compare/{{basehead}}"): CodeSide._compare,
    ("GET", f"{_R}/collaborators/{{username}}/permission"): CodeSide._permission,
}
