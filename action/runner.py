"""What the runner tells an action, and how an action answers: inputs by environment, outputs and summary by files."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UsageError

MODES = ("gate", "optimize", "publish")
_SUMMARY_BYTES = 1_000_000  # a summary over 1 MiB is dropped whole
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]{0,99}/(?!\.{1,2}$)[\w.-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Context:
    """One job. `token` never appears in a message: its representation leaves it out."""

    mode: str
    event_name: str
    event: Mapping[str, Any]
    repository: str
    api_url: str
    run_url: str
    run: int
    mail_host: str  # of the hidden e-mail addresses of people
    workspace: Path  # the clone of the repository
    bundle: Path
    baseline: Path
    earlier: Path  # the bundle of an earlier run
    request: str
    result: str  # of the job before, in GitHub's words: success, failure, cancelled, skipped
    budget: str
    device: str
    runners: str  # as JSON, of the search
    jobs: str  # how many share it
    cluster: str  # whose workers search; "": this runner
    part: str  # which of them this one is
    dry_run: bool
    output: Path | None
    summary: Path | None
    token: str = field(default="", repr=False)
    login: str = "github-actions[bot]"

    def answer(self, values: Mapping[str, str]) -> None:
        """Set outputs of the step. A value may hold anything: its end is marked by a word nobody knows before."""
        if self.output is None:
            return
        with self.output.open("a", encoding="utf-8") as file:
            for name, value in values.items():
                mark = f"end-{secrets.token_hex(16)}"
                file.write(f"{name}<<{mark}\n{value}\n{mark}\n")

    def summarise(self, text: str) -> None:
        """Add to the job's summary, cut to what GitHub keeps."""
        if self.summary is None:
            return
        data = text.encode()
        if len(data) > _SUMMARY_BYTES:
            data = data[:_SUMMARY_BYTES].decode("utf-8", "ignore").encode() + b"\n\n(cut here; the artifact has all)\n"
        with self.summary.open("ab") as file:
            file.write(data + b"\n")


def read_context(environment: Mapping[str, str] = os.environ) -> Context:
    """The context of this job. Raises UsageError where something needed is missing or is not what it should be."""

    def value(name: str, default: str = "") -> str:
        return environment.get(name, default).strip()

    mode = value("OPTIML_MODE")
    if mode not in MODES:
        raise UsageError(f"invalid mode '{mode[:40]}'", "input 'mode'", f"write one of {', '.join(MODES)}")
    device = value("OPTIML_DEVICE") or "auto"
    if device not in ("auto", "gpu", "cpu"):
        raise UsageError(f"invalid device '{device[:40]}'", "input 'device'", "write auto, gpu or cpu")
    dry_run = value("OPTIML_DRY_RUN") or "false"
    if dry_run not in ("true", "false"):
        raise UsageError(f"is '{dry_run[:40]}'", "input 'dry-run'", "write true or false")
    repository = value("GITHUB_REPOSITORY")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError("is not a repository", "GITHUB_REPOSITORY", "run this in a GitHub workflow")
    api = value("GITHUB_API_URL") or "https://api.github.com"
    if not re.fullmatch(r"https?://[^\s/@?#]+(?:/[\w./-]*)?", api, re.ASCII):
        raise UsageError("is not an address", "GITHUB_API_URL")
    server, run = value("GITHUB_SERVER_URL") or "https://github.com", value("GITHUB_RUN_ID")
    root = Path(value("GITHUB_WORKSPACE") or ".").resolve()
    workspace = (root / value("OPTIML_CLONE")).resolve()
    if not workspace.is_relative_to(root):
        raise UsageError("is outside the workspace", "input 'clone'", "name a folder below it")
    # Not in the workspace: a pull request could have a folder of that name, with links to what the runner should keep to itself.
    scratch = Path(value("RUNNER_TEMP") or tempfile.gettempdir()).resolve()
    folders = {}
    for name, given in (
        ("bundle", value("OPTIML_BUNDLE")),
        ("baseline", value("OPTIML_BASELINE")),
        ("earlier", value("OPTIML_EARLIER")),
    ):
        folder = (scratch / (given or f"optiml-{name}")).resolve()
        if not folder.is_relative_to(scratch) or folder == scratch:
            raise UsageError("is outside the runner's temporary folder", f"input '{name}'", "name a folder below it")
        folders[name] = folder
    return Context(
        mode=mode,
        event_name=value("GITHUB_EVENT_NAME"),
        event=_event(value("GITHUB_EVENT_PATH")),
        repository=repository,
        api_url=api.rstrip("/"),
        run_url=f"{server}/{repository}/actions/runs/{run}" if run.isdigit() else "",
        run=int(run) if run.isascii() and run.isdigit() and len(run) < 18 else 0,
        mail_host=f"users.noreply.{re.sub('[^a-z0-9.-]', '', server.partition('://')[2].lower()) or 'github.com'}",
        workspace=workspace,
        bundle=folders["bundle"],
        baseline=folders["baseline"],
        earlier=folders["earlier"],
        request=value("OPTIML_REQUEST"),
        result=value("OPTIML_RESULT"),
        budget=value("OPTIML_BUDGET"),
        device=device,
        runners=value("OPTIML_RUNNERS"),
        jobs=value("OPTIML_JOBS"),
        cluster=value("OPTIML_CLUSTER"),
        part=value("OPTIML_PART"),
        dry_run=dry_run == "true",
        output=_file(value("GITHUB_OUTPUT")),
        summary=_file(value("GITHUB_STEP_SUMMARY")),
        token=value("OPTIML_TOKEN"),
        login=value("OPTIML_LOGIN") or "github-actions[bot]",
    )


def _event(path: str) -> Mapping[str, Any]:
    try:
        data = json.loads(Path(path).read_bytes()) if path else {}
    except (OSError, ValueError, RecursionError):
        raise UsageError("cannot be read", "GITHUB_EVENT_PATH", "run this in a GitHub workflow") from None
    if not isinstance(data, dict):
        raise UsageError("is not an object", "GITHUB_EVENT_PATH")
    return data


def _file(path: str) -> Path | None:
    return Path(path) if path else None
