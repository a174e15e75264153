"""A client for every server that speaks OpenAI's chat completions, by the `openai` package."""

from __future__ import annotations

import email.utils
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import MachineError, UsageError
from engine.llm.chat import ChatAnswer, ChatError, ChatRequest, Fault, TokenUsage, estimated_tokens

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

# An answer of 6,000 tokens takes some 24 kB; what is a hundred times that is no answer. Ours.
_MOST_BYTES = 2 << 20
_MOST_ERROR_BYTES = 64 << 10
_MOST_TOKENS = 10_000_000  # a count above this is not believed
# Twice as long after each try, between half of it and all of it, so that several clients do not come back together.
_FIRST_WAIT_S, _MOST_WAIT_S = 0.5, 20.0
_TRY_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_SCHEMA_WORDS = ("response_format", "json_schema", "schema", "grammar", "structured")


@dataclass(frozen=True)
class ClientOptions:
    """How to reach a server. `base_url` and `api_key` "" are read from OPENAI_BASE_URL and OPENAI_API_KEY.

    `timeout_s` bounds one try from first to last byte; `tries` counts the first; `retry_after_s` is the longest wait a
    server may ask for; `concurrency` is how many requests run at once.
    """

    base_url: str = ""
    api_key: str = ""
    model: str = ""
    timeout_s: float = 180.0
    tries: int = 4
    retry_after_s: float = 60.0
    concurrency: int = 4


class OpenAIClient:
    """Chat completions, not streamed. Raises MachineError without the `openai` package, UsageError without server and key."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        self._options = options or ClientOptions()
        self._client = _make(self._options)
        self._slots = threading.BoundedSemaphore(self._options.concurrency)
        self._closed = threading.Event()
        self._random = random.Random()
        self._lock = threading.Lock()
        self._model = self._options.model
        self._lacks: set[str] = set()

    @property
    def model(self) -> str:
        """The model in use: the one named, else the first that the server lists. Raises ChatError."""
        with self._lock:
            if not self._model:
                self._model = self._first_model()
            return self._model

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The answer to one request. Raises ChatError, whose `fault` says which of the endings it was."""
        with self._slots:
            begin = time.monotonic()
            model = request.model or self.model
            tries = 0
            while True:
                tries += 1
                try:
                    body = self._within_limits(lambda: self._post(request, model))
                except _Refusal as refusal:
                    if self._without(refusal, request):
                        tries -= 1
                        continue
                    wait_s = self._wait_s(refusal, tries)
                    if wait_s is None or self._closed.wait(wait_s):
                        raise refusal.error(tries) from None
                    continue
                return _answer(body, request, model, time.monotonic() - begin, tries)

    def close(self) -> None:
        """End waiting retries and give the connections up."""
        self._closed.set()
        self._client.close()

    # ---- one exchange

    def _post(self, request: ChatRequest, model: str) -> bytes:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "stream": False,
        }
        lacks = set(self._lacks)
        body["max_completion_tokens" if "max_tokens" in lacks else "max_tokens"] = request.max_tokens
        if "temperature" not in lacks:
            body["temperature"] = request.temperature
        if request.schema is not None and "response_format" not in lacks:
            schema = {"name": "answer", "strict": True, "schema": dict(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return self._read(lambda: self._client.chat.completions.with_streaming_response.create(**body))

    def _first_model(self) -> str:
        def read() -> bytes:
            return self._read(self._client.models.with_streaming_response.list)

        try:
            listed = _json_object(self._within_limits(read)).get("data")
        except _Refusal as refusal:
            raise refusal.error(1) from None
        for model in listed if isinstance(listed, list) else ():
            if isinstance(model, dict) and isinstance(model.get("id"), str) and model["id"]:
                return str(model["id"])
        raise ChatError("the server lists no models", do="give one with --llm-model", fault=Fault.REJECTED)

    def _read(self, ask: Callable[[], Any]) -> bytes:
        """The body of an answer, within its limits of bytes and time. Raises _Refusal and ChatError."""
        # Loaded when the client was made, and half a second for whoever makes none.
        import openai

        deadline = time.monotonic() + self._options.timeout_s
        try:
            with ask() as response:
                parts, size = [], 0
                for part in response.iter_bytes(16384):
                    size += len(part)
                    if size > _MOST_BYTES:
                        raise ChatError(f"the answer is over {_MOST_BYTES} bytes", fault=Fault.TOO_LARGE)
                    if time.monotonic() > deadline:
                        raise ChatError("the answer did not end in time", fault=Fault.TIMED_OUT)
                    parts.append(part)
                return b"".join(parts)
        except (ChatError, _Refusal):
            raise
        except openai.APITimeoutError:
            raise ChatError("the server did not answer in time", fault=Fault.TIMED_OUT) from None
        except openai.APIConnectionError as error:
            refusal = _refusal_in(error)
            if refusal is not None:
                raise refusal from None
            if type(error.__cause__).__name__ == "ConnectError":
                raise _Refusal(0, "", "no connection to the server") from None
            raise ChatError("the connection was cut before the answer", fault=Fault.CONNECTION) from None
        except Exception as error:
            # The transport's own exceptions while the body is read; which transport it is depends on the package's version.
            if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
                raise
            raise ChatError(f"the answer was cut ({type(error).__name__})", fault=Fault.CONNECTION) from None

    def _within_limits(self, work: Callable[[], T]) -> T:
        """Run it in a thread that can be left behind: a server that sends a byte now and then keeps every read alive."""
        box: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                box.append(work())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="chat", daemon=True)
        thread.start()
        thread.join(self._options.timeout_s + 0.5)
        if failed:
            raise failed[0]
        if not box:
            raise ChatError("the server did not answer in time", fault=Fault.TIMED_OUT)
        return box[0]

    # ---- what went wrong

    def _without(self, refusal: _Refusal, request: ChatRequest) -> bool:
        """Whether the server complained of something optional, which is left out from now on."""
        if refusal.status not in (400, 404, 415, 422, 501):
            return False
        said = refusal.text.lower()
        for part in ("max_tokens", "temperature"):
            if part in said and part not in self._lacks:
                self._lacks.add(part)
                return True
        held = request.schema is not None and "response_format" not in self._lacks
        if held and any(word in said for word in _SCHEMA_WORDS):
            self._lacks.add("response_format")
            return True
        return False

    def _wait_s(self, refusal: _Refusal, tries: int) -> float | None:
        """Seconds until the next try; None where there is none."""
        if tries >= self._options.tries or (refusal.status and refusal.status not in _TRY_AGAIN):
            return None
        asked = _seconds(refusal.retry_after)
        if asked is not None:
            # Not before the time it asks for, and not all at that very moment.
            return None if asked > self._options.retry_after_s else asked + self._random.uniform(0.0, 0.25)
        longest = min(_MOST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (tries - 1))
        return self._random.uniform(longest / 2, longest)


class _Refusal(Exception):
    """The server said no, with this status and the head of a body; status 0: there was no server."""

    def __init__(self, status: int, retry_after: str, text: str) -> None:
        super().__init__(status)
        self.status, self.retry_after, self.text = status, retry_after, text

    def error(self, tries: int) -> ChatError:
        """What it comes to when nothing more is tried. None of these is charged for."""
        free = TokenUsage(0, 0)
        asked = _seconds(self.retry_after)
        often = f"{tries} {'try' if tries == 1 else 'tries'}" + (f"; it asks to wait {asked:.0f} s" if asked else "")
        if not self.status:
            return ChatError("no connection to the model's server", do="check OPENAI_BASE_URL", usage=free)
        if self.status == 429:
            what = f"the server accepts no more requests ({often})"
            return ChatError(what, fault=Fault.RATE_LIMITED, status=429, usage=free)
        if self.status in _TRY_AGAIN or self.status >= 500:
            what = f"the server failed with status {self.status} ({often})"
            return ChatError(what, fault=Fault.SERVER_ERROR, status=self.status, usage=free)
        if self.status < 400:
            what = f"the server redirects (status {self.status}), and no redirect is followed"
            do = "set OPENAI_BASE_URL to the final address, if you trust it"
            return ChatError(what, do=do, fault=Fault.REJECTED, status=self.status, usage=free)
        what = f"the server refuses the request with status {self.status}"
        do = {
            401: "check OPENAI_API_KEY",
            403: "check OPENAI_API_KEY and what it may use",
            404: "check OPENAI_BASE_URL and --llm-model",
        }.get(self.status, "check the key, the model and the address")
        return ChatError(what, do=do, fault=Fault.REJECTED, status=self.status, usage=free)


def _make(options: ClientOptions) -> OpenAI:
    try:
        # Half a second, and most runs ask no model.
        import openai
    except ImportError:
        raise MachineError("the package 'openai' is missing", do="pip install 'optiml-cuda[llm]'") from None
    base_url = options.base_url or os.environ.get("OPENAI_BASE_URL", "")
    key = options.api_key or os.environ.get("OPENAI_API_KEY", "")
    if not base_url and not key:
        raise UsageError(
            "no model server is configured", "",
            "set OPENAI_BASE_URL (any OpenAI-compatible server) and, where it wants one, OPENAI_API_KEY",
        )  # fmt: skip
    # Compressed bytes would make the limit on bytes one on what was sent, not on what it becomes.
    # No redirect: it would send the source, and on the same host the key, wherever a server or who stands before it says.
    http = openai.DefaultHttpxClient(
        timeout=options.timeout_s, follow_redirects=False, event_hooks={"response": [_hook]}
    )
    return openai.OpenAI(
        api_key=key or "none", base_url=base_url or None, max_retries=0, timeout=options.timeout_s, http_client=http,
        default_headers={"Accept-Encoding": "identity"},
    )  # fmt: skip


def _hook(response: Any) -> None:
    """Read an error's body here, a bounded part of it: the package would read it whole."""
    if response.status_code < 300:
        return
    text = b""
    for part in response.iter_bytes(8192):
        text += part
        if len(text) > _MOST_ERROR_BYTES:
            break
    raise _Refusal(
        response.status_code,
        response.headers.get("retry-after", ""),
        text[:_MOST_ERROR_BYTES].decode("utf-8", "replace"),
    )


def _refusal_in(error: BaseException) -> _Refusal | None:
    """What our hook raised, where the package has wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _Refusal):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _seconds(text: str) -> float | None:
    """The seconds of a Retry-After header: a number, or an HTTP date (RFC 9110, section 10.2.3)."""
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
        return value if 0 <= value < 1e9 else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ChatError("the server's answer is not JSON", fault=Fault.INVALID_BODY) from None
    if not isinstance(value, dict):
        raise ChatError("the server's answer is not a JSON object", fault=Fault.INVALID_BODY)
    return value


def _answer(body: bytes, request: ChatRequest, model: str, elapsed_s: float, tries: int) -> ChatAnswer:
    return read_completion(_json_object(body), request, model=model, elapsed_s=elapsed_s, tries=tries)


def read_completion(
    completion: Mapping[str, Any], request: ChatRequest, *, model: str = "", elapsed_s: float = 0.0, tries: int = 1
) -> ChatAnswer:
    """The answer in a chat completion object, every field of it doubted. Raises ChatError."""
    choices = completion.get("choices")
    if not isinstance(choices, list):
        raise ChatError("the server's answer is not a chat completion", fault=Fault.INVALID_BODY)
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    text = _text(message.get("content"))
    usage = _usage(completion.get("usage"), request, text)
    refusal, finish = message.get("refusal"), choice.get("finish_reason")
    if (isinstance(refusal, str) and refusal) or finish == "content_filter":
        raise ChatError("the model refused", fault=Fault.REFUSED, usage=usage, text=text or _text(refusal))
    if finish == "length":
        what, do = "the answer was cut at its token limit", "raise --llm-answer-tokens, in which reasoning counts"
        raise ChatError(what, do=do, fault=Fault.CUT_SHORT, usage=usage, text=text)
    if not text.strip():
        raise ChatError("the model returned an empty answer", fault=Fault.EMPTY, usage=usage)
    named = completion.get("model")
    return ChatAnswer(text, named[:200] if isinstance(named, str) and named else model, usage, elapsed_s, tries)


def _text(said: Any) -> str:
    return said if isinstance(said, str) else ""


def _usage(said: Any, request: ChatRequest, text: str) -> TokenUsage:
    """The tokens that the server counted; an upper estimate where it did not, or not believably."""
    if isinstance(said, dict):
        read, written = said.get("prompt_tokens"), said.get("completion_tokens")
        if type(read) is int and type(written) is int and 0 <= min(read, written) <= max(read, written) <= _MOST_TOKENS:
            return TokenUsage(read, written)
    return TokenUsage(
        sum(estimated_tokens(m.content) for m in request.messages), estimated_tokens(text), estimated=True
    )
