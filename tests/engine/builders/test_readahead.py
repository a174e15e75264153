"""What is read ahead is read once, where it was meant to be, and who asks meanwhile waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.builders.readahead import Ahead, Foresight
from engine.model import Program


def program(text: str) -> Program:
    return Program({"k.cu": text.encode()}, "k.cu")


def test_a_text_is_read_once_and_elsewhere_if_that_was_foreseen() -> None:
    asked: list[str] = []
    ahead: Ahead[str] = Ahead(lambda p: asked.append("here") or "said", lambda p: asked.append("there") or "said")
    ahead.prefetch(program("a"))
    assert ahead(program("a")) == "said"
    assert asked == ["there"]
    ahead(program("b"))
    ahead.prefetch(program("b"))
    assert asked == ["there", "here"]


def test_who_asks_for_what_another_thread_is_at_waits_for_it() -> None:
    begun, go, asked = threading.Event(), threading.Event(), []

    def slow(p: Program) -> str:
        asked.append(p.digest)
        begun.set()
        assert go.wait(10)
        return "said"

    ahead: Ahead[str] = Ahead(lambda p: pytest.fail("read twice"), slow)
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(ahead.prefetch, program("a"))
        assert begun.wait(10)
        second = executor.submit(ahead, program("a"))
        go.set()
        first.result(10)
        assert second.result(10) == "said"
    assert len(asked) == 1


def test_what_nobody_foresaw_is_read_aside_and_here_once_that_has_ended() -> None:
    names: list[str] = []

    def said(p: Program) -> str:
        names.append(threading.current_thread().name)
        return "said"

    with ThreadPoolExecutor(1, thread_name_prefix="aside") as aside:
        ahead: Ahead[str] = Ahead(lambda p: "here", said, aside)
        assert ahead(program("a")) == "said"
        assert names[0].startswith("aside")
    assert ahead(program("b")) == "here"


def test_what_was_interrupted_is_asked_again() -> None:
    answers = iter([KeyboardInterrupt(), "said"])

    def interrupted(p: Program) -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    ahead: Ahead[str] = Ahead(interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead(program("a"))
    assert ahead(program("a")) == "said"


def test_of_what_waits_to_be_read_only_the_latest_is() -> None:
    begun, go, read = threading.Event(), threading.Event(), []

    def slow(p: Program) -> None:
        read.append(p.data.decode())
        begun.set()
        assert go.wait(10)

    with ThreadPoolExecutor(1) as aside:
        foresight = Foresight([Ahead(slow)], aside)
        foresight.soon(program("a"))
        assert begun.wait(10)
        foresight.soon(program("b"))
        foresight.soon(program("c"))
        go.set()
    assert read == ["a", "c"]
    Foresight([Ahead(slow)], None).soon(program("d"))
    assert read == ["a", "c"]


def test_who_would_have_to_wait_is_told_for_what() -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(p: Program) -> str:
        begun.set()
        assert go.wait(10)
        return "said"

    with ThreadPoolExecutor(1) as aside:
        ahead: Ahead[str] = Ahead(lambda p: pytest.fail("read here"), slow, aside)
        quick: Ahead[str] = Ahead(lambda p: "said")
        first = ahead.coming(program("a"))
        assert begun.wait(10)
        other = ahead.coming(program("b"))  # behind it
        assert other is not None
        assert ahead.coming(program("b")) is other  # asked for once
        assert Foresight([quick, ahead], aside).coming(program("a")) is not None
        go.set()
        assert first is not None
        assert (first.result(10), other.result(10)) == ("said", "said")
        assert ahead.coming(program("a")) is None
        assert Foresight([quick, ahead], aside).coming(program("a")) is None
    assert quick.coming(program("c")) is None  # nobody is at it: it is read when it is asked for


def test_what_cannot_be_read_elsewhere_is_read_here() -> None:
    def failing(p: Program) -> str:
        raise OSError("no more processes")

    with ThreadPoolExecutor(1) as aside:
        ahead: Ahead[str] = Ahead(lambda p: "here", failing, aside)
        coming = ahead.coming(program("a"))
        if coming is not None:
            assert isinstance(coming.exception(10), OSError)
        assert ahead.coming(program("a")) is None  # whoever waits for it does not wait for ever
        assert ahead(program("a")) == "here"
        assert ahead(program("b")) == "here"


def test_what_is_waited_for_is_asked_for_in_all_ways_at_once() -> None:
    """The templates of a program were asked for once its edits were there, and the search waited twice."""
    both = threading.Barrier(2)

    def slow(p: Program) -> str:
        both.wait(10)
        return "said"

    with ThreadPoolExecutor(2) as aside:
        ways = [Ahead(lambda p: pytest.fail("read here"), slow, aside) for _ in range(2)]
        coming = Foresight(ways, aside).coming(program("a"))
        assert coming is not None
        assert coming.result(10) == "said"
        assert [way(program("a")) for way in ways] == ["said", "said"]
