import threading
import time

from engine.process.fair_lock import Turns


def waits(turns):
    """Until somebody waits for a turn."""
    deadline = time.monotonic() + 20
    while not turns._waiting:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_asks_again_waits_behind_who_asked_before():
    turns, order = Turns(), []

    def other():
        with turns:
            order.append("other")

    with turns:
        thread = threading.Thread(target=other)
        thread.start()
        waits(turns)
    with turns:
        order.append("again")
    thread.join(20)
    assert order == ["other", "again"]
    assert not turns.locked()


def test_one_at_a_time():
    turns, inside, most = Turns(), [0], [0]

    def work():
        for _ in range(200):
            with turns:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most[0] == 1
    assert not turns.locked()


def test_it_is_given_back_after_an_error():
    turns = Turns()
    try:
        with turns:
            raise ValueError
    except ValueError:
        pass
    assert not turns.locked()


def test_waiting_is_counted_for_the_search_and_not_for_its_guest():
    turns = Turns()
    with turns.guest():
        assert turns.locked()
        waiting = threading.Thread(target=lambda: turns.__enter__())
        waiting.start()
        waits(turns)
        time.sleep(0.06)
    waiting.join()
    assert turns.waited_s > 0.05
    waited = turns.waited_s
    guest = threading.Thread(target=lambda: turns.guest().__enter__())
    guest.start()
    waits(turns)
    time.sleep(0.02)
    turns.__exit__()
    guest.join()
    assert turns.waited_s == waited
