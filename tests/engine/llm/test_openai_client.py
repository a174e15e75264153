import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("openai")

from engine.errors import UsageError
from engine.llm.chat import ChatError, ChatRequest, Fault, Message
from engine.llm.openai_client import ClientOptions, OpenAIClient

from .server import completion, cut, giant, hang_up, ok, slow, status

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def request(text="hello", **more):
    return ChatRequest((Message("system", "be brief"), Message("user", text)), "test", **more)


def client(server, **more):
    return OpenAIClient(
        ClientOptions(base_url=server.url, api_key="k-123", timeout_s=more.pop("timeout_s", 60.0), **more)
    )


def fault(server, **more):
    with pytest.raises(ChatError) as caught:
        client(server, **more).complete(request())
    return caught.value


def test_an_answer_comes_with_its_usage_and_streaming_is_off(serve):
    server = serve(ok(completion("hi", usage=(12, 3))))
    answer = client(server).complete(request(schema=SCHEMA, temperature=0.2, max_tokens=77))
    assert (answer.text, answer.model, answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        "hi",
        "scripted",
        12,
        3,
    )
    sent = server.requests[0]
    assert sent["model"] == "first-model"  # none was named: the first that the server lists
    assert sent["stream"] is False
    assert (sent["temperature"], sent["max_tokens"]) == (0.2, 77)
    assert sent["response_format"]["json_schema"]["schema"] == SCHEMA
    assert sent["messages"][0] == {"role": "system", "content": "be brief"}
    assert server.headers_seen[0]["Authorization"] == "Bearer k-123"


def test_address_and_key_come_from_the_environment(serve, monkeypatch):
    server = serve(ok(completion("hi")))
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    OpenAIClient(ClientOptions(model="named")).complete(request())
    assert server.headers_seen[0]["Authorization"] == "Bearer from-env"
    assert server.requests[0]["model"] == "named"
    assert server.paths == ["/v1/chat/completions"]


def test_without_server_and_key_the_error_says_what_to_set(serve):
    with pytest.raises(UsageError, match="OPENAI_BASE_URL"):
        OpenAIClient()


def test_429_is_tried_again_after_the_time_it_names(serve):
    server = serve(status(429, Retry_After="1"), ok(completion("later")))
    answer = client(server).complete(request())
    assert (answer.text, answer.tries) == ("later", 2)
    assert server.times[1] - server.times[0] >= 1.0


def test_a_retry_after_beyond_the_limit_ends_at_once(serve):
    server = serve(status(429, Retry_After="3600"))
    begin = time.monotonic()
    error = fault(server)
    assert error.fault is Fault.RATE_LIMITED
    assert error.what == "the server accepts no more requests (1 try; it asks to wait 3600 s)"  # it said 4 tries
    assert time.monotonic() - begin < 30
    assert len(server.requests) == 1


def test_500_is_tried_again_and_given_up_in_the_end(serve):
    server = serve(status(500))
    error = fault(server, tries=3)
    assert (error.fault, error.status, len(server.requests)) == (Fault.SERVER_ERROR, 500, 3)
    server = serve(status(503), ok(completion("up")))
    assert client(server).complete(request()).text == "up"


def test_a_wrong_key_is_not_tried_again_and_does_not_appear(serve):
    server = serve(status(401, b'{"error": {"message": "bad key k-123"}}'))
    error = fault(server)
    assert (error.fault, error.status, len(server.requests)) == (Fault.REJECTED, 401, 1)
    assert "k-123" not in str(error)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(serve, code):
    """The source and the key went wherever the server said: `httpx` keeps the key on the same host, and 307 the whole request."""
    other = serve(ok(completion("from elsewhere")))
    server = serve(status(code, Location=f"{other.url}/chat/completions"))
    error = fault(server, model="named")
    assert (error.fault, error.status, len(server.requests)) == (Fault.REJECTED, code, 1)
    assert "redirect" in str(error)
    assert not other.requests
    assert not other.paths


@pytest.mark.parametrize("reply", [cut(completion("half of this")), hang_up])
def test_a_cut_answer_is_a_clear_ending(serve, reply):
    assert fault(serve(reply)).fault is Fault.CONNECTION


def test_slow_bytes_end_at_the_time_limit_of_the_whole_exchange(serve):
    begin = time.monotonic()
    assert fault(serve(slow(completion("x" * 2000), 0.05)), timeout_s=1.0).fault is Fault.TIMED_OUT
    assert time.monotonic() - begin < 30  # and not the 110 s that the bytes take


def test_silence_ends_at_the_time_limit(serve):
    assert fault(serve(ok(completion("x"), delay_s=3)), timeout_s=0.5).fault is Fault.TIMED_OUT


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ok(b"<html>not json"), Fault.INVALID_BODY),
        (ok(b"[" * 100_000), Fault.INVALID_BODY),
        (ok(b'{"object": "something else"}'), Fault.INVALID_BODY),
        (ok(b'{"choices": []}'), Fault.EMPTY),
        (ok(b'{"choices": [{"message": {"content": 7}, "finish_reason": null}]}'), Fault.EMPTY),
        (ok(completion("  \n")), Fault.EMPTY),
        (ok(completion(None, refusal="I cannot help with that")), Fault.REFUSED),
        (ok(completion("", finish="content_filter")), Fault.REFUSED),
        (ok(completion("the beginning", finish="length")), Fault.CUT_SHORT),
        (giant(20 << 20), Fault.TOO_LARGE),
    ],
)  # fmt: skip
def test_each_wrong_answer_has_its_ending(serve, reply, expected):
    assert fault(serve(reply)).fault is expected


def test_a_giant_error_is_not_read_whole(serve):
    server = serve(giant(400 << 20, code=400))
    assert fault(server, timeout_s=60).fault is Fault.REJECTED
    assert server.written < 100 << 20  # what the sockets hold beyond what was read


def test_what_is_charged_for_is_counted_even_where_nothing_can_be_used(serve):
    error = fault(serve(ok(completion(None, refusal="no", usage=(50, 5)))))
    assert error.usage.tokens == 55


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -5, "completion_tokens": 1}, {"prompt_tokens": "9"}, 4, {"prompt_tokens": 10**12}]
)
def test_a_count_that_cannot_be_believed_is_estimated(serve, usage):
    import json

    body = json.loads(completion("abcdef", usage=None))
    body["usage"] = usage
    answer = client(serve(ok(json.dumps(body).encode()))).complete(request("y" * 300))
    assert answer.usage.estimated
    assert answer.usage.prompt_tokens >= 100


def test_a_server_without_schemas_is_asked_without_one_from_then_on(serve):
    complaint = b'{"error": {"message": "response_format json_schema is not supported"}}'
    server = serve(status(400, complaint), ok(completion("plain")))
    chat = client(server)
    assert chat.complete(request(schema=SCHEMA)).text == "plain"
    assert chat.complete(request(schema=SCHEMA)).text == "plain"
    assert ["response_format" in r for r in server.requests] == [True, False, False]


def test_a_server_that_renamed_max_tokens_gets_the_new_name(serve):
    complaint = b'{"error": {"message": "Use max_completion_tokens instead of max_tokens"}}'
    server = serve(status(400, complaint), ok(completion("fine")))
    assert client(server).complete(request(max_tokens=9)).text == "fine"
    assert server.requests[1]["max_completion_tokens"] == 9
    assert "max_tokens" not in server.requests[1]


def test_no_server_at_all_is_an_ending_too(serve):
    server = serve(ok(b""))
    server.stop()
    serve.running.clear()
    begin = time.monotonic()
    error = fault(server, tries=2, model="m")
    assert (error.fault, error.usage.tokens) == (Fault.CONNECTION, 0)
    assert time.monotonic() - begin < 30


def test_no_more_requests_at_once_than_allowed(serve):
    together, lock, inside, most = threading.Barrier(3), threading.Lock(), [0], [0]

    def reply(handler):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        together.wait(20)  # three at once, or never
        time.sleep(0.05)  # a fourth would come now
        with lock:
            inside[0] -= 1
        handler.send(200, completion("hi"))

    server = serve(reply)
    chat = client(server, concurrency=3, model="m", timeout_s=60)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda i: chat.complete(request(str(i))).text, range(12)))
    assert answers == ["hi"] * 12
    assert most[0] == 3


def test_closing_ends_the_wait_for_a_retry(serve):
    server = serve(status(429, Retry_After="50"))
    chat = client(server, model="m")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(chat.complete, request())
        while not server.requests:
            time.sleep(0.01)
        time.sleep(0.2)  # it has its answer and waits
        begin = time.monotonic()
        chat.close()
        with pytest.raises(ChatError):
            waiting.result(30)
        assert time.monotonic() - begin < 30
