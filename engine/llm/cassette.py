"""Records every exchange with a model, and replays them: the same run without a network."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from engine.errors import MachineError, UsageError
from engine.llm.budget import Price
from engine.llm.chat import ChatAnswer, ChatClient, ChatError, ChatRequest, Fault, TokenUsage

_FORMAT = 1
_MOST_BYTES = 256 << 20


class Recorder:
    """A client that writes down what another one is asked and answers: one JSON line for each exchange, at once.

    `redact` changes every text before it is written; `prompts=False` leaves the prompts out and keeps their hashes, which
    is all that a replay needs. `resume` False begins the file anew. Raises MachineError where the file cannot be written.
    """

    def __init__(
        self, inner: ChatClient, path: Path, *, redact: Callable[[str], str] = lambda text: text, prompts: bool = True,
        resume: bool = True, price: Price | None = None,
    ) -> None:  # fmt: skip
        self._inner, self._redact, self._prompts, self._price = inner, redact, prompts, price
        self._lock = threading.Lock()
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a" if resume else "w", encoding="utf-8")
        except OSError as error:
            raise MachineError(f"cannot be written ({error.strerror})", str(path), "choose another file") from None

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The inner client's answer. Raises ChatError; failed exchanges are recorded too."""
        try:
            answer = self._inner.complete(request)
        except ChatError as error:
            usage = dataclasses.asdict(error.usage) if error.usage else None
            fault = {
                "fault": error.fault.value,
                "what": self._redact(error.what),
                "status": error.status,
                "usage": usage,
                "text": self._redact(error.text),
            }
            self._write(request, {"error": fault})
            raise
        usd = {} if self._price is None else {"usd": self._price.usd(answer.usage)}
        self._write(request, {"answer": {**dataclasses.asdict(answer), "text": self._redact(answer.text)}, **usd})
        return answer

    def ended(self, edit: Mapping[str, Any]) -> None:
        """Write down how an edit ended; its `label` is that of the exchange that led to it. Raises MachineError."""
        kept = {key: self._redact(value) if key == "idea" else value for key, value in edit.items()}
        self._append({"format": _FORMAT, "edit": kept})

    def _write(self, request: ChatRequest, outcome: Mapping[str, Any]) -> None:
        line: dict[str, Any] = {"format": _FORMAT, "digest": request.digest, "label": request.label}
        if self._prompts:
            line["messages"] = [{"role": m.role, "content": self._redact(m.content)} for m in request.messages]
        self._append({**line, **outcome})

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, sort_keys=True)
        with self._lock:
            if self._file.closed:
                return  # an answer that came after the run's end
            try:
                self._file.write(text + "\n")
                self._file.flush()
            except OSError as error:
                raise MachineError(
                    f"cannot be written ({error.strerror})", str(self._path), "free some space"
                ) from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


class Replayer:
    """A client that answers from a recording, and asks nobody.

    An exchange is found by the hash of its prompt, else by its label: prompts hold measured times, which differ from run
    to run. What was recorded several times is answered in that order, the last one again and again.
    Raises UsageError for a file that is no recording.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._by: dict[tuple[Literal["digest", "label"], str], list[Mapping[str, Any]]] = {}
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise UsageError(f"exceeds {_MOST_BYTES} bytes", str(path), "name a recording")
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror})", str(path), "name a recording") from None
        except UnicodeDecodeError:
            raise UsageError("is not text", str(path), "name a recording") from None
        for number, text in enumerate(lines, 1):
            line = _line(text, f"{path}:{number}")
            if "edit" in line:
                continue
            self._by.setdefault(("digest", line["digest"]), []).append(line)
            self._by.setdefault(("label", line["label"]), []).append(line)

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The recorded answer. Raises the recorded ChatError, or one with Fault.NOT_RECORDED."""
        with self._lock:
            found = self._by.get(("digest", request.digest)) or self._by.get(("label", request.label))
            if not found:
                raise ChatError("the recording does not contain this exchange", request.label, fault=Fault.NOT_RECORDED)
            line = found.pop(0) if len(found) > 1 else found[0]
        error = line.get("error")
        if error is not None:
            usage = TokenUsage(**error["usage"]) if error["usage"] else None
            text = error.get("text", "")
            raise ChatError(error["what"], fault=Fault(error["fault"]), status=error["status"], usage=usage, text=text)
        answer = line["answer"]
        return ChatAnswer(**{**answer, "usage": TokenUsage(**answer["usage"])})


def _line(text: str, where: str) -> Mapping[str, Any]:
    """One line of a recording, checked. Raises UsageError."""
    try:
        line: Any = json.loads(text)
        if type(line["format"]) is not int:
            raise ValueError
        if line["format"] != _FORMAT:
            what = f"is a recording of format {line['format']}, and this version reads format {_FORMAT}"
            raise UsageError(what, where, "record it again")
        if isinstance(line.get("edit"), dict):
            return {"edit": line["edit"]}  # how an edit ended: for a reader
        if not isinstance(line["digest"], str) or not isinstance(line["label"], str):
            raise ValueError
        if "error" in line:
            error = line["error"]
            Fault(error["fault"])
            str.__str__(error["what"])
            str.__str__(error.get("text", ""))
            int.__int__(error["status"])
            if error["usage"] is not None:
                _usage(error["usage"])
        else:
            answer = line["answer"]
            _usage(answer["usage"])
            fields = {f.name for f in dataclasses.fields(ChatAnswer)}
            if set(answer) != fields or not isinstance(answer["text"], str) or not isinstance(answer["model"], str):
                raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError("is not an exchange of a recording", where, "record it again") from None
    assert isinstance(line, dict)
    return line


def _usage(said: Mapping[str, Any]) -> None:
    usage = TokenUsage(**said)
    if any(type(n) is not int or n < 0 for n in (usage.prompt_tokens, usage.completion_tokens)):
        raise ValueError
