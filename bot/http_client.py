"""Requests to GitHub's REST and GraphQL interfaces: counted, bounded in time, and retried where that is safe."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urljoin, urlsplit

import requests
from github import Auth, Github
from github.GithubException import BadAttributeException, GithubException

from bot.errors import (
    DeniedError,
    ForgeError,
    LimitedError,
    MissingError,
    RejectedError,
    UnavailableError,
)

T = TypeVar("T")

# Ours: a job on CI waits a little for GitHub, not for minutes.
TIMEOUT_S = 10
_TRIES = 4
_FIRST_WAIT_S, _MOST_WAIT_S, _MOST_WAIT_TOGETHER_S = 1.0, 60.0, 120.0
_PAGES = 30  # of 100: GitHub lists at most 3,000 files
_KEPT = 200  # answers that are asked for again by their tag
# What PyGithub raises where an answer is not what it expects: a redirect to another host is a RuntimeError there.
_MISREAD = (BadAttributeException, ValueError, KeyError, TypeError, AttributeError, RuntimeError, AssertionError)


class Client:
    """The API at `api_url`. Methods raise ForgeError. Paths begin with `/`; `sleep` is for tests.

    An answer that came before is asked for by its tag (If-None-Match): where nothing changed GitHub sends it no second time,
    and does not count the request against the limit.
    """

    def __init__(
        self, token: str, *, api_url: str = "https://api.github.com", sleep: Callable[[float], None] = time.sleep,
        timeout_s: int = TIMEOUT_S,
    ) -> None:  # fmt: skip
        # PyGithub's own retries wait for minutes and would post twice; its pauses between requests add up.
        client = Github(
            auth=Auth.Token(token), base_url=api_url, timeout=timeout_s, retry=None, per_page=100, user_agent="optiml",
            seconds_between_requests=0, seconds_between_writes=0,
        )  # fmt: skip
        self._requester = client.requester
        self._api_url, self._token, self._timeout_s = api_url.rstrip("/"), token, timeout_s
        self._sleep = sleep
        self._waited = 0.0
        self._known: dict[str, tuple[str, str]] = {}  # path -> tag and text

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        with _Translated("/graphql"):
            _, data = self._requester.graphql_query(query, variables)
        return cast(dict[str, Any], data.get("data") or {})

    def get(self, path: str) -> Any:
        return self.retried(lambda: self.send("GET", path, None))

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):  # it is gone, which is what was asked for
            self.retried(lambda: self.send("DELETE", path, None))

    def listed(self, path: str) -> list[Any]:
        found: list[Any] = []
        # By number and not by the Link header: no address of another host is ever followed.
        for page in range(1, _PAGES + 1):
            query = urlencode({"per_page": 100, "page": page})
            items: list[Any] = self.retried(functools.partial(self.send, "GET", f"{path}?{query}", None, list))
            found += items
            if len(items) < 100:
                break
        return found

    def send(self, verb: str, path: str, data: dict[str, Any] | None, kind: type = dict) -> Any:
        """One request, tried once; its answer, of the given kind."""
        with _Translated(path):
            if verb == "GET":
                answer = self._fresh(path)
            else:
                _, answer = self._requester.requestJsonAndCheck(verb, path, input=data)
        # What is no JSON comes back from PyGithub as the only value of an object.
        if verb != "DELETE" and (
            not isinstance(answer, kind) or (isinstance(answer, dict) and list(answer) == ["data"])
        ):
            raise UnavailableError("GitHub's answer cannot be parsed", path.partition("?")[0], "run the job again")
        return answer

    def _fresh(self, path: str) -> Any:
        tag, text = self._known.get(path, ("", ""))
        headers = {"If-None-Match": tag} if tag else None
        status, answered, output = self._requester.requestJson("GET", path, headers=headers)
        if status == 304 and tag:
            return json.loads(text)
        if status >= 300:
            raise self._requester.createException(status, answered, _json_or_text(output))
        found = json.loads(output) if output else None
        if answered.get("etag") and len(self._known) < _KEPT:
            self._known[path] = (answered["etag"], output)
        return found

    def download(self, path: str, most_bytes: int) -> bytes:
        """What a path redirects to on another host, where the token does not go. Raises RejectedError over `most_bytes`."""

        def once() -> bytes:
            headers = {"Authorization": f"Bearer {self._token}", "User-Agent": "optiml"}
            with _Translated(path):
                asked = requests.get(
                    self._api_url + path, headers=headers, timeout=self._timeout_s, allow_redirects=False
                )
                if asked.status_code >= 400:
                    raise self._requester.createException(
                        asked.status_code, {k.lower(): v for k, v in asked.headers.items()}, _json_or_text(asked.text)
                    )
                there = urljoin(self._api_url, asked.headers.get("Location", ""))
                if asked.status_code != 302 or urlsplit(there).scheme not in ("https", urlsplit(self._api_url).scheme):
                    raise UnavailableError("GitHub's answer cannot be parsed", path, "run the job again")
                with requests.get(there, timeout=self._timeout_s, allow_redirects=False, stream=True) as answer:
                    if answer.status_code != 200:
                        raise UnavailableError(f"the store answers with status {answer.status_code}", path)
                    data = bytearray()
                    for part in answer.iter_content(1 << 16):
                        data += part
                        if len(data) > most_bytes:
                            raise RejectedError(f"exceeds {most_bytes} bytes", path)
            return bytes(data)

        return self.retried(once)

    def create(self, make: Callable[[], T], landed: Callable[[], T | None]) -> T:
        """Like `_retried`, but what may have got through is looked for before it is sent again."""

        tried = False

        def again() -> T:
            nonlocal tried
            found = landed() if tried else None
            tried = True
            return make() if found is None else found

        return self.retried(again)

    def retried(self, call: Callable[[], T]) -> T:
        for attempt in range(1, _TRIES + 1):
            try:
                return call()
            except (UnavailableError, LimitedError) as error:
                wait = _FIRST_WAIT_S * 2 ** (attempt - 1)
                if isinstance(error, _Asked):
                    wait = max(wait, error.wait_s)
                    if wait > _MOST_WAIT_S or self._waited + wait > _MOST_WAIT_TOGETHER_S:
                        raise LimitedError(
                            f"GitHub asks to wait {error.wait_s:.0f} s",
                            error.where,
                            "run the job again later",
                            error.status,
                        ) from None
                if attempt == _TRIES or self._waited + wait > _MOST_WAIT_TOGETHER_S:
                    raise
                self._waited += wait
                self._sleep(wait)
        raise AssertionError  # the loop returns or raises


class _Asked(LimitedError):
    """A rate limit with the wait that GitHub asks for, in seconds."""

    wait_s: float = 0.0


class _Translated:
    """Turns what PyGithub and the connection raise into ForgeErrors."""

    def __init__(self, path: str) -> None:
        self._where = path.partition("?")[0]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, ForgeError):
            return
        if isinstance(error, _MISREAD) and not isinstance(error, GithubException):
            raise UnavailableError("GitHub's answer cannot be parsed", self._where) from None
        if isinstance(error, requests.exceptions.RequestException | OSError):
            raise UnavailableError(
                f"no answer from GitHub ({type(error).__name__})", self._where, "run the job again"
            ) from None
        if isinstance(error, GithubException):
            raise _translate(error, self._where) from None


def _translate(error: GithubException, where: str) -> ForgeError:
    status = error.status
    headers = {str(k).lower(): str(v) for k, v in (error.headers or {}).items()}
    text = _message(error)
    asked = headers.get("retry-after", "")
    spent = headers.get("x-ratelimit-remaining") == "0"
    if status == 429 or (status == 403 and (asked or spent or "secondary rate limit" in text.lower())):
        limit = _Asked(f"GitHub's rate limit: {text}", where, "run the job again later", status)
        reset = headers.get("x-ratelimit-reset", "")
        # Without a figure GitHub's documentation asks for a minute.
        limit.wait_s = float(asked) if asked.isdigit() else 60.0
        if not asked and spent and reset.isdigit():
            limit.wait_s = max(1.0, float(reset) - time.time())
        return limit
    if status in (401, 403):
        return DeniedError(
            f"the token does not have the permission: {text}",
            where,
            "give the job the permissions listed in docs/github.md",
            status,
        )
    if status == 404:
        return MissingError(f"not found, or the token cannot access it: {text}", where, status=status)
    if status in (400, 405, 409, 410, 422) or 300 <= status < 400:
        return RejectedError(f"GitHub refuses the request: {text}", where, status=status)
    return UnavailableError(f"GitHub answers with status {status}", where, "run the job again", status)


def _message(error: GithubException) -> str:
    data = error.data
    if not isinstance(data, dict):
        return str(data)[:300]
    parts = [str(data.get("message", ""))]
    errors = data.get("errors")
    for item in errors if isinstance(errors, list) else []:
        parts.append(str(item.get("message", "")) if isinstance(item, dict) else str(item))
    return "; ".join(part for part in parts if part)[:300]


def understood(read: Callable[[Any], T]) -> Callable[[Any], T]:
    def checked(data: Any) -> T:
        try:
            return read(data)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UnavailableError("GitHub's answer cannot be parsed", do="run the job again") from None

    return checked


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"message": text[:300]}
