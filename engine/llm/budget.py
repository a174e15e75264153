"""What a run may spend on models: a hard stop in money or tokens, counted from what the servers report."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import UsageError
from engine.llm.chat import ChatAnswer, ChatClient, ChatError, ChatRequest, Fault, TokenUsage, estimated_tokens

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*(usd|tok)", re.I)
_PRICE = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")
# The envelope of a message (role, separators) beside its text. Ours, generous.
_TOKENS_PER_MESSAGE = 16


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens read and written."""

    prompt_usd: float
    completion_usd: float

    def usd(self, usage: TokenUsage) -> float:
        """What one exchange costs in US dollars."""
        return (usage.prompt_tokens * self.prompt_usd + usage.completion_tokens * self.completion_usd) / 1e6


@dataclass(frozen=True)
class Limit:
    """The most a run may spend; None: no such limit."""

    usd: float | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Spent:
    """What a run has spent. `usd` is None without a price; `estimated` counts exchanges whose server did not say."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    estimated: int


def parse_limit(text: str) -> Limit:
    """A Limit from "2.00usd" or "50000tok". Raises UsageError."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None or (match[2].lower() == "tok" and "." in match[1]):
        raise UsageError(f"invalid model budget '{text[:40]}'", "--llm-budget", "expected e.g. 2.00usd or 50000tok")
    return Limit(usd=float(match[1])) if match[2].lower() == "usd" else Limit(tokens=int(match[1]))


def parse_price(text: str) -> Price:
    """A Price from "2.50/10.00": US dollars per million tokens read and written. Raises UsageError."""
    match = _PRICE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"invalid price '{text[:40]}'", "--llm-price", "expected e.g. 2.50/10.00 (read/written, per million)"
        )
    return Price(float(match[1]), float(match[2]))


class LlmBudget:
    """Counts and stops. A request is let through only while what is spent and what is under way lie below the limit.

    So the limit is passed by one request at most, however many run at once. How a server counts is learnt from its answers:
    before the first one nothing runs beside another request. Raises UsageError for a limit in money without a price.
    Thread-safe.
    """

    def __init__(self, limit: Limit | None = None, price: Price | None = None) -> None:
        self._limit = limit or Limit()
        if self._limit.usd is not None and price is None:
            raise UsageError(
                "a budget in money needs the model's price", "--llm-budget",
                "add --llm-price READ/WRITTEN (dollars per million tokens), or give the budget in tokens",
            )  # fmt: skip
        self._price = price
        self._lock = threading.Condition()
        self._ratio: float | None = None  # the server's tokens of a prompt over our estimate, the greatest seen
        self._under_way: list[TokenUsage] = []
        self._requests = self._prompt = self._completion = self._estimated = 0

    @property
    def spent(self) -> Spent:
        with self._lock:
            usage = TokenUsage(self._prompt, self._completion)
            usd = self._price.usd(usage) if self._price else None
            return Spent(self._requests, self._prompt, self._completion, usd, self._estimated)

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is let through now."""
        with self._lock:
            return self._full()

    def _full(self) -> bool:
        prompt = self._prompt + sum(u.prompt_tokens for u in self._under_way)
        completion = self._completion + sum(u.completion_tokens for u in self._under_way)
        usage = TokenUsage(prompt, completion)
        if self._limit.tokens is not None and usage.tokens >= self._limit.tokens:
            return True
        return self._limit.usd is not None and self._price is not None and self._price.usd(usage) >= self._limit.usd

    @contextmanager
    def admitted(self, request: ChatRequest) -> Iterator[Reservation]:
        """Holds the request's greatest cost while it is under way. Raises ChatError (BUDGET) when there is no room."""
        estimate = prompt_estimate(request)
        with self._lock:
            while self._ratio is None and self._under_way and self._limit != Limit():
                self._lock.wait()
            reserved = TokenUsage(math.ceil(estimate * max(1.0, self._ratio or 1.0)), request.max_tokens)
            if self._full():
                raise ChatError("the budget for the model is spent", do="raise --llm-budget", fault=Fault.BUDGET)
            self._under_way.append(reserved)
        reservation = Reservation(reserved)
        try:
            yield reservation
        finally:
            with self._lock:
                self._under_way.remove(reserved)
                used = reservation.used
                if used is not None:
                    self._requests += 1
                    self._prompt += used.prompt_tokens
                    self._completion += used.completion_tokens
                    self._estimated += used.estimated
                    if used.prompt_tokens and (reservation.answered or not used.estimated):
                        self._ratio = max(self._ratio or 0.0, used.prompt_tokens / estimate)
                self._lock.notify_all()


@dataclass
class Reservation:
    """One admitted request. `used` is what it came to; None: nothing that anybody charges for.

    `answered`: there was an answer, whose tokens the server or we have counted.
    """

    reserved: TokenUsage
    used: TokenUsage | None = None
    answered: bool = False


# What ended after the server may have worked for it. What it charges is not known, so the most it can be is counted.
_CHARGED_UNSEEN = frozenset({Fault.TIMED_OUT, Fault.CONNECTION, Fault.TOO_LARGE, Fault.INVALID_BODY})


class BudgetedClient:
    """A client that asks another one within a budget."""

    def __init__(self, inner: ChatClient, budget: LlmBudget) -> None:
        self._inner, self.budget = inner, budget

    def complete(self, request: ChatRequest) -> ChatAnswer:
        """The inner client's answer. Raises ChatError, with Fault.BUDGET when the budget is spent."""
        with self.budget.admitted(request) as reservation:
            try:
                answer = self._inner.complete(request)
            except ChatError as error:
                if error.usage is not None:
                    reservation.used = error.usage
                elif error.fault in _CHARGED_UNSEEN:
                    reservation.used = TokenUsage(
                        reservation.reserved.prompt_tokens, reservation.reserved.completion_tokens, True
                    )
                raise
            reservation.used, reservation.answered = answer.usage, True
            return answer


def prompt_estimate(request: ChatRequest) -> int:
    """An upper estimate of what a request's messages come to, in tokens."""
    return sum(estimated_tokens(m.content) + _TOKENS_PER_MESSAGE for m in request.messages)
