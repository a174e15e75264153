import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.llm.feed import Answering
from engine.search.participants import Builds, Participants

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine.errors import UsageError
from engine.llm.batch import BatchClient
from engine.llm.chat import ChatError, ChatRequest, Fault, Message
from engine.llm.feed import LlmFeed
from engine.llm.node_context import node_key
from engine.llm.proposer import LlmProposer
from engine.model import Program, Target
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.progress import Budget
from engine.search.tree import Tree
from engine.spec.find import find_spec
from tests.engine.search.fakes import Factors, FakeEvaluator

from .server import completion
from .test_edits import SOFTMAX, answer
from .test_faults import faster

REQUEST = ChatRequest((Message("user", "hello"),), "propose/abc/0", schema={"type": "object"})


def respond(folder, text, **line):
    """What a batch's output file says to every open request."""
    requests = [json.loads(t) for t in (folder / "requests.jsonl").read_text().splitlines()]
    with (folder / "responses.jsonl").open("a") as file:
        for i, request in enumerate(requests):
            body = json.loads(completion(text))
            answer = {"id": f"batch_req_{i}", "custom_id": request["custom_id"],
                      "response": {"status_code": 200, "request_id": "r", "body": body}, "error": None}  # fmt: skip
            file.write(json.dumps({**answer, **line}) + "\n")
    return requests


def fault(client, request=REQUEST):
    with pytest.raises(ChatError) as caught:
        client.complete(request)
    return caught.value.fault


def test_a_request_is_a_line_of_the_batch_format(tmp_path):
    client = BatchClient(tmp_path, "gpt-x")
    assert fault(client) is Fault.DEFERRED
    assert fault(client) is Fault.DEFERRED  # asked twice, written once
    (line,) = [json.loads(t) for t in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert set(line) == {"custom_id", "method", "url", "body"}
    assert (line["method"], line["url"]) == ("POST", "/v1/chat/completions")
    assert 0 < len(line["custom_id"]) <= 64
    assert line["body"]["model"] == "gpt-x"
    assert line["body"]["messages"] == [{"role": "user", "content": "hello"}]
    assert "stream" not in line["body"]
    assert client.deferred == 1


def test_the_answers_are_read_back(tmp_path):
    assert fault(BatchClient(tmp_path, "m")) is Fault.DEFERRED
    respond(tmp_path, "the answer")
    client = BatchClient(tmp_path, "m")
    answer = client.complete(REQUEST)
    assert (answer.text, answer.usage.tokens) == ("the answer", 120)
    assert client.deferred == 0
    assert (tmp_path / "requests.jsonl").read_text() == ""


def test_a_failed_line_is_an_ending(tmp_path):
    assert fault(BatchClient(tmp_path, "m")) is Fault.DEFERRED
    respond(tmp_path, "x", response={"status_code": 500, "body": {}}, error=None)
    assert fault(BatchClient(tmp_path, "m")) is Fault.SERVER_ERROR
    respond(tmp_path, "x", response=None, error={"code": "batch_expired", "message": "late"})
    assert fault(BatchClient(tmp_path, "m")) is Fault.SERVER_ERROR


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"custom_id": 7}\n', "[" * 100_000])
def test_what_is_no_output_file_is_named_with_its_line(tmp_path, text):
    (tmp_path / "responses.jsonl").write_text("\n" + text)
    with pytest.raises(UsageError, match=r"responses\.jsonl:2"):
        BatchClient(tmp_path, "m")


def test_a_batch_needs_a_model(tmp_path):
    with pytest.raises(UsageError, match="--llm-model"):
        BatchClient(tmp_path, "")


def published(line):
    """Whether a line is one of the Batch API's input format: `BatchRequestInput` of OpenAI's API description for the line, and for
    its body the parameters as the `openai` package has them, which is generated from that description."""
    import typing

    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
    from pydantic import TypeAdapter, ValidationError

    body, name = line.get("body"), line.get("custom_id")
    if set(line) != {"custom_id", "method", "url", "body"} or not isinstance(name, str) or not 0 < len(name) <= 64:
        return False
    if line["method"] != "POST" or line["url"] != "/v1/chat/completions":
        return False
    if not set(body) <= set(typing.get_type_hints(CompletionCreateParamsNonStreaming)) - {"stream"}:
        return False
    try:
        read = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body, strict=True)
        return len(list(read["messages"])) == len(body["messages"])
    except ValidationError:
        return False


def test_every_line_of_a_run_is_of_the_published_format(tmp_path):
    run(tmp_path, resume=False)
    respond(tmp_path / "batch", answer(("not there", "x")))
    run(tmp_path, resume=True)  # with conversations that go on
    text = (tmp_path / "batch" / "requests.jsonl").read_text()
    assert text.endswith("\n")
    lines = [json.loads(t) for t in text.splitlines()]
    assert any(len(line["body"]["messages"]) > 2 for line in lines)
    assert all(published(line) for line in lines)
    assert len({line["custom_id"] for line in lines}) == len(lines)
    index = [json.loads(t) for t in (tmp_path / "batch" / "index.jsonl").read_text().splitlines()]
    assert [i["custom_id"] for i in index] == [line["custom_id"] for line in lines]
    assert {i["about"] for i in index} & {"original"}


def test_the_check_of_the_format_refuses_what_is_not_of_it():
    client = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
              "body": {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0.2}}  # fmt: skip
    assert published(client)
    for wrong in ({"method": "GET"}, {"url": "/chat"}, {"extra": 1}, {"custom_id": 3}, {"custom_id": "x" * 65},
                  {"body": {**client["body"], "temperature": "hot"}}, {"body": {**client["body"], "retries": 3}},
                  {"body": {**client["body"], "messages": [{"role": "user"}]}}, {"body": {"model": "m", "messages": "x"}}):  # fmt: skip
        assert not published({**client, **wrong}), wrong


def test_a_question_keeps_its_name_while_the_code_stays_the_same(tmp_path):
    """Adding a spec for another kernel to the file of specs, or another prompt, must not lose recorded answers."""
    text, key = b"[[kernel]]\nname = 'a'\n", {}
    for name, specs in (("one", text), ("two", text + b"[[kernel]]\nname = 'b'\n")):
        original = Program({"k.cu": b"code", "optiml.toml": specs}, "k.cu")
        edited = original.replace({"k.cu": b"other code", "optiml.toml": specs.replace(b"'a'", b"'c'")})
        key[name] = (node_key(original, original), node_key(original, edited))
    assert key["one"] == key["two"]
    assert key["one"][0] != key["one"][1]
    launch = original.replace({"optiml.toml": text.replace(b"'a'", b"'d'")})
    assert node_key(original, launch) not in key["two"]


def test_answers_at_hand_compete_from_the_start(tmp_path):
    """With many candidates in flight, what is left of a small budget would be gone before an answer was read."""
    run(tmp_path, resume=False)
    respond(tmp_path / "batch", faster("2.0"))
    search, _ = run(tmp_path, resume=True, factors=tuple(f"1.{i:02}" for i in range(1, 60)), in_flight=18, more=1)
    assert [e.proposer for e in search.journal_entries][-1] == "llm"


def run(tmp_path, *, resume, factors=("1.5",), in_flight=2, more=None):
    (tmp_path / "k.cu").write_bytes(SOFTMAX.read_bytes())
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu", "softmax_kernel")
    program = Program({"k.cu": SOFTMAX.read_bytes()}, "k.cu")
    client = BatchClient(tmp_path / "batch", "m")
    feed = LlmFeed(
        LlmProposer(client),
        spec,
        Target(),
        answering=Answering(holds=client.holds, workers=16, deferring=True),
    )
    evaluator = FakeEvaluator()
    journal = Journal(tmp_path / "j.sqlite", program, {}, resume=resume)
    with ThreadPoolExecutor(2) as executor:
        tree = Tree(program, Factors(factors), 0)
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=in_flight), Participants(feed=feed))
        search.start(*evaluator.open(program))
        search.run(Budget(30, None if more is None else search.progress.evaluated + more))
    search.journal_entries = list(journal.entries())
    journal.close()
    return search, client


def test_rounds_through_the_batch_go_on_where_the_run_was(tmp_path):
    search, client = run(tmp_path, resume=False)
    assert client.deferred > 0  # the run ends with open prompts
    assert search.incumbent.evaluation.measurement.ratio == pytest.approx(1.5)
    first = respond(tmp_path / "batch", faster("2.0"))
    search, client = run(tmp_path, resume=True)
    assert search.incumbent.evaluation.measurement.ratio == pytest.approx(3.0)
    second = [json.loads(t) for t in (tmp_path / "batch" / "requests.jsonl").read_text().splitlines()]
    assert second  # the better version is asked about in its turn
    assert not {r["custom_id"] for r in first} & {r["custom_id"] for r in second}
    # Another round, answered with an edit that fails; what failed goes through the batch in its turn.
    respond(tmp_path / "batch", answer(("fmaxf(largest, x[row * cols + c])", "largest + wrong()")))
    run(tmp_path, resume=True)
    third = [json.loads(t) for t in (tmp_path / "batch" / "requests.jsonl").read_text().splitlines()]
    assert any(r["body"]["messages"][0]["content"].startswith("You correct") for r in third)
    respond(tmp_path / "batch", answer(("fmaxf(largest, x[row * cols + c])", "largest + speed(1.5)")))
    search, _ = run(tmp_path, resume=True)
    assert search.incumbent.evaluation.measurement.ratio == pytest.approx(4.5)
    assert any(e.parameters.get("repair") == 1 for e in search.journal_entries)
    evaluated = search.progress.evaluated
    search, _ = run(tmp_path, resume=True)  # nothing new: nothing is evaluated twice
    assert search.progress.evaluated == evaluated
