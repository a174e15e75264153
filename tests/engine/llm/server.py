"""A server that speaks as much of the chat completions API as the client asks for, with scripted answers and faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None, *, finish: str = "stop", refusal: str | None = None, usage: Any = (100, 20)) -> bytes:
    body: dict[str, Any] = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, "refusal": refusal}}
        ],
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return json.dumps(body).encode()


Reply = Callable[["Handler"], None]


def ok(body: bytes, delay_s: float = 0.0) -> Reply:
    def reply(handler: Handler) -> None:
        time.sleep(delay_s)
        handler.send(200, body)

    return reply


def status(code: int, body: bytes = b'{"error": {"message": "no"}}', **headers: str) -> Reply:
    return lambda handler: handler.send(code, body, {k.replace("_", "-"): v for k, v in headers.items()})


def cut(body: bytes) -> Reply:
    """Promises all of the body and sends half of it."""

    def reply(handler: Handler) -> None:
        handler.head(200, len(body))
        handler.wfile.write(body[: len(body) // 2])
        handler.close_connection = True

    return reply


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def slow(body: bytes, every_s: float) -> Reply:
    """One byte at a time: no single read ever waits long."""

    def reply(handler: Handler) -> None:
        handler.head(200, len(body))
        for i in range(len(body)):
            handler.wfile.write(body[i : i + 1])
            handler.wfile.flush()
            if handler.server.stopping.wait(every_s):
                return

    return reply


def giant(size: int, code: int = 200) -> Reply:
    def reply(handler: Handler) -> None:
        handler.head(code, size)
        block = b'{"choices": "' + b"x" * 65523
        for _ in range(size // len(block) + 1):
            handler.wfile.write(block)
            handler.server.written += len(block)

    return reply


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement of its headers
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def log_message(self, *_: Any) -> None:
        pass

    def head(self, code: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.head(code, len(body), headers)
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send(200, self.server.models)

    def do_POST(self) -> None:
        body = self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.paths.append(self.path)
            self.server.requests.append(body)
            self.server.times.append(time.monotonic())
            self.server.headers_seen.append({k.title(): v for k, v in self.headers.items()})
            reply = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        try:
            reply(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class ChatServer(ThreadingHTTPServer):
    """Answers by the script, in order; the last reply is given again and again."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *script: Reply) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = list(script)
        self.models = b'{"object": "list", "data": [{"id": "first-model", "object": "model"}, {"id": "second"}]}'
        self.requests: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.written = 0  # by giant answers
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()


@dataclass
class Servers:
    """Starts servers and stops them all."""

    running: list[ChatServer] = field(default_factory=list)

    def __call__(self, *script: Reply) -> ChatServer:
        self.running.append(ChatServer(*script))
        return self.running[-1]
