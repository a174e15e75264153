"""What questions may cost."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import settings as sized
from hypothesis import strategies as st

pytest.importorskip("openai")

from engine.errors import UsageError
from engine.llm.budget import BudgetedClient, Limit, LlmBudget, Price, parse_limit, parse_price, prompt_estimate
from engine.llm.chat import ChatError, ChatRequest, Fault, Message, TokenUsage

from .test_cassette import Once, answer


def test_limits_and_prices_are_read():
    assert parse_limit("2.00usd") == Limit(usd=2.0)
    assert parse_limit("50000tok") == Limit(tokens=50_000)
    assert parse_price("2.50/10.00") == Price(2.5, 10.0)
    for text in ("2", "usd", "-1usd", "1.5tok", "2 eur", "1e9usd"):
        with pytest.raises(UsageError):
            parse_limit(text)
    with pytest.raises(UsageError):
        parse_price("2.5")


def test_money_without_a_price_is_refused_before_anything_is_asked():
    with pytest.raises(UsageError, match="price"):
        LlmBudget(Limit(usd=1.0))


class Costly:
    """Every answer costs the same, and takes a moment."""

    def __init__(self, usage):
        self.usage = usage

    def complete(self, request):
        time.sleep(0.005)
        return answer("x", self.usage)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("limit", [Limit(tokens=50_000), Limit(usd=0.25)])
def test_no_limit_is_passed_by_more_than_one_request(at_once, limit):
    usage, price = TokenUsage(2_000, 1_000), Price(2.0, 8.0)
    budget = LlmBudget(limit, price)
    client = BudgetedClient(Costly(usage), budget)

    def ask(i):
        try:
            client.complete(ChatRequest((Message("user", "x" * 6_000),), str(i), max_tokens=1_000))
        except ChatError as error:
            return error.fault
        return None

    with ThreadPoolExecutor(at_once) as pool:
        ended = list(pool.map(ask, range(100)))
    assert set(ended) == {None, Fault.BUDGET}
    through = ended.count(None)
    spent = budget.spent
    assert spent.requests == through > 5
    if limit.tokens is not None:
        assert spent.prompt_tokens + spent.completion_tokens <= limit.tokens + usage.tokens
    else:
        assert spent.usd <= limit.usd + price.usd(usage) + 1e-9


class Server:
    """Counts tokens in its own way: so many for each of ours in a prompt, a part of what was allowed in an answer."""

    def __init__(self, ratio, seed):
        self.ratio, self.random, self.most = ratio, random.Random(seed), TokenUsage(0, 0)
        self.lock = threading.Lock()

    def complete(self, request):
        with self.lock:
            share, pause, ends = self.random.random(), self.random.random() / 500, self.random.random()
        time.sleep(pause)
        if ends < 0.1:
            raise ChatError("no", fault=Fault.RATE_LIMITED, usage=TokenUsage(0, 0))
        if ends < 0.2:
            raise ChatError("cut", fault=Fault.CONNECTION)
        usage = TokenUsage(int(prompt_estimate(request) * self.ratio), int(request.max_tokens * share))
        with self.lock:
            self.most = max(self.most, usage, key=lambda u: u.tokens)
        if ends < 0.3:
            raise ChatError("I cannot", fault=Fault.REFUSED, usage=usage)
        return answer("x", usage)


@sized(max_examples=40, deadline=None)
@given(
    ratio=st.floats(0.1, 5.0), seed=st.integers(0, 10_000), at_once=st.integers(1, 8), money=st.booleans(),
    limit=st.integers(0, 60_000), sizes=st.lists(st.integers(1, 20_000), min_size=4, max_size=30),
)  # fmt: skip
def test_whatever_servers_count_a_limit_is_passed_by_one_request_at_most(ratio, seed, at_once, money, limit, sizes):
    price = Price(1.0, 1.0)
    budget = LlmBudget(Limit(usd=limit / 1e6) if money else Limit(tokens=limit), price)
    server = Server(ratio, seed)
    client = BudgetedClient(server, budget)

    def ask(size):
        request = ChatRequest((Message("user", "x" * size),), "l", max_tokens=2_000)
        with contextlib.suppress(ChatError):
            client.complete(request)
        return prompt_estimate(request) * max(1.0, ratio) + request.max_tokens

    with ThreadPoolExecutor(at_once) as pool:
        dearest = max(pool.map(ask, sizes))
    spent = budget.spent
    assert spent.prompt_tokens + spent.completion_tokens <= limit + dearest + 1


def test_an_answer_that_was_cut_counts_as_the_most_it_can_have_cost():
    budget = LlmBudget()
    client = BudgetedClient(
        Once(ChatError("cut", fault=Fault.CONNECTION), ChatError("429", fault=Fault.RATE_LIMITED)), budget
    )
    for _ in range(2):
        with pytest.raises(ChatError):
            client.complete(ChatRequest((Message("user", "x" * 300),), "l", max_tokens=77))
    spent = budget.spent
    assert (spent.requests, spent.completion_tokens, spent.estimated) == (1, 77, 1)
    assert spent.prompt_tokens >= 100
