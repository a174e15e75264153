"""A small GitHub over real HTTP: it remembers, it has the rules that are written nowhere, and it fails when told to.

Every request and every answer that is no injected fault is held against GitHub's OpenAPI description.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bot.diff import read_patch
from tests.bot.server.code import CALLS, CodeSide, Problem
from tests.bot.server.schema import example, validator

BOT = "github-actions[bot]"
_R = "/repos/{owner}/{repo}"
_ANNOTATIONS = 50
_BODY = 65_536


@dataclass
class Fault:
    """What goes wrong with the next requests that match. `after`: the request takes effect, and its answer is lost."""

    verb: str
    path: str  # a regular expression
    kind: str  # a status as text, "drop", "garbage", "slow", "html", "empty"
    times: int = 1
    after: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "injected"
    skip: int = 0


class Server(CodeSide):
    """State and rules. Use as a context manager; `url` is the API's root. Without `strict` nothing is held against a description."""

    def __init__(self, *, head: str, base: str, files: dict[str, str], strict: bool = True) -> None:
        super().__init__()
        self.head, self.base, self.strict = head, base, strict
        self.head_ref, self.head_repository = "topic", "octocat/Hello-World"
        self.pushed_at = "2025-01-01T10:00:00Z"
        self.unchanged = 0  # answers that were none: the client had them
        self.received: list[tuple[str, str, Any]] = []  # what was written: verb, path, data
        self.files = files  # path -> the hunks of its diff
        self.state = "open"
        self.comments: dict[int, dict[str, Any]] = {}
        self.reviews: dict[int, dict[str, Any]] = {}
        self.checks: dict[int, dict[str, Any]] = {}
        self.minimized: set[str] = set()
        self.reactions: set[tuple[int, str, str]] = set()
        self.faults: list[Fault] = []
        self.read_only = False
        self.author = BOT
        self.requests: list[tuple[str, str]] = []
        self.violations: list[str] = []
        self.bad_lines: set[int] = set()  # that GitHub refuses although its list of files has them
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self._ids = itertools.count(1001)
        self._lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"server_state": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def submitted(self) -> list[dict[str, Any]]:
        """The reviews that people see."""
        return [review for review in self.reviews.values() if review["state"] != "PENDING"]

    def answer(self, verb: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any, str]:
        """Status, data and the description's path. Raises Problem."""
        with self._lock:
            for route, method, template in _ROUTES:
                match = route.fullmatch(path)
                if match is not None and method == verb:
                    if verb != "GET" and self.read_only:
                        raise Problem(403, "Resource not accessible by integration")
                    status, data = _CALLS[(verb, template)](self, match.groupdict(), query, body)
                    return status, data, template
        raise Problem(404, "Not Found")

    def _number(self, names: dict[str, str]) -> None:
        if names.get("pull_number", names.get("issue_number")) != "7":
            raise Problem(404, "Not Found")

    def _pull(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._number(names)
        data = example(f"{_R}/pulls/{{pull_number}}", "get", "200")
        data |= {"number": 7, "state": self.state, "node_id": "PR_7"}
        data["requested_teams"] = []  # the description's own example breaks its schema here
        data["head"] |= {"sha": self.head, "ref": self.head_ref}
        data["base"]["sha"] = self.base
        for side, name in (("head", self.head_repository), ("base", "octocat/Hello-World")):
            data[side]["repo"] |= {"full_name": name, "pushed_at": self.pushed_at}
        data["draft"] = False
        return 200, data

    def _files(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._number(names)
        shape = example(f"{_R}/pulls/{{pull_number}}/files", "get", "200")[0]
        found = []
        for path, patch in self.files.items():
            item = {**shape, "filename": path, "status": "modified", "patch": patch}
            if not patch:
                del item["patch"]
            found.append(item)
        return 200, _page(found, query)

    def _comments(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, _page(list(self.comments.values()), query)

    def _add_comment(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._number(names)
        _fits(body["body"])
        data = example(f"{_R}/issues/{{issue_number}}/comments", "post", "201")
        data |= {"id": next(self._ids), "body": body["body"].strip()}
        data["user"]["login"] = self.author
        self.comments[data["id"]] = data
        return 201, data

    def _edit_comment(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        _fits(body["body"])
        comment = self._comment(names)
        comment["body"] = body["body"].strip()
        return 200, comment

    def _delete_comment(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        del self.comments[self._comment(names)["id"]]
        return 204, None

    def _react(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        key = (int(names["comment_id"]), self.author, body["content"])
        known = key in self.reactions
        self.reactions.add(key)
        data = example(f"{_R}/issues/comments/{{comment_id}}/reactions", "post", "201")
        return (200 if known else 201), {**data, "content": body["content"]}

    def _comment(self, names: dict[str, str]) -> dict[str, Any]:
        comment = self.comments.get(int(names["comment_id"]))
        if comment is None:
            raise Problem(404, "Not Found")
        if comment["user"]["login"] != self.author:
            raise Problem(403, "Must have admin rights to Repository.")
        return comment

    def _reviews(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._number(names)
        seen = [r for r in self.reviews.values() if r["state"] != "PENDING" or r["user"]["login"] == self.author]
        return 200, _page([_public(r) for r in seen], query)

    def _add_review(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        self._number(names)
        if len(body.get("body", "")) > _BODY:
            raise Problem(422, "Unprocessable Entity", ["body is too long (maximum is 65536 characters)"])
        if any(r["state"] == "PENDING" and r["user"]["login"] == self.author for r in self.reviews.values()):
            raise Problem(422, "Unprocessable Entity", ["User can only have one pending review per pull request"])
        for comment in body.get("comments", []):
            self._check_line(comment)
        data = example(f"{_R}/pulls/{{pull_number}}/reviews", "post", "200")
        state = "PENDING" if "event" not in body else "COMMENTED"
        data |= {
            "id": next(self._ids),
            "body": body.get("body", "").strip(),
            "state": state,
            "commit_id": body["commit_id"],
        }
        data["node_id"] = f"PRR_{data['id']}"
        data["user"]["login"] = self.author
        if state == "PENDING":
            data.pop("submitted_at", None)
        self.reviews[data["id"]] = {**data, "_comments": body.get("comments", [])}
        return 200, data

    def _check_line(self, comment: dict[str, Any]) -> None:
        message = "Pull request review thread line must be part of the diff"
        _fits(comment["body"])
        hunks = read_patch(comment["path"], self.files.get(comment["path"], "")).hunks
        first, last = comment.get("start_line", comment["line"]), comment["line"]
        if comment.get("side") != "RIGHT" or not any(h.holds(first, last) for h in hunks) or last in self.bad_lines:
            raise Problem(422, "Unprocessable Entity", [message])
        if "start_line" in comment and first >= last:
            raise Problem(422, "Unprocessable Entity", ["start_line must precede the end line."])

    def _review(self, names: dict[str, str]) -> dict[str, Any]:
        review = self.reviews.get(int(names["review_id"]))
        if review is None:
            raise Problem(404, "Not Found")
        return review

    def _get_review(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, _public(self._review(names))

    def _delete_review(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        review = self._review(names)
        if review["state"] != "PENDING":
            raise Problem(422, "Unprocessable Entity", ["Can not delete a non-pending pull request review"])
        return 200, _public(self.reviews.pop(review["id"]))

    def _submit(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        review = self._review(names)
        if review["state"] != "PENDING":
            raise Problem(422, "Unprocessable Entity", ["Could not submit a review that is not pending"])
        review["state"] = "COMMENTED"
        review["submitted_at"] = "2026-01-01T00:00:00Z"
        return 200, _public(review)

    def _list_checks(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        found = [
            _shown(c) for c in self.checks.values()
            if c["head_sha"] == names["ref"] and query.get("check_name", c["name"]) == c["name"]
        ]  # fmt: skip
        return 200, {"total_count": len(found), "check_runs": found}

    def _add_check(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        data = example(f"{_R}/check-runs", "post", "201")
        data |= {"id": next(self._ids), "name": body["name"], "head_sha": body["head_sha"], "_annotations": []}
        self._update(data, body)
        self.checks[data["id"]] = data
        return 201, _shown(data)

    def _edit_check(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        data = self._one_check(names)
        self._update(data, body)
        return 200, _shown(data)

    def _get_check(self, names: dict[str, str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, _shown(self._one_check(names))

    def _one_check(self, names: dict[str, str]) -> dict[str, Any]:
        data = self.checks.get(int(names["check_run_id"]))
        if data is None:
            raise Problem(404, "Not Found")
        return data

    def _update(self, data: dict[str, Any], body: dict[str, Any]) -> None:
        output = body.get("output", {})
        new = output.get("annotations", [])
        if len(new) > _ANNOTATIONS:
            raise Problem(422, "Invalid request.", [{"message": "No more than 50 items are allowed"}])
        if body.get("status") == "completed" and "conclusion" not in body:
            raise Problem(422, "Invalid request.", [{"message": "a completed check needs a conclusion"}])
        _fits(output.get("summary", ""))
        done = body.get("status") == "completed"
        data |= {
            "status": body.get("status", data["status"]),
            "external_id": body.get("external_id", data["external_id"]),
        }
        data["conclusion"] = body.get("conclusion") if done else None
        data["completed_at"] = "2026-01-01T00:00:00Z" if done else None
        data["_annotations"] += new
        data["output"] = {
            **data["output"], "title": output.get("title"), "summary": output.get("summary"),
            "annotations_count": len(data["_annotations"]),
        }  # fmt: skip

    def graphql(self, body: dict[str, Any]) -> Any:
        """The two calls that only GraphQL has."""
        with self._lock:
            if body["query"].startswith("mutation"):
                self.minimized.update(body["variables"].values())
                return {"data": {f"m{i}": {"clientMutationId": None} for i in range(len(body["variables"]))}}
            reviews = [
                {"id": r["node_id"], "body": r["body"], "isMinimized": r["node_id"] in self.minimized,
                 "viewerDidAuthor": r["user"]["login"] == self.author}
                for r in self.submitted()
            ]  # fmt: skip
            threads = [
                {"id": f"T_{r['id']}_{i}", "isResolved": f"T_{r['id']}_{i}" in self.minimized, "isOutdated": False,
                 "comments": {"nodes": [{"viewerDidAuthor": r["user"]["login"] == self.author,
                                         "pullRequestReview": {"id": r["node_id"]}}]}}
                for r in self.submitted() for i, _ in enumerate(r["_comments"])
            ]  # fmt: skip
            return {"data": {"node": {"reviews": {"nodes": reviews}, "reviewThreads": {"nodes": threads}}}}


def _fits(text: str) -> None:
    if len(text) > _BODY:
        raise Problem(422, "Validation Failed", [{"message": "body is too long (maximum is 65536 characters)"}])


def _page(items: list[Any], query: dict[str, str]) -> list[Any]:
    size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
    return items[size * (page - 1) : size * page]


def _public(review: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in review.items() if not key.startswith("_comments")}


def _shown(check: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in check.items() if key != "_annotations"}


_CALLS: dict[tuple[str, str], Any] = {
    ("GET", f"{_R}/pulls/{{pull_number}}"): Server._pull,
    ("GET", f"{_R}/pulls/{{pull_number}}/files"): Server._files,
    ("GET", f"{_R}/pulls/{{pull_number}}/reviews"): Server._reviews,
    ("POST", f"{_R}/pulls/{{pull_number}}/reviews"): Server._add_review,
    ("GET", f"{_R}/pulls/{{pull_number}}/reviews/{{review_id}}"): Server._get_review,
    ("DELETE", f"{_R}/pulls/{{pull_number}}/reviews/{{review_id}}"): Server._delete_review,
    ("POST", f"{_R}/pulls/{{pull_number}}/reviews/{{review_id}}/events"): Server._submit,
    ("GET", f"{_R}/issues/{{issue_number}}/comments"): Server._comments,
    ("POST", f"{_R}/issues/{{issue_number}}/comments"): Server._add_comment,
    ("PATCH", f"{_R}/issues/comments/{{comment_id}}"): Server._edit_comment,
    ("DELETE", f"{_R}/issues/comments/{{comment_id}}"): Server._delete_comment,
    ("POST", f"{_R}/issues/comments/{{comment_id}}/reactions"): Server._react,
    ("POST", f"{_R}/check-runs"): Server._add_check,
    ("PATCH", f"{_R}/check-runs/{{check_run_id}}"): Server._edit_check,
    ("GET", f"{_R}/check-runs/{{check_run_id}}"): Server._get_check,
    ("GET", f"{_R}/commits/{{ref}}/check-runs"): Server._list_checks,
    **CALLS,
}
_LONG = {"/git/ref/{ref}", "/git/refs/{ref}", "/contents/{path}"}  # parameters that hold slashes
_ROUTES = [
    (re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)" if t.removeprefix(_R) in _LONG else r"(?P<\1>[^/]+)", t)), verb, t)
    for verb, t in _CALLS
]


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in between, as some tests do, is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


# Exchanges that were found valid: many tests have the same ones, and each takes some milliseconds.
_VALID: set[tuple[object, ...]] = set()


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement of its headers
    server_state: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _do(self) -> None:
        state, parts = self.server_state, urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        state.requests.append((self.command, parts.path))
        state.before(self.command, parts.path)
        fault = self._fault(parts.path)
        if fault is not None and not fault.after:
            self._fail(fault)
            return
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        body = json.loads(raw) if raw else None
        if self.command != "GET":
            state.received.append((self.command, parts.path, body))
        if parts.path.startswith("/store/"):
            # Where artifacts are kept is another host, and must never see the token.
            status = 401 if self.headers.get("Authorization") else 200
            self._send(status, state.artifacts[int(parts.path[7:])][2], {}, "application/zip")
            return
        if parts.path == "/graphql":
            status, data, headers = 200, state.graphql(body), dict[str, str]()
        else:
            headers = {}
            try:
                status, data, template = state.answer(self.command, parts.path, query, body)
            except Problem as problem:
                status, data, headers, template = problem.status, problem.data, problem.headers, ""
            if state.strict:
                self._validate(parts.path, query, raw, status, data, bool(template))
        if fault is not None:
            self._fail(fault)
            return
        text = b"" if data is None else json.dumps(data).encode()
        if self.command == "GET" and status == 200:
            headers["ETag"] = f'"{hashlib.sha256(text).hexdigest()}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                state.unchanged += 1
                status, text = 304, b""
        self._send(status, text, headers)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _do

    def _fault(self, path: str) -> Fault | None:
        with self.server_state._lock:
            for fault in self.server_state.faults:
                if fault.times > 0 and fault.verb in (self.command, "*") and re.search(fault.path, path):
                    if fault.skip > 0:
                        fault.skip -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None

    def _fail(self, fault: Fault) -> None:
        if fault.kind == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault.kind == "short":
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\nContent-Type: application/json\r\n\r\n{"id')
            self.wfile.flush()
            self.close_connection = True
        elif fault.kind == "slow":
            threading.Event().wait(2.6)
            self.close_connection = True
        elif fault.kind in ("garbage", "html", "empty"):
            text = {"garbage": b'{"id": ', "html": b"<html>sorry</html>", "empty": b""}[fault.kind]
            self._send(200, text, {}, "text/html" if fault.kind == "html" else "application/json")
        else:
            data = {"message": fault.message, "documentation_url": "https://docs.github.com"}
            self._send(int(fault.kind), json.dumps(data).encode(), fault.headers)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], kind: str = "application/json; charset=utf-8"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _validate(self, path: str, query: dict[str, str], raw: bytes, status: int, data: Any, known: bool) -> None:
        from openapi_core.testing import MockRequest, MockResponse

        exchange = (self.command, path, *sorted(query.items()), raw, status, known, json.dumps(data))
        if exchange in _VALID:
            return
        parts = re.fullmatch(r"(/repos/[^/]+/[^/]+/(?:git/refs?|contents)/)(.+)", path)
        request = MockRequest(
            "http://github.test",
            self.command.lower(),
            # The description has one part where GitHub takes several.
            parts[1] + parts[2].replace("/", "%2F") if parts else path,
            args=query,
            data=raw or None,
            content_type="application/json",
        )
        try:
            validator().validate_request(request)
            if known or status == 422:
                text = b"" if data is None else json.dumps(data).encode()
                validator().validate_response(
                    request, MockResponse(text, status_code=status, content_type="application/json")
                )
        except Exception as error:  # whatever openapi-core finds is a finding
            cause = error.__cause__ or error
            details = "; ".join(f"{list(e.path)}: {e.message[:200]}" for e in getattr(cause, "schema_errors", []))
            text = f"{type(cause).__name__} {details or cause}"
            self.server_state.violations.append(f"{self.command} {path} {status}: {text}"[:900])
        else:
            _VALID.add(exchange)
