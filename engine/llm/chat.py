"""What passes between the proposer and a model: request, answer, and every way in which an answer can fail to come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from engine.errors import OptimlError


class Fault(StrEnum):
    """How a request or its answer failed. Every ending has its name."""

    # The exchange itself.
    CONNECTION = "connection"  # no server, a connection cut before or within the answer
    TIMED_OUT = "timed_out"  # the whole exchange took longer than allowed, however the bytes came
    RATE_LIMITED = "rate_limited"  # 429 to the last try
    SERVER_ERROR = "server_error"  # 5xx to the last try
    REJECTED = "rejected"  # any other 4xx: key, model or request
    TOO_LARGE = "too_large"  # more bytes than an answer may have
    INVALID_BODY = "invalid_body"  # not JSON, or not a chat completion
    # What the model said.
    EMPTY = "empty"  # no choice, or a choice without text
    REFUSED = "refused"
    CUT_SHORT = "cut_short"  # the limit of tokens ended the answer
    UNREADABLE = "unreadable"  # no edit can be read from the text
    # What is asked for.
    NOT_FOUND = "not_found"  # a search text that is not in the file
    AMBIGUOUS = "ambiguous"  # a search text that is there more than once
    FORBIDDEN = "forbidden"  # an edit outside device functions and launch arguments
    UNCHANGED = "unchanged"  # nothing would change
    # On our side.
    BUDGET = "budget"  # the money or tokens allowed are spent
    TOO_LONG = "too_long"  # the kernel does not fit into a prompt
    DEFERRED = "deferred"  # written to the batch; an answer comes another day
    NOT_RECORDED = "not_recorded"  # a replay without this exchange


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one exchange. `estimated`: the server did not say."""

    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass
class ChatError(OptimlError):
    """An exchange that gave nothing to use. `fault` says how it ended; `status` is HTTP's, 0 without one.

    `usage` is what it cost all the same (a refusal is charged for), None where the server did not say; `text` is what the
    model had said.
    """

    fault: Fault = Fault.CONNECTION
    status: int = 0
    usage: TokenUsage | None = None
    text: str = ""


@dataclass(frozen=True)
class Message:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One request. `label` names what is asked for without measured figures: the same in a repeated run; `about` says it to a
    person.

    `max_tokens` bounds the answer, `schema` is a JSON schema of the answer for servers that hold models to one.
    `model` "" leaves the choice to the client.
    """

    messages: tuple[Message, ...]
    label: str
    model: str = ""
    temperature: float = 0.4
    max_tokens: int = 6000
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    about: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over everything that the model gets to see."""
        seen = {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens, "schema": self.schema,
                "messages": [[m.role, m.content] for m in self.messages]}  # fmt: skip
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ChatAnswer:
    """What a model answered: text of a stranger, data and nothing else."""

    text: str
    model: str
    usage: TokenUsage
    elapsed_s: float = 0.0
    tries: int = 1


class ChatClient(Protocol):
    """Asks a model. Thread-safe."""

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The answer to one request. Raises ChatError."""
        ...


# Tokenisers of present models make three to four bytes of code a token; the lower figure over-states. Ours.
BYTES_PER_TOKEN = 3


def estimated_tokens(text: str) -> int:
    """An upper estimate of a text's tokens, for when no server has counted them."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
