"""The few things the gate asks GitHub, read-only: a pull request, a person's role, a file of the base, the changed paths."""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from engine.errors import MachineError

_TIMEOUT_S = 10.0
_TRIES = 4
_WAIT_S, _MOST_WAIT_S = 1.0, 60.0
_MOST_BYTES = 16 << 20
_MESSAGE_BYTES = 4096
ROLES = ("none", "read", "triage", "write", "maintain", "admin")
_PAGES = 30  # of 100 files: GitHub lists at most 3,000


class ApiError(MachineError):
    """GitHub does not answer, or refuses."""


@dataclass(frozen=True)
class Pull:
    """A pull request as GitHub has it now. `pushed_at` is GitHub's clock for the last push to any branch of the head's repository."""

    number: int
    base: str
    head: str
    fork: bool
    draft: bool
    open: bool
    pushed_at: str
    head_repository: str = ""  # "owner/name", "" where the fork is gone
    head_ref: str = ""


class Reader(Protocol):
    """What the gate needs to know."""

    def pull(self, number: int) -> Pull: ...

    def role(self, login: str) -> str:
        """read, triage, write, maintain, admin or none."""
        ...

    def moved_at(self, pull: Pull) -> str:
        """When the head branch came to its head, by GitHub's clock; never earlier than that."""
        ...

    def file(self, path: str, commit: str) -> bytes | None: ...

    def changed(self, number: int) -> list[str]:
        """Paths of the changed files, at most 3,000."""
        ...

    def compared(self, base: str, head: str) -> list[str]:
        """Paths of the files that differ between two commits, at most 300."""
        ...

    def default_branch(self) -> tuple[str, str]:
        """The default branch and its commit."""
        ...


class RestReader:
    """Reader over GitHub's REST API. Retries what may pass, up to a minute in all. Methods raise ApiError."""

    def __init__(
        self, api_url: str, repository: str, token: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._repositories, self._repository = f"{api_url}/repos", repository
        self._token, self._sleep, self._waited = token, sleep, 0.0

    def pull(self, number: int) -> Pull:
        return pull_of(self._get(f"/pulls/{number}"))

    def role(self, login: str) -> str:
        found = self._get(f"/collaborators/{quote(login, safe='')}/permission", missing={})
        # An organisation's own roles have names of their own, and one of GitHub's permissions each.
        names = (str(found.get("role_name")), str(found.get("permission")))
        return next((name for name in names if name in ROLES), "none")

    def moved_at(self, pull: Pull) -> str:
        if not pull.head_repository:
            return pull.pushed_at
        query = urlencode({"ref": f"refs/heads/{pull.head_ref}", "per_page": 30})
        try:
            found = self._get(f"/activity?{query}", repository=pull.head_repository)
        except ApiError:  # another repository's activity may be closed to this token
            return pull.pushed_at
        entries = found if isinstance(found, list) else []
        times = [str(e.get("timestamp", "")) for e in entries if isinstance(e, dict) and e.get("after") == pull.head]
        return times[0] if times and times[0] else pull.pushed_at

    def file(self, path: str, commit: str) -> bytes | None:
        found = self._get(f"/contents/{quote(path)}?{urlencode({'ref': commit})}", missing=None)
        if found is None:
            return None
        if not isinstance(found, dict) or found.get("type") != "file" or found.get("encoding") != "base64":
            raise ApiError("is not a regular file, or too large", path, "put the settings themselves there")
        try:
            return base64.b64decode(str(found.get("content", "")))
        except binascii.Error:
            raise ApiError("GitHub's answer cannot be parsed", path) from None

    def changed(self, number: int) -> list[str]:
        found: list[str] = []
        for page in range(1, _PAGES + 1):
            files = self._get(f"/pulls/{number}/files?{urlencode({'per_page': 100, 'page': page})}")
            found += [str(file["filename"]) for file in files]
            if len(files) < 100:
                break
        return found

    def compared(self, base: str, head: str) -> list[str]:
        found = self._get(f"/compare/{base}...{head}?per_page=1")
        return [str(file["filename"]) for file in found.get("files") or ()]

    def default_branch(self) -> tuple[str, str]:
        try:
            name = str(self._get("")["default_branch"])
            return name, str(self._get(f"/git/ref/{quote(f'heads/{name}')}")["object"]["sha"])
        except (KeyError, TypeError):
            raise ApiError("GitHub's description of the repository cannot be parsed", "default_branch") from None

    def _get(self, path: str, *, repository: str = "", **otherwise: Any) -> Any:
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "optiml",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        address = f"{self._repositories}/{repository or self._repository}{path}"
        request = urllib.request.Request(address, headers=headers)
        opener = urllib.request.build_opener(_SameHost)
        problem = ""
        for attempt in range(_TRIES):
            wait = _WAIT_S * 2**attempt
            try:
                with opener.open(request, timeout=_TIMEOUT_S) as answer:
                    return json.loads(answer.read(_MOST_BYTES))
            except urllib.error.HTTPError as error:
                if error.code == 404 and "missing" in otherwise:
                    return otherwise["missing"]
                problem = f"HTTP {error.code}"
                asked = error.headers.get("Retry-After", "") if error.headers else ""
                # A secondary limit may come without either header; its text says what it is.
                left = error.headers.get("X-RateLimit-Remaining", "") if error.headers else ""
                spent = left == "0" or b"rate limit" in error.read(_MESSAGE_BYTES)
                if error.code not in (429, 500, 502, 503, 504) and not (error.code == 403 and (asked or spent)):
                    break
                wait = float(asked) if asked.isdigit() else wait
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = type(error).__name__
            if attempt + 1 < _TRIES and self._waited + wait <= _MOST_WAIT_S:
                self._waited += wait
                self._sleep(wait)
            else:
                break
        raise ApiError(f"unexpected answer from GitHub ({problem})", path.partition("?")[0], "run the job again")


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to another host: the token would go with it."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.request.Request(newurl).host != req.host or not newurl.startswith(
            req.full_url.partition(":")[0] + "://"
        ):
            raise urllib.error.HTTPError(req.full_url, code, "redirects to another host", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def pull_of(data: Any) -> Pull:
    """A pull request from GitHub's JSON, of an event or of the API. Raises ApiError."""
    try:
        head, base = data["head"], data["base"]
        repository = head["repo"]  # None where the fork was deleted
        return Pull(
            number=int(data["number"]),
            base=str(base["sha"]),
            head=str(head["sha"]),
            fork=repository is None or repository["full_name"] != base["repo"]["full_name"],
            draft=bool(data.get("draft")),
            open=data.get("state", "open") == "open",
            pushed_at=str((repository or {}).get("pushed_at") or ""),
            head_repository=str((repository or {}).get("full_name") or ""),
            head_ref=str(head.get("ref") or ""),
        )
    except (KeyError, TypeError, ValueError):
        raise ApiError("GitHub's description of the pull request cannot be parsed", "pull_request") from None
