import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine.errors import UsageError
from engine.llm.budget import BudgetedClient, Limit, LlmBudget, Price, parse_limit, parse_price
from engine.llm.cassette import Recorder, Replayer
from engine.llm.context import Diagnosed
from engine.llm.lessons import MemorySettings
from engine.llm.memory import Memory
from engine.llm.model import ChatAnswer, ChatError, ChatRequest, Fault, Message, Usage
from engine.llm.part import Part
from engine.llm.session import EXCHANGES, LlmSettings, parse_door
from engine.model import Program
from engine.rules.model import Target
from engine.search.journal import Journal
from engine.search.loop import Budget, Search
from engine.search.tree import Tree
from engine.spec.read import find_spec
from tests.engine.search.fakes import Factors, FakeEvaluator

from .server import completion, ok, status
from .test_edits import SOFTMAX
from .test_faults import faster

REQUEST = ChatRequest((Message("user", "secret prompt"),), "propose/x/0")


def run(
    folder, settings, name="run", memory=None, factors=("1.5",),
    diagnose=lambda node, wait_s: Diagnosed(("Memory-bound",), {}, ("memory_bound",)),
):  # fmt: skip
    (folder / "k.cu").write_bytes(SOFTMAX.read_bytes())
    spec, _ = find_spec(folder, folder / "k.cu", "softmax_kernel")
    program = Program({"k.cu": SOFTMAX.read_bytes()}, "k.cu")
    monkey = pytest.MonkeyPatch()
    monkey.setattr("engine.llm.part.diagnoser", lambda *_: diagnose)
    part = Part(settings, memory, spec, Target(), folder / name, None)
    monkey.undo()
    tree = Tree(program, Factors(factors), 0, weigh=part.weigh)
    part.join(tree)
    evaluator = FakeEvaluator()
    journal = Journal(folder / name / "journal.sqlite", program, {}, resume=False)
    with ThreadPoolExecutor(2) as executor:
        search = Search(tree, evaluator, journal, executor, in_flight=2, feed=part)
        search.start(*evaluator.open(program))
        search.run(Budget(seconds=30))
    part.observe()
    part.close()
    journal.close()
    return search, part.model if part.lessons is None else part


@pytest.fixture
def online(serve, monkeypatch):
    def start(*script):
        server = serve(*script)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        return server

    return start


def test_a_recorded_run_is_repeated_without_a_network(tmp_path, online, monkeypatch):
    server = online(ok(completion(faster("2.0"))))
    first, session = run(tmp_path, LlmSettings(model="m"))
    assert first.incumbent.evaluation.measurement.ratio == pytest.approx(3.0)
    assert session.summary["requests"] == len(server.requests)
    assert session.notes == ()
    monkeypatch.delenv("OPENAI_BASE_URL")
    asked = len(server.requests)
    again, replayed = run(tmp_path, LlmSettings(model="m", replay=tmp_path / "run" / EXCHANGES), "again")
    assert again.incumbent.program.digest == first.incumbent.program.digest
    assert replayed.summary["proposals"] == session.summary["proposals"]
    assert len(server.requests) == asked


def test_the_summary_is_serialisable_and_counts_faults(tmp_path, online):
    online(status(401))
    _, session = run(tmp_path, LlmSettings(model="m"))
    summary = json.loads(json.dumps(session.summary))
    assert summary["faults"]["rejected"] >= 1
    assert summary["spent"] == {
        "requests": summary["requests"],
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "usd": None,
        "estimated": 0,
    }


def about_the_original(server, after):
    told = [r["messages"][1]["content"] for r in server.requests[after:]]
    return next(text for text in told if "This version: the original" in text)


def test_what_was_learnt_is_told_in_the_next_run_of_the_same_repository(tmp_path, online):
    server = online(ok(completion(faster("2.0"))))
    settings, memory = LlmSettings(model="m"), MemorySettings(tmp_path / "memory.sqlite", "here")
    run(tmp_path, settings, memory=memory)
    # Its own lesson cannot have come before its first answer; one of a rule may have, on a busy machine.
    assert "Make it 2.0 times faster: gave" not in about_the_original(server, 0)
    before = len(server.requests)
    _, part = run(tmp_path, settings, "second", memory=memory)
    assert part.memory["learnt"] > 0
    assert part.memory["told"] > 0
    assert "Make it 2.0 times faster: gave 2x on sm_90" in about_the_original(server, before)
    before = len(server.requests)
    elsewhere = MemorySettings(memory.path, "elsewhere")
    run(tmp_path, settings, "third", memory=elsewhere)
    assert "taught" not in about_the_original(server, before)
    before = len(server.requests)
    run(tmp_path, settings, "fourth", memory=dataclasses.replace(elsewhere, repository="new", across=True))
    assert "Make it 2.0 times faster: gave 2x on sm_90" in about_the_original(server, before)


def test_a_memory_that_fails_is_done_without(tmp_path, online, monkeypatch):
    online(ok(completion(faster("2.0"))))
    from engine.errors import MachineError

    def fails(self, lesson):
        raise MachineError("disk full")

    monkeypatch.setattr(Memory, "add", fails)
    memory = MemorySettings(tmp_path / "memory.sqlite", "here")
    search, part = run(tmp_path, LlmSettings(model="m"), memory=memory)
    assert search.incumbent.evaluation.measurement.ratio == pytest.approx(3.0)
    assert "disk full" in part.notes


def test_open_prompts_are_told_in_the_notes(tmp_path):
    _, session = run(tmp_path, LlmSettings(model="m", batch=tmp_path / "batch"))
    assert session.deferred > 0
    assert any("--resume" in note for note in session.notes)


@pytest.mark.parametrize("text", ["batch", "batch:", "http://x", "tape:x"])
def test_a_wrong_door_is_named(text):
    with pytest.raises(UsageError, match="--llm"):
        parse_door(text)


# ---- recordings


class Once:
    """A client that gives one answer or raises."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def complete(self, request):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def answer(text, usage=None):
    return ChatAnswer(text, "m", usage or Usage(10, 5))


def test_a_recording_gives_answers_and_faults_in_order(tmp_path):
    recorder = Recorder(
        Once(answer("one"), ChatError("no", fault=Fault.REFUSED, usage=Usage(3, 1)), answer("two")),
        tmp_path / "c.jsonl",
    )
    recorder.complete(REQUEST)
    with pytest.raises(ChatError):
        recorder.complete(REQUEST)
    recorder.complete(REQUEST)
    recorder.close()
    replayer = Replayer(tmp_path / "c.jsonl")
    assert replayer.complete(REQUEST).text == "one"
    with pytest.raises(ChatError) as caught:
        replayer.complete(REQUEST)
    assert (caught.value.fault, caught.value.usage.tokens) == (Fault.REFUSED, 4)
    assert replayer.complete(REQUEST).text == "two"
    # Another prompt under the same label: measured times differ between runs.
    assert replayer.complete(ChatRequest((Message("user", "other times"),), REQUEST.label)).text
    with pytest.raises(ChatError) as caught:
        replayer.complete(ChatRequest(REQUEST.messages, "propose/y/0", temperature=0.9))
    assert caught.value.fault is Fault.NOT_RECORDED


def test_a_recording_can_be_redacted(tmp_path):
    recorder = Recorder(
        Once(answer("a secret answer")), tmp_path / "a.jsonl", redact=lambda t: t.replace("secret", "***")
    )
    recorder.complete(REQUEST)
    assert "secret" not in (tmp_path / "a.jsonl").read_text()
    Recorder(Once(answer("fine")), tmp_path / "b.jsonl", prompts=False).complete(REQUEST)
    assert "secret" not in (tmp_path / "b.jsonl").read_text()
    assert Replayer(tmp_path / "b.jsonl").complete(REQUEST).text == "fine"


@pytest.mark.parametrize("text", ["x", "{}", '{"format": 1, "digest": "a", "label": "b", "answer": {"text": 1}}', "[" * 99_999,
                                  '{"format": 1, "digest": "a", "label": "b", "error": {"fault": "odd"}}'])  # fmt: skip
def test_what_is_no_recording_is_named_with_its_line(tmp_path, text):
    (tmp_path / "c.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"c\.jsonl:1"):
        Replayer(tmp_path / "c.jsonl")


# ---- budget


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
        import time

        time.sleep(0.005)
        return answer("x", self.usage)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("limit", [Limit(tokens=50_000), Limit(usd=0.25)])
def test_no_limit_is_passed_by_more_than_one_request(at_once, limit):
    usage, price = Usage(2_000, 1_000), Price(2.0, 8.0)
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
