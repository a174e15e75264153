"""The batch door: prompts as lines for OpenAI's Batch API, answers from the file that it gives back."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import MachineError, UsageError
from engine.llm.chat import ChatAnswer, ChatError, ChatRequest, Fault, TokenUsage
from engine.llm.openai_client import read_completion

REQUESTS, RESPONSES, INDEX = "requests.jsonl", "responses.jsonl", "index.jsonl"
# The Batch API's published bounds for one input file (platform documentation, "Batch API").
_MOST_REQUESTS = 50_000
_MOST_BYTES = 200 << 20


class BatchClient:
    """A client that asks nobody: what `responses.jsonl` in the folder answers is given, everything else is written down.

    Requests are known by their label, which a resumed run makes again, so that answers of several rounds can be put
    together in one `responses.jsonl`. Open requests of earlier runs that were answered since are dropped from
    `requests.jsonl`. `index.jsonl` says in words what each open request is about.
    Raises UsageError without a model's name and for responses that are none; MachineError where the
    folder cannot be written.
    """

    def __init__(self, folder: Path, model: str) -> None:
        if not model:
            raise UsageError("a batch needs the model's name", "--llm-model", "give the model that the batch is for")
        self._folder, self._model = folder, model
        self._lock = threading.Lock()
        self._answers = _responses(folder / RESPONSES)
        self._open: dict[str, str] = {}
        self._asked: set[str] = set()
        self._bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise MachineError(f"cannot be written ({error.strerror})", str(folder), "choose another folder") from None

    @property
    def deferred(self) -> int:
        """How many requests wait in `requests.jsonl` for an answer."""
        with self._lock:
            return len(self._open)

    @property
    def unasked(self) -> tuple[str, ...]:
        """The names of answers that this run had no question for."""
        with self._lock:
            return tuple(name for name in self._answers if name not in self._asked)

    def holds(self, label: str) -> bool:
        """Whether the answer to the first request under this label is there, and was not given yet."""
        name = custom_id(label + "/0", self._model)
        with self._lock:
            return name in self._answers and name not in self._asked

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The answer from the file. Raises ChatError: DEFERRED after writing the request down, else as the answer was."""
        name = custom_id(request.label, request.model or self._model)
        with self._lock:
            self._asked.add(name)
            found = self._answers.get(name)
        if found is not None:
            return _answered(found, request, self._model)
        with self._lock:
            if name not in self._open:
                self._add(name, request)
        raise ChatError(
            "the prompt is waiting in the batch",
            str(self._folder / REQUESTS),
            fault=Fault.DEFERRED,
            usage=TokenUsage(0, 0),
        )

    def _add(self, name: str, request: ChatRequest) -> None:
        line = json.dumps(request_line(name, request, self._model)) + "\n"
        if len(self._open) >= _MOST_REQUESTS or self._bytes + len(line) > _MOST_BYTES:
            raise ChatError(
                "the batch is full", str(self._folder / REQUESTS), fault=Fault.BUDGET, usage=TokenUsage(0, 0)
            )
        self._open[name] = line
        self._bytes += len(line)
        try:
            for path, text in ((REQUESTS, line), (INDEX, _indexed(name, request))):
                with (self._folder / path).open("a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            raise MachineError(f"cannot be written ({error.strerror})", str(self._folder), "free some space") from None

    def _write(self) -> None:
        """Begin the file of open requests anew: what this run does not ask again is no longer wanted."""
        for path in (REQUESTS, INDEX):
            (self._folder / path).write_text("", encoding="utf-8")


def custom_id(label: str, model: str) -> str:
    """The name that a request has in a batch: the same for the same question in a repeated run."""
    return "optiml-" + hashlib.sha256(f"{model}\0{label}".encode()).hexdigest()[:40]


def _indexed(name: str, request: ChatRequest) -> str:
    return json.dumps({"custom_id": name, "label": request.label, "about": request.about}) + "\n"


def request_line(name: str, request: ChatRequest, model: str) -> Mapping[str, Any]:
    """One line of a Batch API input file."""
    body: dict[str, Any] = {
        "model": request.model or model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "temperature": request.temperature,
        "max_completion_tokens": request.max_tokens,
    }
    if request.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": dict(request.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _responses(path: Path) -> dict[str, Mapping[str, Any]]:
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"exceeds {_MOST_BYTES} bytes", str(path), "split it")
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", str(path), "put the batch's output file there") from None
    found: dict[str, Mapping[str, Any]] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
            raise UsageError(
                "is not a line of a batch's output", f"{path}:{number}", "put the batch's output file there unchanged"
            )
        found[line["custom_id"]] = line
    return found


def _answered(line: Mapping[str, Any], request: ChatRequest, model: str) -> ChatAnswer:
    response = line.get("response")
    response = response if isinstance(response, dict) else {}
    status = response.get("status_code")
    body = response.get("body")
    if line.get("error") is not None or status != 200 or not isinstance(body, dict):
        code = status if type(status) is int else 0
        raise ChatError(
            "the batch failed for this prompt", fault=Fault.SERVER_ERROR, status=code, usage=TokenUsage(0, 0)
        )
    return read_completion(body, request, model=model)
