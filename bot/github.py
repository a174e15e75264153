"""The Forge of GitHub, through PyGithub's requester: every request counted, bounded in time, and retried where that is safe."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import requests
from github import Auth, Github
from github.GithubException import BadAttributeException, GithubException

from bot.diff import FileDiff, Status, read_patch
from bot.errors import (
    DeniedError,
    DiffError,
    ForgeError,
    LimitedError,
    MissingError,
    RejectedError,
    UnavailableError,
)
from bot.forge import Check, CheckOutput, CheckStatus, Note, Pull, Reaction
from bot.render import Comment

T = TypeVar("T")

# Ours: a job on CI waits a little for GitHub, not for minutes.
_TIMEOUT_S = 10
_TRIES = 4
_FIRST_WAIT_S, _MOST_WAIT_S, _MOST_WAIT_TOGETHER_S = 1.0, 60.0, 120.0
_PAGES = 30  # of 100: GitHub lists at most 3,000 files
_BATCH = 50  # annotations of one request
_STATUS: Mapping[str, Status] = {"added": "added", "removed": "deleted", "renamed": "renamed"}
# What PyGithub raises where an answer is not what it expects: a redirect to another host is a RuntimeError there.
_MISREAD = (BadAttributeException, ValueError, KeyError, TypeError, AttributeError, RuntimeError, AssertionError)
_REVIEWS = """query($id: ID!) { node(id: $id) { ... on PullRequest {
  reviews(last: 50) { nodes { id body isMinimized viewerDidAuthor } }
  reviewThreads(last: 100) { nodes { id isResolved isOutdated comments(first: 1) { nodes {
    viewerDidAuthor pullRequestReview { id } } } } } } } }"""


class GitHub:
    """The repository `owner/name` at `api_url`, as `login`. Methods raise ForgeError.

    `github-actions[bot]` is who a workflow's own token speaks as; an App's token speaks as `<slug>[bot]`. `sleep` is for
    tests.
    """

    def __init__(
        self, repository: str, token: str, *, api_url: str = "https://api.github.com", login: str = "github-actions[bot]",
        sleep: Callable[[float], None] = time.sleep, timeout_s: int = _TIMEOUT_S,
    ) -> None:  # fmt: skip
        # PyGithub's own retries wait for minutes and would post twice; its pauses between requests add up.
        client = Github(
            auth=Auth.Token(token), base_url=api_url, timeout=timeout_s, retry=None, per_page=100, user_agent="optiml",
            seconds_between_requests=0, seconds_between_writes=0,
        )  # fmt: skip
        self._requester = client.requester
        self._root = f"/repos/{repository}"
        self._login, self._sleep = login, sleep
        self._waited = 0.0
        self.calls = 0

    @property
    def login(self) -> str:
        return self._login

    def pull(self, number: int) -> Pull:
        return _pull(self._get(f"{self._root}/pulls/{number}"))

    def files(self, number: int) -> tuple[FileDiff, ...]:
        return tuple(_file(item) for item in self._list(f"{self._root}/pulls/{number}/files"))

    def comments(self, number: int) -> tuple[Note, ...]:
        return tuple(_note(item) for item in self._list(f"{self._root}/issues/{number}/comments"))

    def add_comment(self, number: int, body: str) -> Note:
        def landed() -> Note | None:
            mine = [note for note in self.comments(number) if note.author == self._login and _same(note.body, body)]
            return mine[-1] if mine else None

        return self._create(
            lambda: _note(self._send("POST", f"{self._root}/issues/{number}/comments", {"body": body})), landed
        )

    def edit_comment(self, id: int, body: str) -> None:
        self._retried(lambda: self._send("PATCH", f"{self._root}/issues/comments/{id}", {"body": body}))

    def delete_comment(self, id: int) -> None:
        self._delete(f"{self._root}/issues/comments/{id}")

    def react(self, comment: int, content: Reaction) -> None:
        # The same reaction twice is one: GitHub answers 200 instead of 201.
        path = f"{self._root}/issues/comments/{comment}/reactions"
        self._retried(lambda: self._send("POST", path, {"content": content}))

    def reviews(self, number: int) -> tuple[Note, ...]:
        return tuple(_note(item) for item in self._list(f"{self._root}/pulls/{number}/reviews"))

    def draft_review(self, number: int, head: str, body: str, comments: Sequence[Comment]) -> Note:
        data: dict[str, Any] = {"commit_id": head, "body": body, "comments": [_comment(c) for c in comments]}

        def landed() -> Note | None:
            for note in self.reviews(number):
                if note.author == self._login and note.state == "PENDING" and _same(note.body, body):
                    return note
            return None

        return self._create(lambda: _note(self._send("POST", f"{self._root}/pulls/{number}/reviews", data)), landed)

    def submit_review(self, number: int, id: int) -> None:
        path = f"{self._root}/pulls/{number}/reviews/{id}"

        def landed() -> bool | None:
            return True if self._get(path).get("state") != "PENDING" else None

        try:
            self._create(lambda: bool(self._send("POST", f"{path}/events", {"event": "COMMENT"})), landed)
        except RejectedError:
            # Another run may have submitted it in between.
            if not landed():
                raise

    def delete_review(self, number: int, id: int) -> None:
        self._delete(f"{self._root}/pulls/{number}/reviews/{id}")

    def checks(self, head: str, name: str) -> tuple[Check, ...]:
        query = urlencode({"check_name": name, "per_page": 100})
        data = self._get(f"{self._root}/commits/{head}/check-runs?{query}")
        return tuple(_check(item) for item in data.get("check_runs") or ())

    def write_check(
        self,
        name: str,
        head: str,
        key: str,
        status: CheckStatus,
        conclusion: str,
        output: CheckOutput,
        known: Check | None,
    ) -> None:
        left = list(output.annotations)
        if known is not None:
            # An earlier try sent these already; GitHub adds up what it is sent.
            left = left[known.annotations :]
        data: dict[str, Any] = {"name": name, "external_id": key, "status": status}
        if status == "completed":
            data["conclusion"] = conclusion
        first = True
        while first or left:
            batch, left = left[:_BATCH], left[_BATCH:]
            data["output"] = {"title": output.title, "summary": output.summary, "annotations": batch}
            known = self._check_batch(name, head, data, known, len(batch))
            first = False

    def _check_batch(self, name: str, head: str, data: dict[str, Any], known: Check | None, size: int) -> Check:
        if known is None:

            def created() -> Check | None:
                return next((c for c in self.checks(head, name) if c.key == data["external_id"]), None)

            create = {**data, "head_sha": head}
            return self._create(lambda: _check(self._send("POST", f"{self._root}/check-runs", create)), created)
        path, before = f"{self._root}/check-runs/{known.id}", known.annotations

        def grown() -> Check | None:
            now = _check(self._get(path))
            return now if size and now.annotations >= before + size else None

        return self._create(lambda: _check(self._send("PATCH", path, data)), grown)

    def hide_outdated(self, pull: Pull, marker: str, keep: str) -> int:
        if not pull.node_id:
            return 0
        found = self._retried(lambda: self._graphql(_REVIEWS, {"id": pull.node_id})).get("node") or {}
        old = {
            r["id"]: r["isMinimized"] for r in found.get("reviews", {}).get("nodes", [])
            if r["viewerDidAuthor"] and marker in r["body"] and keep not in r["body"]
        }  # fmt: skip
        parts = [("minimizeComment", "subjectId", id, ", classifier: OUTDATED") for id, done in old.items() if not done]
        for thread in found.get("reviewThreads", {}).get("nodes", []):
            comments = thread["comments"]["nodes"]
            mine = (
                comments
                and comments[0]["viewerDidAuthor"]
                and (comments[0]["pullRequestReview"] or {}).get("id") in old
            )
            if mine and not thread["isResolved"]:
                parts.append(("resolveReviewThread", "threadId", thread["id"], ""))
        parts = parts[:50]
        if parts:
            names = ", ".join(f"$v{i}: ID!" for i in range(len(parts)))
            fields = " ".join(
                f"m{i}: {call}(input: {{{key}: $v{i}{more}}}) {{ clientMutationId }}"
                for i, (call, key, _, more) in enumerate(parts)
            )
            variables = {f"v{i}": id for i, (_, _, id, _) in enumerate(parts)}
            self._retried(lambda: self._graphql(f"mutation({names}) {{ {fields} }}", variables))
        return len(parts)

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        with _Translated("/graphql"):
            _, data = self._requester.graphql_query(query, variables)
        return cast(dict[str, Any], data.get("data") or {})

    def _get(self, path: str) -> Any:
        return self._retried(lambda: self._send("GET", path, None))

    def _delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):  # it is gone, which is what was asked for
            self._retried(lambda: self._send("DELETE", path, None))

    def _list(self, path: str) -> list[Any]:
        found: list[Any] = []
        # By number and not by the Link header: no address of another host is ever followed.
        for page in range(1, _PAGES + 1):
            query = urlencode({"per_page": 100, "page": page})
            items: list[Any] = self._retried(functools.partial(self._send, "GET", f"{path}?{query}", None, list))
            found += items
            if len(items) < 100:
                break
        return found

    def _send(self, verb: str, path: str, data: dict[str, Any] | None, kind: type = dict) -> Any:
        self.calls += 1
        with _Translated(path):
            _, answer = self._requester.requestJsonAndCheck(verb, path, input=data)
        # What is no JSON comes back from PyGithub as the only value of an object.
        if verb != "DELETE" and (
            not isinstance(answer, kind) or (isinstance(answer, dict) and list(answer) == ["data"])
        ):
            raise UnavailableError("GitHub's answer is not understood", path.partition("?")[0], "run the job again")
        return answer

    def _create(self, make: Callable[[], T], landed: Callable[[], T | None]) -> T:
        """Like `_retried`, but what may have got through is looked for before it is sent again."""

        tried = False

        def again() -> T:
            nonlocal tried
            found = landed() if tried else None
            tried = True
            return make() if found is None else found

        return self._retried(again)

    def _retried(self, call: Callable[[], T]) -> T:
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
            raise UnavailableError("GitHub's answer is not understood", self._where) from None
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
            f"the token may not do this: {text}",
            where,
            "give the job the permissions that docs/github.md names",
            status,
        )
    if status == 404:
        return MissingError(f"there is no such thing, or the token may not see it: {text}", where, status=status)
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


def _understood(read: Callable[[Any], T]) -> Callable[[Any], T]:
    def checked(data: Any) -> T:
        try:
            return read(data)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UnavailableError("GitHub's answer is not understood", do="run the job again") from None

    return checked


@_understood
def _pull(data: Any) -> Pull:
    head, base = data["head"], data["base"]
    repository = head.get("repo") or {}
    return Pull(
        int(data["number"]), head["sha"], base["sha"], head["ref"], repository.get("full_name") or "",
        data["state"] == "open", data.get("node_id") or "",
    )  # fmt: skip


@_understood
def _file(item: Any) -> FileDiff:
    path, status = str(item["filename"]), _STATUS.get(item["status"], "modified")
    old = str(item.get("previous_filename") or path)
    try:
        return read_patch(path, item.get("patch") or "", old_path=old, status=status)
    except DiffError:
        return FileDiff(path, old, status, ())


@_understood
def _note(data: Any) -> Note:
    return Note(
        id=int(data["id"]), body=data.get("body") or "", author=(data.get("user") or {}).get("login") or "",
        state=data.get("state") or "", commit=data.get("commit_id") or "", node_id=data.get("node_id") or "",
    )  # fmt: skip


@_understood
def _check(data: Any) -> Check:
    count = int((data.get("output") or {}).get("annotations_count") or 0)
    return Check(int(data["id"]), data.get("external_id") or "", data.get("status") or "", count)


def _comment(comment: Comment) -> dict[str, Any]:
    data: dict[str, Any] = {"path": comment.path, "line": comment.line, "side": "RIGHT", "body": comment.body}
    if comment.start is not None:
        data |= {"start_line": comment.start, "start_side": "RIGHT"}
    return data


def _same(one: str, other: str) -> bool:
    """GitHub trims bodies and may change their line ends."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
