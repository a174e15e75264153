"""GitHub's own OpenAPI description, from its npm package, cut to the paths that the bot uses."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import lru_cache
from typing import Any

from engine.settings.folders import cache_folder
from tests.npm import package

PACKAGE, VERSION = "@octokit/openapi", "23.0.2"
_R = "/repos/{owner}/{repo}"
PATHS = (
    f"{_R}/pulls/{{pull_number}}", f"{_R}/pulls/{{pull_number}}/files", f"{_R}/pulls/{{pull_number}}/reviews",
    f"{_R}/pulls/{{pull_number}}/reviews/{{review_id}}", f"{_R}/pulls/{{pull_number}}/reviews/{{review_id}}/events",
    f"{_R}/issues/{{issue_number}}/comments", f"{_R}/issues/comments/{{comment_id}}", f"{_R}/check-runs",
    f"{_R}/issues/comments/{{comment_id}}/reactions",
    f"{_R}/check-runs/{{check_run_id}}", f"{_R}/commits/{{ref}}/check-runs",
    f"{_R}/git/commits", f"{_R}/git/commits/{{commit_sha}}", f"{_R}/git/trees", f"{_R}/git/trees/{{tree_sha}}",
    f"{_R}/git/blobs", f"{_R}/git/blobs/{{file_sha}}", f"{_R}/git/refs", f"{_R}/git/ref/{{ref}}", f"{_R}/git/refs/{{ref}}",
    f"{_R}/pulls", f"{_R}/actions/runs", f"{_R}/actions/runs/{{run_id}}", f"{_R}/actions/runs/{{run_id}}/cancel",
    f"{_R}/actions/runs/{{run_id}}/artifacts", f"{_R}/actions/artifacts/{{artifact_id}}/{{archive_format}}",
    f"{_R}/contents/{{path}}", f"{_R}/compare/{{basehead}}", f"{_R}/collaborators/{{username}}/permission", _R,
)  # fmt: skip


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The cut description. Skips the test where npm is not there or cannot fetch the package."""
    # Named by what it was cut to: another list of paths makes another file.
    paths = hashlib.sha256(repr((PATHS, VERSION)).encode()).hexdigest()[:16]
    cut = cache_folder() / "test-npm" / f"openapi-{paths}.json"
    if not cut.is_file():
        whole = json.loads((package(PACKAGE, VERSION) / "generated" / "api.github.com.json").read_bytes())
        part = cut.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(_cut(whole)))
        part.replace(cut)
    loaded: dict[str, Any] = json.loads(cut.read_bytes())
    return loaded


def _cut(whole: dict[str, Any]) -> dict[str, Any]:
    """The paths with what they refer to, and nothing else."""
    small: dict[str, Any] = {
        "openapi": whole["openapi"],
        "info": whole["info"],
        "servers": [{"url": "http://github.test"}],
    }
    small["paths"] = {path: whole["paths"][path] for path in PATHS}
    waiting: list[Any] = [small["paths"]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            if node.get("nullable") and isinstance(node.get("enum"), list) and None not in node["enum"]:
                node["enum"].append(None)  # GitHub means it so; OpenAPI 3.0 wants it said twice
            reference = node.get("$ref")
            if isinstance(reference, str):
                _, components, kind, name = reference.split("/")
                there = small.setdefault(components, {}).setdefault(kind, {})
                if name not in there:
                    there[name] = whole[components][kind][name]
                    waiting.append(there[name])
    return small


@lru_cache(maxsize=1)
def validator() -> Any:
    """The description as openapi-core takes it."""
    from openapi_core import OpenAPI

    return OpenAPI.from_dict(description())


def example(path: str, method: str, status: str) -> Any:
    """The description's own example of an answer, to be filled with a test's state; without npm the bare shape of one."""
    if shutil.which("npm") is None:
        return _bare(path)
    answer = description()["paths"][path][method]["responses"][status]["content"]["application/json"]
    first = next(iter(answer["examples"].values()))
    if "$ref" in first:
        first = description()["components"]["examples"][first["$ref"].rsplit("/", 1)[1]]
    return json.loads(json.dumps(first["value"]))


def _bare(path: str) -> Any:
    """What the bot reads of an answer, for a server that holds nothing against the description."""
    side = {"repo": {}, "ref": "", "sha": ""}
    shape: dict[str, Any] = {
        "user": {},
        "output": {},
        "status": "",
        "external_id": "",
        "files": [{}],
        "artifacts": [{}],
    }
    shape |= {"head": dict(side, repo={}), "base": dict(side, repo={})}
    return [shape] if path.endswith("/files") else shape
