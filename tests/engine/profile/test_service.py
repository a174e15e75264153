import threading
import time
from types import SimpleNamespace

import pytest

from engine.model import Binary, LaunchConfig
from engine.process.fair_lock import Turns
from engine.profile import service
from engine.profile.counters import CHEAP, FULL, LINES, Profile, ProfileFailure, ProfileRequest
from engine.profile.service import Priority, ProfileService
from tests.spent import spent


def request(key: str) -> ProfileRequest:
    return ProfileRequest(key, Binary(b"", "sm_90", ("k",), (), key), (LaunchConfig((1, 1, 1), (32, 1, 1)),), 1)


class Source:
    """A profiler whose kernels take `each_s`; records who asked, on which thread, and whether the GPU was held."""

    def __init__(self, gpu, each_s=0.0, unusable="", sleep=time.sleep):
        self.gpu, self.each_s, self.unusable, self.sleep = gpu, each_s, unusable, sleep
        self.batches, self.threads, self.closed, self.raises = [], set(), False, None
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()

    def warm_up(self, metrics):
        self.threads.add(threading.current_thread())

    def finish(self, answers):
        return answers

    def begin(self, batch, metrics, gpu=None):
        self.began.set()
        self.gate.wait(10)
        self.threads.add(threading.current_thread())
        if self.raises:
            raise self.raises
        with gpu:
            assert self.gpu.locked()
            self.sleep(self.each_s * len(batch))
        self.batches.append((metrics.name, [r.key for r in batch]))
        return [Profile(r.key, metrics.name, r.case, ()) for r in batch]

    def interrupt(self):
        self.gate.set()

    def close(self):
        self.closed = True


class Logged(Source):
    """Keeps the order in which batches begin and finish."""

    def __init__(self, gpu):
        super().__init__(gpu)
        self.order = []

    def begin(self, batch, metrics, gpu=None):
        self.order.append(f"begin {batch[0].key}")
        return super().begin(batch, metrics, gpu)

    def finish(self, answers):
        self.order.append(f"finish {answers[0].key}")
        return answers


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(service, "_LINGER_S", 0.05)
    monkeypatch.setattr(service, "_LINGER_BACKGROUND_S", 0.05)


def start(source, gpu, **options):
    options.setdefault("share", 1e9)
    return ProfileService(source, gpu, **options)


def test_requests_are_batched_by_set_and_priority():
    gpu = Turns()
    source = Source(gpu)
    source.gate.clear()
    with_service = start(source, gpu, batch=3)
    first = with_service.submit(request("first"), CHEAP, Priority.REQUIRED)  # occupies the thread
    assert source.began.wait(10)
    futures = [with_service.submit(request(str(i)), CHEAP) for i in range(4)]
    futures.append(with_service.submit(request("node"), FULL, Priority.EXPANSION))
    source.gate.set()
    assert first.result(20).key == "first"
    assert [f.result(20).key for f in futures] == ["0", "1", "2", "3", "node"]
    with_service.close()
    assert source.batches == [
        ("cheap", ["first"]), ("full", ["node"]), ("cheap", ["0", "1", "2"]), ("cheap", ["3"]),
    ]  # fmt: skip
    assert source.closed
    assert len(source.threads) == 1
    assert with_service.profiled == 6


def test_a_set_whose_time_is_spent_holds_up_no_other():
    gpu = Turns()
    source = Source(gpu)
    running = start(source, gpu, share=0.001, batch=4)
    with running.together():
        for metrics in (FULL, LINES):
            running._each_s[metrics.name] = 1000.0
            running.submit(request(metrics.name), metrics, Priority.EXPANSION)
        running._each_s["cheap"] = 1e-9
        cheap = [running.submit(request(str(i)), CHEAP) for i in range(4)]
    assert [f.result(20).key for f in cheap] == ["0", "1", "2", "3"]
    running.close()
    assert source.batches == [("cheap", ["0", "1", "2", "3"])]


def test_what_is_asked_for_together_is_one_batch():
    gpu = Turns()
    source = Source(gpu)
    running = start(source, gpu)
    with running.together():
        futures = []
        for name in "ab":
            futures.append(running.submit(request(name), FULL, Priority.REQUIRED))
            time.sleep(0.1)
    assert [f.result(20).key for f in futures] == ["a", "b"]
    running.close()
    assert source.batches == [("full", ["a", "b"])]


def test_a_profile_waits_for_the_timing_that_holds_the_gpu():
    gpu = Turns()
    running = start(Source(gpu), gpu)
    with gpu:
        future = running.submit(request("a"), CHEAP, Priority.REQUIRED)
        time.sleep(0.2)
        assert not future.done()
    assert isinstance(future.result(20), Profile)
    running.close()


class Clock:
    """Time that passes where the service waits or the GPU works, and nowhere else; it stands still at `end`."""

    def __init__(self, monkeypatch, end):
        self.now, self.end, self.over = 0.0, end, threading.Event()
        clock = self

        class Condition(threading.Condition):
            def wait(self, timeout=None):
                if timeout is not None and clock.now < clock.end:
                    clock.now += timeout
                    timeout = 0
                elif timeout is not None:
                    clock.over.set()
                return super().wait(timeout)

        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(service, "threading", SimpleNamespace(Condition=Condition, Thread=threading.Thread))

    def sleep(self, seconds):
        self.now += seconds


def test_the_gpu_is_held_no_longer_than_its_share(monkeypatch):
    clock = Clock(monkeypatch, end=3.0)
    gpu = Turns()
    source = Source(gpu, each_s=0.02, sleep=clock.sleep)
    running = start(source, gpu, share=0.2)
    with running.together():
        futures = [running.submit(request(str(i)), CHEAP) for i in range(60)]
    assert clock.over.wait(20)
    assert running.held_s == pytest.approx(0.02 * sum(f.done() for f in futures))
    assert 0.5 * 0.7 * 0.2 * clock.now <= running.held_s <= 0.7 * 0.2 * clock.now + 0.1
    assert not all(f.done() for f in futures)
    running.close()
    assert all(f.done() for f in futures)


def test_what_is_worth_most_goes_first():
    gpu = Turns()
    source = Source(gpu)
    source.gate.clear()
    running = start(source, gpu, batch=2)
    running.submit(request("first"), FULL, Priority.REQUIRED)
    assert source.began.wait(10)
    futures = [running.submit(request(str(worth)), CHEAP, worth=worth) for worth in (1.0, 3.0, 0.5, 2.0)]
    source.gate.set()
    assert all(f.result(20) for f in futures)
    running.close()
    assert [keys for name, keys in source.batches if name == "cheap"] == [["3.0", "2.0"], ["1.0", "0.5"]]


def test_what_the_share_has_no_time_for_costs_those_that_ask_nothing():
    """All of it was put in order again for each request, with the interpreter that the search needs: an eighth of the search's own time."""
    gpu = Turns()
    running = start(Source(gpu), gpu, share=0.0)
    requests = [request(str(number)) for number in range(3000)]
    with spent() as cost:
        futures = []
        for number, each in enumerate(requests):
            futures.append(running.submit(each, CHEAP, worth=number % 7))
            time.sleep(0.0002)  # the profiler's thread sees each
    running.close()
    assert all(future.result(0).kind == "closed" for future in futures)
    assert cost.seconds < 3


def test_one_sets_empty_purse_does_not_stop_the_other():
    gpu = Turns()
    source = Source(gpu, each_s=0.05)
    running = start(source, gpu, share=0.2)
    running._held_by["full"] = 1e9
    wanted = running.submit(request("node"), FULL, Priority.EXPANSION)
    assert running.submit(request("a"), CHEAP).result(20).key == "a"
    assert not wanted.done()
    running.close()


def test_the_next_batch_begins_before_the_last_one_has_its_report():
    gpu = Turns()
    source = Logged(gpu)
    source.gate.clear()
    running = start(source, gpu, batch=1)
    futures = [running.submit(request(key), CHEAP, Priority.REQUIRED) for key in "abc"]
    source.gate.set()
    assert [f.result(20).key for f in futures] == ["a", "b", "c"]
    running.close()
    assert source.order == ["begin a", "begin b", "finish a", "begin c", "finish b", "finish c"]


def test_what_is_required_does_not_wait_for_the_next_batch_of_others():
    """A question to a model lost its diagnosis to a batch of source lines that held the GPU for eight seconds."""
    gpu = Turns()
    source = Logged(gpu)
    source.gate.clear()
    running = start(source, gpu)
    with running.together():
        futures = [
            running.submit(request("lines"), LINES, Priority.EXPANSION),
            running.submit(request("question"), FULL, Priority.REQUIRED),
        ]
    time.sleep(0.2)  # by now the lines are due
    source.gate.set()
    assert [f.result(20).key for f in futures] == ["lines", "question"]
    running.close()
    assert source.order == ["begin question", "finish question", "begin lines", "finish lines"]


def test_what_is_required_is_not_held_to_the_share():
    gpu = Turns()
    running = start(Source(gpu, each_s=0.01), gpu, share=0.0)
    later = running.submit(request("later"), CHEAP)
    required = running.submit(request("now"), FULL, Priority.REQUIRED)
    assert required.result(20).key == "now"
    assert not later.done()
    running.close()
    answer = later.result(0)
    assert isinstance(answer, ProfileFailure)
    assert answer.kind == "closed"


def test_nothing_comes_along_with_what_is_required():
    """Else each question to a model would let sixteen others past the share."""
    gpu = Turns()
    source = Source(gpu, each_s=0.01)
    running = start(source, gpu, share=0.0)
    with running.together():
        later = running.submit(request("later"), FULL, Priority.EXPANSION)
        required = running.submit(request("now"), FULL, Priority.REQUIRED)
    assert required.result(20).key == "now"
    assert source.batches == [("full", ["now"])]
    running.close()
    assert isinstance(later.result(0), ProfileFailure)


def test_a_profiler_that_cannot_be_used_answers_everything_at_once():
    gpu = Turns()
    source = Source(gpu, unusable="permission refused")
    running = start(source, gpu)
    assert running.submit(request("a"), CHEAP).result(20).reason == "permission refused"
    assert running.submit(request("b"), CHEAP).result(20).reason == "permission refused"
    assert running.unusable == "permission refused"
    running.close()
    assert source.batches == []


def test_a_profiler_given_up_midway_releases_who_waits():
    gpu = Turns()
    source = Source(gpu)
    source.gate.clear()
    running = start(source, gpu)
    first = running.submit(request("a"), CHEAP, Priority.REQUIRED)
    assert source.began.wait(10)
    waiting = running.submit(request("b"), FULL)
    source.unusable = "no more"
    source.gate.set()
    assert isinstance(first.result(20), Profile)
    assert waiting.result(20).reason == "no more"
    running.close()


def test_a_defect_costs_a_signal_and_not_the_search():
    gpu = Turns()
    source = Source(gpu)
    source.raises = KeyError("counter")
    running = start(source, gpu)
    answer = running.submit(request("a"), CHEAP).result(20)
    assert (answer.kind, "counter" in answer.reason) == ("lost", True)
    source.raises = None
    assert isinstance(running.submit(request("b"), CHEAP).result(20), Profile)
    running.close()


def test_a_profiler_whose_warm_up_fails():
    class Broken(Source):
        def warm_up(self, metrics):
            raise KeyError("x")

    gpu = Turns()
    running = start(Broken(gpu), gpu, prepare=[CHEAP])
    assert "the profiler failed" in running.submit(request("a"), CHEAP).result(20).reason
    running.close()


def test_a_cancelled_request_is_not_run():
    gpu = Turns()
    source = Source(gpu)
    running = start(source, gpu, share=0.0)
    future = running.submit(request("a"), CHEAP)
    assert future.cancel()
    assert isinstance(running.submit(request("b"), CHEAP, Priority.REQUIRED).result(20), Profile)
    running.close()
    assert "a" not in [key for _, keys in source.batches for key in keys]


def test_when_the_search_ends_only_what_is_required_goes_on():
    gpu = Turns()
    source = Source(gpu)
    source.gate.clear()
    running = start(source, gpu)
    first = running.submit(request("first"), CHEAP)
    assert source.began.wait(10)
    later = running.submit(request("later"), CHEAP)
    required = running.submit(request("needed"), FULL, Priority.REQUIRED)
    later.add_done_callback(lambda _: source.gate.set())  # what runs goes on while the search settles
    running.settle(10)
    assert source.batches[:1] == [("cheap", ["first"])]
    assert later.result(0).kind == "closed"
    assert required.result(20).key == "needed"
    assert first.result(20).key == "first"
    running.close()


def test_near_the_end_of_a_search_only_what_is_required_is_taken():
    gpu = Turns()
    source = Source(gpu)
    running = start(source, gpu)
    running.conclude()
    assert running.submit(request("late"), CHEAP).result(0).kind == "closed"
    assert running.submit(request("expanded"), FULL, Priority.EXPANSION).result(0).kind == "closed"
    assert running.submit(request("needed"), FULL, Priority.REQUIRED).result(20).key == "needed"
    running.close()


def test_nothing_is_taken_after_the_end():
    gpu = Turns()
    running = start(Source(gpu), gpu)
    running.close()
    assert running.submit(request("a"), CHEAP).result(0).kind == "closed"


def test_a_profiler_that_hangs_is_ended_with_the_search(monkeypatch):
    monkeypatch.setattr(service, "_CLOSE_S", 0.05)
    turns = Turns()
    source = Source(turns)
    source.gate.clear()
    serving = ProfileService(source, turns)
    answer = serving.submit(request("a"), FULL, Priority.REQUIRED)
    assert source.began.wait(5)
    begin = time.monotonic()
    serving.close()
    assert time.monotonic() - begin < 5
    assert source.closed
    assert answer.done()
