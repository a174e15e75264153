"""Answers that were recorded."""

import pytest

pytest.importorskip("openai")

from engine.errors import UsageError
from engine.llm.cassette import Recorder, Replayer
from engine.llm.chat import ChatAnswer, ChatError, ChatRequest, Fault, Message, TokenUsage

REQUEST = ChatRequest((Message("user", "secret prompt"),), "propose/x/0")


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
    return ChatAnswer(text, "m", usage or TokenUsage(10, 5))


def test_a_recording_gives_answers_and_faults_in_order(tmp_path):
    recorder = Recorder(
        Once(
            answer("one"),
            ChatError("no", fault=Fault.REFUSED, usage=TokenUsage(3, 1), text="I will not"),
            answer("two"),
        ),
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
    assert (caught.value.fault, caught.value.usage.tokens, caught.value.text) == (Fault.REFUSED, 4, "I will not")
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


def test_a_recording_of_another_version_is_named_as_such(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"format": 2, "digest": "a"}\n')
    with pytest.raises(UsageError, match="is a recording of format 2, and this version reads format 1") as error:
        Replayer(tmp_path / "c.jsonl")
    assert error.value.where.endswith("c.jsonl:1")
