"""The gate's reader over real HTTP: what it retries, what it refuses, and where it never goes."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from action.api import ApiError, Pull, RestReader

Answer = tuple[int, dict[str, str], Any]


class Server(ThreadingHTTPServer):
    """Gives the answers in order, the last one again and again; keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement of its headers
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        answers = self.server.answers
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:
            self.connection.close()
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def reader(server: Server, waits: list[float] | None = None) -> RestReader:
    return RestReader(server.url, "o/r", "secret", sleep=(waits if waits is not None else []).append)


def test_a_role(server: Server) -> None:
    server.answers = [(200, {}, {"permission": "write", "role_name": "maintain"})]
    assert reader(server).role("ann/../x") == "maintain"
    assert server.asked == [("/repos/o/r/collaborators/ann%2F..%2Fx/permission", "Bearer secret")]
    server.answers = [(404, {}, {})]
    assert reader(server).role("stranger") == "none"


def test_a_custom_role_counts_as_the_base_permission_it_has(server: Server) -> None:
    server.answers = [(200, {}, {"permission": "write", "role_name": "kernel-owners"})]
    assert reader(server).role("ann") == "write"
    server.answers = [(200, {}, {"permission": "superuser", "role_name": "odd"})]
    assert reader(server).role("ann") == "none"


def test_when_a_branch_last_moved_is_read_from_its_own_activity(server: Server) -> None:
    pull = Pull(7, "a" * 40, "b" * 40, False, False, True, "2025-01-01T13:00:00Z", "o/r", "feature/é")
    moved = {"after": "b" * 40, "timestamp": "2025-01-01T10:00:00Z"}
    server.answers = [(200, {}, [moved, {"after": "c" * 40, "timestamp": "2025-01-01T09:00:00Z"}])]
    assert reader(server).moved_at(pull) == "2025-01-01T10:00:00Z"
    assert server.asked[0][0] == "/repos/o/r/activity?ref=refs%2Fheads%2Ffeature%2F%C3%A9&per_page=30"


@pytest.mark.parametrize(
    "answer", [(404, {}, {}), (403, {}, {}), (200, {}, []), (200, {}, [{"after": "d" * 40}]), (200, {}, {"x": 1})]
)
def test_without_an_activity_of_this_head_the_repository_s_last_push_counts(server: Server, answer: Answer) -> None:
    pull = Pull(7, "a" * 40, "b" * 40, False, False, True, "2025-01-01T13:00:00Z", "o/r", "main")
    server.answers = [answer]
    assert reader(server).moved_at(pull) == "2025-01-01T13:00:00Z"


def test_a_file(server: Server) -> None:
    content = base64.encodebytes(b"paths: [a.cu]\n").decode()
    server.answers = [(200, {}, {"type": "file", "encoding": "base64", "content": content})]
    assert reader(server).file(".optiml.yml", "a" * 40) == b"paths: [a.cu]\n"
    server.answers = [(404, {}, {})]
    assert reader(server).file(".optiml.yml", "a" * 40) is None
    for strange in ([], {"type": "symlink"}, {"type": "file", "encoding": "none", "content": ""}):
        server.answers = [(200, {}, strange)]
        with pytest.raises(ApiError):
            reader(server).file(".optiml.yml", "a" * 40)


def test_all_pages(server: Server) -> None:
    server.answers = [(200, {}, [{"filename": f"{n}.cu"} for n in range(100)]), (200, {}, [{"filename": "last.cu"}])]
    assert len(reader(server).changed(7)) == 101
    assert [path.partition("?")[2] for path, _ in server.asked] == ["per_page=100&page=1", "per_page=100&page=2"]


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        ((500, {}, {}), 1.0),
        ((502, {}, b"<html>"), 1.0),
        ((429, {"Retry-After": "3"}, {}), 3.0),
        ((403, {"Retry-After": "7"}, {}), 7.0),
        ((403, {"X-RateLimit-Remaining": "0"}, {}), 1.0),
        ((403, {}, {"message": "You have exceeded a secondary rate limit. Please wait."}), 1.0),
        ((0, {}, {}), 1.0),
        ((200, {}, b"no json"), 1.0),
    ],
)
def test_what_may_pass_is_tried_again(server: Server, answer: Answer, wait: float) -> None:
    server.answers = [answer, (200, {}, {"role_name": "read"})]
    waits: list[float] = []
    assert reader(server, waits).role("ann") == "read"
    assert waits == [wait]


@pytest.mark.parametrize("status", [401, 403, 422])
def test_a_refusal_is_final(server: Server, status: int) -> None:
    server.answers = [(status, {}, {})]
    waits: list[float] = []
    with pytest.raises(ApiError, match=f"HTTP {status}"):
        reader(server, waits).role("ann")
    assert waits == []


def test_waiting_ends(server: Server) -> None:
    server.answers = [(429, {"Retry-After": "3600"}, {})]
    waits: list[float] = []
    with pytest.raises(ApiError, match="HTTP 429"):
        reader(server, waits).role("ann")
    assert waits == []
    server.answers = [(503, {}, {})]
    with pytest.raises(ApiError, match="HTTP 503"):
        reader(server, waits).role("ann")
    assert len(waits) == 3


def test_the_token_goes_to_no_other_host(server: Server) -> None:
    other = Server()
    threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
    try:
        other.answers = [(200, {}, {"role_name": "admin"})]
        server.answers = [(302, {"Location": f"{other.url}/repos/o/r"}, {})]
        with pytest.raises(ApiError) as caught:
            reader(server).role("ann")
        assert other.asked == []
        assert "secret" not in str(caught.value)
    finally:
        other.shutdown()
        other.server_close()
