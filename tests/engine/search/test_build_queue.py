"""Which of the builds that wait comes next, by a scripted builder on one thread."""

import threading
from concurrent.futures import CancelledError

import pytest

from engine.search.build_queue import BuildQueue, Rank, first


class Script:
    """Builds that note their names; the first one holds the only thread until `go`."""

    def __init__(self):
        self.queue, self.done, self.begun, self.go = BuildQueue(1), [], threading.Event(), threading.Event()
        self.queue.submit(self._hold)
        assert self.begun.wait(10)

    def _hold(self):
        self.begun.set()
        self.go.wait(10)

    def ended(self, *futures):
        self.go.set()
        for future in futures:
            future.result(10)
        return self.done


@pytest.fixture
def script():
    script = Script()
    yield script
    script.go.set()
    script.queue.shutdown()


def test_the_template_that_holds_the_device_goes_before_candidates_and_those_before_templates_that_wait(script):
    later, now = script.queue.lane(Rank.WAITING), script.queue.lane(Rank.WITHIN)
    waiting = [later.submit(script.done.append, f"later {i}") for i in range(2)]
    candidates = [script.queue.submit(script.done.append, f"candidate {i}") for i in range(2)]
    within = [now.submit(script.done.append, f"now {i}") for i in range(2)]
    assert script.ended(*waiting, *candidates, *within) == [
        "now 0", "now 1", "candidate 0", "candidate 1", "later 0", "later 1",
    ]  # fmt: skip


def test_a_template_whose_turn_comes_takes_its_builds_along(script):
    one, other = script.queue.lane(Rank.WAITING), script.queue.lane(Rank.WAITING)
    builds = [one.submit(script.done.append, "one"), other.submit(script.done.append, "other")]
    first(other)
    assert script.ended(*builds) == ["other", "one"]


def test_what_is_cancelled_is_not_built_and_holds_up_nothing(script):
    lane = script.queue.lane(Rank.WAITING)
    dropped, kept = lane.submit(script.done.append, "dropped"), lane.submit(script.done.append, "kept")
    assert dropped.cancel()
    assert script.ended(kept) == ["kept"]


def test_errors_are_the_submitters_and_the_thread_goes_on(script):
    def fails():
        raise ValueError("no")

    failed, after = script.queue.submit(fails), script.queue.submit(script.done.append, "after")
    assert script.ended(after) == ["after"]
    with pytest.raises(ValueError, match="no"):
        failed.result()


def test_shutting_down_cancels_what_waits_in_every_lane_and_takes_nothing_more(script):
    builds = [script.queue.lane(rank).submit(script.done.append, rank.name) for rank in Rank]
    script.queue.shutdown(wait=False, cancel_futures=True)
    script.go.set()
    for build in builds:
        with pytest.raises(CancelledError):
            build.result(10)
    assert script.done == []
    with pytest.raises(RuntimeError):
        script.queue.submit(script.done.append, "late")
